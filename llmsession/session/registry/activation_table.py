"""The sessions that are in memory, and the way in and out: for each session one at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import anyio

from llmsession.errors import SessionClosed, error_text
from llmsession.store.protocol import Store

from ..actor.actor import Actor
from ..tasks.promise import Promise
from ..values.outcome import Closed

__all__ = ["LiveSessions"]

Bring: TypeAlias = Callable[[], Awaitable[Actor]]


class LiveSessions:
    """The actors of one manager, by session. Whoever makes, loads or releases a session has it for
    that time alone; the next one to touch it waits, and looks again.

    *start* runs a work under a name, *check* raises where no session may come in any more, and
    *left* is told that whoever asked for a session did not wait for it.
    """

    def __init__(
        self,
        store: Store,
        *,
        start: Callable[[str, Callable[[], Awaitable[None]]], None],
        check: Callable[[], None],
        left: Callable[[], None],
    ) -> None:
        self.actors: dict[str, Actor] = {}
        self._store = store
        self._start = start
        self._check = check
        self._left = left
        self._busy: dict[str, Promise[None]] = {}
        """Sessions that are being made, loaded or released."""

    def add(self, actor: Actor) -> None:
        """*actor* is live from now on."""
        self.actors[actor.session] = actor

    def forget(self, actor: Actor) -> None:
        """*actor* takes no commands any more."""
        if self.actors.get(actor.session) is actor:
            del self.actors[actor.session]

    # In.

    async def find_or_bring(self, session: str, load: Bring, *, takeover: bool = False) -> Actor:
        """The live actor of *session*, or the one that *load* makes; with *takeover* one that
        surely has the session, at this moment. Raises as *load* and *check*.

        Cancelling the wait does not stop the loading.
        """
        while True:
            await self._not_busy(session)
            actor = self.actors.get(session)
            if actor is None:
                break
            if actor.status == "live":
                if not takeover or not await self._was_taken(actor):
                    return actor
                actor.fence()
                continue
            await actor.put_close().wait()  # taken now, its last records would be fenced
        self._check()
        return await self._brought(session, load)

    async def bring(self, session: str, make: Bring) -> Actor:
        """The actor of a new session, which *make* makes. Raises and is cancelled as above."""
        await self._not_busy(session)
        self._check()
        return await self._brought(session, make)

    async def _was_taken(self, actor: Actor) -> bool:
        """Has another owner the session? Its next record would tell this one, too."""
        return (await self._store.row(actor.session)).epoch > actor.core.journal.lease.epoch

    async def _not_busy(self, session: str) -> None:
        while session in self._busy:
            await self._busy[session].wait()

    async def _brought(self, session: str, bring: Bring) -> Actor:
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

        self._start(f"load of {session}", work)
        try:
            return await brought.wait()
        except BaseException:
            self._left()
            raise

    # Out.

    async def evict(self, actor: Actor) -> bool:
        """Release a session, if nobody holds it and nothing is open; says whether it did."""
        if actor.pins or not actor.is_idle or actor.status != "live":
            return False
        if actor.session in self._busy:  # somebody tries to make one of its name
            return False
        async with self.reserved(actor.session):
            hold = actor.evict()
            try:
                with anyio.CancelScope(shield=True):
                    await self._store.release(hold)
            except Exception as error:  # it stays ours, and comes back all the same
                actor.core.log.trouble("session.not_released", error=error_text(error))
        return True

    @asynccontextmanager
    async def reserved(self, session: str) -> AsyncIterator[None]:
        """Whoever wants to make, open or release *session* here waits until the body is through."""
        await self._not_busy(session)
        busy = self._busy[session] = Promise()
        try:
            yield
        finally:
            del self._busy[session]
            busy.set(None)

    async def end_all(self, *, leave_open: bool) -> list[Closed]:
        """Close every session, those that are on their way in, too."""
        closed: list[Closed] = []
        while self.actors or self._busy:
            live = tuple(self.actors.values())
            promises = [actor.put_close(leave_open=leave_open) for actor in live]
            closed += [await promise.wait() for promise in promises]
            for busy in tuple(self._busy.values()):  # what it brings is live then
                await busy.wait()
        return closed
