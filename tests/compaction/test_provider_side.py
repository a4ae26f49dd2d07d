"""What is left to the provider: how it is said, checked, logged and sent."""

from __future__ import annotations

from typing import Any

import pytest

from llmsession import CompactionConfig, InvalidConfig, Profile, SessionConfig
from llmsession.compaction.provider_side import (
    ClearThinking,
    ClearToolUses,
    CompactAtThreshold,
    ProviderSideConfig,
    ProviderSummaries,
)
from llmsession.session.values.config import load_config, store_config

TAKES = Profile(
    provider_edits=frozenset({"clear_tool_uses", "clear_thinking", "compact"}),
    compacts_on_demand=True,
)


def config(**side: Any) -> SessionConfig:
    compaction = CompactionConfig(provider_side=ProviderSideConfig(**side))
    return SessionConfig(model="m", compaction=compaction)


def edits(**side: Any) -> list[dict[str, Any]]:
    options = config(**side).checked().frame(TAKES).options
    found: list[dict[str, Any]] = options["context_management"]["edits"]
    return found


def test_v14_clearing_of_thinking_is_the_first_edit() -> None:
    found = edits(clear_tool_uses=ClearToolUses(), clear_thinking=ClearThinking(keep_turns="all"))
    assert found == [
        {"type": "clear_thinking_20251015", "keep": "all"},
        {"type": "clear_tool_uses_20250919"},
    ]


def test_an_edit_says_what_was_given_and_nothing_else() -> None:
    tools = ClearToolUses(
        trigger_tokens=30_000,
        keep=2,
        clear_at_least_tokens=5_000,
        exclude_tools=("search",),
        clear_inputs=("bash",),
    )
    thinking = ClearThinking(keep_turns=2)
    compact = CompactAtThreshold(trigger_tokens=80_000, instructions="short", pause=True)
    assert edits(clear_thinking=thinking, clear_tool_uses=tools, compact=compact) == [
        {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 2}},
        {
            "type": "clear_tool_uses_20250919",
            "trigger": {"type": "input_tokens", "value": 30_000},
            "keep": {"type": "tool_uses", "value": 2},
            "clear_at_least": {"type": "input_tokens", "value": 5_000},
            "exclude_tools": ["search"],
            "clear_tool_inputs": ["bash"],
        },
        {
            "type": "compact_20260112",
            "trigger": {"type": "input_tokens", "value": 80_000},
            "instructions": "short",
            "pause_after_compaction": True,
        },
    ]
    by_uses = ClearToolUses(trigger_tool_uses=9, clear_inputs=True)
    assert edits(clear_tool_uses=by_uses)[0]["trigger"] == {"type": "tool_uses", "value": 9}


def test_a_configuration_comes_back_from_the_log_as_it_was() -> None:
    made = config(
        clear_tool_uses=ClearToolUses(clear_inputs=("a",)),
        summaries=ProviderSummaries(instructions="in short"),
    ).checked()
    assert load_config(store_config(made)) == made


@pytest.mark.parametrize(
    ("side", "told"),
    [
        ({}, "is empty"),
        ({"compact": CompactAtThreshold(), "summaries": ProviderSummaries()}, "exclude each other"),
        ({"clear_tool_uses": ClearToolUses(trigger_tokens=1, trigger_tool_uses=1)}, "two triggers"),
        ({"clear_tool_uses": ClearToolUses(keep=-1)}, "clear_tool_uses.keep must be .* not -1"),
        ({"clear_thinking": ClearThinking(keep_turns=0)}, "keep_turns must be .* not 0"),
        (
            {"compact": CompactAtThreshold(trigger_tokens=49_999)},
            "a whole number of at least 50000",
        ),
        ({"summaries": ProviderSummaries(max_tokens=0)}, "max_tokens must be .* not 0"),
        ({"summaries": ProviderSummaries(instructions="x" * 16_385)}, "16385 characters"),
        ({"summaries": ProviderSummaries(deadline_s=0)}, "deadline_s"),
    ],
)
def test_what_cannot_be_is_refused_with_its_name(side: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidConfig, match=told):
        config(**side).checked()


def test_edits_are_said_in_one_place_only() -> None:
    both = SessionConfig(
        model="m",
        options={"context_management": {"edits": []} | {"x": 1}},
        compaction=CompactionConfig(provider_side=ProviderSideConfig(compact=CompactAtThreshold())),
    )
    with pytest.raises(InvalidConfig, match="has a context_management"):
        both.checked()


def test_a_trigger_that_no_request_reaches_is_refused() -> None:
    made = SessionConfig(
        model="m",
        window_tokens=128_000,
        max_tokens=8_000,
        compaction=CompactionConfig(provider_side=ProviderSideConfig(compact=CompactAtThreshold())),
    )
    with pytest.raises(InvalidConfig, match="begins at 150000 tokens, but a request may hold"):
        made.check_model(TAKES)


def test_a_model_that_takes_no_edit_is_sent_none() -> None:
    made = config(clear_tool_uses=ClearToolUses(), summaries=ProviderSummaries()).checked()
    assert made.frame(Profile()).options == {}
    with pytest.raises(InvalidConfig, match="not known to take clear_tool_uses"):
        made.check_model(Profile())
    with pytest.raises(InvalidConfig, match="not known to write summaries"):
        config(summaries=ProviderSummaries()).check_model(Profile())
