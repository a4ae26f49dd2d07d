"""The live actors of one process. At any time only one task activates or deactivates a session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import anyio

from llmsession.errors import (
    SessionClosed,
    StoreError,
    contained_in_task,
    contained_in_work,
    error_text,
)
from llmsession.store.protocol import Lease, Store

from ..actor.actor import Actor
from ..tasks.promise import Promise
from ..values.commands import HandOverWhen
from ..values.outcome import Closed

__all__ = ["Activation", "ActivationTable"]

Activation: TypeAlias = Callable[[], Awaitable[Actor]]
"""Creates or loads one actor, and adds it to the table."""


class ActivationTable:
    """The actors of one manager, by session.

    A task that creates, loads or releases a session has exclusive access to it for that time. The
    next task that needs the session waits, and then checks the table again.

    *run_work* runs a work under a name. *check* raises if no session may be activated any more.
    *on_abandoned* is called if a caller did not wait for the session that it asked for.
    """

    def __init__(
        self,
        store: Store,
        *,
        run_work: Callable[[str, Callable[[], Awaitable[None]]], None],
        check: Callable[[], None],
        on_abandoned: Callable[[], None],
    ) -> None:
        self.actors: dict[str, Actor] = {}
        self._by_tenant: dict[str | None, dict[str, Actor]] = {}
        """The same actors, for the tenants that have some; None for those without a tenant."""
        self._store = store
        self._run_work = run_work
        self._check = check
        self._on_abandoned = on_abandoned
        self._busy: dict[str, Promise[None]] = {}
        """Sessions that are being created, loaded or released."""
        self._taken: dict[str, int] = {}
        """The epochs under which other owners took some of these meanwhile."""

    @property
    def sessions(self) -> tuple[str, ...]:
        """The sessions that are live, or are being created, loaded or released."""
        return tuple(dict.fromkeys((*self.actors, *self._busy)))

    def is_busy(self, session: str) -> bool:
        """Is *session* being created, loaded or released?"""
        return session in self._busy

    def live_epoch(self, session: str) -> int:
        """The epoch under which *session* is live; 0 if it is not."""
        actor = self.actors.get(session)
        return 0 if actor is None else actor.core.journal.lease.epoch

    def add(self, actor: Actor) -> None:
        """*actor* is live from now on."""
        self.actors[actor.session] = actor
        self._by_tenant.setdefault(actor.core.account.tenant, {})[actor.session] = actor

    def remove(self, actor: Actor) -> None:
        """*actor* accepts no commands any more."""
        if self.actors.get(actor.session) is actor:
            del self.actors[actor.session]
            tenant = actor.core.account.tenant
            del self._by_tenant[tenant][actor.session]
            if not self._by_tenant[tenant]:
                del self._by_tenant[tenant]

    def of_tenant(self, tenant: str) -> tuple[Actor, ...]:
        """The actors of the sessions of *tenant*."""
        return tuple(self._by_tenant.get(tenant, {}).values())

    def taken(self, session: str, epoch: int) -> None:
        """The store has *session* under *epoch*: who had an earlier one has lost it."""
        actor = self.actors.get(session)
        if actor is not None:
            if actor.core.journal.lease.epoch < epoch:
                actor.report(actor.fence)
        elif session in self._busy:
            self._taken[session] = max(epoch, self._taken.get(session, 0))

    def check_held(self, lease: Lease) -> None:
        """Raises StoreError if the session of *lease* was ``taken`` while it was loaded."""
        if self._taken.get(lease.session, 0) > lease.epoch:
            message = f"another owner took session {lease.session!r} while it was loaded"
            raise StoreError(f"{message}; open it again", committed=None)

    # Activation.

    async def activate(self, session: str, load: Activation, *, takeover: bool = False) -> Actor:
        """The live actor of *session*, or the one that *load* creates.

        With *takeover*, the actor is known to own the session at this moment. Cancelling the wait
        does not stop the loading. Raises the errors of *load* and *check*.
        """
        while True:
            await self._not_busy(session)
            actor = self.actors.get(session)
            if actor is None:
                break
            if actor.status == "live":
                if not takeover or not await self._has_other_owner(actor):
                    return actor
                actor.fence()
                continue
            # Wait until the closing actor is done. Loading the session now would fence that actor's
            # last records.
            await actor.put_close().wait()
        self._check()
        return await self._activate_exclusively(session, load)

    async def activate_new(self, session: str, make: Activation) -> Actor:
        """The actor of a new session that *make* creates. Errors and cancellation are those of
        ``activate``.
        """
        await self._not_busy(session)
        self._check()
        return await self._activate_exclusively(session, make)

    async def _has_other_owner(self, actor: Actor) -> bool:
        """Has another owner taken the session? The actor itself would notice it with its next
        record.
        """
        return (await self._store.row(actor.session)).epoch > actor.core.journal.lease.epoch

    async def _not_busy(self, session: str) -> None:
        while session in self._busy:
            await self._busy[session].wait()

    async def _activate_exclusively(self, session: str, activation: Activation) -> Actor:
        """The actor that *activation* creates.

        It runs as a work of the manager: a caller that is cancelled must not leave the session half
        created.
        """
        busy = self._busy[session] = Promise()
        activated: Promise[Actor] = Promise()

        async def work() -> None:
            try:
                activated.set(await activation())
            except BaseException as error:
                activated.fail(contained_in_work(error))
            finally:
                # Has no effect if the promise is already set. It answers the callers of a work that
                # was cancelled.
                stopped = f"the SessionManager was closed while it loaded session {session!r}"
                activated.fail(SessionClosed(stopped))
                self._end_busy(session, busy)

        self._run_work(f"load of {session}", work)
        try:
            return await activated.wait()
        except BaseException:
            self._on_abandoned()
            raise

    # Deactivation.

    async def hand_over(self, session: str, when: HandOverWhen) -> Closed:
        """Give up *session*, also one that is being activated, with what is open. Raises as
        ``Actor.put_hand_over``, and as ``Store.row`` for one that is not live here."""
        await self._not_busy(session)
        actor = self.actors.get(session)
        if actor is None:
            await self._store.row(session)
            return Closed(session)
        return await actor.put_hand_over(when).wait()

    async def evict(self, actor: Actor) -> bool:
        """Release a session if no handle refers to it and nothing is open. Returns whether it
        did.
        """
        if actor.pins or not actor.is_idle or actor.status != "live":
            return False
        if actor.session in self._busy:  # another task is creating a session with the same id
            return False
        async with self.exclusive(actor.session):
            actor.snapshots.write_if_removed()
            lease = actor.evict()
            try:
                with anyio.CancelScope(shield=True):
                    await self._store.release(lease)
            except BaseException as raised:  # this process keeps the lease and can load it again
                error = contained_in_task(raised)
                actor.core.log.trouble("session.not_released", error=error_text(error))
        return True

    @asynccontextmanager
    async def exclusive(self, session: str) -> AsyncIterator[None]:
        """Until the body is left, no other task in this process creates, opens or releases
        *session*.
        """
        await self._not_busy(session)
        busy = self._busy[session] = Promise()
        try:
            yield
        finally:
            self._end_busy(session, busy)

    def _end_busy(self, session: str, busy: Promise[None]) -> None:
        del self._busy[session]
        self._taken.pop(session, None)
        busy.set(None)

    async def close_all(self, *, leave_open: bool) -> list[Closed]:
        """Close every session, also those that are being activated."""
        closed: list[Closed] = []
        while self.actors or self._busy:
            actors = tuple(self.actors.values())
            promises = [actor.put_close(leave_open=leave_open) for actor in actors]
            closed += [await promise.wait() for promise in promises]
            for busy in tuple(self._busy.values()):  # then the session is live and closed above
                await busy.wait()
        return closed
