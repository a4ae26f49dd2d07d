"""The tables in PostgreSQL, and one script per version that makes or upgrades them.

A session is a row and *spans*: its records from ``first`` to ``last`` are in the log ``log``. The
last span is open: appended records go into its log. A fork copies the spans of its parent up to the
point where it begins, so both have the same records. A record stays as long as a span covers it.
``born`` is the session whose owner wrote a log's records; encrypted records are bound to it.
"""

from __future__ import annotations

import re

from llmsession.errors import InvalidConfig, StoreError

from ..cipher import Cipher, Key, lock, note_of_sealed_rows, unlock
from ..ownership import NOBODY, still_holds
from ..protocol import Owner
from ..row_seals import seal_head, seal_origin
from .connections import Connection

__all__ = ["FIRST_VERSION", "MIGRATIONS", "OPEN", "check_schema", "lock_structure", "migrate"]

OPEN = 2**62
"""The last seq of a span that still grows."""

_LOCK_CLASS = 0x6C6C6D73  # "llms": keeps our advisory locks apart from other programs'

# Text is compared by code point, as Python compares it, whatever the database's locale. A row of
# a session is written with every append: the room left in its page makes that cheap (a HOT update).
# ``_MARKED`` makes the table anew.
_FIRST = """
CREATE TABLE {s}.store (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    version integer NOT NULL,
    highest_epoch bigint NOT NULL DEFAULT 0,  -- of all sessions that were deleted
    key_note text COLLATE "C"
);
CREATE SEQUENCE {s}.log_number;
CREATE TABLE {s}.session (
    id text COLLATE "C" PRIMARY KEY,
    log bigint NOT NULL,
    epoch bigint NOT NULL,
    head bigint NOT NULL,
    owner text COLLATE "C",
    owner_pid bigint,
    owner_started text COLLATE "C",
    owner_host text COLLATE "C",
    created_at double precision NOT NULL DEFAULT 0,
    touched_at double precision NOT NULL DEFAULT 0,
    labels bytea,
    label_marks bytea[],
    parent text COLLATE "C"
) WITH (fillfactor = 70);
CREATE INDEX session_label_marks ON {s}.session USING gin (label_marks);
CREATE TABLE {s}.span (
    session text COLLATE "C" NOT NULL,
    first bigint NOT NULL,
    last bigint NOT NULL,
    log bigint NOT NULL,
    born text COLLATE "C" NOT NULL,
    PRIMARY KEY (session, first)
);
CREATE INDEX span_log ON {s}.span (log);
CREATE TABLE {s}.record (
    log bigint NOT NULL,
    seq bigint NOT NULL,
    epoch bigint NOT NULL,
    body bytea NOT NULL,
    large bytea,  -- the places and names of the blobs that belong into the body
    PRIMARY KEY (log, seq)
);
CREATE TABLE {s}.blob (
    name bytea PRIMARY KEY,
    body bytea NOT NULL,
    refs bigint NOT NULL
);
CREATE TABLE {s}.owner (
    name text COLLATE "C" PRIMARY KEY,
    lease_until timestamptz NOT NULL
);
-- The server keeps samples of what it analyzes, and they would outlive what was deleted.
ALTER TABLE {s}.record ALTER body SET STATISTICS 0;
ALTER TABLE {s}.blob ALTER body SET STATISTICS 0;
ALTER TABLE {s}.session ALTER labels SET STATISTICS 0;
INSERT INTO {s}.store (version) VALUES (0);
"""

# The sessions with unfinished work. A table of its own: a row of a session is written with every
# append, and stays a HOT update if no column that is indexed changes. ``owner`` is that of the
# last append that said so, '' once the session was released: it finds those that the dead left.
# Of sessions that an earlier version wrote it is not known.
_UNFINISHED = """
CREATE TABLE {s}.unfinished (
    session text COLLATE "C" PRIMARY KEY,
    owner text COLLATE "C" NOT NULL
);
CREATE INDEX unfinished_owner ON {s}.unfinished (owner, session);
INSERT INTO {s}.unfinished SELECT id, coalesce(owner, '') FROM {s}.session;
"""

