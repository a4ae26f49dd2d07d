"""The reads of a SQLite store, each in one snapshot of the file.

Called in threads, with a connection that nobody else uses at the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from heapq import merge

import apsw

from llmsession.errors import RecordDamaged, StoreDamaged

from ..cipher import Cipher, Unreadable
from ..large_blocks import unpack_places
from ..ownership import NOBODY, still_holds
from ..protocol import Owner, SessionFilter, SessionRow, StoredRecord, Word
from ..segments import Segment, unused, within
from .records import Records
from .rows import (
    UNFINISHED_HELD,
    UNFINISHED_LEFT,
    Values,
    count_sql,
    filter_sql,
    place_of,
    row_of,
    seq_at,
    snapshot_place,
)
from .session_tables import find_row, find_sealed_row, read_segments
from .word_index import WORDS_FOUND, Behind, fts_query, logs_behind

__all__ = ["Reading"]

MANY = 1_000
"""Of a label with so many sessions it is not counted how many more it has."""


class Reading:
    """Reads from *db* what *cipher* sealed."""

    def __init__(self, db: apsw.Connection, cipher: Cipher) -> None:
        self.db = db
        self._records = Records(db, cipher)
        self._cipher = cipher

    def close(self) -> None:
        """Close the connection."""
        with suppress(apsw.Error):  # it is closed even if this raises
            self.db.close(True)

    def row(self, session: str) -> SessionRow:
        """See ``Store.row``."""
        return row_of(find_row(self.db, session))

    def logs_behind(self, after: int) -> list[Behind] | None:
        """See ``word_index.logs_behind``."""
        return logs_behind(self.db, after)

    def rows(
        self, after: str, limit: int, filter: SessionFilter, words: Sequence[Word] = ()
    ) -> list[SessionRow]:
        """See ``Store.rows``. With *words*, only sessions that have them, by an index that must
        exist.
        """
        has_words = [(WORDS_FOUND, [fts_query(word)] * 2) for word in words]
        query, bound = filter_sql(after, limit, filter, self._rarest(after, filter), has_words)
        value_rows: list[Values] = self.db.execute(query, bound).fetchall()
        return [row_of(values) for values in value_rows]

    def _rarest(self, after: str, filter: SessionFilter) -> str | None:
        """The name of the filter's label with the fewest sessions from *after* on; of those with
        many, the first one. None if it names none.
        """
        labels = filter.labels
        if len(labels) < 2:
            return next(iter(labels), None)

        def count(name: str) -> int:
            found: int = self.db.execute(*count_sql(name, labels[name], after, MANY)).get
            return found

        return min(labels, key=count)

    @contextmanager
    def _one_snapshot(self) -> Iterator[None]:
        """What is read inside is all of one moment."""
        self.db.execute("BEGIN")
        try:
            yield
        finally:
            self.db.execute("ROLLBACK")

    def unfinished(self, after: str, limit: int, now: float) -> list[SessionRow]:
        """See ``UnfinishedIndex.unfinished``. *now* is in seconds since the epoch."""
        limit = max(0, limit)
        with self._one_snapshot():
            owners: list[Values] = self.db.execute(
                "SELECT name, pid, started, host, lease_until FROM owner"
            ).fetchall()
            found: list[Values] = self.db.execute(UNFINISHED_LEFT, (after, limit)).fetchall()
            for *owner, until in owners:
                if not still_holds(Owner(*owner), until, taker=NOBODY, now=now):
                    held = self.db.execute(UNFINISHED_HELD, (owner[0], after, limit))
                    found = list(merge(found, held))[:limit]
        return [row_of(values) for values in found]

    def read(self, session: str, after: int, limit: int | None) -> list[StoredRecord]:
        """See ``Store.read``."""
        with self._one_snapshot():
            values = find_sealed_row(self.db, session, self._cipher)
            head, log = values[2], values[-2]
            upto = head if limit is None else min(head, after + limit)
            parts = within(read_segments(self.db, log, head), after + 1, upto)
            records: list[StoredRecord] = []
            damage = self._take(parts, records)
        if damage is not None and not records:
            raise RecordDamaged(session, parts[0].first, damage)
        return records

    def _take(self, parts: Sequence[Segment], records: list[StoredRecord]) -> str | None:
        """Append the records of *parts* to *records*, up to the first damaged one.

        Returns what is wrong with that one; None if none is damaged.
        """
        try:
            for part in parts:
                whole = self._records.plain(part.source, part.first, part.upto)
                if whole is not None:
                    records += whole
                    continue
                seq = part.first
                for record in self._records.rows(part.source, part.first, part.upto):
                    if seq_at(record[0]) != seq:
                        return "it is missing"
                    records.append(StoredRecord(seq, record[1], self._records.body(record)))
                    seq += 1
                if seq <= part.upto:
                    return "it is missing"
        except Unreadable as error:
            return str(error)
        except apsw.CorruptError as error:
            return f"the file is damaged there: {error}"
        return None

    def snapshot(self, session: str) -> bytes | None:
        """See ``SnapshotStore.snapshot``."""
        rows: list[Values] = self.db.execute(
            "SELECT log, least, body FROM session JOIN snapshot USING (log)"
            " WHERE id = ? AND body IS NOT NULL",
            (session,),
        ).fetchall()
        for log, seq, body in rows:
            try:
                return self._cipher.unseal(body, snapshot_place(log, seq))
            except Unreadable as error:
                message = f"the snapshot of session {session!r} cannot be read: {error}"
                raise StoreDamaged(message) from error
        return None

    # Checking.

    def check(self) -> list[str]:
        """See ``Store.check``."""
        faults: list[str] = []
        with self._one_snapshot():
            try:
                faults += self._check_file()
                if not faults:  # in a damaged file, those below would only repeat the same faults
                    faults += self._check_sessions()
                    faults += self._check_large()
            except apsw.CorruptError as error:
                faults.append(f"the file is damaged: {error}")
        return faults

    def _check_file(self) -> Iterator[str]:
        for (line,) in self.db.execute("PRAGMA integrity_check").fetchall():
            if line != "ok":
                yield f"the file is damaged: {line}"

    def _check_sessions(self) -> Iterator[str]:
        uses: dict[int, list[tuple[int, int]]] = {}
        heads: list[Values] = self.db.execute(
            "SELECT id, log, head FROM session ORDER BY id"
        ).fetchall()
        for session, log, head in heads:
            for part in read_segments(self.db, log, head):
                uses.setdefault(part.source, []).append((part.first, part.upto))
                missing = part.upto - part.first + 1 - self._count(part)
                if missing:
                    yield (
                        f"session {session!r} misses {missing} of its records {part.first}"
                        f" to {part.upto}"
                    )
        sources: list[Values] = self.db.execute(
            "SELECT DISTINCT place >> 32 FROM record"
        ).fetchall()
        for (source,) in sources:
            for first, upto in unused(uses.get(source, [])):
                stray = self._count(Segment(first, upto, source))
                if stray:
                    yield f"{stray} records of log {source} belong to no session"

        stray = self.db.execute(
            "SELECT count(*) FROM snapshot WHERE log NOT IN (SELECT log FROM session)"
        ).get
        if stray:
            yield f"{stray} snapshots belong to no session"

    def _count(self, part: Segment) -> int:
        counted: int = self.db.execute(
            "SELECT count(*) FROM record WHERE place BETWEEN ? AND ?",
            (place_of(part.source, part.first), place_of(part.source, part.upto)),
        ).get
        return counted

    def _check_large(self) -> Iterator[str]:
        uses_by_name: Counter[bytes] = Counter()
        packed: Iterator[Values] = self.db.execute(
            "SELECT large FROM record WHERE large IS NOT NULL"
        )
        for (places,) in packed:
            uses_by_name.update(unpack_places(places)[1])
        blocks: list[Values] = self.db.execute(
            "SELECT n.name, n.uses, b.place FROM large AS n LEFT JOIN large_body AS b USING (place)"
        ).fetchall()
        for name, uses, place in blocks:
            if uses_by_name.pop(name, 0) != uses:
                yield f"large block {name.hex()[:16]} is not used as often as is counted"
            if place is None:
                yield f"large block {name.hex()[:16]} has no content"
        for name in uses_by_name:
            yield f"large block {name.hex()[:16]} is missing"
