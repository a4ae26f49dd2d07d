"""Compaction by the provider, through the real SDK over real HTTP: edits, summaries at a
threshold, and signed summaries on demand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from llmsession import (
    CompactionConfig,
    InvalidConfig,
    ProviderError,
    Request,
    RequestMessage,
    StepTag,
    Tool,
    records,
)
from llmsession.compaction.provider_side import (
    ClearThinking,
    ClearToolUses,
    CompactAtThreshold,
    ProviderSideConfig,
    ProviderSummaries,
)
from llmsession.session.compacting import provider_summary
from llmsession.session.handles.session import live_state
from llmsession.testing import ScriptedReply, WireFault, call, say, think
from llmsession.turns.blocks import encode_blocks
from tests.providers.over_http import Line, on_line
from tests.session.actors import Quick

pytestmark = pytest.mark.real_time

RESULT = "line of output\n" * 600
"""9,000 characters, 2,250 tokens as the strict server counts."""
ADAPTIVE = {"thinking": {"type": "adaptive"}}


def loop(steps: int) -> Any:
    """Every turn makes so many thoughtful calls, then answers."""

    def reply(received: Any) -> ScriptedReply:
        last = received.messages[-1]["content"]
        results = sum(
            isinstance(block, dict) and block.get("type") == "tool_result"
            for message in received.messages
            for block in message["content"]
        )
        number = received.number
        thought = think(f"thought {number}")
        asked = isinstance(last, list) and last[-1].get("type") == "tool_result"
        if asked and results % steps == 0:
            return thought + say(f"answer {number}")
        return thought + call("t", {"n": number}, id=f"c{number}")

    return reply


def side(**given: Any) -> CompactionConfig:
    return CompactionConfig(provider_side=ProviderSideConfig(**given))


async def replies(line: Line) -> list[records.AssistantReply]:
    log = await line.log()
    found = (getattr(record, "reply", None) for record in log)
    return [each for each in found if each is not None]


def betas(line: Line) -> list[set[str]]:
    found = [each.headers.get("anthropic-beta", "") for each in line.server.requests]
    return [set(filter(None, each.split(","))) for each in found]


def thoughts(line: Line) -> int:
    """How many thinking blocks the last request sent."""
    last = line.server.requests[-1].messages
    blocks = (block for message in last for block in message["content"])
    return sum(isinstance(block, dict) and block["type"] == "thinking" for block in blocks)


# Edits with every request.


async def test_the_provider_clears_old_results_and_we_send_all_of_them() -> None:
    compaction = side(
        clear_thinking=ClearThinking(keep_turns=2),
        clear_tool_uses=ClearToolUses(trigger_tokens=6_000, keep=2),
    )
    tool = Tool(name="t", run=Quick(RESULT))
    async with on_line(
        "anthropic", loop(6), tools=[tool], options=ADAPTIVE, compaction=compaction
    ) as line:
        assert "answer" in await line.say("go")
        body = line.server.requests[-1].body
        assert [edit["type"] for edit in body["context_management"]["edits"]] == [
            "clear_thinking_20251015",
            "clear_tool_uses_20250919",
        ]
        assert all("context-management-2025-06-27" in each for each in betas(line))
        assert str(body["messages"]).count("line of output") == 6 * 600
        assert thoughts(line) == 6
        last = (await replies(line))[-1]
        assert [edit.type for edit in last.edits] == [
            "clear_thinking_20251015",
            "clear_tool_uses_20250919",
        ]
        cleared = last.edits[1]
        assert cleared.cleared_tool_uses == 4
        assert cleared.cleared_input_tokens > 4 * 2_000
        assert not any(isinstance(r, records.CompactionApplied) for r in await line.log())


async def test_a_size_is_that_of_what_the_model_reads_after_the_edit() -> None:
    compaction = side(clear_tool_uses=ClearToolUses(trigger_tokens=6_000, keep=2))
    tool = Tool(name="t", run=Quick(RESULT))
    async with on_line("anthropic", loop(12), tools=[tool], compaction=compaction) as line:
        await line.say("go")
        reported = live_state(line.session).reported
        assert reported is not None
        assert reported.sent_tokens > 3 * reported.usage.prompt_tokens
        status = line.session.status()
        last = (await replies(line))[-1]
        assert last.usage is not None
        assert status.context_tokens < 12_000
        whole = last.usage.prompt_tokens + sum(edit.cleared_input_tokens for edit in last.edits)
        assert whole > 16_000


async def test_a_request_that_fits_only_once_the_provider_has_cleared_is_not_compacted_by_us() -> (
    None
):
    compaction = side(clear_tool_uses=ClearToolUses(trigger_tokens=6_000, keep=2))
    calls = ScriptedReply()
    for number in range(12):
        calls += call("t", {"n": number}, id=f"c{number}")
    async with on_line(
        "anthropic",
        [calls, "answer"],
        tools=[Tool(name="t", run=Quick(RESULT))],
        compaction=compaction,
        window_tokens=18_000,
        max_tokens=2_000,
    ) as line:
        assert await line.say("go") == "answer"
        assert not any(isinstance(r, records.CompactionApplied) for r in await line.log())
        assert str(line.server.requests[-1].body["messages"]).count("line of output") == 12 * 600
        cost = line.server.requests[-1].cost
        assert cost is not None
        assert cost.prompt.whole < 8_000


async def test_our_own_compaction_rests_where_the_provider_clears() -> None:
    script = [call("t", {"n": n}, id=f"c{n}") for n in range(5)] + [say("a"), say("b"), say("c")]
    applied = []
    clears = ProviderSideConfig(clear_tool_uses=ClearToolUses(trigger_tokens=500_000))
    for provider_side in (clears, None):
        compaction = CompactionConfig(
            schedule="at_once",
            keep_recent_steps=1,
            keep_recent_turns=1,
            provider_side=provider_side,
        )
        async with on_line(
            "anthropic",
            script,
            tools=[Tool(name="t", run=Quick(RESULT))],
            compaction=compaction,
            window_tokens=15_000,
            max_tokens=1_000,
        ) as line:
            for said in ("go", "and", "on"):
                await line.say(said)
            log = await line.log()
            applied.append(any(isinstance(r, records.CompactionApplied) for r in log))
    assert applied == [False, True]


async def test_what_does_not_fit_though_the_provider_clears_is_compacted_by_us() -> None:
    compaction = side(clear_tool_uses=ClearToolUses(trigger_tokens=500_000))
    tool = Tool(name="t", run=Quick(RESULT))
    async with on_line(
        "anthropic",
        loop(10),
        tools=[tool],
        compaction=compaction,
        window_tokens=14_000,
        max_tokens=2_000,
    ) as line:
        assert "answer" in await line.say("go")
        applied = [r for r in await line.log() if isinstance(r, records.CompactionApplied)]
        assert {record.trigger for record in applied} == {"window"}


async def test_edits_go_to_models_only_that_take_them() -> None:
    clears = side(clear_tool_uses=ClearToolUses())
    async with on_line("anthropic", [], may_refuse=True) as line:
        with pytest.raises(InvalidConfig, match=r"'claude-x' is not known to take clear_tool_uses"):
            await line.session.configure(model="claude-x", compaction=clears)
        with pytest.raises(InvalidConfig, match="'claude-opus-4-5' is not known to take compact"):
            compact = side(compact=CompactAtThreshold())
            await line.session.configure(model="claude-opus-4-5", compaction=compact)
        with pytest.raises(InvalidConfig, match="is not known to write summaries"):
            asked = side(summaries=ProviderSummaries())
            await line.session.configure(model="claude-opus-4-5", compaction=asked)
    async with on_line("openai", [], may_refuse=True) as line:
        with pytest.raises(InvalidConfig, match="is not known to take"):
            await line.session.configure(compaction=clears)


# Summaries at a threshold.

LONG = "word " * 8_400
"""42,000 characters, 10,500 tokens as the strict server counts."""


@pytest.mark.parametrize("pause", [False, True])
async def test_from_a_summary_on_the_context_begins_with_it(pause: bool) -> None:
    compaction = side(compact=CompactAtThreshold(trigger_tokens=50_000, pause=pause))
    options = {"summaries": lambda received: say("What was said: words.")}
    script = [think(f"t{turn}") + say(f"answer {turn}") for turn in range(9)]
    async with on_line(
        "anthropic",
        script,
        options=ADAPTIVE,
        compaction=compaction,
        server_options=options,
        max_tokens=4_000,
    ) as line:
        for turn in range(5):
            assert await line.say(f"{turn} {LONG}") == f"answer {turn}"
        held = [m for m in line.session.conversation() if b"What was said" in bytes(m.body)]
        assert len(held) == 1
        reported = live_state(line.session).reported
        assert reported is not None
        assert reported.usage.prompt_tokens < 2_000
        assert len(line.session.conversation()) == (11 if pause else 10)
        log = await replies(line)
        summary = next(each for each in log if b"What was said" in bytes(each.body))
        assert summary.context is not None
        assert summary.usage is not None
        assert summary.usage.prompt_tokens > 50_000
        assert summary.context.prompt_tokens < 2_000
        assert await line.say("and now?") == "answer 5"
        sent = line.server.requests[-1].messages
        assert sent[0]["content"][0] == {"type": "compaction", "content": "What was said: words."}
        assert [message["role"] for message in sent] == ["assistant", "user"]
        assert thoughts(line) == 1
        assert line.session.status().context_tokens < 2_000
        assert all("compact-2026-01-12" in each for each in betas(line))
        usage = line.session.usage()
        assert usage.total.prompt_tokens == sum(
            each.cost.usage.prompt_tokens for each in line.server.requests if each.cost
        )


@asynccontextmanager
async def after_long_turns(
    count: int, script: Sequence[Any] = ("answer",) * 12, **options: Any
) -> AsyncIterator[Line]:
    """A session in which the provider makes a summary from the fifth turn on."""
    compaction = side(compact=CompactAtThreshold(trigger_tokens=50_000))
    async with on_line(
        "anthropic", list(script), compaction=compaction, max_tokens=4_000, **options
    ) as line:
        for turn in range(count):
            await line.say(f"{turn} {LONG}")
        yield line


async def test_what_is_rewound_forked_or_cleared_takes_the_summary_with_it() -> None:
    async with after_long_turns(5) as line:
        await line.say("after it")
        assert line.server.requests[-1].messages[0]["content"][0]["type"] == "compaction"
        early = await line.session.fork(at=4)
        late = await line.session.fork(at=5)
        assert early.context().messages[0].role == "user"
        assert late.context().messages[0].role == "assistant"
        await line.session.rewind(to=5)
        await line.say("again")
        assert line.server.requests[-1].messages[0]["content"][0]["type"] == "compaction"
        await line.session.rewind(to=4)
        assert line.session.context().messages[0].role == "user"
        await line.session.clear()
        assert await line.say("anew")
        assert len(line.server.requests[-1].messages) == 1


async def test_a_summary_is_sent_as_a_text_where_the_edit_is_not_wanted_any_more() -> None:
    script = [think(f"t{turn}") + say(f"answer {turn}") for turn in range(12)]
    async with after_long_turns(6, script, options=ADAPTIVE) as line:
        await line.session.configure(compaction=CompactionConfig())
        await line.say("without")
        sent = line.server.requests[-1].messages
        assert "Summary of" in sent[0]["content"][0]["text"]
        assert sent[0]["role"] == "user"
        assert "compaction" not in {b["type"] for m in sent for b in m["content"]}
        await line.session.configure(model="claude-haiku-4-5", options={})
        await line.say("another model")


async def test_a_summary_that_failed_changes_nothing() -> None:
    options = {"summaries": lambda received: say("")}
    async with after_long_turns(6, server_options=options) as line:
        held = [m for m in line.session.conversation() if b'"compaction"' in bytes(m.body)]
        assert held
        assert len(line.server.requests[-1].messages) == 11


# Signed summaries on demand.

LIMITS: dict[str, Any] = {"window_tokens": 40_000, "max_tokens": 2_000}


def on_demand(**given: Any) -> CompactionConfig:
    return CompactionConfig(
        provider_side=ProviderSideConfig(summaries=ProviderSummaries(**given)),
        keep_recent_turns=1,
        keep_recent_steps=1,
        low=0.1,
    )


def answer(received: Any) -> ScriptedReply:
    return say(f"answer {received.number}")


def thoughtful_answer(received: Any) -> ScriptedReply:
    return think(f"thought {received.number}") + answer(received)


@asynccontextmanager
async def after_four_turns(script: Any = answer, **options: Any) -> AsyncIterator[Line]:
    """A session that summaries are made for on demand, with something to summarise."""
    async with on_line("anthropic", script, compaction=on_demand(), **LIMITS, **options) as line:
        for turn in range(4):
            await line.say(f"{turn} " + "word " * 2_000)
        yield line


async def test_a_signed_summary_replaces_what_it_is_of_and_later_thinking_stays_valid() -> None:
    async with after_four_turns(thoughtful_answer, options=ADAPTIVE) as line:
        outcome = await line.session.compact()
        assert outcome.applied
        asked = [each for each in line.server.requests if each.body.get("compaction")]
        assert len(asked) == 1
        assert asked[0].body["compaction"] == {"type": "summarize"}
        assert "context_management" not in asked[0].body
        await line.say("go on")
        sent = line.server.requests[-1].messages
        block = sent[0]["content"][0]
        assert block["type"] == "compaction"
        assert block["signature"]
        assert sent[0]["role"] == "assistant"
        assert thoughts(line) >= 1
        on_demand_betas = ["compact-2026-09-04" in each for each in betas(line)]
        assert on_demand_betas[-2:] == [True, True]
        assert not any(on_demand_betas[:4])
        applied = [r for r in await line.log() if isinstance(r, records.CompactionApplied)]
        assert [r.prefix_summary.by for r in applied if r.prefix_summary] == ["provider"]
        assert not applied[0].voids_thinking


async def test_it_is_made_in_the_background_and_again_when_the_context_has_grown() -> None:
    async with on_line(
        "anthropic",
        thoughtful_answer,
        options=ADAPTIVE,
        compaction=on_demand(),
        window_tokens=16_000,
        max_tokens=2_000,
    ) as line:
        for turn in range(24):
            await line.say(f"{turn} " + "word " * 1_600)
        asked = [each for each in line.server.requests if each.body.get("compaction")]
        assert len(asked) >= 2
        assert asked[-1].messages[0]["content"][0]["type"] == "compaction"
        kinds = [
            block["type"]
            for message in line.server.requests[-1].messages
            for block in message["content"]
        ]
        assert kinds.count("compaction") == 1
        assert "thinking" in kinds
        usage = line.session.usage()
        assert usage.summaries.prompt_tokens > 10_000


@pytest.mark.parametrize("stop_reason", ["max_tokens", "refusal", "tool_use", "end_turn"])
async def test_an_answer_without_a_summary_keeps_the_conversation(stop_reason: str) -> None:
    options = {"summaries": lambda received: say("x").stopping(stop_reason)}
    async with after_four_turns(server_options=options) as line:
        before = line.session.context()
        assert not (await line.session.compact()).applied
        assert line.session.context() == before
        assert (await line.session.send("go on")) is not None


async def test_an_overloaded_provider_is_asked_for_the_summary_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(provider_summary, "RETRY_DELAYS_S", (0.0, 0.0))
    count = 0

    def faults(received: Any) -> WireFault | None:
        nonlocal count
        if not (received.body or {}).get("compaction"):
            return None
        count += 1
        return WireFault.overloaded() if count == 1 else None

    async with after_four_turns(faults=faults) as line:
        assert (await line.session.compact()).applied
        assert count == 2


async def test_a_summary_is_sent_as_a_text_to_a_model_that_takes_no_block() -> None:
    async with after_four_turns() as line:
        assert (await line.session.compact()).applied
        await line.session.configure(model="claude-haiku-4-5", compaction=CompactionConfig())
        await line.say("go on")
        opening = line.server.requests[-1].messages[0]
        assert opening["role"] == "user"
        assert "Summary of" in opening["content"][0]["text"]
        back = on_demand()
        await line.session.configure(model="claude-opus-5-5", compaction=back)
        await line.say("and back")
        assert line.server.requests[-1].messages[0]["content"][0]["type"] == "compaction"


async def test_a_refusal_about_a_summary_is_named_by_its_code() -> None:
    signed = {"type": "compaction", "content": "said", "signature": "not.made.here"}
    edits = {"context_management": {"edits": [{"type": "compact_20260112"}]}}
    refused: dict[str, Any] = {
        "compaction_signature_invalid": (({"role": "assistant", "content": [signed]},), {}),
        "compaction_block_misplaced": (
            ({"role": "user", "content": "a"}, {"role": "assistant", "content": [signed]}),
            {},
        ),
        "compaction_block_ambiguous": (({"role": "assistant", "content": [signed, signed]},), {}),
        "": (({"role": "assistant", "content": [signed]},), edits),
    }
    async with on_line("anthropic", [], may_refuse=True) as line:
        for code, (before, options) in refused.items():
            request = Request(
                model="claude-opus-5-5",
                max_tokens=100,
                messages=tuple(
                    RequestMessage(each["role"], encode_blocks(each["content"]))
                    for each in (*before, {"role": "user", "content": "go on"})
                ),
                options=options,
            )
            with pytest.raises(ProviderError) as caught:
                async for _ in line.provider.stream(request, StepTag(1, 1, 1)):
                    raise AssertionError
            assert (caught.value.kind, caught.value.status) == ("fatal", 400)
            assert caught.value.code == (code or None)
