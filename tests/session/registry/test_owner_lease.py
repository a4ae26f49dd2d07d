"""An owner that may have lost its sessions starts nothing and shows nothing until it knows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from functools import partial
from typing import Any

import anyio
import msgspec
import pytest

from llmsession import (
    LLMSession,
    SessionConfig,
    SessionManager,
    SessionMoved,
    StoreError,
    TextDelta,
    Tool,
)
from llmsession.session.compacting.model_summary import ModelSummary
from llmsession.session.manager import runtime_of
from llmsession.session.values.config import SummariserConfig
from llmsession.store import Appended, AppendResult, Batch, MemoryStore, Owner, OwnerListener
from llmsession.store.caller import Caller
from llmsession.testing.scripted import Scripted, ScriptedProvider, call, say
from llmsession.turns.request import Request, StepTag
from tests.session.actors import first, meanwhile, settled


class LeasingMemory(MemoryStore):
    """Its owners have one lease, which a test ends and renews. It calls the owners
    from outside of their tasks, as stores with a thread of their own do."""

    def __init__(self) -> None:
        super().__init__()
        self.is_valid = True
        self.fails = 0
        self.is_slow = False
        self.answers: list[Callable[[], None]] = []
        """The answers to appends, while it is slow."""
        self.listeners: dict[str, tuple[OwnerListener, Caller]] = {}

    def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
        if self.is_slow:
            self.answers.append(lambda: done(Appended(batch.head + len(batch.bodies))))
        else:
            super().append(batch, done)

    def watch_owner(self, owner: Owner, listener: OwnerListener) -> None:
        self.listeners[owner.name] = (listener, Caller())

    def is_lease_valid(self, owner: Owner) -> bool:
        return self.is_valid

    async def epochs(self, sessions: Sequence[str]) -> Mapping[str, int]:
        if self.fails:
            self.fails -= 1
            raise StoreError("cut off", committed=False)
        return {session: (await self.row(session)).epoch for session in sessions}

    def renew(self) -> None:
        for listener, caller in self.listeners.values():
            Context().run(caller.call, partial(self._renewed, listener))

    def _renewed(self, listener: OwnerListener) -> None:
        self.is_valid = True
        listener.missed()


class Counting(ScriptedProvider):
    """Counts the requests that were begun."""

    begun = 0

    def stream(self, request: Request, tag: StepTag):  # type: ignore[no-untyped-def]  # as its base
        self.begun += 1
        return super().stream(request, tag)


@asynccontextmanager
async def owned(
    *replies: Scripted, tools: tuple[Tool, ...] = ()
) -> AsyncIterator[tuple[LLMSession, LeasingMemory, Counting]]:
    store, provider = LeasingMemory(), Counting(list(replies))
    async with SessionManager(provider=provider, store=store) as manager:
        config = SessionConfig(model="m", tools=tools)
        yield await manager.create(config, session_id="s"), store, provider


async def test_a_store_that_calls_where_no_work_can_begin_costs_the_knowledge_of_leases_only() -> (
    None
):
    async with owned(say("on")) as (session, store, _):
        ((listener, caller),) = store.listeners.values()
        Context().run(caller.call, listener.missed)
        assert await (await session.send("hello")).text() == "on"


async def test_no_request_begins_while_the_lease_is_not_valid() -> None:
    async with owned(say("late")) as (session, store, provider):
        store.is_valid = False
        turn = await session.send("hello")
        await anyio.sleep(100)
        assert provider.begun == 0
        store.renew()
        assert await turn.text() == "late"
        assert provider.begun == 1


async def test_a_request_begins_even_if_nobody_says_that_the_lease_is_valid_again() -> None:
    async with owned(say("late")) as (session, store, _):
        store.is_valid = False
        turn = await session.send("hello")
        await anyio.sleep(100)
        store.is_valid = True
        assert await turn.text() == "late"


async def test_no_tool_begins_while_the_lease_is_not_valid() -> None:
    runs: list[str] = []

    async def act() -> str:
        runs.append("ran")
        return "done"

    tool = Tool(name="act", input_schema={"type": "object"}, run=act)
    slow = call("act", {}, id="c1").slow(1.0)
    async with owned(slow, say("end"), tools=(tool,)) as (session, store, _):
        turn = await session.send("hello")
        await settled()
        store.is_valid = False
        await anyio.sleep(100)
        assert runs == []
        store.renew()
        assert await turn.text() == "end"
        assert runs == ["ran"]


async def test_a_summary_by_a_model_waits_for_the_lease_as_well() -> None:
    store = LeasingMemory()
    provider = Counting([say("a summary of it")])
    async with SessionManager(provider=provider, store=store) as manager:
        lease = runtime_of(manager)._services.lease
        settings = SummariserConfig(model="small")
        summary = ModelSummary(provider, settings, step=1, count=len, lease=lease)
        store.is_valid = False
        with anyio.move_on_after(100):
            await summary._reply("summarise", msgspec.Raw(b'"long"'), 100)
        assert provider.begun == 0


async def test_a_turn_that_waits_for_the_lease_can_be_interrupted() -> None:
    async with owned() as (session, store, provider):
        store.is_valid = False
        turn = await session.send("hello")
        await settled()
        await session.interrupt()
        assert (await turn.outcome()).status == "aborted"
        assert provider.begun == 0


async def test_no_preview_is_published_while_the_lease_is_not_valid_and_no_text_is_lost() -> None:
    text = "a reply of many words, in small pieces"
    async with owned(say(text).slow(1.0, delta_chars=4)) as (session, store, _):
        turn = await session.send("hello")
        pieces = turn.stream_text()
        shown = [await anext(pieces)]
        store.is_valid = False
        with anyio.move_on_after(3.5):
            await anext(pieces)
            pytest.fail("a preview was shown")
        with anyio.move_on_after(1.0):
            await first(turn, TextDelta)
            pytest.fail("a new subscriber was shown what has come so far")
        store.renew()
        shown += [piece async for piece in pieces]
        assert shown == [text[:4], text[4:]]


async def test_what_was_taken_while_the_store_was_cut_off_is_fenced_before_anything_begins() -> (
    None
):
    async with owned(say("never said")) as (session, store, provider):
        store.is_valid = False
        turn = await session.send("hello")
        await settled()
        await store.acquire("s", Owner("other"), takeover=True)
        store.fails = 3
        store.renew()
        with pytest.raises(SessionMoved):
            await turn.outcome()
        assert provider.begun == 0


async def test_the_loser_of_a_take_stops_at_once_and_publishes_nothing_more() -> None:
    async with owned(say("a very long reply").slow(10.0)) as (session, store, _):
        turn = await session.send("hello")
        await settled()
        lease = await store.acquire("s", Owner("other"), takeover=True)
        ((listener, _),) = store.listeners.values()
        listener.taken("s", lease.epoch)
        with anyio.fail_after(1), pytest.raises(SessionMoved):
            await turn.outcome()


async def test_news_of_an_older_epoch_and_of_a_session_that_is_not_here_change_nothing() -> None:
    async with owned(say("hi")) as (session, store, _):
        ((listener, _),) = store.listeners.values()
        listener.taken("s", 1)
        listener.taken("nobody", 7)
        assert await (await session.send("hello")).text() == "hi"


class Gated(LeasingMemory):
    """What its methods answer is on its way while there is a gate of their name."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: dict[str, anyio.Event] = {}

    async def read(self, session: str, **place: Any) -> Any:
        stored = await super().read(session, **place)
        await self._pass("read")
        return stored

    async def epochs(self, sessions: Sequence[str]) -> Mapping[str, int]:
        epochs = await super().epochs(sessions)
        await self._pass("epochs")
        return epochs

    async def _pass(self, name: str) -> None:
        if name in self.gates:
            await self.gates[name].wait()


