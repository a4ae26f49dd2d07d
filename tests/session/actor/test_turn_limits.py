"""Limits of one turn: reaching one is an outcome with its own stop reason."""

from __future__ import annotations

import gc

import anyio
import pytest

from llmsession import Tool, TurnLimits
from llmsession.session.core.turn_run import Run
from llmsession.testing.scripted import ScriptedReply, call, never, say
from llmsession.turns.receipts import settled_text
from llmsession.turns.request import Request, StepTag
from llmsession.turns.usage import Usage
from tests.session.actors import Quick, SwallowingCancellation, Waiting, lasting, settled, stage


def calls_for_ever(request: Request, tag: StepTag) -> ScriptedReply:
    return call("t", id=f"c{tag.turn}_{tag.step}")


async def test_max_steps_ends_the_turn_after_that_many_requests_and_keeps_them() -> None:
    async with stage(calls_for_ever, tool=Quick(), limits=TurnLimits(max_steps=3)) as on:
        outcome = await on.outcome("work")
        assert (outcome.status, outcome.stop_reason) == ("committed", "max_steps")
        assert len(on.provider.requests) == 3
        assert [m.role for m in on.session.conversation()] == ["user", *["assistant", "user"] * 3]


async def test_a_session_goes_on_after_a_limit_with_valid_requests() -> None:
    async with stage(calls_for_ever, tool=Quick(), limits=TurnLimits(max_steps=2)) as on:
        for _ in range(3):
            assert (await on.outcome("work")).stop_reason == "max_steps"
        assert len(on.session.conversation()) == 15


async def test_max_tokens_counts_all_requests_of_the_turn_and_none_of_the_turn_before() -> None:
    def script(request: Request, tag: StepTag) -> ScriptedReply:
        return calls_for_ever(request, tag).costing(
            Usage(input_tokens=20, output_tokens=10, cache_read_tokens=70)
        )

    async with stage(script, tool=Quick(), limits=TurnLimits(max_tokens=250)) as on:
        for turns in (1, 2):
            outcome = await on.outcome("work")
            assert (outcome.status, outcome.stop_reason) == ("committed", "max_turn_tokens")
            assert len(on.provider.requests) == 3 * turns


async def test_max_seconds_settles_open_calls_and_keeps_the_steps() -> None:
    tool = Waiting()
    async with stage([call("t", id="c")], tool=tool, limits=TurnLimits(max_seconds=30)) as on:
        with lasting(30, abs=0.2):
            outcome = await on.outcome("work")
        assert (outcome.status, outcome.stop_reason) == ("committed", "max_seconds")
        (result,) = on.session.conversation()[-1].tool_results
        assert (result.text, result.is_error) == (settled_text("limit"), True)
        assert tool.cancelled


async def test_max_seconds_holds_against_a_tool_that_ignores_cancellation() -> None:
    tool = SwallowingCancellation(500)
    async with stage([call("t", id="c")], tool=tool, limits=TurnLimits(max_seconds=30)) as on:
        with lasting(30.1, abs=0.05):
            outcome = await on.outcome("work")
        assert len(outcome.still_running) == 1


async def test_max_seconds_before_a_step_is_complete_fails_the_turn() -> None:
    async with stage([never(), "next"], limits=TurnLimits(max_seconds=30)) as on:
        outcome = await on.outcome("work")
        assert (outcome.status, outcome.stop_reason) == ("failed", "max_seconds")
        assert "max_seconds" in (outcome.error or "")
        assert on.session.conversation() == ()
        assert await on.say("again") == "next"


async def test_max_seconds_runs_from_the_turns_start_not_from_its_acceptance() -> None:
    script = [say("x" * 16 * 20).slow(1), say("y" * 16 * 20).slow(1)]
    async with stage(script, limits=TurnLimits(max_seconds=40)) as on:
        turns = [await on.session.send("one"), await on.session.send("two")]
        assert [(await turn.outcome()).status for turn in turns] == ["committed", "committed"]


async def test_a_turn_that_ends_in_time_leaves_no_deadline_for_the_next() -> None:
    script = ["quick", say("x" * 16 * 20).slow(1)]
    async with stage(script, limits=TurnLimits(max_seconds=25)) as on:
        await on.say("one")
        await anyio.sleep(10)
        assert await on.say("two") == "x" * 320


@pytest.mark.parametrize("policy", ["keep_steps", "drop"])
async def test_a_limit_keeps_steps_whatever_happens_on_failure(policy: str) -> None:
    async with stage(
        calls_for_ever, tool=Quick(), limits=TurnLimits(max_steps=1), on_failure=policy
    ) as on:
        assert (await on.outcome("work")).status == "committed"


async def test_an_ended_turn_is_not_kept_in_memory_by_its_deadlines() -> None:
    def its_runs() -> list[Run]:
        gc.collect()
        runs = [found for found in gc.get_objects() if isinstance(found, Run)]
        return [run for run in runs if "only_in_this_test" in run.calls]

    script = [call("mine", id="only_in_this_test"), "done"]
    limits = TurnLimits(max_seconds=5000)
    tools = [Tool(name="mine")]
    async with stage(script, tools=tools, limits=limits) as on:
        turn = await on.offered("work")
        assert len(its_runs()) == 1
        await on.submit(only_in_this_test="1")
        await turn.text()
        await settled()
        assert its_runs() == []
