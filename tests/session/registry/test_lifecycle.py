"""Sessions come and go: create, open, evict, close, drain, take over, lose the store."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import pairwise
from typing import Any

import anyio.lowlevel
import pytest

from llmsession import (
    InvalidInput,
    MemoryStore,
    SessionClosed,
    SessionConfig,
    SessionExists,
    SessionInUse,
    SessionManager,
    SessionMoved,
    SessionNotFound,
    StoreError,
    Tool,
)
from llmsession.session.manager import runtime_of
from llmsession.store.protocol import Lease, Owner
from llmsession.testing import FaultyStore
from llmsession.testing.scripted import ScriptedProvider, ScriptedReply, call, never, say
from llmsession.turns import records as r
from tests.session.actors import (
    Quick,
    Stage,
    SwallowingCancellation,
    Waiting,
    at_once,
    faulty_stage,
    first,
    in_tool,
    lasting,
    settled,
    stage,
    unread_send,
)


async def test_a_session_that_exists_cannot_be_created_again() -> None:
    async with stage() as on:
        with pytest.raises(SessionExists):
            await on.manager.create(SessionConfig(model="m"), session_id="s")


async def test_a_session_that_never_was_cannot_be_opened() -> None:
    async with stage() as on:
        with pytest.raises(SessionNotFound):
            await on.manager.open("nobody")


async def test_two_handles_of_one_session_share_it() -> None:
    async with stage(["hi"]) as on:
        other = await on.manager.open("s")
        await on.say("hello")
        assert other.conversation() is on.session.conversation()


async def test_an_evicted_session_comes_back_with_the_same_history() -> None:
    async with stage([call("t", id="c"), "hi", "next"], tool=Quick()) as on:
        await on.say("hello")
        before = on.session.conversation()
        context = on.session.context().encode()
        await on.evict()
        on.session = await on.manager.open("s", unbound="caller")
        assert on.session.conversation() == before
        assert on.session.context().encode() == context
        assert await on.say("go on") == "next"


async def test_a_session_that_is_held_or_busy_is_not_evicted() -> None:
    async with stage([say("a reply").slow(1)]) as on:
        assert await runtime_of(on.manager).evict_idle() == 0
        turn = await on.session.send("go")
        del on.session
        assert await runtime_of(on.manager).evict_idle() == 0  # the turn runs
        assert await turn.text() == "a reply"
        gc.collect()
        assert await runtime_of(on.manager).evict_idle() == 0  # the turn's handle holds it
        del turn
        gc.collect()
        assert await runtime_of(on.manager).evict_idle() == 1


async def test_a_session_that_nobody_holds_is_evicted_after_its_idle_time() -> None:
    async with stage(["hi"], idle_s=30) as on:
        await on.say("hello")
        on.let_go()
        await anyio.sleep(20)
        assert len(on.manager.live) == 1
        await anyio.sleep(15)
        assert len(on.manager.live) == 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_a_handle_that_is_collected_between_the_loops_tasks_stops_no_eviction() -> None:
    async with stage(["hi"], idle_s=30) as on:
        await on.say("x")

        def collect() -> None:
            on.let_go()

        # In a context of its own, as the loop's callbacks are: it does not say what runs here.
        asyncio.get_running_loop().call_soon(collect, context=contextvars.Context())
        await settled()
        await on.manager.create(SessionConfig(model="m"), session_id="another")
        await anyio.sleep(100)
        gc.collect()
        await anyio.sleep(100)
        assert on.manager.live == ()
        on.session = await on.manager.open("s", unbound="caller")


async def test_a_turn_that_nobody_holds_runs_to_its_end_and_is_evicted_then() -> None:
    async with stage([say("a long reply " * 5).slow(10)], idle_s=5) as on:
        await on.session.send("go")
        on.let_go()
        await anyio.sleep(20)
        assert len(on.manager.live) == 1
        await anyio.sleep(300)
        assert len(on.manager.live) == 0
        on.session = await on.manager.open("s", unbound="caller")
        assert on.session.conversation()[-1].text == "a long reply " * 5


async def test_while_many_sessions_are_evicted_others_go_on() -> None:
    async with stage() as on:
        for _ in range(500):
            await on.manager.create(SessionConfig(model="m"))
        gc.collect()
        live = [len(on.manager.live)]

        async def watch() -> None:
            while live[-1] > 1:
                await anyio.lowlevel.checkpoint()
                live.append(len(on.manager.live))

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            assert await runtime_of(on.manager).evict_idle() == 500
        assert max(before - after for before, after in pairwise(live)) <= 100


async def test_an_idle_session_has_no_task() -> None:
    async with stage(["hi"]) as on:
        await on.say("hello")
        await settled()
        names = [task.name or "" for task in anyio.get_running_tasks()]
        assert not [name for name in names if name == "llmsession s"]
        assert runtime_of(on.manager).running_works == ()


async def test_open_turns_are_counted_until_they_end_or_their_session_leaves() -> None:
    async with stage([never(), "hi", never(), never()]) as on:
        manager = on.manager
        turns = [await on.session.send(f"message {n}") for n in (1, 2)]
        assert manager.open_turns == 2
        await on.session.interrupt(turns[0].id)
        await turns[1].outcome()
        assert manager.open_turns == 0
        await on.session.send("is left open")
        await on.session.send("waits")
        assert manager.open_turns == 2
        await manager.hand_over("s", when="now")
        assert manager.open_turns == 0
        on.session = await manager.open("s", recovery="resume", unbound="caller")
        assert manager.open_turns == 2
        await manager.store.acquire("s", Owner("another"), takeover=True)
        with pytest.raises(SessionMoved):
            await on.session.interrupt()
        assert manager.open_turns == 0


async def test_close_interrupts_what_is_open_and_names_what_still_runs() -> None:
    async with in_tool(SwallowingCancellation(50)) as (on, turn):
        queued = await on.session.send("queued")
        with lasting(0.1, abs=0.02):
            closed = await on.session.close()
        assert closed.session == "s"
        assert len(closed.still_running) == 1
        assert "tool t c" in closed.still_running[0]
        assert (await turn.outcome()).stop_reason == "closed"
        assert (await queued.outcome()).stop_reason == "closed"
        assert (await on.store.row("s")).owner is None


async def test_leaving_the_manager_waits_for_a_tool_that_ignores_its_cancellation() -> None:
    tool = SwallowingCancellation(50)
    with lasting(50, abs=1):
        async with in_tool(tool) as (on, _):
            assert runtime_of(on.manager).running_works != ()
    assert tool.ended.is_set()


async def test_leaving_the_manager_leaves_no_task_behind() -> None:
    before = {task.id for task in anyio.get_running_tasks()}
    async with stage(lambda request, tag: never()) as on:
        for n in range(5):
            session = await on.manager.create(SessionConfig(model="m"), session_id=f"x{n}")
            await session.send("go")
            session.subscribe()
        await settled()
        assert len(runtime_of(on.manager).running_works) == 5
    after = {task.id for task in anyio.get_running_tasks()}
    assert after <= before
    assert on.provider.opened == on.provider.closed == 5


async def test_a_closed_session_takes_no_commands_and_keeps_its_history_readable() -> None:
    async with stage(["hi"]) as on:
        await on.say("hello")
        await on.session.close()
        asks: list[Any] = [
            lambda: on.session.send("x"),
            on.session.interrupt,
            on.session.clear,
            on.session.compact,
            lambda: on.session.configure(model="n"),
            on.session.fork,
        ]
        for ask in asks:
            with pytest.raises(SessionClosed):
                await ask()
        assert on.session.status().phase == "closed"
        assert len(on.session.conversation()) == 2


async def test_closing_twice_gives_the_same_answer() -> None:
    async with stage([never()]) as on:
        await on.session.send("go")
        assert await on.session.close() == await on.session.close()


async def test_a_cancellation_from_outside_ends_the_sessions_in_order() -> None:
    store = MemoryStore()
    provider = ScriptedProvider([never()])
    with anyio.move_on_after(5) as scope:
        async with SessionManager(provider=provider, store=store) as manager:
            session = await manager.create(SessionConfig(model="m"), session_id="s")
            turn = await session.send("go")
            await turn.outcome()
    assert scope.cancelled_caught
    last = r.decode_record((await store.read("s"))[-1].body)
    assert isinstance(last, r.TurnAborted)
    assert (await store.row("s")).owner is None
    assert provider.open_streams == 0


async def test_an_error_in_the_body_comes_out_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        async with stage([never()]) as on:
            await on.session.send("go")
            raise ZeroDivisionError


@pytest.mark.parametrize(
    "option",
    [
        {"idle_s": -1},
        {"idle_s": float("nan")},
        {"idle_s": "10"},
        {"observers": 5},
        {"provider": ScriptedProvider},
        {"provider": "anthropic"},
        {"summariser": 5},
        {"store": "sessions.db"},
        {"clock": 5},
        {"environ": 5},
        {"retention_every_s": 10**400},
        {"retention_every_s": 0},
    ],
    ids=str,
)
def test_an_option_of_a_manager_that_is_none_is_refused_by_name(option: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=f"^{next(iter(option))} "):
        SessionManager(**{"provider": ScriptedProvider([]), **option})


async def test_a_manager_must_be_entered_and_only_once() -> None:
    manager = SessionManager(provider=ScriptedProvider([]))
    with pytest.raises(InvalidInput):
        await manager.create(SessionConfig(model="m"))
    async with manager:
        pass
    with pytest.raises(InvalidInput):
        await manager.__aenter__()
    with pytest.raises(SessionClosed):
        await manager.create(SessionConfig(model="m"))


async def test_drain_waits_for_open_and_queued_turns_and_takes_no_new_sessions() -> None:
    async with stage(lambda request, tag: say("a reply").slow(1)) as on:
        turns = [await on.session.send(f"{n}") for n in range(3)]
        assert await on.manager.drain() == ()
        assert [(await turn.outcome()).status for turn in turns] == ["committed"] * 3
        with pytest.raises(SessionClosed):
            await on.manager.create(SessionConfig(model="m"))
        on.manager._runtime._accepting = True  # for the look at the end


async def test_drain_gives_up_after_its_time_and_names_what_is_open() -> None:
    async with stage([never()]) as on:
        await on.session.send("go")
        with lasting(7, abs=0.1):
            assert await on.manager.drain(timeout_s=7) == ("s",)


async def test_sessions_are_listed_without_being_acquired() -> None:
    async with stage() as on:
        await on.manager.create(SessionConfig(model="m"), session_id="a")
        assert await on.names() == ["a", "s"]
        assert [row.session for row in await on.manager.list(after="a")] == ["s"]
        assert (await on.store.row("s")).epoch == 1


async def test_a_deleted_session_is_gone() -> None:
    async with stage([never()]) as on:
        await on.session.send("go")
        await on.manager.delete("s")
        with pytest.raises(SessionNotFound):
            await on.manager.open("s")
        with pytest.raises(SessionNotFound):
            await on.manager.delete("s")


async def test_many_concurrent_opens_load_a_session_once() -> None:
    async with stage(["hi"]) as on:
        await on.say("hello")
        await on.evict()
        opened = await at_once(*[lambda: on.manager.open("s")] * 10)
        on.session = opened[0]
        assert len({id(session.conversation()) for session in opened}) == 1
        assert on.session.status().epoch == 2


# Two owners


async def test_a_session_in_use_is_not_opened_by_another_manager() -> None:
    store = MemoryStore()
    async with stage(["hi"], store=store) as on:
        async with SessionManager(provider=on.provider, store=store) as other:
            with pytest.raises(SessionInUse):
                await other.open("s")
        assert await on.say("hello") == "hi"


async def test_after_a_takeover_the_old_owner_is_moved_and_publishes_nothing_more() -> None:
    store = MemoryStore()
    async with stage(["hi", say("streams").slow(1)], store=store) as on:
        await on.say("hello")
        running = await on.session.send("running")
        events = on.session.subscribe()
        await first(events, object)
        async with SessionManager(provider=ScriptedProvider(["theirs"]), store=store) as other:
            moved = await other.open("s", takeover=True)
            assert moved.status().epoch == 2
            head = on.session.status().seq
            with pytest.raises(SessionMoved):
                await on.session.send("too late")
            with pytest.raises(SessionMoved):
                await running.outcome()
            with pytest.raises(SessionMoved):
                await on.session.interrupt()
            with pytest.raises(SessionMoved):
                on.session.turn("u2")  # it was: who has the session knows how it ended
            with pytest.raises(InvalidInput):
                on.session.turn("u3")
            assert on.session.status().phase == "moved"
            assert not [event async for event in events if isinstance(event, r.RecordBase)]
            assert on.session.status().seq == head
            # The new owner ended the open turn and goes on.
            assert (await moved.turn("u2").outcome()).stop_reason == "crash"
            assert await (await moved.send("go on")).text() == "theirs"


async def test_a_moved_owner_starts_no_tool_that_the_new_one_does_not_know_of() -> None:
    store = MemoryStore()
    tool = Quick()
    script = [say("x").slow(1) + call("t", id="c")]
    async with stage(script, tool=tool, store=store) as on:
        running = await on.session.send("go")
        async with SessionManager(provider=on.provider, store=store) as other:
            await other.open("s", takeover=True)
            with pytest.raises(SessionMoved):
                await running.outcome()
        assert tool.inputs == []


# A store that fails


async def test_a_failed_append_gives_every_waiting_caller_a_store_error_and_goes_cold() -> None:
    async with faulty_stage(["hi", "next"]) as (on, store):
        await on.say("hello")
        store.fail_next()
        with pytest.raises(StoreError) as raised:
            await on.session.send("lost")
        assert raised.value.committed is False
        # The handle brings the session back on the next touch.
        assert await on.say("again") == "next"
        assert [m.text for m in on.session.conversation()] == ["hello", "hi", "again", "next"]


async def test_a_session_that_is_deleted_under_its_owner_is_closed_by_name() -> None:
    async with stage(["hi"]) as on:
        await on.store.delete("s")
        with pytest.raises(SessionClosed, match="deleted"):
            await on.session.send("hello")
        await on.manager.create(SessionConfig(model="m"), session_id="another")


async def test_a_crash_ends_open_turns_with_a_receipt_when_the_session_is_opened_again() -> None:
    store = MemoryStore()
    tool = Waiting()
    script = [call("t", id="c"), "ok"]
    async with stage(script, tool=tool, store=store) as on:
        await on.session.send("running")
        await on.started(tool, "queued")
        # Another process finds the log as a kill would leave it.
        async with SessionManager(provider=ScriptedProvider(["ok"]), store=store) as other:
            session = await other.open("s", takeover=True, unbound="caller")
            assert (await session.turn("u1").outcome()).stop_reason == "crash"
            assert (await session.turn("u2").outcome()).stop_reason == "crash"
            assert session.conversation() == ()
            await (await session.send("next")).text()
            assert b"t (c)" in bytes(session.conversation()[0].body)
            assert b"outcome unknown" in bytes(session.conversation()[0].body)


async def test_callables_are_bound_again_by_the_manager_or_by_open() -> None:
    store = MemoryStore()
    async with stage(tool=Quick("old"), store=store):
        pass
    provider = ScriptedProvider([call("t", id="c"), "ok", call("t", id="c"), "ok"])
    tools = [Tool(name="t", run=Quick("from the manager"))]
    async with SessionManager(provider=provider, store=store, tools=tools) as manager:
        session = await manager.open("s")
        await (await session.send("go")).text()
        session = await manager.open("s", tools=[Tool(name="t", run=Quick("from open"))])
        await (await session.send("go")).text()
        results = [b.text for m in session.conversation() for b in m.tool_results]
        assert results == ["from the manager", "from open"]


async def test_the_managers_callables_are_bound_from_the_first_turn_on() -> None:
    script: list[ScriptedReply | str] = [
        *(call("t", id="c"), "ok"), *(call("u", id="d"), "ok"), *(call("u", id="e"), "ok")
    ]  # fmt: skip
    tools = [Tool(name="t", run=Quick("its t")), Tool(name="u", run=Quick("its u"))]
    async with SessionManager(provider=ScriptedProvider(script), tools=tools) as manager:
        session = await manager.create(SessionConfig(model="m", tools=[{"name": "t"}]))
        await (await session.send("go")).text()
        await session.configure(tools=[{"name": "u"}])
        await (await session.send("go")).text()
        await session.configure(tools=[Tool(name="u", run=Quick("its own"))])
        await (await session.send("go")).text()
        results = [b.text for m in session.conversation() for b in m.tool_results]
        assert results == ["its t", "its u", "its own"]


async def test_turns_number_on_through_drops_and_restarts_without_a_gap_or_a_repeat() -> None:
    store = MemoryStore()
    for _ in range(3):
        reopen = store._names != []
        async with stage(
            lambda request, tag: never() if tag.turn % 3 == 0 else "hi", store=store, reopen=reopen
        ) as on:
            for _ in range(20):
                turn = await on.session.send("go")
                if turn.id.number % 3 == 0:
                    await settled()
                    await on.session.interrupt()
                await turn.outcome()
    log = [r.decode_record(record.body) for record in await store.read("s")]
    numbers = [record.turn for record in log if isinstance(record, r.TurnAccepted)]
    assert numbers == list(range(1, 61))


class SlowToRelease(MemoryStore):
    """Lets go of a session only when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may = anyio.Event()
        self.calls: list[str] = []

    async def acquire(self, session: str, owner: Owner, *, takeover: bool = False) -> Lease:
        self.calls.append("acquire")
        return await super().acquire(session, owner, takeover=takeover)

    async def release(self, lease: Lease) -> None:
        self.calls.append("release")
        await self.may.wait()
        await super().release(lease)
        self.calls.append("released")


