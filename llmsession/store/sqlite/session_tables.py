"""The changes of sessions in a SQLite store, one method each.

Called in the writer's thread, in the caller's transaction. If a method raises, the caller must roll
back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import apsw

from llmsession.errors import (
    InvalidInput,
    RecordDamaged,
    SessionExists,
    SessionInUse,
    SessionNotFound,
)

from ..cipher import PLAIN, Cipher
from ..ownership import check_epoch, still_holds
from ..protocol import Lease, Owner, SessionRow
from ..row_seals import Part, check_row, seal_head, seal_origin
from ..segments import (
    LAST_SEQ,
    Segment,
    cut,
    layout,
    moved,
    segment_of,
    stored,
    united,
    unused,
)
from .counters import Counters
from .records import Records
from .rows import SELECT_ROW, Values, labels_text, read_labels, row_of, snapshot_place
from .word_index import WordTables

__all__ = [
    "Position",
    "SessionTables",
    "find_row",
    "find_sealed_row",
    "read_segments",
    "seal_rows",
]

MAX_LOGS = 2**31 - 1
MAX_POSITIONS = 20_000
"""The writer knows the positions of so many sessions, which takes about 5 MB."""
_SELECT_POSITION = """
SELECT id, epoch, log, head, created_at, touched_at, unfinished FROM session WHERE id = ?
"""

Position: TypeAlias = tuple[int, int, int, float, float, int | None]
"""What an append needs of a session's row: epoch, log, head, created_at, touched_at, unfinished."""


def find_row(db: apsw.Connection, session: str) -> Values:
    """The session's row of ``SELECT_ROW``. Raises SessionNotFound."""
    rows: list[Values] = db.execute(SELECT_ROW + "WHERE s.id = ?", (session,)).fetchall()
    if not rows:
        raise SessionNotFound(session)
    return rows[0]


def find_sealed_row(db: apsw.Connection, session: str, cipher: Cipher) -> Values:
    """See ``find_row``. Also raises RecordDamaged if the row is not the one that was sealed."""
    values = find_row(db, session)
    if cipher is not PLAIN:
        row, log = row_of(values), values[-2]
        parts = _parts(_stored_segments(db, log))
        seals = (values[-4], values[-3])
        check_row(cipher, session, log, parent=row.parent, parts=parts, head=row.head, seals=seals)
    return values


def seal_rows(db: apsw.Connection, cipher: Cipher) -> None:
    """Seal every row as it is, in a file that was made before rows had seals."""
    rows: list[Values] = db.execute("SELECT id, log, parent, head FROM session").fetchall()
    for session, log, parent, head in rows:
        parts = _parts(_stored_segments(db, log))
        db.execute(
            "UPDATE session SET origin_seal = ?, head_seal = ? WHERE id = ?",
            (seal_origin(cipher, session, log, parent, parts), seal_head(cipher, log, head),
             session),
        )  # fmt: skip


def read_segments(db: apsw.Connection, log: int, head: int) -> list[Segment]:
    """The segments of the session with the log *log* and the head *head*."""
    return layout(_stored_segments(db, log), log, head)


def _stored_segments(db: apsw.Connection, log: int) -> list[Segment]:
    rows: Iterable[Values] = db.execute(
        "SELECT first, upto, source FROM segment WHERE log = ? ORDER BY first", (log,)
    )
    return [Segment(*values) for values in rows]


def _parts(segments: Iterable[Segment]) -> list[Part]:
    return [(part.first, part.upto, part.source) for part in segments]