@asynccontextmanager
async def gated() -> AsyncIterator[tuple[SessionManager, LLMSession, Gated]]:
    store = Gated()
    async with SessionManager(provider=Counting([]), store=store) as manager:
        yield manager, await manager.create(SessionConfig(model="m"), session_id="s"), store


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_session_that_is_taken_while_it_is_loaded_is_not_served(is_told: bool) -> None:
    async with gated() as (manager, session, store):
        await session.close()
        store.gates["read"] = anyio.Event()
        async with meanwhile(lambda: manager.open("s"), refused=(StoreError,)) as opened:
            lease = await store.acquire("s", Owner("other"), takeover=True)
            if is_told:
                ((listener, _),) = store.listeners.values()
                listener.taken("s", lease.epoch)
            else:
                store.renew()
            await settled()
            store.gates["read"].set()
        assert "took session 's' while it was loaded" in str(opened[0])
        assert manager.live == ()


async def test_what_was_taken_while_the_store_was_cut_off_a_second_time_is_fenced_as_well() -> None:
    async with gated() as (_, session, store):
        store.gates["epochs"] = anyio.Event()
        store.renew()
        await settled()
        await store.acquire("s", Owner("other"), takeover=True)
        store.renew()
        await settled()
        store.gates["epochs"].set()
        await settled()
        assert session.status().phase == "moved"


class Odd(LeasingMemory):
    """Raises wherever it is asked for its lease."""

    def is_lease_valid(self, owner: Owner) -> bool:
        raise RuntimeError("no idea")


class Deaf(LeasingMemory):
    def watch_owner(self, owner: Owner, listener: OwnerListener) -> None:
        raise RuntimeError("no")


@pytest.mark.parametrize("kind", [Odd, Deaf])
async def test_a_store_that_cannot_say_anything_of_its_leases_is_used_without_them(
    kind: type[LeasingMemory],
) -> None:
    async with SessionManager(provider=ScriptedProvider([say("hi")]), store=kind()) as manager:
        session = await manager.create(SessionConfig(model="m"))
        assert await (await session.send("hello")).text() == "hi"


async def test_what_the_store_says_when_the_manager_has_ended_has_no_effect() -> None:
    async with owned(say("hello")) as (session, store, _):
        await (await session.send("hi")).text()
    store.renew()


async def test_an_append_is_answered_when_its_session_was_taken_and_the_manager_has_ended() -> None:
    async with owned(say("hello")) as (session, store, _):
        store.is_slow = True
        async with anyio.create_task_group() as group:
            group.start_soon(refused, session)
            await settled()
            for listener, _ in store.listeners.values():
                listener.taken("s", 7)
    assert len(store.answers) == 1
    store.answers[0]()


async def refused(session: LLMSession) -> None:
    with pytest.raises(SessionMoved):
        await session.send("hi")
