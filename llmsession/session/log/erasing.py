"""Erases forgotten content from a session's log in the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from zlib import crc32

from llmsession.store.protocol import Lease, Store
from llmsession.turns.records import encode_record

from .reader import read_record
from .redaction import Redaction

__all__ = ["Erased", "erase"]

PAGE = 64
"""Records that are read at a time: that takes a millisecond or two of the event loop."""


class Erased(NamedTuple):
    """What was erased, and what the log is now."""

    records: int
    """How many records changed."""
    seq: int
    checksum: int
    """The CRC-32 of the log's bytes up to the record *seq*."""


async def erase(
    store: Store, lease: Lease, pending_redaction: Redaction, head: Callable[[], int]
) -> Erased:
    """Erase *pending_redaction* from the log of *lease* in one rewrite. *head* is the number of
    records in the log, which may grow meanwhile.

    A second call changes nothing. Raises RecordDamaged, SessionMoved, SessionNotFound and
    StoreError. Then nothing was changed, unless only the answer to the rewrite was lost.
    """
    session, after, checksum = lease.session, 0, 0
    bodies: dict[int, bytes] = {}
    while after < pending_redaction.seq - 1:
        page = await store.read(
            session, after=after, limit=min(PAGE, pending_redaction.seq - 1 - after)
        )
        if not page:
            break
        for stored in page:
            record = read_record(session, stored)
            redacted = pending_redaction.apply(record)
            if redacted is not record and redacted != record:
                bodies[stored.seq] = encode_record(redacted)
        checksum = crc32(b"".join(bodies.get(each.seq, each.body) for each in page), checksum)
        after = page[-1].seq
    if bodies:
        await store.rewrite(lease, bodies)
    while after < head():
        page = await store.read(session, after=after, limit=min(PAGE, head() - after))
        if not page:
            break
        checksum = crc32(b"".join(each.body for each in page), checksum)
        after = page[-1].seq
    return Erased(len(bodies), after, checksum)
