"""What a send means while a turn is open: queue, reject, interrupt, steer."""

from __future__ import annotations

import anyio
import pytest

from llmsession import (
    InterruptResult,
    InvalidInput,
    Overloaded,
    ProviderError,
    SessionBusy,
    TextDelta,
)
from llmsession.session.values.config import WhenBusy
from llmsession.testing.scripted import call, never, say
from llmsession.turns import records as r
from tests.session.actors import (
    MINE,
    Quick,
    SwallowingCancellation,
    Waiting,
    faulty_stage,
    first,
    in_tool,
    lasting,
    meanwhile,
    settled,
    stage,
    texts_of,
)


async def test_a_send_returns_when_its_acceptance_is_durable_and_not_before() -> None:
    async with faulty_stage(["hi"]) as (on, store):
        store.delay()
        async with meanwhile(lambda: on.session.send("hello")) as turns:
            await store.wait_delayed()
            await settled()
            assert turns == []
            assert on.provider.requests == []
            store.deliver()
        assert await turns[0].text() == "hi"
        assert str(turns[0].id) == "u1"


async def test_queued_sends_run_one_after_the_other_in_the_order_they_were_accepted() -> None:
    async with stage(lambda request, tag: f"reply {tag.turn}") as on:
        turns = [await on.session.send(f"message {n}") for n in range(1, 6)]
        assert [await turn.text() for turn in turns] == [f"reply {n}" for n in range(1, 6)]
        said = [(message.turn, message.role, message.text) for message in on.session.conversation()]
        assert said == [
            entry
            for n in range(1, 6)
            for entry in ((n, "user", f"message {n}"), (n, "assistant", f"reply {n}"))
        ]
        assert max(tag.step for tag in on.provider.tags) == 1


async def test_fifty_concurrent_senders_lose_no_turn_and_interleave_none() -> None:
    async with stage(lambda request, tag: f"reply {tag.turn}") as on:
        replies: dict[str, str] = {}

        async def sender(n: int) -> None:
            turn = await on.session.send(f"message {n}")
            replies[f"message {n}"] = await turn.text()

        async with anyio.create_task_group() as group:
            for n in range(50):
                group.start_soon(sender, n)
        history = on.session.conversation()
        assert len(history) == 100
        for user, assistant in zip(history[::2], history[1::2], strict=True):
            assert user.turn == assistant.turn
            assert replies[user.text] == assistant.text


async def test_reject_raises_session_busy_while_a_turn_is_open_and_changes_nothing() -> None:
    async with stage([never(), "second"]) as on:
        await on.session.send("first")
        head = on.session.status().seq
        with pytest.raises(SessionBusy):
            await on.session.send("second", when_busy="reject")
        assert on.session.status().seq == head
        await on.session.interrupt()
        assert await (await on.session.send("second", when_busy="reject")).text() == "second"


async def test_interrupt_mode_replaces_the_running_turn_and_jumps_the_queue() -> None:
    async with stage([never(), "urgent done", "queued done"]) as on:
        running = await on.session.send("running")
        queued = await on.session.send("queued")
        urgent = await on.session.send("urgent", when_busy="interrupt")
        assert (await running.outcome()).stop_reason == "replaced"
        assert await urgent.text() == "urgent done"
        assert await queued.text() == "queued done"
        # Numbers grow by acceptance; the order in the history may differ.
        assert [m.turn for m in on.session.conversation()] == [3, 3, 2, 2]


@pytest.mark.parametrize("mode", ["queue", "reject", "interrupt", "steer"])
async def test_on_an_idle_session_every_mode_is_a_plain_send(mode: WhenBusy) -> None:
    async with stage([call("mine", id="c"), "done", "next"], tools=[MINE]) as on:
        turn = await on.offered("go", when_busy=mode)
        await on.submit(c="42")
        assert await turn.text() == "done"
        assert await (await on.session.send("go", when_busy=mode)).text() == "next"


async def test_interrupt_mode_starts_its_turn_at_the_grace_when_a_tool_ignores_it() -> None:
    async with in_tool(SwallowingCancellation(50), "urgent done") as (on, _):
        with lasting(0.1, abs=0.02):
            urgent = await on.session.send("urgent", when_busy="interrupt")
            assert await urgent.text() == "urgent done"


async def test_a_steer_joins_the_running_turn_at_its_next_step_after_the_results() -> None:
    tool = Waiting()
    async with in_tool(tool, "I see both") as (on, turn):
        steered = await on.session.send("look here, too", when_busy="steer")
        assert steered.id == turn.id
        tool.go.set()
        assert await turn.text() == "I see both"
        assert await steered.text() == "I see both"
        last = texts_of(on.provider.requests[1])[-1]
        assert last.index("tool_result") < last.index("look here, too")
        assert on.session.status().turns == 1


async def test_a_steer_that_is_pending_when_a_reply_ends_makes_the_turn_go_on() -> None:
    async with stage([say("a long reply").slow(1), "and the answer to the steer"]) as on:
        turn = await on.session.send("start")
        await first(on.session.subscribe(), TextDelta)
        await on.session.send("one more thing", when_busy="steer")
        outcome = await turn.outcome()
        assert outcome.stop_reason == "end_turn"
        assert [m.text for m in outcome.messages] == [
            "start", "a long reply", "one more thing", "and the answer to the steer",
        ]  # fmt: skip
        assert outcome.unread_steers == ()