# A snapshot may only be saved if it covers ``least`` records. The body is NULL if there is none.
# Earlier programs must not write to tables with snapshots: they would leave in them what they
# erase.
_SNAPSHOTS = """
CREATE TABLE {s}.snapshot (
    session text COLLATE "C" PRIMARY KEY,
    least bigint NOT NULL,
    body bytea
);
ALTER TABLE {s}.snapshot ALTER body SET STATISTICS 0;
ALTER TABLE {s}.snapshot ALTER body SET STORAGE EXTERNAL;  -- it is compressed already
"""

# Whether a session has unfinished work is in its row, which every append writes anyway, and
# ``unfinished`` lists those that may have some: a session is listed from its first mark until its
# owner gives it up. So a turn writes no row there. What an append changes lies together, because
# the server logs a row from the first to the last byte that changed.
_MARKED = """
ALTER TABLE {s}.session ADD COLUMN IF NOT EXISTS origin_seal bytea;
ALTER TABLE {s}.session ADD COLUMN IF NOT EXISTS head_seal bytea;
ALTER TABLE {s}.session RENAME TO session_before;
CREATE TABLE {s}.session (
    log bigint NOT NULL,
    epoch bigint NOT NULL,
    owner_pid bigint,
    created_at double precision NOT NULL DEFAULT 0,
    touched_at double precision NOT NULL DEFAULT 0,
    head bigint NOT NULL,
    unfinished boolean NOT NULL DEFAULT false,
    head_seal bytea,
    id text COLLATE "C" NOT NULL,
    owner text COLLATE "C",
    owner_started text COLLATE "C",
    owner_host text COLLATE "C",
    parent text COLLATE "C",
    origin_seal bytea,
    labels bytea,
    label_marks bytea[]
) WITH (fillfactor = 70);
ALTER TABLE {s}.session ALTER labels SET STATISTICS 0;
INSERT INTO {s}.session
SELECT log, epoch, owner_pid, created_at, touched_at, head,
       EXISTS (SELECT FROM {s}.unfinished u WHERE u.session = id), head_seal,
       id, owner, owner_started, owner_host, parent, origin_seal, labels, label_marks
  FROM {s}.session_before ORDER BY id;
DROP TABLE {s}.session_before;
ALTER TABLE {s}.session ADD PRIMARY KEY (id);
CREATE INDEX session_label_marks ON {s}.session USING gin (label_marks);
"""

# What a page and a search read, so that they look at no other session. ``label`` has the sessions
# of each mark in the order of their ids. A part of the mark is enough: who reads compares the whole
# ones in the session's row. ``unindexed`` sessions may have records that no search has indexed. An
# append sets it, and after the first one that is no change, so the update stays a HOT one.
_LISTED = """
LOCK TABLE {s}.session;  -- no append may set a label between the copy and the rest
CREATE TABLE {s}.label (
    mark bytea NOT NULL,
    session text COLLATE "C" NOT NULL,
    PRIMARY KEY (mark, session)
);
INSERT INTO {s}.label
SELECT DISTINCT substring(m.mark FOR 8), id FROM {s}.session
 CROSS JOIN LATERAL unnest(label_marks) AS m(mark) ORDER BY 1, 2;
DROP INDEX {s}.session_label_marks;
ALTER TABLE {s}.session ADD COLUMN unindexed boolean NOT NULL DEFAULT true;
CREATE INDEX session_unindexed ON {s}.session (id) WHERE unindexed;
"""

