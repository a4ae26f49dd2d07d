"""Loader: from a session's log to its state, and the records to write before it is live."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

import anyio
import msgspec

from llmsession.errors import (
    SessionError,
    SessionExists,
    SessionInUse,
    SessionMoved,
    SessionNotFound,
    StoreError,
    contained,
)
from llmsession.store.checked import CheckedStore
from llmsession.store.protocol import Appended, Conflict, Lease, Lost, Owner
from llmsession.turns import records as r
from llmsession.turns.messages import Message
from llmsession.turns.spending.prices import PriceTable

from ..core.subscriptions import Subscriptions
from ..log.erasing import erase
from ..log.fork_records import Branch, fork_records, shared_history
from ..log.journal import Journal, Written
from ..log.meter import charge_of
from ..log.read_state import check_belongs
from ..log.reader import is_in_log
from ..log.state import SessionState
from ..snapshots.reading import read_from_snapshot
from ..tasks.promise import Promise
from ..values.commands import ForkPoint

__all__ = ["Loader"]


class Loader:
    """Creates, forks and acquires the sessions of one owner before they are live.

    Each method gives a session's state and its lease. ``write`` appends records to the log and
    folds them into the state.
    """

    def __init__(
        self,
        store: CheckedStore,
        owner: Owner,
        clock: Callable[[], float],
        subscriptions: Subscriptions,
        prices: PriceTable,
        *,
        ignored: Callable[[str, str], None],
    ) -> None:
        """*ignored* is called with the session whose snapshot cannot be used, and the reason."""
        self._store = store
        self._ignored = ignored
        self._owner = owner
        self._clock = clock
        self._subscriptions = subscriptions
        self._prices = prices

    async def create(self, session: str, records: Sequence[r.Record]) -> tuple[SessionState, Lease]:
        """Create a session whose log is *records*, written completely or not at all.

        A session without a record whose creator died is used again. Raises SessionExists,
        StoreError.
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
        """The lease of a session that has no record and no living owner; None for any other
        session.
        """
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
        """Create a fork of *parent*. *messages* are the parent's. The fork shares these objects, or
        decodes its messages when they are used.

        All records of an *imported* branch are written together. If the body raises, the fork is
        deleted. Raises SessionNotFound, SessionExists, StoreError.
        """
        lease = await self._store.fork(parent, point.upto, point.session, self._owner)
        state = SessionState(point.session)
        try:
            # Where the parent's snapshot covers more than the fork has, it is of no use.
            state = await read_from_snapshot(
                self._store, point.session, lambda _: None, head=lease.head, snapshot_of=parent
            )
            # To compare messages that are not decoded would decode them.
            if state.is_decoded and isinstance(messages, tuple):
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
        """Acquire an existing session. Yields its state and its lease.

        Records that the last owner left unwritten are written first, except for the ends of open
        turns. If the body raises, the session is released.

        Raises SessionNotFound (also for a session without a record, which is removed),
        SessionInUse, StoreError.
        """
        lease = await self._store.acquire(session, self._owner, takeover=takeover)
        try:
            if not lease.head:
                await self._remove(lease)
                raise SessionNotFound(session)
            state = await self._read(session, lease.head)
            if state.head != lease.head:
                message = (
                    f"session {session!r} has only {state.head} of its {lease.head} records;"
                    " check the store with `llmsession integrity`"
                )
                raise StoreError(message, committed=False)
            row = await self._store.row(session)
            if row.epoch == lease.epoch:  # else another owner has it and may have changed it
                check_belongs(state, row)
            self._subscriptions.reached(session, state.head)
            if state.session != session:  # a fork whose creator died before its first record
                parent = row.parent or state.session
                records = fork_records(state, session, parent, state.labels)
                await self.write(state, lease, records)
            await self._erase(state, lease)
            yield state, lease
        except BaseException:
            with anyio.CancelScope(shield=True):
                try:
                    await self._store.release(lease)
                except BaseException as error:  # the caller gets the error of the body
                    contained(error)
            raise

    async def peek(self, session: str) -> SessionState:
        """The state, as ``acquired`` gives it, but without a lease or a write."""
        return await self._read(session)

    async def _read(self, session: str, head: int | None = None) -> SessionState:
        ignored = partial(self._ignored, session)
        return await read_from_snapshot(self._store, session, ignored, head=head)

    async def write(self, state: SessionState, lease: Lease, records: Sequence[r.Record]) -> None:
        """Append *records* and fold them, before the session is live. Raises StoreError."""
        if not records:
            return
        promise: Promise[Written] = Promise()
        lease = msgspec.structs.replace(lease, head=state.head)
        charge = charge_of(state, self._prices)
        journal = Journal(
            self._store,
            lease,
            self._clock,
            promise.set,
            charge=charge,
            open_turns=tuple(state.open),
        )
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
        state.add_bytes(written.batch.bodies)

    async def _is_ours(self, written: Written) -> bool:
        """Was a batch written although it met a conflict?

        It was if it conflicts with itself: the epoch is ours, and the batch is in the log. This
        happens when the answer to an append was lost and the append was repeated.
        """
        batch, result = written.batch, written.result
        if not isinstance(result, Conflict) or not result.row or result.row.epoch != batch.epoch:
            return False
        return await is_in_log(self._store, batch)

    async def _erase(self, state: SessionState, lease: Lease) -> None:
        """Erase content that was forgotten and is still in the log."""
        if state.pending_redaction is not None:
            if await erase(self._store, lease, state.pending_redaction):
                state.rewritten()
            await self.write(state, lease, [r.RecordsRedacted()])

    async def _undo(self, lease: Lease, error: BaseException) -> None:
        """Delete the session if it certainly has no record of its own.

        If *error* leaves that open, only release it. The next ``open`` or ``delete`` finds out.
        """
        with anyio.CancelScope(shield=True), suppress(SessionError):  # the caller gets *error*
            if isinstance(error, StoreError) and error.committed is None:
                await self._store.release(lease)
                return
            try:
                await self._remove(lease)
            except StoreError:
                self._store.release_later(lease)

    async def _remove(self, lease: Lease) -> None:
        """Delete the session, unless another owner has taken it."""
        with suppress(SessionMoved):
            await self._store.delete(lease.session, epoch=lease.epoch)


def _check_written(written: Written, session: str) -> None:
    if isinstance(written.result, Lost):
        message = f"the store failed while session {session!r} was loaded: {written.result.error}"
        raise StoreError(message, committed=written.result.committed)
    if not isinstance(written.result, Appended):
        message = f"another owner took session {session!r} while it was loaded; open it again"
        raise StoreError(message, committed=False)
