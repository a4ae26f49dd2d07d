"""A summary by the conversation's own provider: what is asked, and what an answer is."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from llmsession import Profile, ProviderError
from llmsession.compaction.provider_side import ProviderSummaries
from llmsession.compaction.view.view import View
from llmsession.session.compacting import provider_summary
from llmsession.session.compacting.model_summary import SummaryFailed
from llmsession.session.compacting.provider_summary import (
    SignedSummary,
    can_summarise,
    request_for_summary,
)
from llmsession.testing.scripted import ScriptedProvider, ScriptedReply, block
from llmsession.turns.request import Frame, Request
from tests.compaction.conversations import Talk, talk

TAKES = Profile(compacts_on_demand=True)


def asked(options: dict[str, Any], **side: Any) -> Request:
    frame = Frame(model="m", max_tokens=1_000, system="be brief", options=options)
    built = talk(1)
    messages = [each for each in built.messages if not (each.tool_calls or each.tool_results)]
    return request_for_summary(messages, View(), TAKES, frame, ProviderSummaries(**side))


def test_it_asks_for_a_summary_and_leaves_out_what_only_shapes_a_reply() -> None:
    request = asked(
        {
            "thinking": {"type": "enabled", "budget_tokens": 2_000},
            "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
            "stop_sequences": ["x"],
            "output_config": {
                "format": {"type": "json"},
                "effort": "low",
                "task_budget": {"total": 9, "remaining": 5},
            },
            "metadata": {"user_id": "u"},
        },
        instructions="in short",
        max_tokens=4_000,
    )
    assert request.options == {
        "thinking": {"type": "enabled", "budget_tokens": 2_000},
        "output_config": {"effort": "low", "task_budget": {"total": 9}},
        "metadata": {"user_id": "u"},
        "compaction": {"type": "summarize", "instructions": "in short"},
    }
    assert request.max_tokens == 6_000
    assert request.system == "be brief"
    assert request.messages[-1].role == "assistant"


@pytest.mark.parametrize(("kind", "stays"), [("any", False), ("tool", False), ("auto", True)])
def test_a_tool_that_is_forced_is_not_forced_on_a_summary(kind: str, stays: bool) -> None:
    assert ("tool_choice" in asked({"tool_choice": {"type": kind}}).options) is stays


def test_a_reply_that_waits_or_was_paused_is_not_summarised() -> None:
    built = Talk()
    built.ask()
    built.step("out")
    built.reply()
    assert [can_summarise(built.messages, upto) for upto in range(5)] == [
        False, True, False, True, True,
    ]  # fmt: skip
    paused = built.messages[-1].__class__(
        id="p", session="s", turn=1, role="assistant", body=built.messages[-1].body,
        stop_reason="pause_turn",
    )  # fmt: skip
    assert not can_summarise([paused], 1)


BLOCK = ScriptedReply(
    blocks=(b'{"type":"compaction","content":"so far","signature":"s"}',), stop_reason="compaction"
)


def summary(*script: ScriptedReply) -> tuple[SignedSummary, list[ProviderError]]:
    refused: list[ProviderError] = []
    provider = ScriptedProvider(list(script))
    made = SignedSummary(provider, lambda: asked({}), is_long=False, step=1, refused=refused.append)
    return made, refused


async def test_a_summary_comes_back_byte_for_byte_and_is_paid_for() -> None:
    made, _ = summary(BLOCK)
    assert await made.block() == BLOCK.blocks[0].decode()
    assert [request.usage for request in made.requests] == [BLOCK.usage]


async def test_an_overloaded_provider_is_asked_again_after_a_while_and_not_for_ever() -> None:
    busy = ProviderError("busy", kind="retryable", code="compaction_unavailable")
    made, refused = summary(BLOCK.raising(busy), BLOCK.raising(busy), BLOCK)
    began = anyio.current_time()
    assert await made.block()
    assert anyio.current_time() - began >= sum(provider_summary.RETRY_DELAYS_S[:2])
    assert (len(made.requests), refused) == (3, [])
    made, _ = summary(*[BLOCK.raising(busy)] * 9)
    with pytest.raises(ProviderError):
        await made.block()
    assert len(made.requests) == 1 + len(provider_summary.RETRY_DELAYS_S)


@pytest.mark.parametrize("code", sorted(provider_summary.OUR_BUGS))
async def test_a_refusal_that_is_our_fault_is_reported_and_not_tried_again(code: str) -> None:
    wrong = ProviderError("wrong", kind="fatal", status=400, code=code)
    made, refused = summary(BLOCK.raising(wrong), BLOCK)
    with pytest.raises(ProviderError):
        await made.block()
    assert refused == [wrong]


async def test_a_conversation_with_too_many_tools_is_no_fault_of_ours() -> None:
    many = ProviderError("x", kind="fatal", code="compaction_too_many_tool_references")
    made, refused = summary(BLOCK.raising(many))
    with pytest.raises(ProviderError):
        await made.block()
    assert refused == []


@pytest.mark.parametrize(
    "reply",
    [
        ScriptedReply(stop_reason="refusal"),
        ScriptedReply(stop_reason="max_tokens"),
        block({"type": "compaction", "content": None, "signature": "s"}).stopping("compaction"),
        block({"type": "compaction", "content": "unsigned"}).stopping("compaction"),
        block({"type": "text", "text": "a summary"}).stopping("end_turn"),
    ],
)
async def test_what_is_no_signed_summary_is_none(reply: ScriptedReply) -> None:
    made, _ = summary(reply)
    with pytest.raises(SummaryFailed, match="holds no summary"):
        await made.block()