async def test_an_evicted_session_is_free_for_another_owner() -> None:
    async with stage(["hi"]) as on:
        await on.say("hello")
        await on.evict()
        assert (await on.store.row("s")).owner is None
        async with SessionManager(provider=on.provider, store=on.store) as other:
            assert len((await other.open("s")).conversation()) == 2


async def test_a_session_is_opened_again_only_when_its_release_is_over() -> None:
    store = SlowToRelease()
    async with stage(["hi"], store=store) as on:
        await on.say("hello")
        on.let_go()
        async with anyio.create_task_group() as group:
            group.start_soon(runtime_of(on.manager).evict_idle)
            await settled()
            group.start_soon(on.manager.open, "s")
            await settled()
            during = tuple(store.calls)
            store.may.set()
        assert during == ("release",)
        assert store.calls == ["release", "released", "acquire"]


async def test_a_command_that_is_unread_when_the_session_closes_fails_by_name() -> None:
    async with stage([never()]) as on:
        await on.begin("running")
        # Both are unread when the actor comes to them, and close is read first.
        sent = unread_send(on.session)
        closed = on.session.reference.actor.put_close()
        with pytest.raises(SessionClosed):
            await sent.promise.wait()
        await closed.wait()
        assert "unread" not in str(await on.log())


async def test_a_send_that_an_interrupt_sweeps_up_while_the_session_closes_fails_by_name() -> None:
    async with stage() as on:
        actor, sent = on.session.reference.actor, unread_send(on.session)
        interrupted = actor.put_interrupt(None, None, None)
        closed = actor.put_close()
        with pytest.raises(SessionClosed):
            await sent.promise.wait()
        assert (await interrupted.wait()).turns == ()
        await closed.wait()
        assert await on.kinds() == ["session.created"]


