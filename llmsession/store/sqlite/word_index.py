"""Which records have which words: FTS5, without the texts themselves. Made by the first search.

Appends do not touch it. A search first brings it up to date (``index_next``), in short
transactions of the writer. Rewriting and deleting take records out of it in their own
transactions, so that a word goes from the index when it goes from the log; the space that it had
is freed by a vacuum, as that of records is.
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
"""A log, and the last of its records that are to be indexed."""

SLICE_BYTES = 256 * 1024
SLICE_RECORDS = 200
"""Of one transaction: what is appended meanwhile waits for it."""

# The words come split and folded: they are separated by spaces, and everything else is a word.
_TABLES = """
CREATE VIRTUAL TABLE word USING fts5(
    words, content='', contentless_delete=1, detail=none, tokenize="ascii tokenchars '_'"
);
CREATE TABLE indexed (log INTEGER PRIMARY KEY, upto INTEGER NOT NULL) STRICT;
"""
_UPTO = """
SELECT log, max(upto) AS upto FROM (
    SELECT log, head AS upto FROM session UNION ALL SELECT source, upto FROM segment
) GROUP BY log
"""
WORDS_FOUND = f"""s.id IN (
    SELECT t.id FROM word JOIN session AS t ON t.log = word.rowid >> 32 WHERE word MATCH ?
    UNION
    SELECT t.id FROM word
      JOIN segment AS g ON g.source = word.rowid >> 32
       AND word.rowid & {LAST_SEQ} BETWEEN g.first AND g.upto
      JOIN session AS t ON t.log = g.log
     WHERE word MATCH ?
)"""
"""The sessions that have records with a word, which is bound twice."""


def fts_query(word: Word) -> str:
    """*word* in the language of FTS5."""
    text = f'"{word.text}" *' if word.is_prefix else f'"{word.text}"'
    return f'{text} OR "{UNREADABLE}"'


def _exists(db: apsw.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'indexed'").get is not None


def logs_behind(db: apsw.Connection) -> list[Behind] | None:
    """The logs with records that are not indexed yet; None if there is no index."""
    if not _exists(db):
        return None
    rows: list[Values] = db.execute(
        f"SELECT u.log, u.upto FROM ({_UPTO}) AS u LEFT JOIN indexed AS i ON i.log = u.log"
        " WHERE u.upto > coalesce(i.upto, 0)"
    ).fetchall()
    return [(log, upto) for log, upto in rows]


class WordTables:
    """The index in *db*. Changes belong to the transaction that is open."""

    def __init__(self, db: apsw.Connection, records: Records) -> None:
        self._db = db
        self._records = records

    def make(self) -> None:
        """Make the tables, unless they are there."""
        if not _exists(self._db):
            self._db.execute(_TABLES).fetchall()

    def index_next(
        self, behind: Sequence[Behind], words_of: Callable[[bytes], Iterable[str]]
    ) -> Sequence[Behind]:
        """Index some of the records of *behind*, by the words that *words_of* finds in each. What
        is left of *behind*."""
        records = size = 0
        for number, (log, upto) in enumerate(behind):
            mark = self._mark(log)
            for row in list(self._records.rows(log, mark + 1, min(upto, mark + SLICE_RECORDS))):
                try:
                    body = self._records.body(row)
                except Unreadable:
                    body = b""  # no record
                self._add(row[0], words_of(body))
                mark = seq_at(row[0])
                records, size = records + 1, size + len(body)
                if records >= SLICE_RECORDS or size >= SLICE_BYTES:
                    self._set_mark(log, mark)
                    return behind[number:]
            # The log may have fewer records than its session: the others are in other logs.
            self._set_mark(log, upto)
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
        """Records of *log* from *seq* on say something else: a search indexes them anew."""
        self.remove(log, seq, LAST_SEQ)
        if _exists(self._db):
            self._db.execute("UPDATE indexed SET upto = min(upto, ?) WHERE log = ?", (seq - 1, log))

    def remove(self, log: int, first: int, upto: int) -> None:
        """The records *first* to *upto* of *log* are deleted."""
        if _exists(self._db):
            self._db.execute(
                "DELETE FROM word WHERE rowid BETWEEN ? AND ?",
                (place_of(log, first), place_of(log, upto)),
            )
            if (first, upto) == (1, LAST_SEQ):
                self._db.execute("DELETE FROM indexed WHERE log = ?", (log,))

    def erase_removed(self) -> None:
        """Write the index anew, without what was removed. Outside of any transaction."""
        if _exists(self._db):
            self._db.execute("INSERT INTO word (word) VALUES ('optimize')")
