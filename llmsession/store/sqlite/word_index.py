"""The word index of a SQLite store: FTS5, without the texts themselves. The first search makes it.

Appends only note their logs, and only in a file that has an index. A search first brings it up to
date (``index_next``), in short transactions of the writer; it looks at no other log. Rewriting and
deleting remove records from it in their own transactions, so a word leaves the index when it leaves
the log. A vacuum frees the space, as it does for records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import apsw

from ..cipher import Unreadable
from ..protocol import UNREADABLE, Word
from ..segments import LAST_SEQ
from .records import Records
from .rows import Values, place_of, seq_at

__all__ = ["WORDS_FOUND", "Behind", "WordTables", "fts_query", "logs_behind"]

Behind = tuple[int, int]
"""A log, and the last of its records that must be indexed."""

PAGE = 1_000
"""Logs that are looked for at a time."""
SLICE_BYTES = 256 * 1024
SLICE_RECORDS = 200
"""The size of one transaction. Appends of that time wait for it."""

# The words are already split and folded. They are separated by spaces, and anything else belongs to
# a word.
_TABLES = """
CREATE VIRTUAL TABLE word USING fts5(
    words, content='', contentless_delete=1, detail=none, tokenize="ascii tokenchars '_'"
);
CREATE TABLE indexed (log INTEGER PRIMARY KEY, upto INTEGER NOT NULL) STRICT;
CREATE TABLE unindexed (log INTEGER PRIMARY KEY) STRICT;
INSERT INTO unindexed SELECT log FROM session WHERE head > 0 UNION SELECT source FROM segment;
"""
_UPTO = """max(
    coalesce((SELECT head FROM session WHERE log = u.log), 0),
    coalesce((SELECT max(upto) FROM segment WHERE source = u.log), 0)
)"""
"""The last record of the log that a session has."""
WORDS_FOUND = """s.id IN (
    WITH found AS MATERIALIZED (SELECT DISTINCT rowid >> 32 AS log FROM word WHERE word MATCH ?)
    SELECT t.id FROM found JOIN session AS t USING (log)
    UNION
    SELECT t.id FROM found
      JOIN segment AS g ON g.source = found.log
      JOIN session AS t ON t.log = g.log
     WHERE EXISTS (
       SELECT 1 FROM word WHERE word MATCH ?
          AND rowid BETWEEN g.source << 32 | g.first AND g.source << 32 | g.upto
     )
)"""
"""The sessions that have records with a word. The word is bound twice. The records of a log are not
compared with each of its forks: each fork looks for the first one in the part that it shares.
"""


def fts_query(word: Word) -> str:
    """*word* in the query language of FTS5."""
    text = f'"{word.text}" *' if word.is_prefix else f'"{word.text}"'
    return f'{text} OR "{UNREADABLE}"'


def _exists(db: apsw.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'indexed'").get is not None


def logs_behind(db: apsw.Connection, after: int) -> list[Behind] | None:
    """The first PAGE logs above *after* with records that are not indexed yet; None if there is no
    index.
    """
    if not _exists(db):
        return None
    rows: list[Values] = db.execute(
        f"SELECT log, {_UPTO} FROM unindexed AS u WHERE log > ? ORDER BY log LIMIT {PAGE}", (after,)
    ).fetchall()
    return [(log, upto) for log, upto in rows]


class WordTables:
    """The index in *db*. Changes belong to the open transaction."""

    def __init__(self, db: apsw.Connection, records: Records) -> None:
        self._db = db
        self._records = records
        self._is_there: bool | None = None

    def forget(self) -> None:
        """Others may have made the tables, or their making was rolled back."""
        self._is_there = None

    def make(self) -> None:
        """Make the tables, unless they exist."""
        if not _exists(self._db):
            self._db.execute(_TABLES).fetchall()
        self._is_there = True

    def note(self, logs: Iterable[int]) -> None:
        """Records of *logs* are new or were changed: the next search indexes them."""
        if self._is_there is None:
            self._is_there = _exists(self._db)
        if self._is_there:
            self._db.executemany(
                "INSERT OR IGNORE INTO unindexed VALUES (?)", [(log,) for log in logs]
            )

    def index_next(
        self, behind: Sequence[Behind], words_of: Callable[[bytes], Iterable[str]]
    ) -> Sequence[Behind]:
        """Index some of the records of *behind*, with the words that *words_of* finds. Returns the
        rest.
        """
        records = size = 0
        for number, (log, upto) in enumerate(behind):
            mark = self._mark(log)
            # The log of a fork begins after the records that it shares, so its records are counted.
            for row in list(self._records.rows(log, mark + 1, upto, SLICE_RECORDS - records)):
                try:
                    body = self._records.body(row)
                except Unreadable:
                    body = b""  # ``words_of`` returns UNREADABLE for it
                self._add(row[0], words_of(body))
                mark = seq_at(row[0])
                records, size = records + 1, size + len(body)
                if records >= SLICE_RECORDS or size >= SLICE_BYTES:
                    self._set_mark(log, mark)
                    return behind[number:]
            # The log may have fewer records than its session, whose other records are in other
            # logs.
            self._set_mark(log, upto)
            self._db.execute(  # unless it has grown since *behind* was read
                f"DELETE FROM unindexed AS u WHERE log = ? AND {_UPTO} <= ?", (log, upto)
            )
        return ()

    def _add(self, place: int, words: Iterable[str]) -> None:
        text = " ".join(words)
        if text:
            self._db.execute("INSERT INTO word (rowid, words) VALUES (?, ?)", (place, text))

    def _mark(self, log: int) -> int:
        mark: int | None = self._db.execute("SELECT upto FROM indexed WHERE log = ?", (log,)).get
        return mark or 0

    def _set_mark(self, log: int, upto: int) -> None:
        self._db.execute("INSERT OR REPLACE INTO indexed VALUES (?, ?)", (log, upto))

    def remove_from(self, log: int, seq: int) -> None:
        """The records of *log* from *seq* on have changed, so a search indexes them anew."""
        self.remove(log, seq, LAST_SEQ)
        if _exists(self._db):
            self.note([log])
            self._db.execute("UPDATE indexed SET upto = min(upto, ?) WHERE log = ?", (seq - 1, log))

    def remove(self, log: int, first: int, upto: int) -> None:
        """The records *first* to *upto* of *log* were deleted."""
        if _exists(self._db):
            self._db.execute(
                "DELETE FROM word WHERE rowid BETWEEN ? AND ?",
                (place_of(log, first), place_of(log, upto)),
            )
            if (first, upto) == (1, LAST_SEQ):
                self._db.execute("DELETE FROM indexed WHERE log = ?", (log,))
                self._db.execute("DELETE FROM unindexed WHERE log = ?", (log,))

    def erase_removed(self) -> None:
        """Write the index anew without removed entries. Call it outside of any transaction."""
        if _exists(self._db):
            self._db.execute("INSERT INTO word (word) VALUES ('optimize')")