async def test_close_names_a_tool_that_is_in_the_grace_of_its_deadline() -> None:
    tool = SwallowingCancellation(50)
    script = [call("t", id="c"), "done"]
    async with stage(script, tools=[Tool(name="t", run=tool, deadline_s=5)], grace_s=20.0) as on:
        assert await on.say("go") == "done"  # its deadline has passed, its grace has not
        assert len(on.session.status().still_running) == 1
        closed = await on.session.close()
        assert len(closed.still_running) == 1
        assert "tool t c" in closed.still_running[0]
        assert not tool.ended.is_set()


async def turn_cold(on: Stage, store: FaultyStore) -> None:
    """Let the session lose its store: the next command loads it again."""
    store.fail_next()
    with pytest.raises(StoreError):
        await on.session.label({"now": "cold"})


class _SlowToTake(MemoryStore):
    """Takes a second to give a session, so that many callers wait for it at once."""

    async def acquire(self, session: str, owner: Owner, *, takeover: bool = False) -> Lease:
        await anyio.sleep(1)
        return await super().acquire(session, owner, takeover=takeover)


async def test_commands_to_a_cold_session_are_enqueued_in_the_order_of_their_calls() -> None:
    store = FaultyStore(_SlowToTake())
    async with stage(["hi"] * 9, store=store) as on:
        await turn_cold(on, store)
        turns: dict[str, int] = {}

        async def send(text: str) -> None:
            turns[text] = (await on.session.send(text)).id.number

        async with anyio.create_task_group() as group:
            for text in "abcd":
                group.start_soon(send, text)
                await settled()
            await anyio.sleep(0.99)
            # It comes back now; whoever calls while the others go on is behind them.
            for text in "efgh":
                group.start_soon(send, text)
                await anyio.sleep(0.01)
        assert sorted(turns, key=turns.__getitem__) == list("abcdefgh")


