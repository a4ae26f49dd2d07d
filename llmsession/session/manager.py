"""SessionManager: the sessions of one process, live and cold."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskGroup

from llmsession.errors import (
    InvalidConfig,
    InvalidInput,
    RecordDamaged,
    SessionClosed,
    SessionError,
    StoreError,
    error_text,
)
from llmsession.providers.protocol import Provider
from llmsession.store.memory import MemoryStore
from llmsession.store.protocol import (
    EVERYTHING,
    Appended,
    Conflict,
    Hold,
    Lost,
    Owner,
    Search,
    SessionRow,
    Store,
    this_process,
)
from llmsession.turns import records as r

from .actor import Actor
from .config import SessionConfig, Tool, bind_tools, load_config
from .core import Surroundings, profile_of
from .hub import Hub
from .journal import Journal, Written
from .outcome import Closed
from .promise import Promise
from .readback import is_in_log, read_record
from .recovery import recovery_records
from .session import LLMSession
from .state import SessionState
from .timers import Timers
from .works import Works

__all__ = ["SessionManager"]

GRACE_S = 0.1
"""How long the manager's own works may take to stop when it is left."""
PAGE = 1000
"""Records read at a time when a session is loaded."""


class SessionManager:
    """Creates and opens sessions, keeps the live ones, evicts those that nobody holds.

    Use it as an async context manager; everything that runs for its sessions runs in it.
    Leaving it closes every session: open turns are interrupted, and tools that ignore their
    cancellation are waited for. *tools* are bound, by name, to the sessions that it opens.
    *idle_s* is how long a session that nobody holds stays in memory. *clock* gives the times in
    messages and records, in seconds since the epoch. *logger* is a structlog logger; without one,
    logs go to the standard library's logger ``llmsession``.
    """

    def __init__(
        self,
        *,
        provider: Provider,
        store: Store | None = None,
        tools: Sequence[Tool] = (),
        idle_s: float = 60.0,
        clock: Callable[[], float] = time.time,
        logger: Any | None = None,
    ) -> None:
        self.provider = provider
        self.store: Store = store if store is not None else MemoryStore()
        self._tools = tuple(tools)
        self._idle_s = idle_s
        self._clock = clock
        self._logger = logger
        self._owner: Owner = this_process(uuid.uuid4().hex)
        self._hub = Hub()
        self._live: dict[str, Actor] = {}
        self._busy: dict[str, Promise[None]] = {}
        """Sessions that are being made, loaded or released; the next one to touch them waits."""
        self._sweeping = False
        self._unheld = False
        """A handle was collected in another thread: who comes next sets the timer."""
        self._close_error: Exception | None = None
        self._entered = False
        self._accepting = False

    async def __aenter__(self) -> SessionManager:
        if self._entered:
            raise InvalidInput("a SessionManager can be entered once")
        self._entered = self._accepting = True
        self._leave, self._left = anyio.Event(), anyio.Event()
        self._thread = threading.get_ident()
        self._host = anyio.create_task_group()
        await self._host.__aenter__()
        try:
            ready = anyio.Event()
            self._host.start_soon(self._home, ready)
            # It takes no time, and ``__aexit__`` would not be called.
            with anyio.CancelScope(shield=True):
                await ready.wait()
        except BaseException:  # the task itself was cancelled, which asyncio lets pass a shield
            self._leave.set()
            await self._host.__aexit__(*sys.exc_info())
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave.set()
        try:
            with anyio.CancelScope(shield=True):
                await self._left.wait()
        finally:
            # Nothing runs in it any more; what the body raised goes on as it is, not in a group.
            # Where asyncio cancelled the task in its wait, the waiting is done here.
            await self._host.__aexit__(None, None, None)
        if self._close_error is not None:
            raise self._close_error

    async def _home(self, ready: anyio.Event) -> None:
        """Where everything runs that is not the caller's, and where it is ended. Shielded: a
        cancellation from outside reaches the body of the ``async with``, and the sessions are
        then ended in order instead of being torn."""
        with anyio.CancelScope(shield=True):
            try:
                async with anyio.create_task_group() as self._group:
                    self._furnish(self._group)
                    ready.set()
                    await self._leave.wait()
                    await self.close()
                    await self._works.stop_all(GRACE_S)
            finally:
                await self._close_store()
                self._left.set()

    def _furnish(self, group: TaskGroup) -> None:
        self._timers = Timers(group)
        self._works = Works(group)
        self._world = Surroundings(
            provider=self.provider,
            works=self._works,
            timers=self._timers,
            hub=self._hub,
            clock=self._clock,
            logger=self._logger,
        )

    async def _close_store(self) -> None:
        self._accepting = False
        for actor in tuple(self._live.values()):  # there are some only after a crash of ours
            with suppress(Exception):
                await self.store.release(actor.evict())
        try:
            await self.store.aclose()
        except Exception as error:  # it is raised where the manager is left
            self._close_error = error

    # Sessions.

    async def create(self, config: SessionConfig, *, session_id: str | None = None) -> LLMSession:
        """A new session, durable when it is returned; without *session_id* it gets a random one.

        Raises InvalidConfig, InvalidInput (the id), SessionExists, StoreError, and SessionClosed
        once the manager is closing.
        """
        self._check_accepting()
        if not isinstance(config, SessionConfig):
            raise InvalidConfig(f"a session needs a SessionConfig, not {type(config).__name__}")
        if session_id is not None and not isinstance(session_id, str):
            raise InvalidInput(f"session id {session_id!r} is no text")
        config, stored = self._world.shared(config.checked())
        session = session_id if session_id is not None else uuid.uuid4().hex
        if not session or len(session) > 200 or not session.isprintable():
            raise InvalidInput(f"session id {session!r} is not 1 to 200 printable characters")
        profile_of(self.provider, config)
        await self._not_busy(session)
        self._check_accepting()
        made = await self._bring(session, lambda: self._create(session, config, stored))
        return LLMSession(self, made)

    async def _create(self, session: str, config: SessionConfig, stored: msgspec.Raw) -> Actor:
        hold = await self.store.create(session, self._owner)
        state = SessionState(session)
        created = r.SessionCreated(session=session, config=stored)
        try:
            await self._write(state, hold, [created])
        except StoreError as error:
            await self._undo_create(hold, error)
            raise
        return self._add(state, config, msgspec.structs.replace(hold, head=state.head))

    async def _undo_create(self, hold: Hold, error: StoreError) -> None:
        """A session without its first record cannot be opened, so it goes, if it surely has none.
        If that is not known it is released: ``open`` or ``delete`` finds out."""
        try:
            if error.committed is False:
                await self.store.delete(hold.session)
            else:
                await self.store.release(hold)
        except SessionError:
            pass  # the caller gets the first error

    async def open(
        self, session_id: str, *, tools: Sequence[Tool] = (), takeover: bool = False
    ) -> LLMSession:
        """A session that exists, live or cold; *tools* binds its callables again.

        Open turns that an earlier owner left behind are ended first, as a crash. Raises
        SessionNotFound, SessionInUse (another live owner, unless *takeover*), StoreError.
        """
        self._check_accepting()
        actor = await self.activate(session_id, takeover=takeover)
        if tools:
            actor.settings.bind(tools)
        return LLMSession(self, actor)

    async def list(
        self, *, after: str = "", limit: int = 1000, search: Search = EVERYTHING
    ) -> Sequence[SessionRow]:
        """The sessions of the store that are looked for, by id, those greater than *after*, at
        most *limit*. Acquires nothing. Raises StoreError.
        """
        return await self.store.rows(after=after, limit=limit, search=search)

    async def delete(self, session_id: str) -> None:
        """Close the session if it is live here, and delete it for good.

        Raises SessionNotFound, StoreError. Another owner's handle meets SessionClosed.
        """
        actor = self._live.get(session_id)
        if actor is not None:
            await actor.put_close().wait()
        await self.store.delete(session_id)

    async def drain(self, timeout_s: float | None = None) -> tuple[str, ...]:
        """Take no new sessions and wait until every open turn has ended, at most *timeout_s*.

        Returns the sessions that still have one open. Sends to live sessions are still taken:
        stop their senders first.
        """
        self._accepting = False
        with anyio.move_on_after(timeout_s):
            for actor in tuple(self._live.values()):
                for run in tuple(actor.turns.runs.values()):
                    try:
                        await run.outcome.wait()
                    except SessionError:
                        continue
        return tuple(name for name, actor in self._live.items() if actor.turns.runs)

    async def close(self) -> tuple[Closed, ...]:
        """Close every live session: interrupt what is open, release it, name what still runs.

        Returns within the grace period plus the store's writes, whatever tools do.
        """
        self._accepting = False
        closed: list[Closed] = []
        while self._live or self._busy:
            promises = [actor.put_close() for actor in self._live.values()]
            closed += [await promise.wait() for promise in promises]
            for busy in tuple(self._busy.values()):  # what it brings is live then
                await busy.wait()
        self._timers.close()
        self._hub.end_all()
        return tuple(closed)

    def _check_accepting(self) -> None:
        if not self._entered:
            raise InvalidInput("enter the SessionManager first: async with SessionManager(...)")
        if not self._accepting:
            raise SessionClosed("the SessionManager is closing and takes no sessions")

    # Bringing sessions in.

    async def activate(self, session: str, *, takeover: bool) -> Actor:
        """The live actor of *session*, loaded from the store if it is cold.

        Cancelling the wait does not stop the loading. Raises as ``open``.
        """
        while True:
            await self._not_busy(session)
            actor = self._live.get(session)
            if actor is None:
                break
            if actor.standing == "live":
                return actor  # with takeover, too: there is nobody to take it from
            await actor.put_close().wait()  # taken now, its last records would be fenced
        self._check_accepting()
        return await self._bring(session, lambda: self._load(session, takeover))

    async def _not_busy(self, session: str) -> None:
        while session in self._busy:
            await self._busy[session].wait()

    async def _bring(self, session: str, bring: Callable[[], Awaitable[Actor]]) -> Actor:
        """The actor that *bring* makes, in a task of our own: a caller that is cancelled must not
        leave it half done."""
        busy = self._busy[session] = Promise()
        brought: Promise[Actor] = Promise()

        async def work() -> None:
            try:
                brought.set(await bring())
            except Exception as error:
                brought.fail(error)
            finally:
                stopped = f"the manager was stopped while it loaded session {session!r}"
                brought.fail(SessionClosed(stopped))
                del self._busy[session]
                busy.set(None)

        self._works.start(f"load of {session}", work)
        try:
            return await brought.wait()
        except BaseException:
            self._sweep_later()  # perhaps it comes, and nobody holds it
            raise

    async def _load(self, session: str, takeover: bool) -> Actor:
        hold = await self.store.acquire(session, self._owner, takeover=takeover)
        try:
            state = await self.read_state(session)
            loaded = bind_tools(load_config(state.config).checked(), self._tools)
            config, _ = self._world.shared(loaded)
            if state.head != hold.head:
                told = f"session {session!r} has {state.head} of {hold.head} records"
                raise StoreError(told, committed=False)
            await self._write(state, hold, recovery_records(state))
            return self._add(state, config, msgspec.structs.replace(hold, head=state.head))
        except BaseException:
            with anyio.CancelScope(shield=True), suppress(Exception):
                await self.store.release(hold)
            raise

    async def read_state(self, session: str) -> SessionState:
        """The fold of a session's log. Acquires nothing. Raises StoreError at the first record
        that cannot be read, naming it; nothing is changed."""
        state = SessionState(session)
        while True:
            page = await self.store.read(session, after=state.head, limit=PAGE)
            for stored in page:
                record = read_record(session, stored)
                try:
                    state.apply(record)
                except (msgspec.MsgspecError, KeyError, ValueError) as error:
                    raise RecordDamaged(session, stored.seq, error_text(error)) from error
            if len(page) < PAGE:
                return state

    async def _write(self, state: SessionState, hold: Hold, records: Sequence[r.Record]) -> None:
        """Append *records* and fold them, before the session is live."""
        if not records:
            return
        promise: Promise[Written] = Promise()
        journal = Journal(self.store, hold, self._clock, promise.set)
        for record in records:
            journal.write(record)
        journal.flush()
        written = await promise.wait()
        if not await self._is_ours(written):
            self._check_written(written, state.session)
        for stamped, _ in written.entries:
            if stamped is not None:
                state.apply(stamped)
                self._hub.publish(state.session, stamped)

    async def _is_ours(self, written: Written) -> bool:
        """Was a batch that met a conflict in our own epoch written all the same?"""
        batch, result = written.batch, written.result
        if not isinstance(result, Conflict) or not result.row or result.row.epoch != batch.epoch:
            return False
        return await is_in_log(self.store, batch)

    @staticmethod
    def _check_written(written: Written, session: str) -> None:
        if isinstance(written.result, Lost):
            told = f"the store failed under session {session!r}: {written.result.error}"
            raise StoreError(told, committed=written.result.committed)
        if not isinstance(written.result, Appended):
            raise StoreError(
                f"session {session!r} changed hands while it was loaded", committed=False
            )

    def _add(self, state: SessionState, config: SessionConfig, hold: Hold) -> Actor:
        actor = Actor(
            state=state,
            config=config,
            store=self.store,
            hold=hold,
            world=self._world,
            spawn=self._serve,
            gone=self._forget,
        )
        self._live[state.session] = actor
        if self._unheld:
            self._sweep_later()
        return actor

    def _serve(self, actor: Actor) -> None:
        self._group.start_soon(actor.serve, name=f"llmsession {actor.session}")

    def _forget(self, actor: Actor) -> None:
        if self._live.get(actor.session) is actor:
            del self._live[actor.session]

    # Letting sessions go.

    def unpin(self, actor: Actor) -> None:
        """A handle is gone. Called by the garbage collector: only counts, and sets a timer."""
        actor.pins -= 1
        if threading.get_ident() != self._thread:
            self._unheld = True  # timers are the loop's; who comes next sets one
        elif actor.pins == 0 and actor.standing == "live":
            self._sweep_later()

    def _sweep_later(self) -> None:
        if self._accepting and not self._sweeping:
            self._sweeping, self._unheld = True, False
            self._timers.after(self._idle_s, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = False
        if self._accepting and any(actor.pins == 0 for actor in self._live.values()):
            self._works.start("eviction", self._evict_reported)

    async def _evict_reported(self) -> None:
        await self.evict_idle()
        if any(actor.pins == 0 for actor in self._live.values()):
            self._sweep_later()

    async def evict_idle(self) -> int:
        """Release every session that nobody holds and that has nothing open; returns how many.
        They come back when they are opened. Their subscribers stay."""
        idle = [actor for actor in self._live.values() if actor.pins == 0 and actor.is_idle]
        evicted = 0
        for actor in idle:
            if actor.pins or not actor.is_idle or actor.standing != "live":
                continue
            if actor.session in self._busy:  # somebody tries to make one of its name
                continue
            busy = self._busy[actor.session] = Promise()
            hold = actor.evict()
            evicted += 1
            try:
                with anyio.CancelScope(shield=True):
                    await self.store.release(hold)
            except Exception as error:  # it stays ours, and comes back all the same
                actor.core.log.trouble("session.not_released", error=error_text(error))
            finally:
                del self._busy[actor.session]
                busy.set(None)
        return evicted

    @property
    def live(self) -> tuple[str, ...]:
        """The sessions that are in memory."""
        return tuple(self._live)

    @property
    def running_works(self) -> tuple[str, ...]:
        """What runs now for the sessions: streams, tools, jobs."""
        return self._works.running
