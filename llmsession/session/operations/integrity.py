"""Check that every session of a store can be read whole. Acquires no session."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from llmsession.errors import RecordDamaged, SessionNotFound, UnknownRecord
from llmsession.store.protocol import SessionRow, Store

from ..log.read_state import begun_rows, check_belongs, read_state

__all__ = ["Examined", "examine"]

PAGE = 500
"""Rows read at a time."""


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one session. ``records`` is how many records at the beginning of its log are
    sound. ``damaged`` is the seq of the first that is not, and ``why`` says what is wrong with it.
    With ``unknown_kind`` that record is not damaged: a newer version of llmsession wrote it, and
    this one does not know its kind. ``open_turns`` end, or go on, when the session is opened."""

    session: str
    records: int
    open_turns: int = 0
    damaged: int | None = None
    why: str = ""
    unknown_kind: str | None = None

    @property
    def is_whole(self) -> bool:
        """Can all of it be read, and does each record follow the one before it?"""
        return self.damaged is None


async def examine(store: Store, *, after: str = "") -> AsyncGenerator[Examined, None]:
    """Every session of *store* with an id greater than *after*, by id.

    Each log is read and folded whole. A session that is deleted meanwhile is left out, and what
    is appended meanwhile does no harm. Raises StoreError if the store itself cannot be read.
    """
    while rows := await begun_rows(store, after=after, limit=PAGE):
        for row in rows:
            try:
                yield await _examine(store, row)
            except SessionNotFound:
                continue
        after = rows[-1].session


async def _examine(store: Store, row: SessionRow) -> Examined:
    try:
        state = await read_state(store, row.session)
        if state.head == row.head:  # else it was appended to meanwhile
            check_belongs(state, row)
    except RecordDamaged as error:
        return Examined(
            session=row.session,
            records=error.seq - 1,
            damaged=error.seq,
            why=error.why,
            unknown_kind=error.kind if isinstance(error, UnknownRecord) else None,
        )
    if state.head < row.head:
        why = f"the log ends here, and the session's head is {row.head}"
        return Examined(session=row.session, records=state.head, damaged=state.head + 1, why=why)
    return Examined(session=row.session, records=state.head, open_turns=len(state.open))
