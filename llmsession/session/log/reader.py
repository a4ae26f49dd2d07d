"""Reads a session's log: its records, a turn's outcome, and whether a batch was written."""

from __future__ import annotations

import msgspec

from llmsession.errors import RecordDamaged, SessionClosed, UnknownRecord, error_text
from llmsession.store.protocol import Batch, Store, StoredRecord
from llmsession.turns.records import (
    Record,
    TurnImported,
    decode_record,
    is_terminal,
    turn_of,
    unknown_kind,
)

from ..values.outcome import TurnOutcome
from .outcomes import outcome_of, outcome_of_import
from .state import SessionState

__all__ = ["is_in_log", "read_outcome", "read_page", "read_record", "unreadable"]

PAGE = 256
"""Records that are read at a time for a subscriber that starts behind: a few turns."""


def read_record(session: str, stored: StoredRecord) -> Record:
    """The record that *stored* holds. Raises RecordDamaged if it cannot be read."""
    try:
        return decode_record(stored.body)
    except msgspec.MsgspecError as error:
        raise unreadable(session, stored, error) from error


def unreadable(session: str, stored: StoredRecord, error: Exception) -> RecordDamaged:
    """What to raise for *stored*, which could not be read or folded because of *error*: an
    UnknownRecord if a newer version wrote it, else a RecordDamaged."""
    kind = unknown_kind(stored.body)
    if kind is not None:
        return UnknownRecord(session, stored.seq, kind)
    why = str(error) if isinstance(error, msgspec.MsgspecError) else error_text(error)
    return RecordDamaged(session, stored.seq, why)


async def read_page(store: Store, session: str, after: int, up_to: int) -> list[Record]:
    """The next records with seq > *after*, up to *up_to* at most. Raises the errors of
    ``Store.read``.
    """
    page = await store.read(session, after=after, limit=min(PAGE, up_to - after))
    return [read_record(session, stored) for stored in page]


async def read_outcome(
    store: Store, session: str, number: int, *, after: int, head: int, born_in: str
) -> TurnOutcome:
    """The outcome of turn *number*, whose records are between *after* and *head*.

    *born_in* is the session in which its messages were made. Raises SessionClosed if its end is not
    there, StoreError, SessionNotFound.
    """
    state = SessionState(born_in)
    while after < head:
        for record in await read_page(store, session, after, head):
            after = record.seq
            if turn_of(record) != number:
                continue
            if isinstance(record, TurnImported):
                return outcome_of_import(record)
            # Fold only the records of this turn: other records do not change it.
            turn = state.open.get(number)
            state.head = record.seq - 1
            state.apply(record)
            if turn is not None and number in state.ended:
                assert is_terminal(record)  # nothing else ends a turn
                return outcome_of(record, turn)
    raise SessionClosed(f"turn {number} of session {session!r} has no end in the log yet")


async def is_in_log(store: Store, batch: Batch) -> bool:
    """Is *batch* in the log at its place? Then only its acknowledgement was lost.

    Raises StoreError and SessionNotFound, as ``Store.read`` does.
    """
    stored = await store.read(batch.session, after=batch.head, limit=len(batch.bodies))
    return tuple(record.body for record in stored) == batch.bodies
