"""The one thread that writes to a SQLite store: what waits is written in one transaction.

Appends of all sessions and calls that change something share the queue, so they happen in the
order in which they were asked for. Answers go back after the COMMIT, one call for each event
loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast

import apsw

from llmsession.errors import InvalidInput, SessionError, StoreError, error_text

from ..caller import Caller
from ..protocol import AppendResult, Batch, Lost, Owner
from ..writer_thread import BatchingThread, CallbackBatch, QueuedCall
from .appends import append_all
from .checkpoints import Checkpoints
from .file import SqliteFile, surely_unwritten
from .jobs import SessionTables

__all__ = ["SqliteWriter"]

T = TypeVar("T")

ALONE_LEASE_S = 600.0
"""The lease while the writer does something that takes long, as a vacuum."""
FORGET_S = 24 * 3600.0
"""Owners that hold nothing are forgotten so long after their lease."""
# What is wrong with one item alone. Everything else that SQLite raises is wrong with the file.
_OF_THE_ITEM = (apsw.ConstraintError, apsw.TooBigError, apsw.MismatchError, apsw.RangeError)

Appending: TypeAlias = tuple[Batch, Callable[[AppendResult], None], Caller]


class _Job(Generic[T]):
    """A call that somebody waits for. *alone*: outside of any transaction."""

    def __init__(
        self, work: Callable[[SessionTables], T], *, owner: Owner | None = None, alone: bool = False
    ) -> None:
        self.work = work
        self.owner = owner
        self.alone = alone
        self.waiting: QueuedCall[T] = QueuedCall()


Item: TypeAlias = "Appending | _Job[Any]"


class _Failed:
    """A job's outcome: it raised *error*."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class SqliteWriter:
    """Writes to *file*. Owners that take sessions hold a lease of *lease_s*, by *clock* (seconds
    since the epoch), which is renewed here as long as the writer is open."""

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
        self._thread: BatchingThread[Item] = BatchingThread(
            "llmsession store",
            perform=self._write_all,
            rest=self._renew_if_due,
            rest_s=self._rest_s,
            end=self._end,
            refuse=self._refuse,
        )

    # Called in event loops.

    def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
        """As ``Store.append``."""
        self._thread.put((batch, done, Caller()))

    async def run(
        self, work: Callable[[SessionTables], T], *, owner: Owner | None = None, alone: bool = False
    ) -> T:
        """What *work* returns or raises, in the transaction of its group, durable; *alone*:
        outside of any. Where it succeeds, *owner*'s lease is renewed from now on.

        A cancelled wait takes back what was not begun; what was begun is finished.
        """
        job = _Job(work, owner=owner, alone=alone)
        self._thread.put(job)
        return await job.waiting.wait()

    async def close(self) -> None:
        """Finish what was asked for, and let the file go."""
        waiting: QueuedCall[None] = QueuedCall()
        self._closers.append(waiting)
        if self._closed:
            return
        self._thread.stop()
        await waiting.wait()

    def _refuse(self, item: Item, why: str) -> None:
        error = StoreError(f"the store {self._file.path} {why}", committed=False)
        answers = CallbackBatch()
        _answer(answers, item, _failure(item, error))
        answers.deliver()

    # Called in the thread.

    def _write_all(self, items: list[Item]) -> None:
        group: list[Item] = []
        for item in items:
            if isinstance(item, _Job) and item.alone:
                self._answer(group, self._write(group))
                self._checkpoints.wait()
                self._renew(max(self._lease_s, ALONE_LEASE_S))  # meanwhile nobody renews it
                self._answer([item], [self._run_alone(item)])
                self._renew(self._lease_s)
                group = []
            else:
                group.append(item)
        self._answer(group, self._write(group))
        self._renew_if_due()
        if self._sessions is not None:
            self._checkpoints.step(self._sessions.db)

    def _answer(self, items: Sequence[Item], outcomes: Sequence[object]) -> None:
        answers = CallbackBatch()
        for item, outcome in zip(items, outcomes, strict=True):
            _answer(answers, item, outcome)
            if isinstance(item, _Job) and item.owner and not isinstance(outcome, _Failed):
                self._note_owner(item.owner)
        answers.deliver()

    def _write(self, items: Sequence[Item]) -> list[object]:
        """Write *items* in one transaction. Their outcomes."""
        if not items:
            return []
        try:
            return self._transact(items)
        except SessionError as error:  # the file is not to be had, or failed
            return [_failure(item, error) for item in items]
        except Exception as error:
            if len(items) > 1:  # one of them is not as it should be, and not the fault of others
                return [outcome for item in items for outcome in self._write([item])]
            told = f"the store {self._file.path} cannot keep this: {error_text(error)}"
            refused = StoreError(told, committed=False)
            refused.__cause__ = error
            return [_failure(items[0], refused)]

    def _transact(self, items: Sequence[Item]) -> list[object]:
        sessions = self._open()
        db = sessions.db
        try:
            db.execute("BEGIN IMMEDIATE")
            outcomes = self._perform(sessions, items)
        except Exception as error:
            if isinstance(error, apsw.Error) and not isinstance(error, _OF_THE_ITEM):
                raise self._give_up(error, committed=False) from error
            self._roll_back(db)
            raise
        try:
            db.execute("COMMIT")
        except apsw.Error as error:
            committed: Literal[False] | None = False if surely_unwritten(error) else None
            raise self._give_up(error, committed=committed) from error
        return outcomes

    def _perform(self, sessions: SessionTables, items: Sequence[Item]) -> list[object]:
        outcomes: list[object] = []
        for appends, together in groupby(items, key=_is_append):
            if appends:
                batches = [item[0] for item in cast("Iterable[Appending]", together)]
                outcomes += append_all(sessions, batches)
            else:
                outcomes += [
                    self._run(sessions, job) for job in cast("Iterable[_Job[Any]]", together)
                ]
        return outcomes

    def _run(self, sessions: SessionTables, job: _Job[Any]) -> object:
        """A job's outcome. What it wrote before it failed is taken back."""
        if job.waiting.is_dropped:
            return None
        db = sessions.db
        db.execute("SAVEPOINT job")
        try:
            outcome: object = job.work(sessions)
        except (SessionError, UnicodeError, *_OF_THE_ITEM) as error:
            db.execute("ROLLBACK TO job")
            outcome = _Failed(_as_ours(error))
        db.execute("RELEASE job")
        return outcome

    def _run_alone(self, job: _Job[Any]) -> object:
        if job.waiting.is_dropped:
            return None
        try:
            return cast("object", job.work(self._open()))
        except SessionError as error:
            return _Failed(error)
        except Exception as error:
            told = self._give_up(error, committed=False)
            told.__cause__ = error
            return _Failed(told)

    # The connection.

    def _open(self) -> SessionTables:
        if self._sessions is None:
            db, cipher = self._file.writer()
            self._checkpoints.watch(db)
            self._sessions = SessionTables(db, cipher, self._clock, self._lease_s)
            self._forget_old_owners(self._sessions)
        return self._sessions

    def _forget_old_owners(self, sessions: SessionTables) -> None:
        with suppress(apsw.Error):  # another time
            sessions.forget_old_owners(self._clock() - FORGET_S)

    def _roll_back(self, db: apsw.Connection) -> None:
        try:
            if db.in_transaction:
                db.execute("ROLLBACK")
        except apsw.Error:
            self._drop()

    def _give_up(self, error: Exception, *, committed: Literal[False] | None) -> StoreError:
        """What is told of *error*. Its connection is not trusted any more."""
        self._drop()
        return self._file.error(error, committed=committed)

    def _drop(self) -> None:
        if self._sessions is not None:
            with suppress(apsw.Error):
                self._sessions.db.close(True)  # rolls back what is open
            self._sessions = None

    # Leases.

    def _note_owner(self, owner: Owner) -> None:
        if not self._owners:
            self._renew_at = time.monotonic() + self._lease_s / 3
        self._owners[owner.name] = owner

    def _rest_s(self) -> float | None:
        return max(0.0, self._renew_at - time.monotonic()) if self._owners else None

    def _renew_if_due(self) -> None:
        if self._owners and time.monotonic() >= self._renew_at:
            self._renew(self._lease_s)

    def _renew(self, lease_s: float) -> None:
        self._renew_at = time.monotonic() + self._lease_s / 3
        try:
            for owner in self._owners.values():
                self._open().note_owner(owner, lease_s)
        except apsw.Error:  # another time; the fence is what is right
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
        answers = CallbackBatch()
        for waiting in tuple(self._closers):
            answers.add(waiting.caller, waiting.set, None)
        answers.deliver()


