"""Writes records to the store: in order, one batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec

from llmsession.errors import contained, error_text
from llmsession.store.protocol import (
    Appended,
    AppendResult,
    Batch,
    Lease,
    Lost,
    Store,
    checked_result,
)
from llmsession.turns.records import (
    Record,
    SessionCreated,
    SessionForked,
    SessionLabelled,
    TurnAccepted,
    encode_record,
    is_terminal,
)

from .meter import ChargeOf

__all__ = ["Journal", "Written"]

Then: TypeAlias = Callable[[], None]
"""A function that the actor calls when a record is durable and folded."""


class Written(msgspec.Struct, frozen=True):
    """A batch with the store's result, and the function to call for each of its records."""

    entries: tuple[tuple[Record | None, Then | None], ...]
    batch: Batch
    result: AppendResult


class Journal:
    """Numbers records and appends them to the store.

    Records that arrive during an append go into the next batch, so a slow store makes batches
    larger instead of making the queue longer. ``report`` gets each batch with its result, in order.
    *charge* says what each batch spends.
    Nothing here waits, so nothing can be cancelled.

    *open_turns* are the turns that the log left open up to the lease's head. A batch says whether
    the session has unfinished work, which is an open turn, whenever that changes.
    """

    def __init__(
        self,
        store: Store,
        lease: Lease,
        clock: Callable[[], float],
        report: Callable[[Written], None],
        *,
        charge: ChargeOf | None = None,
        open_turns: Iterable[int] = (),
    ) -> None:
        self._store = store
        self._lease = lease
        self._clock = clock
        self._report = report
        self._charge = charge
        self._queue: list[tuple[Record | None, Then | None]] = []
        self._written = lease.head
        self._seq = lease.head
        self._open = dict.fromkeys(open_turns)  # an empty set has 216 bytes
        self._unfinished: bool | None = None  # what the store has is not known here
        self._in_flight = False
        self._stopped = False

    @property
    def lease(self) -> Lease:
        """The lease that it writes under, with the head at the time when the lease was taken."""
        return self._lease

    @property
    def seq(self) -> int:
        """The seq of the last queued record, whether it is written or not."""
        return self._seq

    @property
    def is_idle(self) -> bool:
        """Is nothing queued or being written? Also True after ``stop``."""
        return self._stopped or (not self._queue and not self._in_flight)

    def write(self, record: Record, then: Then | None = None) -> None:
        """Queue *record* under the next seq. The actor calls *then* when it is durable and folded.

        After ``stop`` nothing is queued and *then* is never called.
        """
        if self._stopped:
            return
        self._seq += 1
        stamped = msgspec.structs.replace(
            record, seq=self._seq, epoch=self._lease.epoch, at=self._clock()
        )
        self._queue.append((stamped, then))
        if isinstance(record, TurnAccepted):
            self._open[record.turn] = None
        elif is_terminal(record):
            self._open.pop(record.turn, None)
            if not self._open:
                self._open.clear()  # an emptied dict keeps its table
        elif isinstance(record, SessionForked):
            self._open.clear()  # those are its parent's

    def follow(self, then: Then) -> None:
        """Let the actor call *then* when everything that is queued so far is durable and folded."""
        self._queue.append((None, then))

    def flush(self) -> None:
        """Append the queued records. While a batch is being written, the queue waits for it."""
        if self._in_flight or self._stopped or not self._queue:
            return
        entries, self._queue = tuple(self._queue), []
        records = [record for record, _ in entries if record is not None]
        batch = Batch(
            session=self._lease.session,
            epoch=self._lease.epoch,
            head=self._written,
            bodies=tuple([encode_record(record) for record in records]),
            at=records[-1].at if records else 0.0,
            labels=_labels(records),
            charge=self._charge(records) if self._charge is not None else None,
            unfinished=self._changed_mark(),
        )
        if not batch.bodies:
            self._report(Written(entries, batch, Appended(self._written)))
            return
        self._in_flight = True
        answered = False

        def done(result: AppendResult) -> None:
            nonlocal answered
            if answered:  # a store is foreign code; only its first answer counts
                return
            answered = True
            result = checked_result(result, batch)
            # On any other result the journal stays blocked until it is known whether this batch is
            # in the log: see ``settled``. Writing the next batch before could leave a gap.
            if isinstance(result, Appended):
                self.settled(batch)
            self._report(Written(entries, batch, result))

        try:
            self._store.append(batch, done)
        except BaseException as error:  # a store is foreign code
            done(Lost(error_text(contained(error))))

    def _changed_mark(self) -> bool | None:
        before, self._unfinished = self._unfinished, bool(self._open)
        return None if self._unfinished == before else self._unfinished

    def settled(self, batch: Batch) -> None:
        """*batch* is in the log, so the next one may be written."""
        self._in_flight = False
        self._written = batch.head + len(batch.bodies)

    def stop(self) -> None:
        """Write nothing more, because the store failed or another owner has the session."""
        self._stopped = True
        self._queue.clear()


def _labels(records: Sequence[Record]) -> dict[str, str] | None:
    """The session's labels after *records*; None if none of them sets labels."""
    labels: dict[str, str] | None = None
    for record in records:
        if isinstance(record, SessionCreated | SessionForked | SessionLabelled):
            labels = record.labels
    return labels
