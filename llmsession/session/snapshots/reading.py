"""Reads a session's state from its snapshot in the store and the records after it."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

from llmsession.errors import StoreError
from llmsession.store.checked import CheckedStore

from ..log.read_state import PAGE, read_state
from ..log.state import SessionState
from ..tasks.worker_thread import off_loop
from .format import Unusable, unpacked
from .stored_log import LogBytes

__all__ = ["read_from_snapshot"]

SHORT_BYTES = 16 * 1024
"""A snapshot up to this size is unpacked in about a millisecond: too little for a thread."""
LARGE_BYTES = 1024 * 1024
"""The checksum of fewer bytes takes less than half a millisecond."""


async def read_from_snapshot(
    store: CheckedStore,
    session: str,
    ignored: Callable[[str], None],
    *,
    head: int | None = None,
    snapshot_of: str | None = None,
) -> SessionState:
    """``read_state``, but only the records after the session's snapshot are decoded.

    Of the records before it the bytes are read, and compared with the snapshot's checksum. So the
    state is the same, and a damaged record is found as it is without a snapshot. *ignored* is
    called with the reason if the snapshot cannot be used: then the whole log is folded. A fork
    shares records with its parent, so it may use the *snapshot_of* that session. Acquires no lease.
    Raises the errors of ``read_state``.
    """
    state: SessionState | None = None
    try:
        raw = await store.snapshot(session if snapshot_of is None else snapshot_of)
        if raw is not None:
            state = await _covered(store, session, raw, head)
    except Unusable as error:
        ignored(str(error))
    except StoreError as error:  # if the log cannot be read either, the next read says so
        ignored(f"it cannot be read: {error}")
    return await read_state(store, session, head=head, state=state)


async def _covered(store: CheckedStore, session: str, raw: bytes, head: int | None) -> SessionState:
    """The state after the records that the snapshot *raw* covers. Raises Unusable."""
    is_short = len(raw) <= SHORT_BYTES
    snapshot = unpacked(raw) if is_short else await off_loop(unpacked, raw)
    if head is not None and snapshot.seq > head:
        raise Unusable("it covers more records than the log has")
    log, checksum = LogBytes(), 0
    while len(log) < snapshot.seq:
        limit = min(PAGE, snapshot.seq - len(log))
        page = await store.read(session, after=len(log), limit=limit)
        if not page:
            raise Unusable("it covers more records than the log has")
        joined = log.add([stored.body for stored in page])
        is_large = len(joined) > LARGE_BYTES
        checksum = await off_loop(crc32, joined, checksum) if is_large else crc32(joined, checksum)
    if checksum != snapshot.checksum:
        raise Unusable("the records in the log are not those that it covers")
    return snapshot.state(log) if is_short else await off_loop(snapshot.state, log)
