"""The word index of a PostgreSQL store: its text search, without the texts themselves.

The first search makes the tables. Appends do not touch them, but mark their sessions (see
``schema``), and a search looks at no other session. It first brings the index up to date, in short
transactions. These hold the same lock as rewriting and deleting, which remove records from the
index in their own transactions. So a word leaves the index when it leaves the log.
Runs in the store's own loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ..cipher import PLAIN, Unreadable
from ..protocol import UNREADABLE, Word
from .connections import Connection, Connections
from .schema import lock_structure
from .sql import LARGE_PARTS, record_of

__all__ = ["WordIndex", "query_of"]

PAGE = 200
"""Sessions that are looked for at a time."""

SLICE_BYTES = 256 * 1024
SLICE_RECORDS = 200
"""The size of one transaction. Rewriting and deleting wait for it, and while the words are
extracted the store's loop waits, too.
"""
MAX_WORDS = 2_500
"""The number of words in one row. PostgreSQL allows 1 MiB, and a word has at most 100 characters of
at most 4 bytes.
"""

WordsOf = Callable[[bytes], Iterable[str]]


class WordIndex:
    """The index in *schema*."""

    def __init__(self, connections: Connections, schema: str) -> None:
        self._connections = connections
        self._schema = schema
        s = f'"{schema}"'
        self._exists = f"SELECT to_regclass('{s}.indexed') IS NOT NULL"
        self._make = f"""
            CREATE TABLE IF NOT EXISTS {s}.word (
                log bigint NOT NULL, seq bigint NOT NULL, words tsvector NOT NULL);
            CREATE INDEX IF NOT EXISTS word_place ON {s}.word (log, seq);
            CREATE INDEX IF NOT EXISTS word_words ON {s}.word USING gin (words);
            CREATE TABLE IF NOT EXISTS {s}.indexed (log bigint PRIMARY KEY, upto bigint NOT NULL);
            -- The server keeps samples of what it analyzes, and they would outlive what it deletes.
            ALTER TABLE {s}.word ALTER words SET STATISTICS 0"""
        self._behind = f"""
            SELECT id FROM {s}.session WHERE unindexed AND id > $1 ORDER BY id LIMIT {PAGE}"""
        self._logs_of = f"""
            SELECT u.id, u.head, array_agg(l.log) AS logs, array_agg(l.upto) AS uptos
              FROM {s}.session u
             CROSS JOIN LATERAL (
                SELECT p.log, max(least(o.last, s.head)) AS upto
                  FROM {s}.span p JOIN {s}.span o ON o.log = p.log
                  JOIN {s}.session s ON s.id = o.session
                 WHERE p.session = u.id GROUP BY p.log) l
             WHERE u.id = ANY($1::text[]) GROUP BY u.id"""
        # A session that is being appended to now, or has been since its head was read, stays
        # marked. It is not waited for: appends lock several sessions, in the order of their ids.
        self._unmark = f"""
            WITH same AS (
                SELECT s.id FROM unnest($1::text[], $2::bigint[]) AS u(id, head)
                  JOIN {s}.session s ON s.id = u.id AND s.head = u.head
                   FOR NO KEY UPDATE OF s SKIP LOCKED)
            UPDATE {s}.session s SET unindexed = false FROM same WHERE s.id = same.id"""
        # In the order in which appends lock them. A CTE with a lock is made before it is joined.
        self._mark_again = f"""
            WITH again AS MATERIALIZED (
                SELECT id FROM {s}.session WHERE NOT unindexed AND id IN (
                    SELECT session FROM {s}.span WHERE log = ANY($1::bigint[]))
                 ORDER BY id FOR NO KEY UPDATE)
            UPDATE {s}.session s SET unindexed = true FROM again WHERE s.id = again.id"""
        self._mark = f"SELECT upto FROM {s}.indexed WHERE log = $1"
        self._records = f"""
            SELECT r.seq, r.epoch, r.body, r.large, '' AS born, {LARGE_PARTS.format(s=s)} AS parts
              FROM {s}.record r WHERE r.log = $1 AND r.seq > $2 AND r.seq <= $3
             ORDER BY r.seq LIMIT {SLICE_RECORDS}"""
        self._add = f"INSERT INTO {s}.word VALUES ($1, $2, array_to_tsvector($3::text[]))"
        self._set_mark = f"""
            INSERT INTO {s}.indexed VALUES ($1, $2)
            ON CONFLICT (log) DO UPDATE SET upto = excluded.upto"""
        self._remove_from = f"DELETE FROM {s}.word WHERE log = $1 AND seq >= $2"
        self._lower_mark = f"""
            UPDATE {s}.indexed SET upto = least(upto, $2::bigint - 1) WHERE log = $1"""
        self._remove_gone = f"""
            DELETE FROM {s}.word w WHERE w.log = ANY($1::bigint[]) AND NOT EXISTS (
                SELECT FROM {s}.record r WHERE r.log = w.log AND r.seq = w.seq)"""
        self._forget_logs = f"""
            DELETE FROM {s}.indexed i WHERE i.log = ANY($1::bigint[]) AND NOT EXISTS (
                SELECT FROM {s}.span p WHERE p.log = i.log)"""

    async def bring_up_to_date(self, words_of: WordsOf) -> None:
        """Index what was appended since the last search, page by page."""

        async def begin(after: str, connection: Connection) -> Sequence[str]:
            if not await connection.fetchval(self._exists):
                async with connection.transaction():
                    await lock_structure(connection, self._schema)
                    await connection.execute(self._make)
            return [row["id"] for row in await connection.fetch(self._behind, after)]

        after = ""
        while behind := await self._connections.run(partial(begin, after)):
            after = behind[-1]
            while behind:
                behind = await self._connections.run(partial(self._index_next, behind, words_of))

    async def _index_next(
        self, behind: Sequence[str], words_of: WordsOf, connection: Connection
    ) -> Sequence[str]:
        """Index some of the records of the sessions *behind*. Returns the rest of them."""
        records = size = 0
        async with connection.transaction():
            await lock_structure(connection, self._schema)
            # Read under the lock: a rewriting may have given a session another log.
            rows = await connection.fetch(self._logs_of, behind)
            for number, row in enumerate(rows):
                for log, upto in zip(row["logs"], row["uptos"], strict=True):
                    mark = await connection.fetchval(self._mark, log) or 0
                    found = await connection.fetch(self._records, log, mark, upto)
                    for record in found:
                        await self._index(connection, log, record, words_of)
                        records, size = records + 1, size + len(record["body"])
                        if records >= SLICE_RECORDS or size >= SLICE_BYTES:
                            await connection.execute(self._set_mark, log, record["seq"])
                            await self._have_indexed(connection, rows[:number])
                            return [left["id"] for left in rows[number:]]
                    if found:
                        await connection.execute(self._set_mark, log, upto)
            await self._have_indexed(connection, rows)
        return ()

    async def _have_indexed(self, connection: Connection, rows: Sequence[Any]) -> None:
        columns = [row["id"] for row in rows], [row["head"] for row in rows]
        await connection.execute(self._unmark, *columns)

    async def _index(
        self, connection: Connection, log: int, record: Mapping[str, Any], words_of: WordsOf
    ) -> None:
        try:
            words = sorted(words_of(record_of(record, PLAIN).body))
        except Unreadable:
            words = [UNREADABLE]
        for some in _chunks(words):
            await connection.execute(self._add, log, record["seq"], some)

    # In the transactions of others, who hold the lock.

    async def remove_from(self, connection: Connection, places: Iterable[tuple[int, int]]) -> None:
        """Records of these logs, from these seqs on, have changed, so a search indexes them
        anew.
        """
        if await connection.fetchval(self._exists):
            firsts: dict[int, int] = {}
            for log, seq in places:
                firsts[log] = min(seq, firsts.get(log, seq))
            for log, seq in firsts.items():
                await connection.execute(self._remove_from, log, seq)
                await connection.execute(self._lower_mark, log, seq)
            await connection.execute(self._mark_again, list(firsts))

    async def remove_deleted(self, connection: Connection, logs: Sequence[int]) -> None:
        """Records of *logs* were deleted, perhaps all of a log."""
        if await connection.fetchval(self._exists):
            await connection.execute(self._remove_gone, logs)
            await connection.execute(self._forget_logs, logs)
            await connection.execute(self._mark_again, logs)


def query_of(word: Word) -> str:
    """*word* as a tsquery. It contains no quote and no backslash."""
    text = f"'{word.text}':*" if word.is_prefix else f"'{word.text}'"
    return f"{text} | '{UNREADABLE}'"


def _chunks(words: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(words), MAX_WORDS):
        yield words[start : start + MAX_WORDS]
