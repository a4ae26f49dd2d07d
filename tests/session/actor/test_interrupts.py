"""Interrupts: what they end, what they never touch, what they answer, and when."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from llmsession import (
    InterruptOutcome,
    InterruptResult,
    InvalidInput,
    ProviderError,
    TextDelta,
    Tool,
    ToolUse,
    TurnAborted,
    TurnLimits,
)
from llmsession.testing.scripted import Scripted, call, never, say, think
from llmsession.turns import records as r
from llmsession.turns.blocks import TextBlock
from llmsession.turns.receipts import settled_text
from llmsession.turns.records import InterruptPolicy
from llmsession.turns.usage import Usage
from tests.session.actors import (
    MINE,
    FinishingWithinGrace,
    Quick,
    Stage,
    SwallowingCancellation,
    Waiting,
    at_once,
    faulty_stage,
    first,
    in_tool,
    lasting,
    meanwhile,
    settled,
    stage,
    unread_send,
)
from tests.virtual_time import loop_turns

POLICIES: tuple[InterruptPolicy, ...] = ("drop_turn", "keep_steps", "keep_text")
GRACE_S = 0.1


async def asked_to_wait(on: Stage) -> None:
    """Until the second turn's only tool is offered."""
    await first(on.session.turn(2).__aiter__(), ToolUse)


POINTS: dict[str, Scripted] = {
    "before its first event": never(),
    "in mid-stream": say("some text that streams").hanging(at=3),
    "in its thinking": (think("hmm, let me see") + say("x")).hanging(at=3),
    "in a call's input": call("mine", {"path": "x"}, id="c").hanging(at=3),
    "while a tool waits": call("mine", {"path": "x"}, id="c"),
    "while it waits to retry": say("x").raising(
        ProviderError("busy", kind="retryable", delay_s=60), at=2
    ),
}


@pytest.mark.parametrize("point", POINTS)
async def test_after_a_dropped_turn_the_history_is_the_same_object_as_before(point: str) -> None:
    script = ["hi", POINTS[point], "again"]
    async with stage(script, tools=[Tool(name="mine")]) as on:
        await on.say("hello")
        base = on.session.conversation()
        turn = await on.session.send("the dropped one")
        await anyio.sleep(1)
        assert len(on.session.conversation(include_open=True)) > len(base)
        outcome = await on.session.interrupt()
        assert outcome.result is InterruptResult.ABORTED
        assert on.session.conversation() is base
        assert on.session.conversation(include_open=True) is base
        with pytest.raises(TurnAborted):
            await turn.text()
        assert await on.say("the dropped one") == "again"
        assert on.session.conversation()[:2] == base


async def race(rng: Random) -> tuple[int, int]:
    """Twenty sends, and interrupts between them: how many were aborted, and how many were not."""
    # The first turn never ends by itself, so what is queued behind it stays queued.
    async with stage(lambda request, tag: never()) as on:
        order, outcomes = ["running"], []
        turns = {"running": await on.session.send("running")}

        async def act(name: str) -> None:
            for _ in range(rng.randrange(30)):
                await checkpoint()
            order.append(name)  # nothing waits between this and the ingress number
            if name.startswith("interrupt"):
                outcomes.append(await on.session.interrupt())
            else:
                turns[name] = await on.session.send(name)

        names = [f"send {n}," for n in range(20)] + [f"interrupt {n}" for n in range(4)]
        await at_once(*(partial(act, name) for name in rng.sample(names, len(names))))
        mark = max(at for at, name in enumerate(order) if name.startswith("interrupt"))
        before = [name for name in order[:mark] if name in turns]
        for name in before:
            ended = await turns[name].outcome()
            assert (name, ended.status, ended.stop_reason) == (name, "aborted", "interrupt")
            assert bytes(ended.user_body).decode().count(name) == 1
        told = {outcome.turn for answer in outcomes for outcome in answer.turns}
        assert told == {turns[name].id for name in before}
        after = {turns[name].id.number for name in order[mark + 1 :]}
        assert set(on.session.reference.actor.turns.runs) == after
        return len(before), len(after)


async def test_an_interrupt_covers_every_send_enqueued_before_it_and_none_after() -> None:
    races = [await race(Random(seed)) for seed in range(30)]
    assert sum(aborted for aborted, _ in races) > 200
    assert sum(spared for _, spared in races) > 40


