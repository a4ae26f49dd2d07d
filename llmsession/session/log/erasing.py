"""Erases forgotten content from a session's log in the store."""

from __future__ import annotations

from llmsession.store.protocol import Lease, Store
from llmsession.turns.records import encode_record

from .reader import read_record
from .redaction import Redaction

__all__ = ["erase"]

PAGE = 64
"""Records that are read at a time: that takes a millisecond or two of the event loop."""


async def erase(store: Store, lease: Lease, pending_redaction: Redaction) -> bool:
    """Erase *pending_redaction* from the log of *lease* in one rewrite. Returns whether a record
    changed. Reads only the records that may say something of it.

    A second call changes nothing. Raises RecordDamaged, SessionMoved, SessionNotFound and
    StoreError. Then nothing was changed, unless only the answer to the rewrite was lost.
    """
    session = lease.session
    bodies: dict[int, bytes] = {}
    for first, last in pending_redaction.ranges:
        after = first - 1
        while after < last:
            page = await store.read(session, after=after, limit=min(PAGE, last - after))
            if not page:
                break
            for stored in page:
                record = read_record(session, stored)
                redacted = pending_redaction.apply(record)
                if redacted is not record and redacted != record:
                    bodies[stored.seq] = encode_record(redacted)
            after = page[-1].seq
    if bodies:
        await store.rewrite(lease, bodies)
    return bool(bodies)
