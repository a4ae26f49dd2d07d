"""The appends of one transaction: fenced against the sessions' rows, and written together.

The transaction holds the write lock, so a row that was read cannot change until it is written here.
Each session's row is read once and written once, however many of its batches are in the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from llmsession.errors import SessionNotFound

from ..counting import Charge
from ..protocol import Appended, AppendResult, Batch, Conflict
from ..segments import LAST_SEQ
from .records import RecordRow
from .rows import Values, row_of
from .session_tables import SessionTables, find_row

__all__ = ["append_all"]

_SELECT_POSITION = "SELECT id, epoch, head, log FROM session WHERE id = ?"
_ADVANCE = """
UPDATE session SET head = ?, touched_at = ?, created_at = iif(created_at = 0.0, ?, created_at),
    head_seal = ?
WHERE id = ?
"""
# A statement of its own: SQLite writes the entry of an index anew if its column is named, even if
# the value stays.
_MARK = "UPDATE session SET unfinished = ? WHERE id = ? AND unfinished IS NOT ?1"


class _Position(msgspec.Struct, gc=False):
    """The end of a session's log after the appends so far."""

    epoch: int
    head: int
    log: int
    began_at: float = 0.0
    touched_at: float = 0.0
    is_written: bool = True
    unfinished: bool | None = None


def append_all(sessions: SessionTables, batches: Sequence[Batch]) -> list[AppendResult]:
    """Append *batches* in order, each if its epoch and head are those of its session.

    Returns their results, which are valid once the transaction is committed.
    """
    positions = _read(sessions, {batch.session for batch in batches})
    results: list[AppendResult] = []
    rows: list[RecordRow] = []
    charges: list[Charge] = []
    keep = sessions.records.keep
    for batch in batches:
        position = positions.get(batch.session)
        if position is None or position.epoch != batch.epoch or position.head != batch.head:
            _write(sessions, positions)  # the Conflict must hold the row as it is now
            results.append(_conflict(sessions, batch.session))
            continue
        head = batch.head + len(batch.bodies)
        if head > LAST_SEQ:
            raise OverflowError(f"a log can hold at most {LAST_SEQ} records")
        keep(position.log, batch.head + 1, batch.epoch, batch.bodies, rows)
        position.head = head
        position.touched_at = batch.at
        if position.is_written:
            position.began_at = batch.at
            position.is_written = False
        if batch.unfinished is not None:
            position.unfinished = batch.unfinished
        if batch.labels is not None:
            sessions.label(batch.session, batch.labels)
        if batch.charge is not None:
            charges.append(batch.charge)
        results.append(Appended(head))
    _write(sessions, positions)
    sessions.records.insert(rows)
    sessions.counters.charge(charges)
    return results


def _read(sessions: SessionTables, names: Iterable[str]) -> dict[str, _Position]:
    stored: Iterable[Values] = sessions.db.executemany(
        _SELECT_POSITION, [(name,) for name in names]
    )
    return {name: _Position(epoch, head, log) for name, epoch, head, log in stored}


def _write(sessions: SessionTables, positions: dict[str, _Position]) -> None:
    changed: list[Values] = []
    marked: list[Values] = []
    logs: list[int] = []
    is_plain = sessions.records.is_plain
    for name, position in positions.items():
        if not position.is_written:
            position.is_written = True
            seal = None if is_plain else sessions.head_seal(position.log, position.head)
            changed.append((position.head, position.touched_at, position.began_at, seal, name))
            logs.append(position.log)
            if position.unfinished is not None:
                marked.append((position.unfinished, name))
    sessions.db.executemany(_ADVANCE, changed)
    sessions.db.executemany(_MARK, marked)
    sessions.words.note(logs)


def _conflict(sessions: SessionTables, session: str) -> Conflict:
    try:
        return Conflict(row_of(find_row(sessions.db, session)))
    except SessionNotFound:
        return Conflict(None)