class SessionTables:
    """The sessions in *db*. *now* gives the time in seconds since the epoch.

    Owners that take a session get a lease of *lease_s* seconds.
    """

    def __init__(
        self, db: apsw.Connection, cipher: Cipher, now: Callable[[], float], lease_s: float
    ) -> None:
        self.db = db
        self.cursor = db.cursor()
        """For the statements of every append: to make one takes as long as a short statement."""
        self.records = Records(db, cipher)
        self.words = WordTables(db, self.records)
        self.counters = Counters(db, now)
        self._cipher = cipher
        self._now = now
        self._lease_s = lease_s
        self.taken_by: list[Owner] = []
        """The owners that have taken sessions in this transaction."""
        self._positions: dict[str, Position] = {}
        self._data_version = 0

    # Transactions.

    def begin(self) -> None:
        """Begin a transaction, which holds the write lock."""
        self.taken_by.clear()
        self.cursor.execute("BEGIN IMMEDIATE")
        if self.db.data_version() != self._data_version:
            self.forget()  # somebody else has changed the file

    def commit(self) -> None:
        """Commit the transaction."""
        self.cursor.execute("COMMIT")
        self._data_version = self.db.data_version()  # our own commits change it, too

    def forget(self) -> None:
        """Read everything from the file again: somebody has changed it, or a change was rolled
        back.
        """
        self._positions.clear()
        self.words.forget()

    def positions(self, sessions: set[str]) -> dict[str, Position]:
        """The positions of those of *sessions* that exist, and perhaps of others.

        They are kept from one transaction to the next, as SQLite keeps pages. Methods that change
        such a row remove its position.
        """
        known = self._positions
        unknown = sessions.difference(known)
        if unknown:
            if len(known) + len(unknown) > MAX_POSITIONS:
                known.clear()
                unknown = sessions
            rows: Iterable[Values] = self.db.executemany(
                _SELECT_POSITION, [(session,) for session in unknown]
            )
            known.update((session, tuple(position)) for session, *position in rows)
        return known

    # Labels.

    def label(self, session: str, labels: dict[str, str]) -> None:
        """Replace the labels of the session, which must exist."""
        self._unlabel(session)
        self.db.execute(
            "UPDATE session SET labels = ? WHERE id = ?", (labels_text(labels), session)
        )
        self.db.executemany(
            "INSERT INTO label VALUES (?, ?, ?)",
            [(name, value, session) for name, value in labels.items()],
        )

    def _unlabel(self, session: str) -> None:
        old: str = self.db.execute("SELECT labels FROM session WHERE id = ?", (session,)).get
        self.db.executemany(
            "DELETE FROM label WHERE name = ? AND value = ? AND session = ?",
            [(name, value, session) for name, value in read_labels(old).items()],
        )

    # Taking.

    def create(self, session: str, owner: Owner) -> Lease:
        """See ``Store.create``."""
        self._check_free(session)
        epoch = self._meta("highest_epoch") + 1
        self.note_owner(owner)
        self._add(SessionRow(session, epoch, 0, owner), self._new_log(), ())
        return Lease(session, epoch, 0)

    def acquire(self, session: str, owner: Owner, takeover: bool) -> Lease:
        """See ``Store.acquire``."""
        values = self._sealed_row(session)
        row = row_of(values)
        if not takeover and still_holds(row.owner, values[-1] or 0.0, taker=owner, now=self._now()):
            assert row.owner is not None  # still_holds is False without an owner
            raise SessionInUse(session, f"{row.owner.name} (pid {row.owner.pid})")
        self.note_owner(owner)
        self.db.execute(
            "UPDATE session SET epoch = epoch + 1, owner = ? WHERE id = ?", (owner.name, session)
        )
        self._positions.pop(session, None)
        return Lease(session, row.epoch + 1, row.head)

    def fork(self, parent: str, upto: int, session: str, owner: Owner) -> Lease:
        """See ``Store.fork``."""
        values = self._sealed_row(parent)
        row, log = row_of(values), values[-2]
        if not 0 <= upto <= row.head:
            raise InvalidInput(f"session {parent!r} has no record {upto}")
        self._check_free(session)
        epoch = max(self._meta("highest_epoch"), row.epoch) + 1
        self.note_owner(owner)
        time = row.touched_at
        segments = cut(read_segments(self.db, log, row.head), upto)
        own = self._new_log()
        fork = SessionRow(session, epoch, upto, owner, time, time, parent=parent)
        self._add(fork, own, segments)
        self._put_segments(own, segments)
        return Lease(session, epoch, upto)

    def release(self, lease: Lease) -> None:
        """See ``Store.release``."""
        self.db.execute(
            "UPDATE session SET owner = NULL WHERE id = ? AND epoch = ?",
            (lease.session, lease.epoch),
        )

    def settle(self, row: SessionRow) -> None:
        """See ``UnfinishedIndex.settle``."""
        self.db.execute(
            "UPDATE session SET unfinished = 0 WHERE id = ? AND epoch = ? AND head = ?",
            (row.session, row.epoch, row.head),
        )
        self._positions.pop(row.session, None)

    def _check_free(self, session: str) -> None:
        if self.db.execute("SELECT 1 FROM session WHERE id = ?", (session,)).get is not None:
            raise SessionExists(session)

    def _sealed_row(self, session: str) -> Values:
        return find_sealed_row(self.db, session, self._cipher)

    def head_seal(self, log: int, head: int) -> bytes | None:
        """The seal of *head* in the row of the session with the log *log*."""
        return seal_head(self._cipher, log, head)

    def _origin_seal(
        self, session: str, log: int, parent: str | None, segments: Iterable[Segment]
    ) -> bytes | None:
        return seal_origin(self._cipher, session, log, parent, _parts(segments))

    def _add(self, row: SessionRow, log: int, segments: Iterable[Segment]) -> None:
        assert row.owner is not None  # the creator of a session holds it
        self.db.execute(
            "INSERT INTO session (id, epoch, head, log, created_at, touched_at, owner, parent,"
            " labels, origin_seal, head_seal, unfinished)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, '{}', ?, ?, 0)",
            (row.session, row.epoch, row.head, log, row.created_at, row.touched_at,
             row.owner.name, row.parent,
             self._origin_seal(row.session, log, row.parent, segments),
             self.head_seal(log, row.head)),
        )  # fmt: skip

    def _new_log(self) -> int:
        log: int = self.db.execute(
            "UPDATE meta SET value = value + 1 WHERE name = 'log' RETURNING value"
        ).get
        if log > MAX_LOGS:
            raise InvalidInput(f"this store has had {MAX_LOGS} logs, the maximum; use a new store")
        return log

    def _meta(self, name: str) -> int:
        value: int = self.db.execute("SELECT value FROM meta WHERE name = ?", (name,)).get
        return value

    # Owners.

    def note_owner(self, owner: Owner, lease_s: float | None = None) -> None:
        """Store *owner*, and begin its lease now (for *lease_s* seconds if given)."""
        until = self._now() + (self._lease_s if lease_s is None else lease_s)
        self.db.execute(
            "INSERT INTO owner VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET"
            " pid = excluded.pid, started = excluded.started, host = excluded.host,"
            " lease_until = excluded.lease_until",
            (owner.name, owner.pid, owner.started, owner.host, until),
        )

    def forget_owners(self, names: Iterable[str]) -> None:
        """Remove those of the owners *names* that hold nothing."""
        self.db.executemany(
            "DELETE FROM owner WHERE name = ?1"
            " AND NOT EXISTS (SELECT 1 FROM session WHERE owner = ?1)",
            [(name,) for name in names],
        )

    def forget_old_owners(self, before: float) -> None:
        """Remove the owners of dead processes: they hold nothing, and their lease ended before
        *before*.
        """
        self.db.execute(
            "DELETE FROM owner WHERE lease_until < ?"
            " AND NOT EXISTS (SELECT 1 FROM session WHERE owner = owner.name)",
            (before,),
        )

    # Changing and deleting.

    def rewrite(self, lease: Lease, bodies: Mapping[int, bytes]) -> None:
        """See ``Store.rewrite``. Records that are shared are written anew, into a log of
        their own.
        """
        values = self._sealed_row(lease.session)
        row, log = row_of(values), values[-2]
        check_epoch(lease.session, lease.epoch, now=row.epoch)
        for seq in bodies:
            if not 1 <= seq <= row.head:
                raise InvalidInput(f"session {lease.session!r} has no record {seq}")
        segments = read_segments(self.db, log, row.head)
        apart: int | None = None
        copied: list[int] = []
        replaced: dict[int, int] = {}
        shared: dict[int, list[Segment]] = {}
        for seq, body in bodies.items():
            part = segment_of(segments, seq)
            assert part is not None  # the segments hold all records up to the head
            source = part.source
            if source not in shared:
                shared[source] = self._shared_part(source, log)
            if segment_of(shared[source], seq) is None:
                there = self.records.replace(source, seq, body)
                replaced[source] = min(seq, replaced.get(source, seq))
            else:
                apart = self._new_log() if apart is None else apart
                there = self.records.copy(source, seq, apart, body)
                copied.append(seq)
            if not there:
                raise RecordDamaged(lease.session, seq, "it is missing")
        self.db.execute("INSERT OR REPLACE INTO snapshot VALUES (?, ?, NULL)", (log, row.head + 1))
        for source, first in replaced.items():
            self.words.remove_from(source, first)
        if apart is not None:
            self.words.note([apart])
            segments = stored(moved(segments, copied, apart), log)
            self._put_segments(log, segments)
            self.db.execute(
                "UPDATE session SET origin_seal = ? WHERE id = ?",
                (self._origin_seal(row.session, log, row.parent, segments), row.session),
            )

    def save_snapshot(self, lease: Lease, seq: int, body: bytes) -> None:
        """See ``SnapshotStore.save_snapshot``."""
        log: int | None = self.db.execute(
            "SELECT log FROM session WHERE id = ? AND epoch = ?", (lease.session, lease.epoch)
        ).get
        if log is not None:
            self.db.execute(
                "INSERT INTO snapshot VALUES (?, ?, ?) ON CONFLICT (log) DO UPDATE"
                " SET least = excluded.least, body = excluded.body"
                " WHERE excluded.least >= snapshot.least",
                (log, seq, self._cipher.seal(body, snapshot_place(log, seq))),
            )

    def delete(self, session: str, epoch: int | None) -> None:
        """See ``Store.delete``."""
        values = find_row(self.db, session)
        row, log = row_of(values), values[-2]
        check_epoch(session, epoch, now=row.epoch)
        self.db.execute(
            "UPDATE meta SET value = max(value, ?) WHERE name = 'highest_epoch'", (row.epoch,)
        )
        sources = {log, *(part.source for part in read_segments(self.db, log, row.head))}
        self._unlabel(session)
        self.db.execute("DELETE FROM session WHERE id = ?", (session,))
        self._positions.pop(session, None)
        self.db.execute("DELETE FROM segment WHERE log = ?", (log,))
        self.db.execute("DELETE FROM snapshot WHERE log = ?", (log,))
        self.counters.forget_session(session)
        for source in sources:
            for first, upto in unused(self._uses(source)):
                self.records.remove(source, first, upto)
                self.words.remove(source, first, upto)

    def _put_segments(self, log: int, segments: Iterable[Segment]) -> None:
        self.db.execute("DELETE FROM segment WHERE log = ?", (log,))
        self.db.executemany(
            "INSERT INTO segment VALUES (?, ?, ?, ?)",
            [(log, part.first, part.upto, part.source) for part in segments],
        )

    def _uses(self, source: int) -> list[tuple[int, int]]:
        """The ranges of seqs for which the log *source* is used."""
        ranges: list[Values] = self.db.execute(
            "SELECT first, upto FROM segment WHERE source = ?", (source,)
        ).fetchall()
        own = self._first_own(source)
        return [*ranges, (own, LAST_SEQ)] if own is not None else list(ranges)

    def _first_own(self, log: int) -> int | None:
        """The first seq that a session has appended, or will append, to its own log *log*.

        None if no session has this log.
        """
        if self.db.execute("SELECT 1 FROM session WHERE log = ?", (log,)).get is None:
            return None
        last: int | None = self.db.execute(
            "SELECT max(upto) FROM segment WHERE log = ?", (log,)
        ).get
        return (last or 0) + 1

    def _shared_part(self, source: int, log: int) -> list[Segment]:
        """The records of *source* that other sessions use than the one with the log *log*."""
        rows: list[Values] = self.db.execute(
            "SELECT first, upto FROM segment WHERE source = ? AND log <> ?", (source, log)
        ).fetchall()
        ranges = [(first, upto) for first, upto in rows]
        own = self._first_own(source) if source != log else None
        if own is not None:
            ranges.append((own, LAST_SEQ))
        return united(ranges, source)
