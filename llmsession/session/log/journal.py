"""The way of records into the store: in order, one batch on its way at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from llmsession.errors import error_text
from llmsession.store.protocol import Appended, AppendResult, Batch, Lease, Lost, Store
from llmsession.turns.records import (
    Record,
    SessionCreated,
    SessionForked,
    SessionLabelled,
    encode_record,
)

__all__ = ["Journal", "Written"]

Then: TypeAlias = Callable[[], None]
"""What the actor does once a record is durable and folded."""


class Written(msgspec.Struct, frozen=True):
    """A batch that came back from the store, with what is to follow each record."""

    entries: tuple[tuple[Record | None, Then | None], ...]
    batch: Batch
    result: AppendResult


class Journal:
    """Numbers records and hands them to the store; what was handed over meanwhile goes in one
    batch. ``report`` gets each batch back, in order. Nothing here waits or is cancelled."""

    def __init__(
        self,
        store: Store,
        lease: Lease,
        clock: Callable[[], float],
        report: Callable[[Written], None],
    ) -> None:
        self._store = store
        self._lease = lease
        self._clock = clock
        self._report = report
        self._queue: list[tuple[Record | None, Then | None]] = []
        self._written = lease.head
        self._seq = lease.head
        self._in_flight = False
        self._stopped = False

    @property
    def lease(self) -> Lease:
        """The hold that it writes under, with the head that it was taken at."""
        return self._lease

    @property
    def seq(self) -> int:
        """The seq of the last record that was queued, written or not yet."""
        return self._seq

    @property
    def is_idle(self) -> bool:
        """Nothing is queued and nothing is on its way, or nothing is written any more."""
        return self._stopped or (not self._queue and not self._in_flight)

    def write(self, record: Record, then: Then | None = None) -> None:
        """Queue *record* under the next seq; *then* is called by the actor once it is durable
        and folded. Once stopped, nothing is queued and *then* is never called."""
        if self._stopped:
            return
        self._seq += 1
        stamped = msgspec.structs.replace(
            record, seq=self._seq, epoch=self._lease.epoch, at=self._clock()
        )
        self._queue.append((stamped, then))

    def follow(self, then: Then) -> None:
        """Let the actor call *then* once everything written so far is durable and folded."""
        self._queue.append((None, then))

    def flush(self) -> None:
        """Hand over what is queued, unless a batch is on its way: then it follows that one."""
        if self._in_flight or self._stopped or not self._queue:
            return
        entries, self._queue = tuple(self._queue), []
        records = [record for record, _ in entries if record is not None]
        batch = Batch(
            session=self._lease.session,
            epoch=self._lease.epoch,
            head=self._written,
            bodies=tuple(encode_record(record) for record in records),
            at=records[-1].at if records else 0.0,
            labels=_labels(records),
        )
        if not batch.bodies:
            self._report(Written(entries, batch, Appended(self._written)))
            return
        self._in_flight = True
        answered = False

        def done(result: AppendResult) -> None:
            nonlocal answered
            if answered:  # a store may be anybody's code: the first answer is the answer
                return
            answered = True
            # What follows a batch waits until it is known to be there: see ``settled``.
            if isinstance(result, Appended):
                self.settled(batch)
            self._report(Written(entries, batch, result))

        try:
            self._store.append(batch, done)
        except Exception as error:
            done(Lost(error_text(error)))

    def settled(self, batch: Batch) -> None:
        """*batch* is in the log; the next one may follow."""
        self._in_flight = False
        self._written = batch.head + len(batch.bodies)

    def stop(self) -> None:
        """Write nothing more: the store failed, or somebody else owns the session."""
        self._stopped = True
        self._queue.clear()


def _labels(records: Sequence[Record]) -> dict[str, str] | None:
    """The labels that *records* leave the session with; None if they say nothing of them."""
    labels: dict[str, str] | None = None
    for record in records:
        if isinstance(record, SessionCreated | SessionForked | SessionLabelled):
            labels = record.labels
    return labels