@pytest.mark.parametrize("aim", ["everything", "the turn", "both"])
async def test_two_hundred_interrupts_of_one_turn_abort_it_once_and_are_all_answered(
    aim: str,
) -> None:
    script = ["hello", call("mine", id="c"), "still here"]
    async with stage(script, tools=[MINE]) as on:
        await on.say("hi")
        base = on.session.conversation()
        turn = await on.offered("use the tool")
        aims = {"everything": (None, None), "the turn": (turn.id, turn.id), "both": (None, turn.id)}
        with anyio.fail_after(10):
            answers = await at_once(*(partial(on.session.interrupt, id) for id in aims[aim] * 100))
            outcome = await turn.outcome()
        assert len(answers) == 200
        assert {answer.result.value for answer in answers} == {"aborted"}
        assert all(answer.turns == (outcome,) for answer in answers)
        assert on.session.conversation() is base
        assert [each.turn for each in await on.log() if isinstance(each, r.TurnAborted)] == [2]
        assert await on.say("and now?") == "still here"


async def test_an_interrupt_never_cancels_a_send_enqueued_after_it_while_a_tool_is_stopped() -> (
    None
):
    async with in_tool(SwallowingCancellation(0.05), "the later one") as (on, _):
        async with meanwhile(on.session.interrupt):
            later = await on.session.send("later")
        assert await later.text() == "the later one"


async def test_queued_sends_that_an_interrupt_covers_get_their_turns_and_come_back() -> None:
    async with stage([never()]) as on:
        for text in ("one", "two", "three"):
            await on.session.send(text)
        outcome = await on.session.interrupt()
        came_back = {
            str(ended.turn): block.text
            for ended in outcome.dropped
            for block in ended.user_content
            if isinstance(block, TextBlock)
        }
        assert came_back == {"u1": "one", "u2": "two", "u3": "three"}
        assert str(outcome.turn) == "u1"
        assert on.session.conversation() == ()


async def test_an_interrupt_during_the_grace_gets_the_answer_of_the_first() -> None:
    async with in_tool(SwallowingCancellation(50)) as (on, _):

        async def interrupt(after_s: float) -> InterruptOutcome:
            await anyio.sleep(after_s)
            return await on.session.interrupt()

        outcomes = await at_once(*(partial(interrupt, after_s) for after_s in (0.0, 0.03, 0.06)))
        assert {outcome.result for outcome in outcomes} == {InterruptResult.ABORTED}
        assert len(outcomes) == 3


async def test_a_drop_within_the_grace_of_a_keep_wins() -> None:
    async with in_tool(SwallowingCancellation(50)) as (on, _):
        async with meanwhile(lambda: on.session.interrupt(policy="keep_steps")) as outcomes:
            outcomes.append(await on.session.interrupt(policy="drop_turn"))
        assert {outcome.result for outcome in outcomes} == {InterruptResult.ABORTED}
        assert on.session.conversation() == ()


async def test_an_interrupt_after_the_decision_is_too_late_and_the_turn_commits() -> None:
    async with faulty_stage(["hi"]) as (on, store):
        turn = await on.session.send("hello")
        store.delay()
        await store.wait_delayed()
        async with meanwhile(on.session.interrupt) as outcomes:
            # Decided, not yet durable: it does not wait for the commit.
            assert [outcome.result for outcome in outcomes] == [InterruptResult.TOO_LATE]
            assert on.session.conversation() == ()
            store.deliver()
        assert await turn.text() == "hi"
        assert len(on.session.conversation()) == 2


async def test_with_nothing_open_an_interrupt_answers_not_running() -> None:
    async with stage(["hi"]) as on:
        assert (await on.session.interrupt()).result is InterruptResult.NOT_RUNNING
        turn = await on.session.send("hello")
        await turn.outcome()
        assert (await on.session.interrupt()).result is InterruptResult.NOT_RUNNING
        assert (await on.session.interrupt(turn.id)).result is InterruptResult.NOT_RUNNING
        assert len(on.session.conversation()) == 2


async def test_a_turn_that_never_was_is_unknown() -> None:
    async with stage([never()]) as on:
        await on.session.send("hello")
        assert (await on.session.interrupt("u7")).result is InterruptResult.UNKNOWN_TURN
        assert on.session.status().phase == "running"


@pytest.mark.parametrize("turn", ["x1", "u0", "u", 0, -1])
async def test_a_turn_that_is_no_turn_id_is_refused(turn: Any) -> None:
    async with stage() as on:
        with pytest.raises(InvalidInput):
            await on.session.interrupt(turn)
        with pytest.raises(InvalidInput, match="keep_all"):
            await on.session.interrupt(policy="keep_all")  # type: ignore[arg-type]  # the point


