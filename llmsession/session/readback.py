"""Reading a session's log back: its records, and what became of a doubtful batch."""

from __future__ import annotations

import msgspec

from llmsession.errors import RecordDamaged
from llmsession.store.protocol import Batch, Store, StoredRecord
from llmsession.turns.records import Record, decode_record

__all__ = ["is_in_log", "read_record"]


def read_record(session: str, stored: StoredRecord) -> Record:
    """The record that *stored* holds. Raises RecordDamaged if it cannot be read."""
    try:
        return decode_record(stored.body)
    except msgspec.MsgspecError as error:
        raise RecordDamaged(session, stored.seq, str(error)) from error


async def is_in_log(store: Store, batch: Batch) -> bool:
    """Does the log hold *batch* at its place? Then only its acknowledgement was lost.

    Raises StoreError and SessionNotFound, as reading does.
    """
    found = await store.read(batch.session, after=batch.head, limit=len(batch.bodies))
    return tuple(record.body for record in found) == batch.bodies
