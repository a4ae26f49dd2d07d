"""The appends of one transaction: fenced against the sessions' rows, and written together.

The transaction holds the write lock, so a row that was read cannot change until it is written here.
Each session's row is written once, however many of its batches are in the group. It is read only
if it is not known from the session's last append.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmsession.errors import SessionNotFound

from ..counting import Charge
from ..protocol import Appended, AppendResult, Batch, Conflict
from ..segments import LAST_SEQ
from .records import INSERT, RecordRow
from .rows import Values, row_of
from .session_tables import Position, SessionTables, find_row

__all__ = ["append_all"]

_ADVANCE = """
UPDATE session SET head = ?, created_at = ?, touched_at = ?, unfinished = ?, head_seal = ?
WHERE id = ? AND epoch = ? AND head = ?
"""


def append_all(sessions: SessionTables, batches: Sequence[Batch]) -> list[AppendResult]:
    """Append *batches* in order, each if its epoch and head are those of its session.

    Returns their results, which are valid once the transaction is committed.
    """
    positions = sessions.positions({batch.session for batch in batches})
    changed: dict[str, int] = {}
    results: list[AppendResult] = []
    rows: list[RecordRow] = []
    charges: list[Charge] = []
    keep = sessions.records.keep
    for batch in batches:
        session = batch.session
        position = positions.get(session)
        if position is None or position[0] != batch.epoch or position[2] != batch.head:
            _write(sessions, positions, changed)  # the Conflict must hold the row as it is now
            results.append(_conflict(sessions, session))
            continue
        epoch, log, head, created_at, _, unfinished = position
        bodies = batch.bodies
        keep(log, head + 1, epoch, bodies, rows)
        head += len(bodies)
        if head > LAST_SEQ:
            raise OverflowError(f"a log can hold at most {LAST_SEQ} records")
        if batch.unfinished is not None:
            unfinished = batch.unfinished
        positions[session] = (epoch, log, head, created_at or batch.at, batch.at, unfinished)
        changed.setdefault(session, batch.head)
        if batch.labels is not None:
            sessions.label(session, batch.labels)
        if batch.charge is not None:
            charges.append(batch.charge)
        results.append(Appended(head))
    _write(sessions, positions, changed)
    sessions.cursor.executemany(INSERT, rows)
    sessions.counters.charge(charges)
    return results


def _write(
    sessions: SessionTables, positions: dict[str, Position], changed: dict[str, int]
) -> None:
    """Write the positions of the *changed* sessions, which are none afterwards. *changed* has the
    heads that their rows have.
    """
    rows: list[Values] = []
    is_plain = sessions.records.is_plain
    for session, stored in changed.items():
        epoch, log, head, created_at, touched_at, unfinished = positions[session]
        seal = None if is_plain else sessions.head_seal(log, head)
        rows.append((head, created_at, touched_at, unfinished, seal, session, epoch, stored))
    before = sessions.db.total_changes()
    sessions.cursor.executemany(_ADVANCE, rows)
    if sessions.db.total_changes() - before != len(rows):
        raise RuntimeError("the position of a session was not that of its row")  # rolled back
    sessions.words.note(positions[session][1] for session in changed)
    changed.clear()


def _conflict(sessions: SessionTables, session: str) -> Conflict:
    try:
        return Conflict(row_of(find_row(sessions.db, session)))
    except SessionNotFound:
        return Conflict(None)