_HAS_SCHEMA = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1::text)"
_HAS_SEALS = """
SELECT EXISTS (
    SELECT FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
      JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = $1::text AND c.relname = 'session' AND a.attname = 'origin_seal')
"""
_LEASES = """
SELECT DISTINCT ON (o.name) o.name, s.owner_pid, s.owner_started, s.owner_host
  FROM {s}.owner o LEFT JOIN {s}.session s ON s.owner = o.name
 WHERE o.lease_until > now()
"""
_ROWS_TO_SEAL = """
SELECT s.id, s.parent, s.head, array_agg(p.first ORDER BY p.first) AS firsts,
       array_agg(p.last ORDER BY p.first) AS lasts, array_agg(p.born ORDER BY p.first) AS borns
  FROM {s}.session s LEFT JOIN {s}.span p ON p.session = s.id GROUP BY s.id
"""
_COUNTERS = """
CREATE TABLE IF NOT EXISTS {s}.counter (
    account bytea PRIMARY KEY,
    tokens numeric NOT NULL DEFAULT 0,
    nano_usd numeric NOT NULL DEFAULT 0,
    unpriced bytea[] NOT NULL DEFAULT '{{}}'
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS {s}.slice (
    account bytea NOT NULL,
    owner text COLLATE "C" NOT NULL,
    tokens numeric NOT NULL,
    nano_usd numeric NOT NULL,
    until timestamptz NOT NULL,
    PRIMARY KEY (account, owner)
);
CREATE TABLE IF NOT EXISTS {s}.uncounted (
    account bytea NOT NULL,
    session text COLLATE "C" NOT NULL,
    upto bigint NOT NULL,
    PRIMARY KEY (account, session)
);
CREATE INDEX IF NOT EXISTS uncounted_session ON {s}.uncounted (session);
"""
"""What accounts spend (see ``store.counting``). The tables of this version did not have these at
first, and older programs of this version count nothing.
"""
_HAS_COUNTERS = """
SELECT EXISTS (
    SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = $1::text AND c.relname = 'uncounted')
"""
_HAS_TABLES = """
SELECT EXISTS (
    SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = $1::text AND c.relname = 'store')
"""

FIRST_VERSION = 2
"""The oldest version that can be read. Records of version 1 had other names for their fields."""
MIGRATIONS: tuple[str, ...] = (_FIRST, _UNFINISHED, _SNAPSHOTS, _MARKED, _LISTED)
"""The first script makes tables of ``FIRST_VERSION``. Each later one upgrades them to the next
version.
"""


def check_schema(schema: str) -> None:
    """Raises InvalidConfig if *schema* is not a plain name."""
    if not isinstance(schema, str) or not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
        raise InvalidConfig(
            f"schema {schema!r} must have 1 to 63 of the characters a to z, 0 to 9 and _, and not"
            " begin with a digit"
        )


async def migrate(connection: Connection, schema: str, key: Key | None, where: str) -> Cipher:
    """Make the tables or upgrade them, and return the cipher of their content.

    Raises StoreError for tables of a newer version or of one before ``FIRST_VERSION``, for those of
    an older one that a process still uses, for a database that is not in UTF-8, and for a key that
    is missing or wrong.
    """
    newest = FIRST_VERSION + len(MIGRATIONS) - 1
    encoding = await connection.fetchval("SHOW server_encoding")
    if encoding != "UTF8":
        raise StoreError(f"{where} is in {encoding}; a store needs UTF8", committed=False)
    tables = await _tables_version(connection, schema)
    if tables is None or FIRST_VERSION <= tables[0] < newest:
        async with connection.transaction():
            await lock_structure(connection, schema)
            tables = await _tables_version(connection, schema)  # another store may have been first
            if tables is None or FIRST_VERSION <= tables[0] < newest:
                return await _bring_up(connection, schema, tables, key, where)
    version, note = tables
    if version == newest and not await connection.fetchval(_HAS_COUNTERS, schema):
        async with connection.transaction():
            await lock_structure(connection, schema)
            await connection.execute(_COUNTERS.format(s=f'"{schema}"'))
    if version == newest and not await connection.fetchval(_HAS_SEALS, schema):
        async with connection.transaction():
            await lock_structure(connection, schema)
            return await _add_seals(connection, schema, unlock(key, note, where), note)
    if version > newest:
        raise StoreError(
            f"{where} has tables of version {version}, but this llmsession knows versions up to"
            f" {newest}: a newer llmsession made them. Upgrade llmsession to open it",
            committed=False,
        )
    if version < FIRST_VERSION:
        raise StoreError(
            f"{where} has tables of version {version}, but this llmsession reads {FIRST_VERSION}"
            " and later: export its sessions with the earlier llmsession, and import them into"
            " another schema",
            committed=False,
        )
    return unlock(key, note, where)


