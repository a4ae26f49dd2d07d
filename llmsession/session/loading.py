"""From a session's log to its state."""

from __future__ import annotations

import msgspec

from llmsession.errors import RecordDamaged, error_text
from llmsession.store.protocol import Store

from .readback import read_record
from .state import SessionState

__all__ = ["read_state"]

PAGE = 1000
"""Records read at a time when a session is loaded."""


async def read_state(store: Store, session: str) -> SessionState:
    """The fold of a session's whole log. Acquires nothing.

    Raises SessionNotFound, StoreError, and RecordDamaged at the first record that cannot be read
    or cannot follow the one before it; nothing is changed.
    """
    state = SessionState(session)
    # A short page is not the end: a damaged record ends a page, and is raised when it comes first.
    while page := await store.read(session, after=state.head, limit=PAGE):
        for stored in page:
            record = read_record(session, stored)
            try:
                state.apply(record)
            except (msgspec.MsgspecError, KeyError, ValueError) as error:
                raise RecordDamaged(session, stored.seq, error_text(error)) from error
    return state
