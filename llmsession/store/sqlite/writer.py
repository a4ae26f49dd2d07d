"""The one thread that writes to a SQLite store. Everything that waits is written in one
transaction.

Appends of all sessions and jobs share one queue, so they are performed in the order in which they
were put. Callers are answered after the COMMIT, with one call per event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Literal, TypeVar

import apsw

from llmsession.errors import SessionError, StoreError, error_text

from ..caller import Caller, caller_now
from ..large_batches import LargeBatches
from ..protocol import AppendResult, Batch, Owner
from ..writer_thread import Answer, BatchingThread, QueuedCall, deliver
from .checkpoints import Checkpoints
from .file import SqliteFile, surely_unwritten
from .jobs import ITEM_ERRORS, Append, Item, Job, LoneJob, next_group
from .session_tables import SessionTables

__all__ = ["SqliteWriter"]

T = TypeVar("T")

ALONE_LEASE_S = 600.0
"""The lease while the writer does something that takes long, such as a vacuum."""
FORGET_S = 24 * 3600.0
"""Owners without a session are forgotten this long after their lease ran out."""


class SqliteWriter:
    """Writes to *file*.

    Owners that take sessions get a lease of *lease_s* seconds by *clock* (seconds since the epoch).
    It is renewed here as long as the writer is open.
    """

    def __init__(self, file: SqliteFile, *, clock: Callable[[], float], lease_s: float) -> None:
        self._file = file
        self._clock = clock
        self._lease_s = lease_s
        self._sessions: SessionTables | None = None
        self._owners: dict[str, Owner] = {}
        self._renew_at = 0.0
        self._checkpoints = Checkpoints(file)
        self._closers: list[QueuedCall[None]] = []
        self._closed = False
        self._caller: Caller | None = None
        self._thread: BatchingThread[Item] = BatchingThread(
            "llmsession store",
            perform=self._write_all,
            on_idle=self._renew_if_due,
            idle_s=self._idle_s,
            on_end=self._end,
            reject=self._reject,
            choose=partial(next_group, large=LargeBatches()),
        )

    # Called in event loops.

    def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
        """See ``Store.append``."""
        self._caller = caller = caller_now(self._caller)
        self._thread.put(Append(batch, done, caller, sum(map(len, batch.bodies))))

    async def run(
        self, work: Callable[[SessionTables], T], *, owner: Owner | None = None, alone: bool = False
    ) -> T:
        """Run *work* in the transaction of its group, and return its result once that is durable.

        With *alone*, it runs outside of any transaction. If it succeeds, *owner*'s lease is renewed
        from now on. Cancelling the wait withdraws a call that has not begun; one that has begun is
        finished.
        """
        job = LoneJob(work) if alone else Job(work, owner)
        self._thread.put(job)
        return await job.call.wait()

    async def close(self) -> None:
        """Finish everything that was asked for, and close the file."""
        closer: QueuedCall[None] = QueuedCall()
        self._closers.append(closer)
        if self._closed:
            return
        self._thread.stop()
        await closer.wait()

    def _reject(self, item: Item, reason: str) -> None:
        error = StoreError(f"the store {self._file.path} {reason}", committed=False)
        deliver([item.failure(error)])

    # Called in the thread.

    def _write_all(self, items: list[Item]) -> None:
        for alone, run in groupby(items, key=attrgetter("alone")):
            if alone:
                for item in run:
                    self._checkpoints.wait()
                    self._renew(max(self._lease_s, ALONE_LEASE_S))  # nobody does it during the job
                    deliver([self._run_alone(item)])
                    self._renew(self._lease_s)
            else:
                deliver(self._write(list(run)))
        self._renew_if_due()
        if self._sessions is not None:
            self._checkpoints.step(self._sessions.db)

    def _write(self, items: Sequence[Item]) -> list[Answer]:
        """Write *items* in one transaction. Returns their answers."""
        try:
            return self._transact(items)
        except SessionError as error:  # the file cannot be used or has failed
            return [item.failure(error) for item in items]
        except Exception as error:
            if len(items) > 1:
                # One item is to blame. The others must not fail with it, so each is tried alone.
                return [answer for item in items for answer in self._write([item])]
            message = f"the store {self._file.path} cannot store this: {error_text(error)}"
            failure = StoreError(message, committed=False)
            failure.__cause__ = error
            return [items[0].failure(failure)]

    def _transact(self, items: Sequence[Item]) -> list[Answer]:
        sessions = self._open()
        answers: list[Answer] = []
        try:
            sessions.begin()
            for _, same in groupby(items, key=type):
                run = list(same)
                answers += run[0].perform(sessions, run)
        except Exception as error:
            if isinstance(error, apsw.Error) and not isinstance(error, ITEM_ERRORS):
                raise self._give_up(error, committed=False) from error
            sessions.forget()
            self._roll_back(sessions.db)
            raise
        try:
            sessions.commit()
        except apsw.Error as error:
            committed: Literal[False] | None = False if surely_unwritten(error) else None
            raise self._give_up(error, committed=committed) from error
        self._check_place()
        for owner in sessions.taken_by:
            self._note_owner(owner)
        return answers

    def _run_alone(self, item: Item) -> Answer:
        try:
            return item.perform(self._open(), [item])[0]
        except SessionError as error:
            return item.failure(error)
        except Exception as error:
            failure = self._give_up(error, committed=False)
            failure.__cause__ = error
            return item.failure(failure)

    # The connection.

    def _check_place(self) -> None:
        """Called after a commit. Raises StoreError if the commit went into a file that was moved or
        deleted.

        Whether anybody will ever find it there is not known.
        """
        self._file.check_place(committed=None)
        self._file.note_wal()

    def _open(self) -> SessionTables:
        if self._sessions is not None:
            try:
                self._file.check_place(committed=False)
            except StoreError:
                self._drop()
                raise
        if self._sessions is None:
            db, cipher = self._file.writer()
            self._checkpoints.watch(db)
            self._sessions = SessionTables(db, cipher, self._clock, self._lease_s)
            self._forget_old_owners(self._sessions)
        return self._sessions

    def _forget_old_owners(self, sessions: SessionTables) -> None:
        with suppress(apsw.Error):  # it can be done another time
            sessions.forget_old_owners(self._clock() - FORGET_S)

    def _roll_back(self, db: apsw.Connection) -> None:
        try:
            if db.in_transaction:
                db.execute("ROLLBACK")
        except apsw.Error:
            self._drop()

    def _give_up(self, error: Exception, *, committed: Literal[False] | None) -> StoreError:
        """The StoreError for *error*. The connection is not used any more."""
        self._drop()
        return self._file.error(error, committed=committed)

    def _drop(self) -> None:
        if self._sessions is not None:
            self._file.close(self._sessions.db)
            self._sessions = None
            self._file.forget_wal()

    # Leases.

    def _note_owner(self, owner: Owner) -> None:
        if not self._owners:
            self._renew_at = time.monotonic() + self._lease_s / 3
        self._owners[owner.name] = owner

    def _idle_s(self) -> float | None:
        return max(0.0, self._renew_at - time.monotonic()) if self._owners else None

    def _renew_if_due(self) -> None:
        if self._owners and time.monotonic() >= self._renew_at:
            self._renew(self._lease_s)

    def _renew(self, lease_s: float) -> None:
        self._renew_at = time.monotonic() + self._lease_s / 3
        try:
            for owner in self._owners.values():
                self._open().note_owner(owner, lease_s)
            if self._owners:
                self._check_place()
        except apsw.Error:  # tried again later; the fence stays correct without a lease
            self._drop()
        except SessionError:
            pass

    def _end(self) -> None:
        self._checkpoints.wait()
        if self._sessions is not None:
            names = tuple(self._owners)
            with suppress(apsw.Error):
                self._sessions.forget_owners(names)
            self._drop()
        self._closed = True
        deliver([(closer.caller, closer.set, None) for closer in tuple(self._closers)])
