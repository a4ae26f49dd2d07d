"""Compaction of the context: when, what is shown, and what it never touches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from llmsession import CompactionConfig, InterruptResult, Tool, ToolOutput, UnknownToolCall
from llmsession.compaction.policies import SwapToolResults
from llmsession.session.values.outcome import CompactionOutcome
from llmsession.testing.scripted import Scripted, call, never, say, think
from llmsession.turns.request import Request, StepTag
from tests.session.actors import Planning, Quick, Stage, Waiting, meanwhile, settled, stage
from tests.session.compacting.conversations import (
    LINE,
    OUTPUT,
    applied,
    compacting,
    one_call_a_turn,
    tools,
    turns,
)


def small(**changes: Any) -> dict[str, Any]:
    """A window that a few results fill."""
    swap = {"policy": "swap_tool_results", "schedule": "at_once"}
    kept = CompactionConfig(**{**swap, "keep_recent_turns": 2, "threshold": 0.5, **changes})
    return {"window_tokens": 40_000, "max_tokens": 10_000, "compaction": kept}


@asynccontextmanager
async def filled(script: Any = one_call_a_turn, count: int = 5) -> AsyncIterator[Stage]:
    """A session after *count* turns, which is compacted only where a caller asks for it."""
    async with stage(script, tools=tools(), **small(threshold=0.99)) as on:
        await turns(on, count)
        yield on


async def test_past_the_threshold_old_results_are_swapped_in_the_background() -> None:
    async with stage(one_call_a_turn, tools=tools(), **small()) as on:
        await turns(on, 4)
        assert await applied(on) == []
        await turns(on, 4)
        record = (await applied(on))[0]
        assert record.tokens_after < record.tokens_before
        assert record.policy == "swap_tool_results"
        assert "tokens used" in record.reason
        assert on.session.status().compacted_before > 0
        shown = on.session.context().encode().decode()
        assert "[compacted: the full result has" in shown
        assert shown.count(LINE.strip()) < 7 * 200


async def test_a_history_only_grows_by_identity_whatever_is_compacted() -> None:
    async with stage(one_call_a_turn, tools=tools(), **small()) as on:
        before = on.session.conversation()
        for n in range(10):
            await on.say(f"message {n}")
            after = on.session.conversation()
            assert len(after) > len(before)
            assert all(a is b for a, b in zip(before, after, strict=False))
            before = after
        assert await applied(on) != []


async def test_below_the_threshold_and_disabled_nothing_is_compacted() -> None:
    async with stage(one_call_a_turn, tools=tools()) as on:
        await turns(on, 8)
        assert await applied(on) == []
    async with stage(one_call_a_turn, tools=tools(), **small(enabled=False)) as on:
        await turns(on, 6)
        assert await applied(on) == []
        assert on.session.context().encode().count(b"[compacted") == 0


async def test_compact_now_ignores_the_threshold_and_reports_what_it_freed() -> None:
    async with filled() as on:
        outcome = await on.session.compact()
        assert outcome.applied
        assert outcome.tokens_after < outcome.tokens_before
        assert on.session.status().jobs == ()


@pytest.mark.parametrize(
    ("output", "count"), [(OUTPUT, 1), ("ok", 9)], ids=["nothing is old", "nothing is long"]
)
async def test_with_nothing_to_free_compact_says_so_and_changes_nothing(
    output: str, count: int
) -> None:
    async with stage(one_call_a_turn, tools=tools(output)) as on:
        await turns(on, count)
        before = on.session.context().encode()
        outcome = await on.session.compact()
        assert (outcome.applied, outcome.reason) == (False, "nothing to gain")
        assert on.session.context().encode() == before
        assert await applied(on) == []


async def test_many_callers_of_compact_all_get_an_answer() -> None:
    async with filled() as on:
        async with compacting(on, callers=5) as outcomes:
            pass
        assert len(outcomes) == 5
        assert len(await applied(on)) == 1


async def test_one_long_turn_is_compacted_between_its_steps() -> None:
    def script(request: Request, tag: StepTag) -> Scripted:
        return call("t", id=f"c{tag.step}") if tag.step < 12 else "done"

    async with stage(script, tools=tools(), **small(keep_recent_steps=2)) as on:
        assert await on.say("work") == "done"
        assert await applied(on) != []
        assert len(on.session.conversation()) == 24
        sizes = [len(request.encode()) for request in on.provider.requests]
        assert max(sizes) > sizes[-1]


async def test_the_callers_summary_is_shown_and_never_another() -> None:
    output = ToolOutput(content=OUTPUT, compact_summary="The listing had 200 lines.")
    async with stage(one_call_a_turn, tools=tools(output), **small()) as on:
        await turns(on, 5)
        await on.session.compact()
        shown = on.session.context().encode().decode()
        assert shown.count("The listing had 200 lines.") == 3


async def test_summaries_that_come_later_serve_the_next_compaction_only() -> None:
    async with filled(count=4) as on:
        await on.session.compact()
        shown_results = on.session.context().encode()
        await on.session.store_compact_summaries({"c1": "better text for c1"})
        assert on.session.context().encode() == shown_results
        await on.session.store_compact_summaries({"c3": "better text for c3"})
        await turns(on, 2)
        assert (await on.session.compact()).applied
        shown = on.session.context().encode().decode()
        assert "better text for c3" in shown
        # What the frontier has passed shows the text it was frozen with.
        assert "better text for c1" not in shown


async def test_a_frozen_text_never_changes_so_the_prefix_stays_byte_identical() -> None:
    async with filled(count=4) as on:
        await on.session.compact()
        shown_results = [bytes(m.body) for m in on.session.context().messages[:6]]
        for _ in range(4):
            await turns(on, 2)
            await on.session.compact()
            assert [bytes(m.body) for m in on.session.context().messages[:6]] == shown_results


async def test_the_prefix_of_the_requests_changes_only_where_a_compaction_says_so() -> None:
    async with stage(one_call_a_turn, tools=tools(), **small()) as on:
        await turns(on, 12)
        breaks = 0
        for before, after in zip(on.provider.requests, on.provider.requests[1:], strict=False):
            old = [bytes(m.body) for m in before.messages]
            new = [bytes(m.body) for m in after.messages]
            assert (before.system, before.tools, before.model) == (
                after.system,
                after.tools,
                after.model,
            )
            breaks += new[: len(old)] != old
        assert 0 < breaks <= len(await applied(on))


async def test_equal_stories_make_byte_identical_requests() -> None:
    told = []
    for _ in range(2):
        async with stage(one_call_a_turn, tools=tools(), **small()) as on:
            await turns(on, 8)
            told.append([request.encode() for request in on.provider.requests])
    assert told[0] == told[1]


async def test_summaries_for_a_call_that_never_was_are_refused() -> None:
    async with stage(one_call_a_turn, tools=tools()) as on:
        with pytest.raises(UnknownToolCall):
            await on.session.store_compact_summaries({"c1": "x"})


# Compare and swap


async def test_a_compaction_is_discarded_when_the_history_was_cleared_meanwhile() -> None:
    async with filled() as on:
        async with compacting(on) as outcomes, anyio.create_task_group() as group:
            group.start_soon(on.session.clear)
        # Either it was applied before the clear, or it was discarded; never after it.
        kinds = await on.kinds()
        assert "compaction.applied" not in kinds[kinds.index("conversation.cleared") :]
        assert on.session.status().compacted_before == 0
        assert len(outcomes) == 1


async def test_a_threshold_in_tokens_compacts_in_any_window() -> None:
    compaction = CompactionConfig(
        threshold_tokens=10_000, schedule="at_once", keep_recent_turns=1, keep_recent_steps=1
    )
    async with stage(
        one_call_a_turn, tools=tools(), window_tokens=900_000, max_tokens=1_000,
        compaction=compaction,
    ) as on:  # fmt: skip
        await turns(on, 2)
        assert await applied(on) == []
        await turns(on, 8)
        assert await applied(on)
        assert on.session.status().context_tokens < 10_000


async def test_a_compaction_is_not_applied_while_a_reply_streams() -> None:
    def script(request: Request, tag: StepTag) -> Scripted:
        if tag.turn < 6:
            return one_call_a_turn(request, tag)
        return say("a long reply " * 10).slow(1)

    async with filled(script) as on:
        turn = await on.session.send("last")
        await anyio.sleep(3)
        async with compacting(on) as outcomes:
            await settled()
            assert on.session.status().turn_phase == "streaming"
            assert await applied(on) == []
            assert on.session.status().jobs == ("compaction",)
            await turn.text()
        assert outcomes[0].applied
        kinds = await on.kinds()
        assert kinds.index("compaction.applied") > max(
            at for at, kind in enumerate(kinds) if kind == "turn.committed"
        )


async def test_a_compaction_survives_what_is_appended_meanwhile() -> None:
    tool = Waiting(OUTPUT)

    def script(request: Request, tag: StepTag) -> Scripted:
        if tag.turn == 6 and tag.step == 1:
            return say("streams for a while").slow(1) + call("waits", id="w")
        return one_call_a_turn(request, tag) if tag.turn < 6 else "done"

    kept = [*tools(), Tool(name="waits", run=tool)]
    async with stage(script, tools=kept, **small(threshold=0.99)) as on:
        await turns(on, 5)
        turn = await on.session.send("last")
        await anyio.sleep(1.5)
        async with meanwhile(on.session.compact):
            assert on.session.status().jobs == ("compaction",)
            # The step's call is journaled, and its message appended, while the plan is ready.
            await tool.started.wait()
        assert len(await applied(on)) == 1
        tool.go.set()
        assert await turn.text() == "done"


async def test_an_abort_clamps_the_view_to_what_is_kept() -> None:
    def script(request: Request, tag: StepTag) -> Scripted:
        if tag.turn == 1:
            return "hi"
        if tag.turn == 2:
            return call("t", id=f"c{tag.step}") if tag.step < 12 else never()
        return "next"

    async with stage(script, tools=tools(), **small(keep_recent_steps=2)) as on:
        await on.say("hello")
        await on.session.send("long work")
        await anyio.sleep(1)
        assert on.session.status().compacted_before > 2
        assert (await on.session.interrupt()).result is InterruptResult.ABORTED
        assert on.session.status().compacted_before <= 2
        assert await on.say("again") == "next"


async def test_clear_resets_the_view() -> None:
    async with stage(one_call_a_turn, tools=tools(), **small()) as on:
        await turns(on, 5)
        await on.session.compact()
        await on.session.clear()
        assert on.session.status().compacted_before == 0
        await turns(on, 1)
        assert b"[compacted" not in on.session.context().encode()


async def test_a_compaction_is_shown_as_a_job_and_can_be_cancelled() -> None:
    def script(request: Request, tag: StepTag) -> Scripted:
        return one_call_a_turn(request, tag) if tag.turn < 6 else say("long " * 20).slow(1)

    async with filled(script) as on:
        turn = await on.session.send("last")
        await anyio.sleep(2)
        async with compacting(on) as outcomes:
            await settled()
            assert on.session.status().jobs == ("compaction",)
            on.session.cancel_compaction()
        assert outcomes == [CompactionOutcome(applied=False, reason="cancelled")]
        await turn.text()
        await settled()
        assert await applied(on) == []
        assert on.session.status().jobs == ()


async def test_an_edit_of_the_prefix_leaves_out_the_thinking_that_was_bound_to_it() -> None:
    def script(request: Request, tag: StepTag) -> Scripted:
        if tag.step == 1:
            return think(f"thought {tag.turn}.") + call("t", id=f"c{tag.turn}")
        return think(f"after {tag.turn}.") + say("done")

    async with filled(script) as on:
        assert on.session.context().encode().count(b"thought") == 5
        await on.session.compact()
        assert on.session.context().encode().count(b"thought") == 0
        await turns(on, 1)
        assert on.session.context().encode().count(b"thought") == 1


async def test_a_request_that_would_not_fit_is_compacted_before_it_is_sent() -> None:
    async with stage(
        one_call_a_turn,
        tools=tools(),
        window_tokens=40_000,
        max_tokens=10_000,
        compaction=CompactionConfig(threshold=0.999, keep_recent_turns=50, keep_recent_steps=50),
    ) as on:
        # Few enough messages that no thread is needed: virtual time does not wait for one.
        await turns(on, 14)
        assert await applied(on) != []
        assert on.session.status().turns == 14


async def test_a_compaction_made_for_a_turn_that_was_dropped_meanwhile_is_discarded() -> None:
    def script(request: Request, tag: StepTag) -> Scripted:
        return one_call_a_turn(request, tag) if tag.turn < 6 else say("x").hanging(at=2)

    async with filled(script) as on:
        before = on.session.context().encode()
        await on.begin("dropped")
        async with compacting(on) as outcomes:
            await settled()
            assert on.session.status().jobs == ("compaction",)
            await on.session.interrupt()
        assert not outcomes[0].applied
        assert "changed" in outcomes[0].reason
        assert await applied(on) == []
        assert on.session.context().encode() == before


async def test_a_request_waits_for_the_compaction_that_is_ready_when_it_is_built() -> None:
    def script(request: Request, tag: StepTag) -> Scripted:
        if tag.turn < 6:
            return one_call_a_turn(request, tag)
        return say("streams for a while " * 3).slow(1) if tag.step == 1 else "done"

    async with filled(script) as on:
        turn = await on.session.send("last")
        await on.session.send("and more", when_busy="steer")
        async with meanwhile(on.session.compact):
            assert on.session.status().jobs == ("compaction",)
            await turn.text()
        assert len(await applied(on)) == 1
        assert b"[compacted" not in on.provider.requests[-2].encode()
        assert b"[compacted" in on.provider.requests[-1].encode()


async def test_a_plan_that_was_made_before_a_change_of_the_model_is_discarded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with filled() as on:
        planning = Planning(monkeypatch)
        async with compacting(on) as outcomes:
            await planning.started.wait()
            await on.session.configure(model="n")
            planning.go.set()
        assert not outcomes[0].applied
        assert "changed" in outcomes[0].reason
        assert await applied(on) == []


async def test_a_plan_for_a_dropped_turn_is_discarded_though_the_next_is_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def script(request: Request, tag: StepTag) -> Scripted:
        if tag.turn < 6:
            return one_call_a_turn(request, tag)
        return never() if tag.turn == 6 else call("mine", id="m")

    kept = [*tools(), Tool(name="mine")]
    async with stage(script, tools=kept, **small(threshold=0.99)) as on:
        await turns(on, 5)
        await on.begin("dropped")
        planning = Planning(monkeypatch)
        async with compacting(on) as outcomes:
            await planning.started.wait()
            length = len(on.session.conversation(include_open=True))
            await on.session.interrupt()
            await on.begin("in its place")
            # Its tools run, so a compaction may be applied, and nothing planned for is missing.
            assert on.session.status().turn_phase == "tools"
            assert len(on.session.conversation(include_open=True)) >= length
            planning.go.set()
        assert not outcomes[0].applied
        assert "changed" in outcomes[0].reason
        assert await applied(on) == []


async def test_a_job_that_would_gain_too_little_is_not_applied_but_one_asked_for_is() -> None:
    async with stage(one_call_a_turn, tools=tools(), **small(min_gain=0.9)) as on:
        await turns(on, 8)
        assert await applied(on) == []
        assert (await on.session.compact()).applied
        assert len(await applied(on)) == 1


async def test_a_job_that_gained_too_little_is_not_tried_again_with_every_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans: list[int] = []
    plan = SwapToolResults.plan

    def counted(self: SwapToolResults, view: Any, messages: Any, budget: Any) -> Any:
        plans.append(len(messages))
        return plan(self, view, messages, budget)

    monkeypatch.setattr(SwapToolResults, "plan", counted)
    settings = {**small(min_gain=0.9, threshold=0.3), "window_tokens": 60_000}
    async with stage(one_call_a_turn, tools=tools(), **settings) as on:
        await turns(on, 11)
        # From the threshold on, about 13 requests: one plan until there is 1.9 times as much.
        assert 1 <= len(plans) <= 2
        assert await applied(on) == []


async def test_a_request_that_does_not_fit_is_compacted_as_hard_as_it_takes_in_one_go() -> None:
    def script(request: Request, tag: StepTag) -> Scripted:
        if tag.turn == 1:
            return call("small", id="c1") if tag.step == 1 else "done"
        return call("t", id=f"c{tag.turn}_{tag.step}") if tag.step < 11 else "done"

    kept = CompactionConfig(threshold=0.999, keep_recent_turns=1, keep_recent_steps=None)
    # What the settings let go, one small result, is not enough: turn 2 alone is too large.
    fits: dict[str, Any] = {"window_tokens": 34_000, "max_tokens": 10_000, "compaction": kept}
    both = [*tools(), Tool(name="small", run=Quick(LINE * 40))]
    async with stage(script, tools=both, **fits) as on:
        await on.say("a small result", "many large ones")
        (record,) = await applied(on)
        assert {"c1", "c2_1", "c2_2"} <= set(record.shown_results)


async def test_what_a_dropped_turn_had_summarised_goes_with_it() -> None:
    def script(request: Request, tag: StepTag) -> Scripted:
        return one_call_a_turn(request, tag) if tag.turn == 1 or tag.step == 1 else never()

    async with stage(script, tools=tools()) as on:
        await on.say("kept")
        await on.begin("dropped")
        assert set(on.session.reference.actor.state.summaries) == {"c1", "c2"}
        await on.session.interrupt()
        assert set(on.session.reference.actor.state.summaries) == {"c1"}
