"""The sessions that a manager has given up, and that its store has not taken back yet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import anyio

from llmsession.errors import SessionNotFound, contained_in_work
from llmsession.store.checked import CheckedStore
from llmsession.store.protocol import Lease, Owner

__all__ = ["Unreleased"]

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""The pause before the store is asked again for one session. It doubles each time."""
LAST_S = 10.0
"""How long a manager that is left waits for its last attempts. A store waits as long for its
server."""


class Unreleased:
    """Gives back the leases of *owner* that *store* has not taken back, as soon as it does: of
    sessions that an error has ended, of those whose release failed, and of those that were taken
    although the caller was told of an error.

    Without that nobody else gets these sessions as long as the process lives: nobody here may ever
    open them again, and the lease of an owner is renewed for all its sessions. *run_work* runs a
    work under a name. Each session has its own, so that none waits for another one.

    *is_busy* says of a session whether it is being created, loaded or released, and *live_epoch*
    the epoch under which it is live; 0 if it is not.
    """

    def __init__(
        self,
        store: CheckedStore,
        owner: Owner,
        is_busy: Callable[[str], bool],
        live_epoch: Callable[[str], int],
        run_work: Callable[[str, Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._store = store
        self._owner = owner
        self._is_busy = is_busy
        self._live_epoch = live_epoch
        self._run_work = run_work
        self.on_given_back: Callable[[str], None] = lambda session: None
        """Called with each session that was given back."""
        self._running: set[str] = set()

    def begin(self, session: str) -> None:
        """*session* is another one."""
        if session not in self._running:
            self._running.add(session)
            self._run_work(f"release of {session}", partial(self._run, session))

    async def _run(self, session: str) -> None:
        try:
            pause_s = FIRST_PAUSE_S
            while not await self._is_free(session):
                await anyio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        finally:
            self._running.discard(session)

    async def _is_free(self, session: str) -> bool:
        """Give *session* back. Returns whether nothing of it is left to give back."""
        store = self._store
        try:
            if session in store.doubtful:
                await self._find_lease(session)
            lease = store.unreleased.get(session)
            if lease is not None:
                await store.release(lease)  # no effect if somebody has a newer one
                self.on_given_back(session)
        except BaseException as error:
            contained_in_work(error)
        return session not in store.doubtful and session not in store.unreleased

    async def _find_lease(self, session: str) -> None:
        """Find out whether the owner has a lease of *session* that it does not know of."""
        doubtful, row = self._store.doubtful, None
        doubt = doubtful[session]
        with suppress(SessionNotFound):
            row = await self._store.row(session)
        if self._is_busy(session) or doubtful.get(session) != doubt:
            return  # the row may be that of another lease
        del doubtful[session]
        # It may be live all the same: a create is refused for a session that there is.
        if row is not None and row.owner == self._owner and row.epoch > self._live_epoch(session):
            self._store.release_later(Lease(session, row.epoch, row.head))

    async def end(self) -> None:
        """Try each once more, because the manager is left: its works have been stopped."""
        with anyio.move_on_after(LAST_S):
            async with anyio.create_task_group() as group:
                for session in {*self._store.doubtful, *self._store.unreleased}:
                    group.start_soon(self._is_free, session)