async def test_an_interrupt_is_answered_after_its_record_is_durable() -> None:
    async with faulty_stage([never()]) as (on, store):
        turn = await on.begin("hello")
        store.delay()
        async with meanwhile(on.session.interrupt) as answers, meanwhile(turn.outcome) as outcomes:
            await store.wait_delayed()
            await anyio.sleep(5)
            assert answers == outcomes == []
            assert on.session.status().turn_phase == "aborting"
            store.deliver()
        assert [answer.result.value for answer in answers] == ["aborted"]
        assert (await on.kinds())[-1] == "turn.aborted"


async def test_cancelling_the_caller_of_an_interrupt_does_not_take_it_back() -> None:
    async with in_tool(SwallowingCancellation(50)) as (on, turn):
        with anyio.move_on_after(0.01):
            await on.session.interrupt()
        assert (await turn.outcome()).status == "aborted"


async def test_the_tokens_of_a_dropped_turn_stay_counted() -> None:
    spent = Usage(input_tokens=100, output_tokens=7)
    script = [call("t", id="c").costing(spent), say("streaming").costing(spent).hanging(at=3)]
    async with stage(script, tool=Quick()) as on:
        turn = await on.interrupted("hello", after_s=1)
        assert (await turn.outcome()).usage == spent + spent
        assert on.session.usage().total == spent + spent
        assert on.session.usage().turns == {1: spent + spent}


# keep_steps and keep_text


@pytest.mark.parametrize("policy", ["keep_steps", "keep_text"])
async def test_keeping_settles_open_calls_with_neutral_errors_in_call_order(
    policy: InterruptPolicy,
) -> None:
    waiting = Waiting()
    calls = call("waits", id="a") + call("quick", id="b") + call("waits", id="c")
    tools = [Tool(name="waits", run=waiting), Tool(name="quick", run=Quick("quick result"))]
    async with stage([calls, "next reply"], tools=tools) as on:
        turn = await on.started(waiting, "hello")
        await settled()
        outcome = await on.session.interrupt(policy=policy)
        assert outcome.result is InterruptResult.KEPT
        ended = await turn.outcome()
        assert (ended.status, ended.stop_reason) == ("committed", "cancelled")
        results = on.session.conversation()[-1].tool_results
        assert [(result.tool_use_id, result.text, bool(result.is_error)) for result in results] == [
            ("a", settled_text("cancelled"), True),
            ("b", "quick result", False),
            ("c", settled_text("cancelled"), True),
        ]
        assert on.session.conversation()[-1].synthetic == (0, 2)
        # A kept turn leaves no receipt: what happened is in the history.
        assert await on.say("go on") == "next reply"
        assert "Note from the session" not in on.provider.requests[-1].encode().decode()


async def test_keep_steps_drops_the_step_that_streams_and_keeps_the_complete_ones() -> None:
    script = [call("t", id="a"), say("half a reply").hanging(at=3), "next reply"]
    async with stage(script, tool=Quick()) as on:
        await on.begin("hello")
        assert (await on.session.interrupt(policy="keep_steps")).result is InterruptResult.KEPT
        assert [m.role for m in on.session.conversation()] == ["user", "assistant", "user"]
        assert await on.say("go on") == "next reply"


async def test_keep_text_keeps_the_text_that_streams_marked_as_cancelled() -> None:
    script = [(think("hmm") + say("some text that is cut")).hanging(at=7), "next reply"]
    async with stage(script) as on:
        await on.session.send("hello")
        await first(on.session.subscribe(), TextDelta)
        outcome = await on.session.interrupt(policy="keep_text")
        assert outcome.result is InterruptResult.KEPT
        kept = on.session.conversation()[-1]
        assert kept.is_assistant
        assert kept.text
        assert "some text that is cut".startswith(kept.text)
        assert kept.stop_reason == "cancelled"
        # Thinking without its end and signature is not kept.
        assert [type(block) for block in kept.content] == [TextBlock]
        assert await on.say("go on") == "next reply"


async def test_keep_text_leaves_a_half_streamed_call_out() -> None:
    half = say("let me look") + call("mine", {"path": "a long path name"}, id="c")
    async with stage([half.hanging(at=6), "next reply"], tools=[Tool(name="mine")]) as on:
        await on.session.send("hello")
        await anyio.sleep(1)
        assert (await on.session.interrupt(policy="keep_text")).result is InterruptResult.KEPT
        assert [m.text for m in on.session.conversation()] == ["hello", "let me look"]
        assert on.session.conversation()[-1].tool_calls == ()
        assert await on.say("go on") == "next reply"


