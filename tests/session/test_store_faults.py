"""A store that fails at any append: typed errors, nobody hangs, nothing unwritten is shown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import msgspec
import pytest

from llmsession.errors import (
    SessionClosed,
    SessionError,
    SessionInUse,
    SessionMoved,
    SessionNotFound,
    StoreError,
    TurnNotOpen,
)
from llmsession.session.core.subscriptions import Lagged
from llmsession.session.handles.session import LLMSession
from llmsession.session.log.state import fold
from llmsession.session.manager import SessionManager, runtime_of
from llmsession.session.values.config import Recovery, SessionConfig, Tool, ToolResult
from llmsession.store.memory import MemoryStore
from llmsession.store.protocol import AppendResult, Batch, Conflict, Lost, Owner, StoredRecord
from llmsession.testing.scripted import ScriptedProvider, ScriptedReply, call, say
from llmsession.turns import records as r
from llmsession.turns.previews import ToolUse
from llmsession.turns.request import Request, StepTag
from tests.session.actors import check_log
from tests.session.probes import (
    assert_request_is_sound,
    differences,
    live_state,
    log_of,
    run_virtually,
    said,
    settle,
    unpaired,
)
from tests.virtual_time import BACKENDS

FAULTS = ("failed", "lost, written", "lost, not written", "conflict, ours", "moved", "deleted")


class FaultAt(MemoryStore):
    """Fails the *at*-th append in one way; with *twice*, also the one after it."""

    def __init__(self, at: int, kind: str, *, twice: bool = False) -> None:
        super().__init__()
        self.at = at
        self.kind = kind
        self.left = 2 if twice else 1
        self.appended = 0

    @property
    def fired(self) -> bool:
        return self.at <= self.appended

    def disarm(self) -> None:
        """Fail nothing any more, unless it has begun to."""
        if not self.fired:
            self.left = 0

    def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
        self.appended += 1
        if self.appended < self.at or not self.left:
            super().append(batch, done)
            return
        self.left -= 1
        match self.kind:
            case "failed":
                done(Lost("the disk is full", committed=False))
            case "lost, written":
                super().append(batch, lambda result: done(Lost("no answer")))
            case "lost, not written":
                done(Lost("no answer"))
            case "conflict, ours":
                super().append(batch, lambda result: None)
                done(Conflict(_now(self.row(batch.session))))
            case "moved":
                _now(self.acquire(batch.session, Owner("thief"), takeover=True))
                super().append(batch, done)
            case "deleted":
                _now(self.delete(batch.session))
                super().append(batch, done)


def _now(waiting: Any) -> Any:
    """What a coroutine of the memory store returns; it never waits."""
    try:
        waiting.send(None)
    except StopIteration as stopped:
        return stopped.value
    raise AssertionError("the memory store waited")


def _reply(request: Request, _tag: StepTag) -> ScriptedReply:
    last = bytes(request.messages[-1].body)
    if b"use tools" in last:
        return say("let me see") + call("mine", id="c") + call("quick", id="d")
    return say("fine")


async def _quick() -> str:
    return "quick"


CONFIG = SessionConfig(model="m", tools=[Tool(name="mine"), Tool(name="quick", run=_quick)])


class Scene:
    """Many callers at once, a subscriber, and one append that fails under them."""

    def __init__(self, store: FaultAt, recovery: Recovery = "drop") -> None:
        self.store = store
        self.config = msgspec.structs.replace(CONFIG, recovery=recovery)
        self.provider = ScriptedProvider(_reply)
        self.errors: list[SessionError] = []
        self.published: dict[int, r.Record] = {}
        self.lagged = 0

    async def __call__(self) -> None:
        async with SessionManager(provider=self.provider, store=self.store) as manager:
            self.session: LLMSession = await manager.create(self.config, session_id="s")
            with anyio.fail_after(1000):
                await self._callers()
                await settle()
                self.hit = self.store.fired
                self.store.disarm()
                if self.store.left:
                    # The second fault hits what re-activation writes, or the next send.
                    await self._caller(self._say, "is it back?")
                if self.store.kind in ("moved", "deleted") and self.errors:
                    await self._assert_gone(manager)
                else:
                    await self._assert_comes_back()
            assert runtime_of(manager).running_works == ()
        if self.store.kind != "deleted":
            await self._assert_published_is_stored()
        for request in self.provider.requests:
            assert_request_is_sound(request, self.provider.profile("m"))

    async def _callers(self) -> None:
        subscription = self.session.subscribe(after=0)
        async with anyio.create_task_group() as group:
            group.start_soon(self._listen, subscription)
            async with anyio.create_task_group() as callers:
                callers.start_soon(self._caller, self._use_tools)
                await settle()
                callers.start_soon(self._caller, self._say, "a queued one")
                callers.start_soon(self._caller, self._configure)
                await settle()
                callers.start_soon(self._caller, self._say, "one to be interrupted")
                callers.start_soon(self._caller, self._interrupt)
                callers.start_soon(self._caller, self.session.compact)
            subscription.close()

    async def _caller(self, command: Callable[..., Awaitable[Any]], *given: Any) -> None:
        try:
            await command(*given)
        except SessionError as error:
            self.errors.append(error)

    async def _use_tools(self) -> None:
        turn = await self.session.send("use tools")
        async for event in turn:
            if isinstance(event, ToolUse) and event.name == "mine":
                await anyio.sleep(0.01)
                await self._caller(self.session.submit_tool_results, [ToolResult(event.id, "42")])
        await turn.outcome()

    async def _say(self, text: str) -> None:
        await (await self.session.send(text)).outcome()

    async def _configure(self) -> None:
        await self.session.configure(system="new")

    async def _interrupt(self) -> None:
        # By its number, so that only the last send is meant, and it may be refused by then.
        await self.session.interrupt(3)

    async def _listen(self, subscription: Any) -> None:
        async for event in subscription:
            if isinstance(event, Lagged):
                self.lagged += 1
            elif isinstance(event, r.RecordBase):
                self.published[event.seq] = event  # type: ignore[assignment]  # it is a record

    async def _assert_comes_back(self) -> None:
        """The same handle goes on, and every turn that was left open has ended."""
        outcome = await (await self.session.send("and then")).outcome()
        assert outcome.status == "committed"
        log = await log_of(self.store, "s")
        check_log(log)
        assert not fold("s", log).open
        assert differences(live_state(self.session), fold("s", log)) == []
        assert unpaired(said(self.session.conversation())) == []
        assert self.session.status().phase == "idle"

    async def _assert_gone(self, manager: SessionManager) -> None:
        expected = SessionMoved if self.store.kind == "moved" else SessionClosed
        with pytest.raises(expected):
            await self.session.send("is anybody there?")
        if self.store.kind == "deleted":
            with pytest.raises(SessionNotFound):
                await manager.open("s", unbound="caller")
            return
        with pytest.raises(SessionInUse):
            await manager.open("s", unbound="caller")
        self.session = await manager.open("s", takeover=True, unbound="caller")
        await self._assert_comes_back()

    async def _assert_published_is_stored(self) -> None:
        log = {record.seq: record for record in await log_of(self.store, "s")}
        assert all(log.get(seq) == record for seq, record in self.published.items())


def _expected(kind: str) -> tuple[type[SessionError], object]:
    match kind:
        case "failed":
            return StoreError, False
        case "lost, written" | "lost, not written":
            return StoreError, None
        case "moved":
            return SessionMoved, "-"
        case _:
            return SessionClosed, "-"


@pytest.mark.parametrize(
    ("kind", "twice"), [*((kind, False) for kind in FAULTS), *((kind, True) for kind in FAULTS[:4])]
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_append_that_fails_gives_every_caller_its_error_and_the_session_comes_back(
    backend: str, kind: str, twice: bool
) -> None:
    at, fired, failed = 2, True, 0  # the first append is the session's creation
    while fired:
        store = FaultAt(at, kind, twice=twice)
        scene = Scene(store)
        run_virtually(backend, scene)
        fired = scene.hit
        at += 1
        if kind == "conflict, ours":
            assert scene.errors == []
            continue
        error, committed = _expected(kind)
        failed += fired
        # Results that come after the session came back find their turn ended, as a crash.
        lost = [each for each in scene.errors if not isinstance(each, TurnNotOpen)]
        assert bool(lost) == fired
        for raised in lost:
            assert type(raised) is error, raised
            assert getattr(raised, "committed", "-") == committed
    assert at > 10
    print(f"{kind}: {failed} of {at - 2} appends failed somebody")


@pytest.mark.parametrize("kind", [*FAULTS[:3], "moved"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_under_resume_an_append_that_fails_leaves_a_turn_that_goes_on_in_the_next_owner(
    backend: str, kind: str
) -> None:
    at, fired, resumed = 2, True, 0
    while fired:
        store = FaultAt(at, kind)
        scene = Scene(store, "resume")
        run_virtually(backend, scene)
        fired = scene.hit
        at += 1
        resumed += sum(
            isinstance(r.decode_record(body), r.TurnResumed) for body in store._logs["s"].bodies
        )
    assert resumed > 5
    print(f"{kind}: {resumed} turns resumed after {at - 2} appends")


@pytest.mark.parametrize("kind", FAULTS[:4])
async def test_a_session_whose_creation_cannot_be_written_can_be_had_all_the_same(
    kind: str,
) -> None:
    store = FaultAt(1, kind)
    async with SessionManager(provider=ScriptedProvider(_reply), store=store) as manager:
        with anyio.fail_after(100):
            if kind != "conflict, ours":  # written, which the log says: that is a success
                with pytest.raises(StoreError):
                    await manager.create(CONFIG, session_id="s")
            if kind == "lost, written":
                session = await manager.open("s", unbound="caller")
            else:
                if kind == "lost, not written":
                    await manager.delete("s")
                session = await manager.create(CONFIG, session_id="s")
            assert await (await session.send("hello")).text() == "fine"


class RefusingOnce(MemoryStore):
    """Once armed, refuses one batch as if the log were elsewhere, in the owner's own epoch."""

    armed = False

    def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
        if self.armed:
            self.armed = False
            done(Conflict(_now(self.row(batch.session))))
        else:
            super().append(batch, done)