async def _add_seals(
    connection: Connection, schema: str, cipher: Cipher, note: str | None
) -> Cipher:
    """Add the columns of the seals (see ``row_seals``), and seal the existing rows. Returns
    *cipher*.

    The tables of this version did not have the columns at first.
    """
    s = f'"{schema}"'
    for column in ("origin_seal", "head_seal"):
        await connection.execute(f"ALTER TABLE {s}.session ADD COLUMN IF NOT EXISTS {column} bytea")
    new_note = note_of_sealed_rows(cipher, note)
    if new_note is None:
        return cipher
    for row in await connection.fetch(_ROWS_TO_SEAL.format(s=s)):
        parts = list(zip(row["firsts"], row["lasts"], row["borns"], strict=True))
        await connection.execute(
            f"UPDATE {s}.session SET origin_seal = $2, head_seal = $3 WHERE id = $1",
            row["id"],
            seal_origin(cipher, row["id"], row["id"], row["parent"], parts),
            seal_head(cipher, row["id"], row["head"]),
        )
    await connection.execute(f"UPDATE {s}.store SET key_note = $1", new_note)
    return cipher


async def lock_structure(connection: Connection, schema: str) -> None:
    """Take the lock on the structure until the transaction ends.

    Its holder is the only one who changes the tables, or records that several sessions share.
    """
    await connection.execute(
        "SELECT pg_advisory_xact_lock($1::int, hashtext($2::text))", _LOCK_CLASS, schema
    )


async def _tables_version(connection: Connection, schema: str) -> tuple[int, str | None] | None:
    """The version of the tables and the note of their key; None if there are none."""
    # The catalogs are asked directly, because to_regclass would answer with what it knew before the
    # lock.
    if not await connection.fetchval(_HAS_TABLES, schema):
        return None
    row = await connection.fetchrow(f'SELECT version, key_note FROM "{schema}".store')
    return None if row is None else (row["version"], row["key_note"])


async def _check_unused(connection: Connection, schema: str, where: str) -> None:
    """Raises StoreError if an owner lives: it looked at the version when it began, and would go on
    writing to tables of the old one.
    """
    for row in await connection.fetch(_LEASES.format(s=f'"{schema}"')):
        holder = Owner(
            row["name"], row["owner_pid"] or 0, row["owner_started"] or "", row["owner_host"] or ""
        )
        if still_holds(holder, 1.0, taker=NOBODY, now=0.0):
            who = f"process {holder.pid}" if holder.pid else f"owner {holder.name}"
            raise StoreError(
                f"{where} has to be upgraded, and an earlier llmsession still uses it ({who}): stop"
                " that process first, or wait until its lease has run out",
                committed=False,
            )


async def _bring_up(
    connection: Connection,
    schema: str,
    tables: tuple[int, str | None] | None,
    key: Key | None,
    where: str,
) -> Cipher:
    done = tables[0] - FIRST_VERSION + 1 if tables else 0
    if tables is not None:
        cipher, note = unlock(key, tables[1], where), tables[1]
        await _check_unused(connection, schema, where)
    elif key is not None:
        cipher, note = lock(key)
    else:
        cipher, note = unlock(None, None, where), None
    if not await connection.fetchval(_HAS_SCHEMA, schema):
        await connection.execute(f'CREATE SCHEMA "{schema}"')
    for script in MIGRATIONS[done:]:
        await connection.execute(script.format(s=f'"{schema}"'))
    await connection.execute(
        f'UPDATE "{schema}".store SET version = $1, key_note = $2',
        FIRST_VERSION + len(MIGRATIONS) - 1,
        note,
    )
    await connection.execute(_COUNTERS.format(s=f'"{schema}"'))
    return await _add_seals(connection, schema, cipher, note)