async def test_an_interrupt_of_a_cold_session_covers_the_sends_that_wait_for_it() -> None:
    store = FaultyStore(_SlowToTake())
    async with stage([never()], store=store) as on:
        await turn_cold(on, store)

        async def send() -> int:
            outcome = await on.outcome("go")
            assert outcome.status == "aborted"
            return 1

        async def interrupt() -> int:
            await settled()
            return len((await on.session.interrupt()).turns)

        assert sorted(await at_once(send, send, send, interrupt)) == [1, 1, 1, 3]


async def test_a_session_that_another_owner_has_is_taken_back_though_it_seems_live_here() -> None:
    store = MemoryStore()
    async with stage(["hi", "back"], store=store) as on:
        await on.say("hello")
        await store.acquire("s", Owner("another"), takeover=True)
        # Nothing was written since, so nobody here knows: without takeover the handle is given.
        assert (await on.manager.open("s")).status().phase == "idle"
        moved = await on.manager.open("s", takeover=True)
        assert on.session.status().phase == "moved"
        assert await (await moved.send("again")).text() == "back"


async def test_what_an_earlier_life_left_running_is_named_where_the_session_is_closed() -> None:
    tools = [Tool(name="stuck", run=SwallowingCancellation(5))]
    async with faulty_stage([call("stuck", id="a"), "hi"], tools=tools) as (on, store):
        turn = await on.begin("go")
        store.fail_next()
        with pytest.raises(StoreError):
            await on.session.send("lost")
        with pytest.raises(StoreError):
            await turn.outcome()
        on.session = await on.manager.open("s", unbound="caller")
        closed = await on.session.close()
        assert closed.still_running == ("tool stuck a in s",)


async def _in_a_task_of_its_own(call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(call)


async def test_a_manager_is_entered_in_one_task_and_left_in_another() -> None:
    tool = Waiting()
    provider = ScriptedProvider(["hi", call("t", id="c")])
    manager = SessionManager(provider=provider)
    await _in_a_task_of_its_own(manager.__aenter__)
    config = SessionConfig(model="m", tools=(Tool(name="t", run=tool),))
    session = await manager.create(config, session_id="s")
    assert await (await session.send("hello")).text() == "hi"
    turn = await session.send("go")
    await tool.started.wait()
    await _in_a_task_of_its_own(partial(manager.__aexit__, None, None, None))
    assert tool.cancelled
    assert (await turn.outcome()).stop_reason == "closed"
    assert (manager.live, runtime_of(manager).running_works) == ((), ())
    with pytest.raises(SessionClosed):
        await manager.create(config)


@pytest.mark.real_time
def test_a_manager_that_is_left_in_another_event_loop_says_so() -> None:
    manager = SessionManager(provider=ScriptedProvider([]))
    anyio.run(manager.__aenter__)
    with pytest.raises(InvalidInput, match="event loop"):
        anyio.run(manager.__aexit__, None, None, None)
