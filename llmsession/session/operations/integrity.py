"""Checks that every session of a store can be read completely. Acquires no lease."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from llmsession.errors import RecordDamaged, SessionNotFound, UnknownRecord
from llmsession.store.protocol import SessionRow, Store

from ..log.read_state import begun_rows, check_belongs, read_state

__all__ = ["Examined", "examine"]

PAGE = 500
"""Rows that are read at a time."""


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one session."""

    session: str
    records: int
    """How many records at the beginning of its log are sound."""
    open_turns: int = 0
    """How many turns are open. They are ended or resumed when the session is opened."""
    damaged: int | None = None
    """The seq of the first damaged record; None if there is none."""
    why: str = ""
    """What is wrong with that record."""
    unknown_kind: str | None = None
    """The kind of that record, if it is not damaged but unknown: a newer version wrote it."""

    @property
    def is_whole(self) -> bool:
        """Can all records be read, and does each one follow the one before it?"""
        return self.damaged is None


async def examine(store: Store, *, after: str = "") -> AsyncGenerator[Examined, None]:
    """Check every session of *store* with an id greater than *after*, in the order of ids.

    Each log is read and folded completely. A session that is deleted in the meantime is left out,
    and records that are appended in the meantime do no harm. Raises StoreError if the store itself
    cannot be read.
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
        if state.head == row.head:  # else records were appended after the row was read
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
        why = f"the log ends here, but the session's head is {row.head}"
        return Examined(session=row.session, records=state.head, damaged=state.head + 1, why=why)
    return Examined(session=row.session, records=state.head, open_turns=len(state.open))