async def test_several_steers_are_read_together_in_order() -> None:
    async with stage([say("a long reply").slow(1), "done"]) as on:
        turn = await on.session.send("start")
        for text in ("one", "two", "three"):
            assert (await on.session.send(text, when_busy="steer")).id == turn.id
        await turn.text()
        blocks = [block.text for block in on.session.conversation()[2].content]  # type: ignore[union-attr]  # text blocks all
        assert blocks == ["one", "two", "three"]
        assert len(on.provider.requests) == 2
        steps = [record for record in await on.log() if isinstance(record, r.StepCompleted)]
        assert [step.steers for step in steps] == [3]


async def test_a_steer_after_the_decision_is_a_new_queued_turn() -> None:
    async with faulty_stage(["first reply", "second reply"]) as (on, store):
        turn = await on.session.send("first")
        store.delay()
        await store.wait_delayed()
        assert on.session.status().turn_phase == "committing"
        async with meanwhile(lambda: on.session.send("too late", when_busy="steer")) as steered:
            store.deliver()
        assert steered[0].id != turn.id
        assert await turn.text() == "first reply"
        assert await steered[0].text() == "second reply"


async def test_a_steer_to_a_turn_that_is_being_interrupted_is_a_new_turn() -> None:
    async with in_tool(SwallowingCancellation(0.05), "second reply") as (on, turn):
        async with meanwhile(on.session.interrupt):
            assert on.session.status().turn_phase == "stopping"
            steered = await on.session.send("too late", when_busy="steer")
        assert steered.id != turn.id
        assert await steered.text() == "second reply"


async def test_unread_steers_come_back_from_an_interrupt() -> None:
    async with stage([never()]) as on:
        await on.session.send("start")
        await on.session.send("one", when_busy="steer")
        await on.session.send("two", when_busy="steer")
        outcome = await on.session.interrupt()
        assert outcome.result is InterruptResult.ABORTED
        unread = [bytes(body).decode() for body in outcome.turns[0].unread_steers]
        assert ["one" in unread[0], "two" in unread[1], len(unread)] == [True, True, 2]


async def test_unread_steers_come_back_when_steps_are_kept() -> None:
    async with in_tool(Waiting()) as (on, _):
        await on.session.send("unread", when_busy="steer")
        outcome = await on.session.interrupt(policy="keep_steps")
        assert outcome.result is InterruptResult.KEPT
        assert b"unread" in bytes(outcome.turns[0].unread_steers[0])
        assert b"unread" not in b"".join(bytes(m.body) for m in on.session.conversation())


async def test_unread_steers_come_back_when_the_provider_fails_for_good() -> None:
    broken = say("half").slow(1).raising(ProviderError("gone", kind="fatal"), at=2)
    async with stage([broken]) as on:
        turn = await on.session.send("start")
        await on.session.send("unread", when_busy="steer")
        outcome = await turn.outcome()
        assert outcome.status == "failed"
        assert b"unread" in bytes(outcome.unread_steers[0])


async def test_a_full_queue_answers_overloaded_and_the_session_goes_on() -> None:
    async with stage(lambda request, tag: never() if tag.turn == 1 else "hi", queue_limit=2) as on:
        await on.session.send("running")
        waiting = [await on.session.send(f"queued {n}") for n in range(2)]
        with pytest.raises(Overloaded):
            await on.session.send("one too many")
        await on.session.interrupt(1)
        assert [await turn.text() for turn in waiting] == ["hi", "hi"]
        assert await on.say("again") == "hi"


async def test_a_full_work_lane_answers_overloaded_and_control_still_gets_through() -> None:
    async with stage(lambda request, tag: never(), queue_limit=4) as on:
        sends = [lambda: on.session.send("x")] * 20
        async with meanwhile(*sends, refused=(Overloaded,)) as results:
            outcome = await on.session.interrupt()
        refused = [result for result in results if isinstance(result, Overloaded)]
        assert 0 < len(refused) == 20 - len(outcome.turns)
        assert {ended.status for ended in outcome.turns} == {"aborted"}


async def test_an_unknown_mode_is_refused_by_name() -> None:
    async with stage() as on:
        with pytest.raises(InvalidInput, match="sometimes"):
            await on.session.send("hello", when_busy="sometimes")  # type: ignore[arg-type]  # the point


async def test_cancelling_the_caller_of_a_send_does_not_take_the_send_back() -> None:
    async with faulty_stage(["hi"]) as (on, store):
        store.delay()
        async with anyio.create_task_group() as group:
            group.start_soon(on.session.send, "hello")
            await store.wait_delayed()
            group.cancel_scope.cancel()
        store.deliver()
        assert await on.session.turn(1).text() == "hi"


async def test_tools_of_a_queued_turn_do_not_start_before_it() -> None:
    tool = Quick()
    script = [never(), call("t", id="c"), "done"]
    async with stage(script, tool=tool) as on:
        await on.session.send("first")
        second = await on.begin("second")
        assert len(on.provider.requests) == 1
        await on.session.interrupt("u1")
        assert await second.text() == "done"
        assert tool.inputs == [{}]


async def test_a_steer_asked_for_after_an_interrupt_is_a_new_turn() -> None:
    async with stage([never(), "second reply"]) as on:
        turn = await on.session.send("first")
        await anyio.sleep(1)
        # Both are unread when the actor comes to them.
        interrupted = on.session.reference.actor.put_interrupt(None, None, None)
        steered = await on.session.send("later", when_busy="steer")
        assert (await interrupted.wait()).result is InterruptResult.ABORTED
        assert (await turn.outcome()).unread_steers == ()
        assert await steered.text() == "second reply"