def _is_append(item: Item) -> bool:
    return isinstance(item, tuple)


def _failure(item: Item, error: SessionError) -> object:
    """The outcome of *item* where *error* is that of its whole group."""
    if isinstance(item, tuple):
        return Lost(str(error), error.committed if isinstance(error, StoreError) else False)
    # Each waits in a task of its own, and raises what is its own.
    again = (
        StoreError(str(error), committed=error.committed)
        if isinstance(error, StoreError)
        else type(error)(str(error))
    )
    again.__cause__ = error.__cause__
    return _Failed(again)


def _answer(answers: CallbackBatch, item: Item, outcome: object) -> None:
    if isinstance(item, tuple):
        answers.add(item[2], item[1], outcome)
    elif isinstance(outcome, _Failed):
        answers.add(item.waiting.caller, item.waiting.fail, outcome.error)
    else:
        answers.add(item.waiting.caller, item.waiting.set, outcome)


def _as_ours(error: Exception) -> Exception:
    if isinstance(error, SessionError):
        return error
    ours: SessionError = (
        InvalidInput(f"text that is not valid Unicode: {error.reason}")
        if isinstance(error, UnicodeEncodeError)
        else StoreError(f"this cannot be kept: {error_text(error)}", committed=False)
    )
    ours.__cause__ = error
    return ours
