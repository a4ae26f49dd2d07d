"""Erases forgotten content from a session's log in the store."""

from __future__ import annotations

from llmsession.store.protocol import Lease, Store
from llmsession.turns.records import encode_record

from .reader import read_record
from .redaction import Redaction

__all__ = ["erase"]

PAGE = 256
"""Records that are read at a time, a few turns, so that the log need not fit into memory."""


async def erase(store: Store, lease: Lease, pending_redaction: Redaction) -> int:
    """Erase *pending_redaction* from the log of *lease* in one rewrite. Returns how many records
    changed.

    A second call changes nothing. Raises RecordDamaged, SessionMoved, SessionNotFound and
    StoreError. Then nothing was changed, unless only the answer to the rewrite was lost.
    """
    session, after = lease.session, 0
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
        after = page[-1].seq
    if bodies:
        await store.rewrite(lease, bodies)
    return len(bodies)