@pytest.mark.parametrize("policy", ["keep_steps", "keep_text"])
async def test_with_nothing_to_keep_both_act_as_a_drop(policy: InterruptPolicy) -> None:
    async with stage(["hi", never()]) as on:
        await on.say("hello")
        base = on.session.conversation()
        await on.begin("dropped")
        outcome = await on.session.interrupt(policy=policy)
        assert outcome.result is InterruptResult.ABORTED
        assert on.session.conversation() is base
        assert len(outcome.dropped[0].user_content) == 1


async def test_the_configured_policy_is_used_without_another() -> None:
    async with in_tool(Waiting(), interrupt_policy="keep_steps") as (on, _):
        assert (await on.session.interrupt()).result is InterruptResult.KEPT


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_queued_send_is_dropped_whatever_the_policy(policy: InterruptPolicy) -> None:
    async with stage([call("mine", id="c")], tools=[Tool(name="mine")]) as on:
        turn = await on.session.send("running")
        queued = await on.session.send("queued")
        await first(turn, ToolUse)
        await on.session.interrupt(policy=policy)
        assert (await queued.outcome()).status == "aborted"


# The grace


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_tool_that_swallows_cancellation_holds_the_interrupt_for_the_grace_only(
    policy: InterruptPolicy,
) -> None:
    tool = SwallowingCancellation(50)
    async with in_tool(tool, "next") as (on, _):
        with lasting(GRACE_S, abs=0.02):
            outcome = await on.session.interrupt(policy=policy)
        assert len(outcome.turns[0].still_running) == 1
        assert "tool t c" in outcome.turns[0].still_running[0]
        assert on.session.status().still_running == outcome.turns[0].still_running
        with lasting(0, abs=0.5):
            assert await on.say("the next turn does not wait for it") == "next"
        history = on.session.conversation()
        await tool.ended.wait()
        await settled()
        assert on.session.conversation() is history
        assert on.session.status().still_running == ()
        assert on.session.status().late_reports == 1


async def test_a_provider_that_swallows_cancellation_holds_the_interrupt_for_the_grace_only() -> (
    None
):
    async with stage([say("text").ignoring_cancellation(50, at=3), "next"]) as on:
        await on.session.send("hello")
        await first(on.session.subscribe(), TextDelta)
        with lasting(GRACE_S, abs=0.02):
            await on.session.interrupt()
        assert await on.say("again") == "next"
        await anyio.sleep(60)
        assert [m.text for m in on.session.conversation()] == ["again", "next"]


async def test_an_interrupt_of_cooperative_work_does_not_wait_for_the_grace() -> None:
    tool = Waiting()
    async with in_tool(tool) as (on, _):
        try:
            with lasting(0, abs=0):
                await on.session.interrupt()
            assert tool.cancelled
        finally:
            tool.go.set()  # nothing else would end it if it was not cancelled


async def test_an_interrupt_stops_a_reply_that_streams_at_once() -> None:
    async with stage([say("a long reply").slow(5)]) as on:
        await on.session.send("hello")
        await anyio.sleep(1)
        with lasting(0, abs=0):
            await on.session.interrupt()


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_an_interrupt_of_a_reply_takes_no_more_turns_of_the_loop_than_its_stream_needs_to_end(
    anyio_backend: tuple[str, dict[str, Any]],
) -> None:
    async with stage([never()]) as on:
        await on.session.send("x")
        await settled()
        before = loop_turns(anyio_backend)
        await on.session.interrupt()
        # On the first turn the stream ends, on the second the caller gets the durable answer.
        assert loop_turns(anyio_backend) - before == 2


async def test_a_tool_that_is_let_go_after_its_grace_costs_no_turns_of_the_loop(
    anyio_backend: tuple[str, dict[str, Any]],
) -> None:
    tool = SwallowingCancellation(1)
    async with in_tool(tool) as (on, _):
        await on.session.interrupt()
        await settled()
        before = loop_turns(anyio_backend)
        await anyio.sleep(0.5)
        assert loop_turns(anyio_backend) - before < 20
        assert not tool.ended.is_set()
        await tool.ended.wait()


async def test_the_grace_is_configurable() -> None:
    async with in_tool(SwallowingCancellation(50), grace_s=0.3) as (on, _):
        with lasting(0.3, abs=0.02):
            await on.session.interrupt()


