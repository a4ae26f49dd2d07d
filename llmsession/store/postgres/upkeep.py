"""Frees space, and checks the tables as a whole."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

from llmsession.errors import StoreError

from ..large_blocks import unpack_places
from .connections import Connection
from .sql import MARK_BYTES

__all__ = ["check", "vacuum"]

_TABLES = """
SELECT tablename FROM pg_tables WHERE schemaname = $1::text AND tablename = ANY($2::text[])
"""
TABLES = (
    "store", "session", "span", "record", "blob", "snapshot", "unfinished", "owner",
    "label", "counter", "slice", "uncounted", "word", "indexed",
)  # fmt: skip
"""All tables of a store. The first search makes the last two."""
OLD_READERS_S = 60.0
"""How many seconds a vacuum waits for transactions that began before it."""
LOOK_S = 0.05
MAX_LINES = 100
"""The largest number of lines about one kind of fault."""

# A vacuum copies rows that an open transaction may still see, and does not free them. A transaction
# holds the lock on its own virtual id until it ends, and everybody may read the locks.
_OPEN = """
SELECT l.virtualxid, l.pid FROM pg_locks l JOIN pg_stat_activity a USING (pid)
 WHERE l.locktype = 'virtualxid' AND l.mode = 'ExclusiveLock' AND l.pid <> pg_backend_pid()
   AND a.datname = current_database()
"""


async def vacuum(connection: Connection, schema: str, where: str) -> int:
    """Write the tables anew without deleted rows. Returns how many bytes were freed.

    Raises StoreError if a transaction that might still see deleted rows does not end in time.
    """
    await _wait_for_readers(connection, where)
    before = await _size(connection, schema)
    for table in await _tables(connection, schema):
        await connection.execute(f'VACUUM (FULL, ANALYZE) "{schema}".{table}')
    return max(0, before - await _size(connection, schema))


async def _wait_for_readers(connection: Connection, where: str) -> None:
    old = {row["virtualxid"] for row in await connection.fetch(_OPEN)}
    until = time.monotonic() + OLD_READERS_S
    while old:
        still = {row["virtualxid"]: row["pid"] for row in await connection.fetch(_OPEN)}
        old &= still.keys()
        if old and time.monotonic() > until:
            pids = ", ".join(str(still[one]) for one in sorted(old))
            raise StoreError(
                f"{where}: the space of deleted records cannot be freed while older transactions"
                f" are open (server processes {pids}); vacuum again when they have ended",
                committed=False,
            )
        if old:
            await asyncio.sleep(LOOK_S)


async def _tables(connection: Connection, schema: str) -> list[str]:
    return [row["tablename"] for row in await connection.fetch(_TABLES, schema, TABLES)]


async def _size(connection: Connection, schema: str) -> int:
    names = [f'"{schema}".{table}' for table in await _tables(connection, schema)]
    size: int = await connection.fetchval(
        "SELECT sum(pg_total_relation_size(name::regclass)) FROM unnest($1::text[]) AS name", names
    )
    return size


async def check(connection: Connection, schema: str) -> list[str]:
    """The inconsistencies of the tables at one moment, one line each."""
    s = f'"{schema}"'
    faults: list[str] = []
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        for plan in ("seqscan", "hashjoin", "mergejoin"):  # this reads everything anyway
            await connection.execute(f"SET LOCAL enable_{plan} = on")
        for question, sentence in _questions(s):
            rows = await connection.fetch(f"{question} LIMIT {MAX_LINES}")
            faults += [sentence.format(*row.values()) for row in rows]
        faults += await _wrong_counts(connection, s)
    return faults


def _questions(s: str) -> Sequence[tuple[str, str]]:
    """For each kind of fault a query, and the sentence that describes one of its rows."""
    return (
        (
            f"""
            SELECT s.id, min(wanted.seq), count(*) FROM {s}.session s
             CROSS JOIN LATERAL generate_series(1, s.head) AS wanted(seq)
             WHERE NOT EXISTS (
                SELECT FROM {s}.span p JOIN {s}.record r ON r.log = p.log AND r.seq = wanted.seq
                 WHERE p.session = s.id AND wanted.seq BETWEEN p.first AND p.last)
             GROUP BY s.id ORDER BY s.id""",
            "session {0!r} lacks record {1} ({2} in all)",
        ),
        (
            f"""
            SELECT a.session, greatest(a.first, b.first) FROM {s}.span a JOIN {s}.span b
                ON a.session = b.session AND a.first < b.first AND a.last >= b.first
             ORDER BY a.session""",
            "session {0!r} has record {1} twice",
        ),
        (
            f"""
            SELECT s.id, s.epoch, max(r.epoch) FROM {s}.session s
              JOIN {s}.record r ON r.log = s.log
             GROUP BY s.id, s.epoch HAVING max(r.epoch) > s.epoch ORDER BY s.id""",
            "session {0!r} is at epoch {1} and has records of epoch {2}",
        ),
        (
            f"""
            SELECT p.session, count(*) FROM {s}.span p
             WHERE NOT EXISTS (SELECT FROM {s}.session s WHERE s.id = p.session)
             GROUP BY p.session ORDER BY p.session""",
            "session {0!r} is not there, and {1} spans of it are",
        ),
        (
            f"""
            SELECT n.session FROM {s}.snapshot n
             WHERE NOT EXISTS (SELECT FROM {s}.session s WHERE s.id = n.session)
             ORDER BY n.session""",
            "session {0!r} is not there, and a snapshot of it is",
        ),
        (
            f"""
            SELECT s.id FROM {s}.session s
             WHERE s.unfinished
               AND NOT EXISTS (SELECT FROM {s}.unfinished u WHERE u.session = s.id)
             ORDER BY s.id""",
            "session {0!r} has unfinished work and is not listed with it",
        ),
        (
            f"""
            SELECT s.id FROM {s}.session s
             WHERE EXISTS (
                SELECT FROM unnest(s.label_marks) AS m(mark)
                 WHERE NOT EXISTS (SELECT FROM {s}.label l
                        WHERE l.mark = substring(m.mark FOR {MARK_BYTES}) AND l.session = s.id))
             ORDER BY s.id""",
            "session {0!r} has a label and is not listed with it",
        ),
        (
            f"""
            SELECT r.log, count(*), min(r.seq) FROM {s}.record r
             WHERE NOT EXISTS (
                SELECT FROM {s}.span p JOIN {s}.session s ON s.id = p.session
                 WHERE p.log = r.log AND r.seq BETWEEN p.first AND least(p.last, s.head))
             GROUP BY r.log ORDER BY r.log""",
            "log {0} has {1} records that no session has, from {2} on",
        ),
    )


async def _wrong_counts(connection: Connection, s: str) -> list[str]:
    """Blobs that are missing or whose reference count is wrong."""
    rows = await connection.fetch(f"SELECT large FROM {s}.record WHERE large IS NOT NULL")
    try:
        counted = Counter(name for row in rows for name in unpack_places(row["large"])[1])
    except ValueError as error:
        return [f"the large blocks of a record cannot be read: {error}"]
    stored = {row["name"]: row["refs"] for row in await connection.fetch(
        f"SELECT name, refs FROM {s}.blob")}  # fmt: skip
    return [
        f"large block {name.hex()} is not there, and {count} times referred to"
        if name not in stored
        else f"large block {name.hex()} counts {stored[name]} references of {count}"
        for name, count in sorted((name, counted[name]) for name in counted.keys() | stored.keys())
        if stored.get(name) != count
    ][:MAX_LINES]
