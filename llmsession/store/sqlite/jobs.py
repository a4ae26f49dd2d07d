"""What waits for the writer of a SQLite store: batches to append, and calls that change something.

The writer treats all of them alike. It performs a run of items of one kind at once, in its
transaction, and delivers their answers after the COMMIT.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import apsw
import msgspec

from llmsession.errors import InvalidInput, SessionError, StoreError, error_text

from ..caller import Caller
from ..large_batches import LARGE_BATCH_BYTES, LargeBatches
from ..protocol import AppendResult, Batch, Lost, Owner
from ..writer_thread import Answer, QueuedCall
from .appends import append_all
from .session_tables import SessionTables

__all__ = ["ITEM_ERRORS", "Append", "Item", "Job", "LoneJob", "next_group"]

T = TypeVar("T")

ITEM_ERRORS = (apsw.ConstraintError, apsw.TooBigError, apsw.MismatchError, apsw.RangeError)
"""Errors of SQLite for which a single item is to blame. Any other error concerns the file."""


class Item(Protocol):
    """Something for the writer to do, and the caller who waits for it."""

    alone: ClassVar[bool]
    """Must it run outside of any transaction?"""
    caller: Caller
    size: int
    """How many bytes it writes, about."""

    @staticmethod
    def perform(sessions: SessionTables, items: Sequence[Any]) -> list[Answer]:
        """Perform *items*, which are all of this class, in the open transaction. Returns their
        answers.
        """

    def failure(self, error: SessionError) -> Answer:
        """The answer if the whole transaction failed with *error*."""


class Append(msgspec.Struct, eq=False, gc=False):
    """A batch to append. The garbage collector need not visit those that wait: none is ever part
    of a cycle.
    """

    alone: ClassVar[bool] = False

    batch: Batch
    done: Callable[[AppendResult], None]
    caller: Caller
    size: int

    @staticmethod
    def perform(sessions: SessionTables, items: Sequence[Append]) -> list[Answer]:
        """See ``Item.perform``."""
        results = append_all(sessions, [item.batch for item in items])
        return [
            (item.caller, item.done, result) for item, result in zip(items, results, strict=True)
        ]

    def failure(self, error: SessionError) -> Answer:
        """See ``Item.failure``."""
        committed = error.committed if isinstance(error, StoreError) else False
        return self.caller, self.done, Lost(str(error), committed)


class Job(Generic[T]):
    """A call that a task waits for. If *owner* is set, that owner takes a session in it."""

    alone: ClassVar[bool] = False
    size = 0

    def __init__(self, work: Callable[[SessionTables], T], owner: Owner | None = None) -> None:
        self.call: QueuedCall[T] = QueuedCall()
        self.caller = self.call.caller
        self._work = work
        self._owner = owner

    @staticmethod
    def perform(sessions: SessionTables, items: Sequence[Job[Any]]) -> list[Answer]:
        """See ``Item.perform``. If a job fails, everything that it wrote is rolled back."""
        return [item.run_in_savepoint(sessions) for item in items]

    def run(self, sessions: SessionTables) -> Answer:
        """Run the job, unless nobody waits for it any more. Raises what it raises."""
        if self.call.is_dropped:
            return self.caller, self.call.set, None
        result = self._work(sessions)
        if self._owner is not None:
            sessions.taken_by.append(self._owner)
        return self.caller, self.call.set, result

    def run_in_savepoint(self, sessions: SessionTables) -> Answer:
        """Run the job. An error that concerns only this job becomes its answer."""
        sessions.db.execute("SAVEPOINT job")
        try:
            answer = self.run(sessions)
        except (SessionError, UnicodeError, *ITEM_ERRORS) as error:
            sessions.db.execute("ROLLBACK TO job")
            sessions.forget()
            answer = self.caller, self.call.fail, _as_ours(error)
        sessions.db.execute("RELEASE job")
        return answer

    def failure(self, error: SessionError) -> Answer:
        """See ``Item.failure``."""
        # A copy, so that each task raises an exception of its own with a traceback of its own. The
        # constructors of errors differ, so none of them is called.
        copy = type(error).__new__(type(error), *error.args)
        copy.__dict__.update(error.__dict__)
        copy.__cause__ = error.__cause__
        return self.caller, self.call.fail, copy


class LoneJob(Job[T]):
    """A job outside of any transaction, as a vacuum must be."""

    alone: ClassVar[bool] = True

    @staticmethod
    def perform(sessions: SessionTables, items: Sequence[Job[Any]]) -> list[Answer]:
        """See ``Item.perform``, but in no transaction. Raises what a job raises."""
        return [item.run(sessions) for item in items]


def next_group(waiting: deque[Item], large: LargeBatches) -> list[Item]:
    """Take the next group from *waiting*: all but those large batches for which it has no room.
    *large* are those of the writer.

    Batches of one session stay in their order, and nothing overtakes a job or is overtaken by one,
    because a job may change any session.
    """
    return large.form_group(partial(_with_room, waiting, large))


def _with_room(waiting: deque[Item], large: LargeBatches) -> list[Item]:
    group: list[Item] = []
    if not any(item.size >= LARGE_BATCH_BYTES for item in waiting):
        group += waiting
        waiting.clear()
        return group
    later: list[Item] = []
    held_back: set[str] = set()
    while waiting:
        item = waiting.popleft()
        if not isinstance(item, Append):
            if later:
                later.append(item)
                break
        elif item.batch.session in held_back or not large.have_room(item.size):
            held_back.add(item.batch.session)
            later.append(item)
            continue
        group.append(item)
    waiting.extendleft(reversed(later))
    return group


def _as_ours(error: Exception) -> Exception:
    if isinstance(error, SessionError):
        return error
    ours: SessionError = (
        InvalidInput(f"text that is not valid Unicode: {error.reason}")
        if isinstance(error, UnicodeEncodeError)
        else StoreError(f"SQLite cannot store this: {error_text(error)}", committed=False)
    )
    ours.__cause__ = error
    return ours