async def test_a_tool_that_finishes_within_its_grace_keeps_its_result_under_keep_steps() -> None:
    async with in_tool(FinishingWithinGrace(0.05)) as (on, _):
        with lasting(0.05, abs=0.02):
            outcome = await on.session.interrupt(policy="keep_steps")
        assert outcome.result is InterruptResult.KEPT
        results = on.session.conversation()[-1].tool_results
        assert [result.text for result in results] == ["just in time"]


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_provider_that_never_answers_can_be_interrupted(policy: InterruptPolicy) -> None:
    async with stage([never(), "hi"], limits=TurnLimits(silence_s=None)) as on:
        turn = await on.session.send("hello")
        await anyio.sleep(10_000)
        assert (await on.session.interrupt(policy=policy)).result is InterruptResult.ABORTED
        assert (await turn.outcome()).status == "aborted"
        assert await on.say("hello") == "hi"


async def test_an_interrupt_between_a_reply_and_the_journaling_of_its_calls_runs_no_tool() -> None:
    tool = Quick()
    script = [call("t", id="c"), "next"]
    async with faulty_stage(script, tool=tool) as (on, store):
        await on.session.send("hello")
        store.delay()
        await store.wait_delayed()
        assert on.session.status().turn_phase == "journaling"
        async with meanwhile(on.session.interrupt) as outcomes:
            store.deliver()
        assert outcomes[0].result is InterruptResult.ABORTED
        assert outcomes[0].turns[0].calls == ()
        assert tool.inputs == []
        assert await on.say("again") == "next"
        # Nothing had started, so there is nothing to tell the model.
        assert on.session.conversation()[0].synthetic == ()


async def test_dropping_the_turn_handle_or_its_iteration_is_no_interrupt() -> None:
    async with stage([say("a long reply").slow(1)]) as on:
        turn = await on.session.send("hello")
        await first(turn, TextDelta)
        del turn
        await anyio.sleep(100)
        assert [m.text for m in on.session.conversation()] == ["hello", "a long reply"]


async def test_the_record_of_an_abort_names_its_reason_and_the_started_calls() -> None:
    tool = Waiting()
    script = [call("t", {"path": "a.txt"}, id="c")]
    async with stage(script, tool=tool) as on:
        await on.started(tool, "hello")
        await on.session.interrupt()
        record = (await on.log())[-1]
        assert isinstance(record, r.TurnAborted)
        assert record.reason == "interrupt"
        assert record.calls == (r.CallReceipt("c", "t", "unknown", '{"path":"a.txt"}'),)


# Interrupts that are read together


async def test_an_interrupt_folded_into_an_unread_one_ends_the_sends_between_them() -> None:
    async with stage([never()]) as on:
        await on.begin("running")
        actor = on.session.reference.actor
        # All three are unread when the actor comes to them.
        one = actor.put_interrupt(None, None, None)
        sent = unread_send(on.session)
        other = actor.put_interrupt(None, None, None)
        with anyio.fail_after(10):
            assert await sent.promise.wait() == 2
            outcome = await other.wait()
        assert sorted(str(ended.turn) for ended in outcome.turns) == ["u1", "u2"]
        assert await one.wait() == outcome


async def test_a_drop_folded_into_an_unread_keep_wins() -> None:
    async with stage([call("mine", id="c")], tools=[Tool(name="mine")]) as on:
        await on.offered("hello")
        keep = on.session.reference.actor.put_interrupt(None, "keep_steps", None)
        drop = on.session.reference.actor.put_interrupt(None, "drop_turn", None)
        assert (await keep.wait()).result is InterruptResult.ABORTED
        assert (await drop.wait()).result is InterruptResult.ABORTED
        assert on.session.conversation() == ()


async def test_an_interrupt_of_one_queued_turn_tells_its_outcome() -> None:
    async with stage([never(), "third"]) as on:
        await on.session.send("running")
        queued = await on.session.send("queued")
        third = await on.session.send("third")
        outcome = await on.session.interrupt(queued.id)
        assert outcome.result is InterruptResult.ABORTED
        assert outcome.turns == (await queued.outcome(),)
        assert b"queued" in bytes(outcome.turns[0].user_body)
        with pytest.raises(TurnAborted):
            await queued.text()
        assert on.session.status().turn is not None
        await on.session.interrupt("u1")
        assert await third.text() == "third"
        assert (await on.kinds()).count("turn.aborted") == 2


async def test_the_texts_of_an_outcome_are_read_without_its_bytes() -> None:
    tool = Waiting()
    async with in_tool(tool, "ok", content="go") as (on, turn):
        await on.session.send("and this", when_busy="steer")
        await on.session.interrupt()
        outcome = await turn.outcome()
        assert (outcome.user_text, outcome.unread_texts) == ("go", ("and this",))
        kept = await on.outcome("next")
        # The receipt that was added to the message is none of its text.
        assert (kept.status, kept.user_text) == ("committed", "next")
