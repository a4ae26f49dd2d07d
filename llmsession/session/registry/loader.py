"""From a session's log to its state, and what has to be written before it is live."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import anyio
import msgspec

from llmsession.errors import (
    SessionError,
    SessionExists,
    SessionInUse,
    SessionNotFound,
    StoreError,
)
from llmsession.store.protocol import (
    Appended,
    Conflict,
    Lease,
    Lost,
    Owner,
    Store,
)
from llmsession.turns import records as r
from llmsession.turns.messages import Message

from ..core.subscriptions import Subscriptions
from ..log.erasing import erase
from ..log.fork_records import Branch, fork_records, shared_history
from ..log.journal import Journal, Written
from ..log.read_state import read_state
from ..log.reader import is_in_log
from ..log.state import SessionState
from ..tasks.promise import Promise
from ..values.commands import ForkPoint

__all__ = ["Loader"]


class Loader:
    """Makes, forks and takes the sessions of one owner, before anybody holds them.

    What it gives is a state and the lease of its session. ``write`` takes both forward.
    """

    def __init__(
        self, store: Store, owner: Owner, clock: Callable[[], float], subscriptions: Subscriptions
    ) -> None:
        self._store = store
        self._owner = owner
        self._clock = clock
        self._subscriptions = subscriptions

    async def create(self, session: str, records: Sequence[r.Record]) -> tuple[SessionState, Lease]:
        """A new session whose log is *records*, written whole or not at all. One that was left
        without a record, because its maker died, is made now.

        Raises SessionExists, StoreError.
        """
        lease = await self._create(session)
        state = SessionState(session)
        try:
            await self.write(state, lease, records)
        except BaseException as error:
            await self._undo(lease, error)
            raise
        return state, lease

    async def _create(self, session: str) -> Lease:
        try:
            return await self._store.create(session, self._owner)
        except SessionExists:
            lease = await self._acquire_empty(session)
            if lease is None:
                raise
            return lease

    async def _acquire_empty(self, session: str) -> Lease | None:
        """The lease on a session that has no record and no living owner; None for any other."""
        try:
            if (await self._store.row(session)).head:
                return None
            lease = await self._store.acquire(session, self._owner)
        except (SessionInUse, SessionNotFound):
            return None
        if lease.head:
            await self._store.release(lease)
            return None
        return lease

    @asynccontextmanager
    async def forked(
        self,
        parent: str,
        point: ForkPoint,
        labels: dict[str, str],
        messages: Sequence[Message],
        *,
        imported: Branch | None = None,
    ) -> AsyncIterator[tuple[SessionState, Lease]]:
        """A fork of *parent*, to be prepared; *messages* are the parent's, whose objects it
        shares. Of an imported branch all is written at once. If the body raises it is taken back.

        Raises SessionNotFound, SessionExists, StoreError.
        """
        lease = await self._store.fork(parent, point.upto, point.session, self._owner)
        state = SessionState(point.session)
        try:
            state = await read_state(self._store, point.session, head=lease.head)
            state.history = shared_history(state.history, messages)
            records = fork_records(state, point.session, parent, labels, imported)
            await self.write(state, lease, records)
            await self._erase(state, lease)
            yield state, lease
        except BaseException as error:
            await self._undo(lease, error)
            raise

    @asynccontextmanager
    async def acquired(
        self, session: str, *, takeover: bool
    ) -> AsyncIterator[tuple[SessionState, Lease]]:
        """A session that exists, with all written that its last owner owed but the ends of open
        turns. It is released if the body raises.

        Raises SessionNotFound (also for one without a record, which is removed), SessionInUse,
        StoreError.
        """
        lease = await self._store.acquire(session, self._owner, takeover=takeover)
        try:
            if not lease.head:
                await self._remove(lease)
                raise SessionNotFound(session)
            state = await read_state(self._store, session, head=lease.head)
            if state.head != lease.head:
                told = f"session {session!r} has {state.head} of {lease.head} records"
                raise StoreError(told, committed=False)
            self._subscriptions.reached(session, state.head)
            if state.session != session:  # it was forked, and its own first record is missing
                parent = (await self._store.row(session)).parent or state.session
                records = fork_records(state, session, parent, state.labels)
                await self.write(state, lease, records)
            await self._erase(state, lease)
            yield state, lease
        except BaseException:
            with anyio.CancelScope(shield=True), suppress(Exception):
                await self._store.release(lease)
            raise

    async def write(self, state: SessionState, lease: Lease, records: Sequence[r.Record]) -> None:
        """Append *records* and fold them, before the session is live. Raises StoreError."""
        if not records:
            return
        promise: Promise[Written] = Promise()
        lease = msgspec.structs.replace(lease, head=state.head)
        journal = Journal(self._store, lease, self._clock, promise.set)
        for record in records:
            journal.write(record)
        journal.flush()
        written = await promise.wait()
        if not await self._is_ours(written):
            _check_written(written, lease.session)
        for stamped, _ in written.entries:
            if stamped is not None:
                state.apply(stamped)
                self._subscriptions.publish(lease.session, stamped)

    async def _is_ours(self, written: Written) -> bool:
        """Was a batch that met a conflict in our own epoch written all the same?"""
        batch, result = written.batch, written.result
        if not isinstance(result, Conflict) or not result.row or result.row.epoch != batch.epoch:
            return False
        return await is_in_log(self._store, batch)

    async def _erase(self, state: SessionState, lease: Lease) -> None:
        """Take out of the log what was to be forgotten and is in it still."""
        if state.pending_redaction is not None:
            await erase(self._store, lease, state.pending_redaction)
            await self.write(state, lease, [r.RecordsRedacted()])

    async def _undo(self, lease: Lease, error: BaseException) -> None:
        """A session without its own first record is of no use, so it goes, if it surely has none.
        If that is not known it is released: ``open`` or ``delete`` finds out."""
        with anyio.CancelScope(shield=True), suppress(SessionError):  # the caller gets the first
            if isinstance(error, StoreError) and error.committed is None:
                await self._store.release(lease)
            else:
                await self._remove(lease)

    async def _remove(self, lease: Lease) -> None:
        """Delete the session, unless somebody has taken it from us: then it is theirs."""
        if (await self._store.row(lease.session)).epoch == lease.epoch:
            await self._store.delete(lease.session)


def _check_written(written: Written, session: str) -> None:
    if isinstance(written.result, Lost):
        told = f"the store failed under session {session!r}: {written.result.error}"
        raise StoreError(told, committed=written.result.committed)
    if not isinstance(written.result, Appended):
        told = f"session {session!r} changed hands while it was loaded"
        raise StoreError(told, committed=False)
