from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.compaction.conversations import call_block, result_block, text
from tests.compaction.requests import (
    BASH,
    LOOP,
    assistant,
    broken_rules,
    cached,
    fault,
    places,
    raw_tool,
    request,
    user,
)


@pytest.mark.parametrize("budget", [1023, 4000, None, "2000"])
def test_v11_the_thinking_budget_is_between_1024_and_max_tokens(budget: Any) -> None:
    made = request(user("a"), thinking={"type": "enabled", "budget_tokens": budget})
    assert places(made) == [("V11", "thinking.budget_tokens")]


@pytest.mark.parametrize("kind", ["any", "tool"])
def test_v11_no_tool_is_forced_with_manual_thinking(kind: str) -> None:
    manual = {"type": "enabled", "budget_tokens": 2000}
    made = request(user("a"), thinking=manual, tool_choice={"type": kind})
    assert places(made) == [("V11", "tool_choice")]
    assert broken_rules(request(user("a"), tool_choice={"type": kind})) == []
    adaptive = request(user("a"), thinking={"type": "adaptive"}, tool_choice={"type": kind})
    assert broken_rules(adaptive) == []


def test_v12_at_most_four_breakpoints_wherever_they_stand() -> None:
    result = result_block("c1", [cached(text("x")), text("y")])
    said = [
        user(cached(text("a"))),
        assistant(call_block("c1")),
        user(cached(result), cached(text("b"))),
    ]
    assert broken_rules(request(*said)) == []
    tool = raw_tool("bash", cache_control={"type": "ephemeral"})
    made = request(*said, tools=(tool,))
    assert places(made) == [("V12", "messages[2].content[1]")]
    assert fault(made).endswith("may be provided. Found 5.")
    automatic = request(*said, cache_control={"type": "ephemeral"})
    assert places(automatic) == [("V12", "cache_control")]


def test_v12_one_hour_comes_before_five_minutes() -> None:
    made = request(user(cached(text("a"))), assistant("b"), user(cached(text("c"), "1h")))
    assert places(made) == [("V12", "messages[2].content[0]")]
    good = request(user(cached(text("a"), "1h")), assistant("b"), user(cached(text("c"), "5m")))
    assert broken_rules(good) == []


def test_v13_tool_blocks_need_tools() -> None:
    assert places(request(*LOOP, tools=())) == [("V13", "tools")]


@pytest.mark.parametrize("name", ["", "a b", "x" * 129, "é"])
def test_v13_tool_names_are_plain_and_short(name: str) -> None:
    assert places(request(user("a"), tools=(raw_tool(name),))) == [("V13", "tools[0]")]


def test_v13_tool_names_are_unique() -> None:
    assert places(request(user("a"), tools=BASH * 2)) == [("V13", "tools[1]")]


def test_v13_a_tool_has_a_name_or_is_of_the_providers_kind() -> None:
    toolset = msgspec.Raw(b'{"type":"mcp_toolset","mcp_server_name":"x"}')
    assert broken_rules(request(user("a"), tools=(toolset, toolset))) == []
    for bad in (b"{}", b'{"type":"custom"}', b"7"):
        assert broken_rules(request(user("a"), tools=(msgspec.Raw(bad),))) == ["V13"]


def test_v14_clear_thinking_is_the_first_edit() -> None:
    edits = [{"type": "clear_tool_uses_20250919"}, {"type": "clear_thinking_20251015"}]
    made = request(user("a"), context_management={"edits": edits})
    assert places(made) == [("V14", "context_management.edits[1]")]


def test_v14_edits_and_a_compaction_request_do_not_go_together() -> None:
    edits = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    made = request(user("a"), context_management=edits, compaction={"type": "summarize"})
    assert places(made) == [("V14", "compaction")]


SIGNED = {"type": "compaction", "content": "so far", "signature": "x"}


def test_v14_a_compact_edit_and_a_signed_block_do_not_go_together() -> None:
    edits = {"edits": [{"type": "compact_20260112"}]}
    made = request(assistant(SIGNED), user("a"), context_management=edits)
    assert places(made) == [("V14", "context_management")]
    unsigned = {"type": "compaction", "content": "so far"}
    made = request(user("a"), assistant(unsigned), user("b"), context_management=edits)
    assert broken_rules(made) == []


def test_v15_a_signed_compaction_block_comes_first() -> None:
    made = request(user("a"), assistant(SIGNED), user("b"))
    assert places(made) == [("V15", "messages[1].content[0]")]
    assert fault(made).startswith("compaction_block_misplaced")


def test_v15_there_is_one_signed_compaction_block() -> None:
    made = request(assistant(SIGNED, SIGNED), user("b"))
    assert places(made) == [("V15", "messages[0].content[1]")]
    assert fault(made).startswith("compaction_block_ambiguous")


def test_v15_a_compaction_request_leaves_no_call_unanswered() -> None:
    made = request(user("a"), assistant(call_block("c1")), compaction={"type": "summarize"})
    assert places(made) == [("V15", "messages[1].content[0]")]
    assert fault(made).startswith("compaction_incomplete_turn")
