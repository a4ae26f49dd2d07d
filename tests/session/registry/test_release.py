"""Letting sessions go in order: what is open stays in the log, and everybody is told."""

from __future__ import annotations

import anyio
import pytest

from llmsession import (
    InterruptResult,
    MemoryStore,
    SessionClosed,
    SessionManager,
    SessionMoved,
    ToolUse,
)
from llmsession.store import Owner
from llmsession.testing.scripted import ScriptedProvider, call, never, say
from tests.session.actors import (
    MINE,
    SwallowingCancellation,
    Waiting,
    faulty_stage,
    first,
    in_tool,
    meanwhile,
    stage,
    unread_send,
)


async def test_a_turn_that_streams_when_its_session_is_released_stays_open_in_the_log() -> None:
    store = MemoryStore()
    async with stage([say("half of it").hanging(3)], store=store) as on:
        turn = await on.begin("hello")
        assert on.provider.open_streams == 1
        (released,) = await on.manager.release()
        assert released.session == "s"
        assert released.still_running == ()
        assert on.provider.open_streams == 0
        with pytest.raises(SessionClosed, match="stay open in its log"):
            await turn.outcome()
        assert await on.kinds() == ["session.created", "turn.accepted"]
    async with stage(["again"], store=store, reopen=True, recovery="resume") as on:
        assert await on.session.turn(turn.id).text() == "again"


async def test_queued_turns_of_a_released_session_end_when_it_is_opened_again() -> None:
    store = MemoryStore()
    async with stage([never()], store=store) as on:
        await on.session.send("running")
        queued = await on.session.send("queued")
        await on.manager.release()
        with pytest.raises(SessionClosed):
            await queued.outcome()
        assert await on.kinds() == ["session.created", "turn.accepted", "turn.accepted"]
    async with stage(["fine"], store=store, reopen=True, recovery="resume") as on:
        assert (await on.session.turn(queued.id).outcome()).stop_reason == "crash"
        assert await on.session.turn("u1").text() == "fine"


async def test_what_was_decided_and_taken_is_in_the_log_of_a_released_session() -> None:
    calls = call("mine", id="c") + call("mine", id="d")
    async with faulty_stage([calls], tools=[MINE]) as (on, store):
        events = on.session.subscribe(after=0)
        await on.session.send("go")
        await first(events, ToolUse)
        store.delay()
        async with meanwhile(lambda: on.submit(c="42")) as submitted:
            await store.wait_delayed()
            # The second waits behind the one that is being written.
            async with (
                meanwhile(lambda: on.submit(d="42")) as second,
                meanwhile(on.manager.release),
            ):
                assert submitted == second == []
                store.deliver()
        assert submitted == second == [None]
        kinds = await on.kinds()
        assert kinds[2:5] == ["tools.requested", "tools.answered", "tools.answered"]
        assert not any(kind.startswith("turn.") for kind in kinds[2:])
        assert [event async for event in events]  # what is durable is read, and it ends


async def test_a_turn_whose_end_is_decided_ends_though_its_session_is_released() -> None:
    async with faulty_stage(["hi"]) as (on, store):
        turn = await on.session.send("hello")
        store.delay()
        await store.wait_delayed()
        async with meanwhile(turn.outcome) as outcomes, meanwhile(on.manager.release):
            assert outcomes == []
            store.deliver()
        assert [outcome.status for outcome in outcomes] == ["committed"]
        assert (await on.kinds())[-1] == "turn.committed"


async def test_an_interrupt_that_waits_for_its_turn_is_answered_before_the_session_goes() -> None:
    tool = SwallowingCancellation(5)
    async with stage([call("t", id="c")], tool=tool) as on:
        await on.session.send("go")
        await on.started(tool, "next")
        async with meanwhile(lambda: on.session.interrupt("u1")) as answers:
            assert answers == []  # its tool has its grace
            (released,) = await on.manager.release()
        assert [answer.result for answer in answers] == [InterruptResult.ABORTED]
        assert len(released.still_running) == 1  # it ignores its cancellation
        kinds = await on.kinds()
        assert kinds.count("turn.aborted") == 1
        assert "turn.started" not in kinds


async def test_a_tool_that_runs_when_its_session_is_released_is_cancelled() -> None:
    tool = Waiting()
    async with in_tool(tool) as (on, _):
        (released,) = await on.manager.release()
        assert tool.cancelled
        assert released.still_running == ()
        assert await on.kinds() == ["session.created", "turn.accepted", "tools.requested"]


@pytest.mark.parametrize("how", ["taken", "handed over"])
async def test_a_tool_that_ignores_its_cancellation_is_left_alone_when_its_session_has_gone(
    how: str,
) -> None:
    tool = SwallowingCancellation(20)
    async with in_tool(tool) as (on, _):
        if how == "taken":
            await on.store.acquire("s", Owner("another"), takeover=True)
            with pytest.raises(SessionMoved):
                await on.session.label(title="x")
        else:
            await on.manager.hand_over("s", when="now")
        await anyio.sleep(1)
        swallowed = tool.swallowed
        assert swallowed
        await anyio.sleep(10)
        assert tool.swallowed == swallowed
        await tool.ended.wait()


async def test_a_command_that_is_unread_when_its_session_is_released_fails_by_name() -> None:
    async with stage([never()]) as on:
        await on.begin("running")
        sent = unread_send(on.session)
        await on.manager.release()
        with pytest.raises(SessionClosed):
            await sent.promise.wait()
        with pytest.raises(SessionClosed):
            await on.session.send("later")
        assert "unread" not in str(await on.log())


async def test_a_released_session_is_free_for_the_next_owner_while_its_manager_still_stands() -> (
    None
):
    store = MemoryStore()
    async with stage([never()], store=store) as on:
        await on.session.send("hello")
        await on.manager.release()
        async with SessionManager(provider=ScriptedProvider(["fine"]), store=store) as other:
            session = await other.open("s", recovery="resume")
            assert await session.turn("u1").text() == "fine"