async def test_a_batch_that_met_a_conflict_and_is_not_in_the_log_is_not_taken_as_written() -> None:
    store = RefusingOnce()
    provider = ScriptedProvider([say("fine"), say("back")])
    async with SessionManager(provider=provider, store=store) as manager:
        session = await manager.create(SessionConfig(model="m"), session_id="s")
        assert await (await session.send("hello")).text() == "fine"
        before = await log_of(store, "s")
        store.armed = True
        with anyio.fail_after(100), pytest.raises(StoreError):
            await session.send("refused")
        assert await log_of(store, "s") == before
        again = await manager.open("s", unbound="caller")
        assert await (await again.send("hello")).text() == "back"
        assert b"refused" not in again.context().encode()


class Shortened(MemoryStore):
    """Once armed, reads all but the last record of a log."""

    armed = False

    async def read(
        self, session: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredRecord]:
        found = await super().read(session, after=after, limit=limit)
        return found[:-1] if self.armed else found


async def test_a_log_that_ends_before_its_head_is_not_opened() -> None:
    store = Shortened()
    async with SessionManager(provider=ScriptedProvider([say("fine")]), store=store) as manager:
        session = await manager.create(SessionConfig(model="m"), session_id="s")
        await (await session.send("hello")).text()
        head = session.status().seq
        await session.close()
        store.armed = True
        with pytest.raises(StoreError, match=f"has only {head - 1} of its {head} records"):
            await manager.open("s", unbound="caller")
        store.armed = False
        assert len((await manager.open("s", unbound="caller")).conversation()) == 2
