"""The tables of a SQLite store, and the steps that upgrade an older file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import apsw

from ..ownership import NOBODY, still_holds
from ..protocol import Owner

__all__ = [
    "APPLICATION_ID",
    "STEPS",
    "Foreign",
    "Held",
    "Newer",
    "add_counters",
    "add_seals",
    "index_unfinished",
    "is_empty",
    "keep_in_order_of_arrival",
    "migrate",
]

APPLICATION_ID = 0x4C4C4D53
"""Marks a SQLite file as one of ours: "LLMS" in PRAGMA application_id."""

# The first version. A record lies at ``log << 32 | seq``: one B-tree, in which a log is one range.
# The body is the last column, so that the other columns do not lie behind an overflow page.
_FIRST = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value ANY) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES ('log', 0), ('highest_epoch', 0);

CREATE TABLE owner (
    name TEXT PRIMARY KEY,
    pid INTEGER NOT NULL,
    started TEXT NOT NULL,
    host TEXT NOT NULL,
    lease_until REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE session (
    id TEXT PRIMARY KEY,
    epoch INTEGER NOT NULL,
    head INTEGER NOT NULL,
    log INTEGER NOT NULL,
    created_at REAL NOT NULL,
    touched_at REAL NOT NULL,
    owner TEXT,
    parent TEXT,
    labels TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX session_log ON session (log);
CREATE INDEX session_owner ON session (owner) WHERE owner IS NOT NULL;

CREATE TABLE label (
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    session TEXT NOT NULL,
    PRIMARY KEY (name, value, session)
) STRICT, WITHOUT ROWID;

CREATE TABLE segment (
    log INTEGER NOT NULL,
    first INTEGER NOT NULL,
    upto INTEGER NOT NULL,
    source INTEGER NOT NULL,
    PRIMARY KEY (log, first)
) STRICT, WITHOUT ROWID;
CREATE INDEX segment_source ON segment (source);

CREATE TABLE record (
    place INTEGER PRIMARY KEY,
    epoch INTEGER NOT NULL,
    large BLOB,
    body BLOB NOT NULL
) STRICT;

CREATE TABLE large (
    name BLOB PRIMARY KEY,
    uses INTEGER NOT NULL,
    place INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE large_body (place INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
"""

# Has the session unfinished work? NULL: not known, because an earlier version wrote the row.
_UNFINISHED = """
ALTER TABLE session ADD COLUMN unfinished INTEGER;
CREATE INDEX session_unfinished ON session (id) WHERE unfinished IS NOT 0;
"""

# The word index of this version knows which logs are behind. An earlier program would not note its
# appends there, so it must not open the file. The next search makes the index anew.
_NOTED_LOGS = """
DROP TABLE IF EXISTS word;
DROP TABLE IF EXISTS indexed;
"""

# A snapshot may only be saved if it covers ``least`` records. The body is NULL if there is none.
# Earlier programs must not write to a file with snapshots: they would leave in it what they erase.
_SNAPSHOTS = """
CREATE TABLE snapshot (log INTEGER PRIMARY KEY, least INTEGER NOT NULL, body BLOB) STRICT;
"""

# The sessions that have a label, whatever its value is, in the order of their ids.
_LABEL_NAMES = """
CREATE INDEX label_name ON label (name, session);
"""

# An earlier program left out records of forks when it made the word index. The next search makes it
# anew.
_WORDS_ANEW = """
DROP TABLE IF EXISTS word;
DROP TABLE IF EXISTS indexed;
DROP TABLE IF EXISTS unindexed;
"""

FIRST_VERSION = 2
"""The oldest version that can be read. Records of version 1 had other names for their fields."""
STEPS: tuple[str, ...] = (
    _FIRST, _UNFINISHED, _NOTED_LOGS, _SNAPSHOTS, _LABEL_NAMES, _WORDS_ANEW,
)  # fmt: skip
"""The first step makes a file of ``FIRST_VERSION``. Each later one upgrades it to the next version.
A step that was released never changes.
"""


class Older(Exception):
    """The file was written by an earlier llmsession whose records can no longer be read."""


class Newer(Exception):
    """The file was written by a later version of llmsession."""


class Held(Exception):
    """The file has to be upgraded, and a process that uses it would not notice."""


class Foreign(Exception):
    """The file is a SQLite database, but not one of ours."""


def is_empty(db: apsw.Connection) -> bool:
    """Is there nothing in the database yet? Raises Foreign if it belongs to another program.

    Outside of a transaction another process may make the tables at any moment. So whose they are is
    read after them: if they are ours, the mark is there, too.
    """
    has_tables = _number(db, "SELECT count(*) FROM sqlite_schema") > 0
    made_by = _number(db, "PRAGMA application_id")
    if made_by == APPLICATION_ID:
        return False
    if made_by or has_tables:
        raise Foreign
    return True


def migrate(db: apsw.Connection, steps: Sequence[str] = STEPS) -> None:
    """Upgrade the database to the version that *steps* lead to, in the open transaction.

    Raises Newer or Older, with the file's version, if no step leads from that version to the newest
    one. Raises Foreign, and Held, with the process, where a session of an older file has an owner
    that lives.
    """
    is_empty(db)
    version = _number(db, "PRAGMA user_version")
    newest = FIRST_VERSION + len(steps) - 1
    if version > newest:
        raise Newer(f"schema {version}, and this one knows {newest}")
    if 0 < version < FIRST_VERSION:
        raise Older(f"schema {version}, and this one reads {FIRST_VERSION} and later")
    if version == newest:
        return
    if version:
        _check_unused(db)
    done = version - FIRST_VERSION + 1 if version else 0
    for step in steps[done:]:
        db.execute(step).fetchall()  # apsw stops at each row, so all rows must be fetched
    db.pragma("application_id", APPLICATION_ID)
    db.pragma("user_version", newest)


def _check_unused(db: apsw.Connection) -> None:
    now = time.time()
    rows: list[Any] = db.execute(
        "SELECT name, pid, started, host, lease_until FROM owner"
    ).fetchall()
    for name, pid, started, host, until in rows:
        if still_holds(Owner(name, pid, started, host), until, taker=NOBODY, now=now):
            raise Held(f"process {pid}")


def keep_in_order_of_arrival(db: apsw.Connection) -> None:
    """Let a new file keep its records in the order in which they arrive, and find them by an index.

    If the place is the key of the table, as in older files, the records of each session go into
    pages of its own. These are mostly full, and for a new page SQLite writes the ones beside it
    anew. Measured with 50 and with 1,000 sessions: 0.45 and 0.35 times the bytes for a turn, and
    0.8 and 0.6 times the writer's CPU for a record of 0.3 kB. To read a record of a session that
    was not alone takes 0.9 us more. Every statement is the same for both kinds of files.
    """
    db.execute("""
        DROP TABLE record;
        CREATE TABLE record (
            place INTEGER NOT NULL UNIQUE,
            epoch INTEGER NOT NULL,
            large BLOB,
            body BLOB NOT NULL
        ) STRICT;
    """).fetchall()


def index_unfinished(db: apsw.Connection) -> None:
    """Index the unfinished sessions that nobody holds, instead of all unfinished ones.

    A turn begins and ends while somebody holds its session, so it writes no index. Those that an
    owner holds are found by the owner. This is not a step: older programs of this version find the
    same sessions, without an index.
    """
    db.execute("""
        DROP INDEX IF EXISTS session_unfinished;
        CREATE INDEX IF NOT EXISTS session_left_unfinished ON session (id)
            WHERE unfinished IS NOT 0 AND owner IS NULL;
    """).fetchall()


def add_seals(db: apsw.Connection) -> None:
    """Add the columns of the seals (see ``row_seals``), unless they exist.

    This is not a step: older programs of this version write rows without seals and need not know of
    them.
    """
    columns = {row[1] for row in db.execute("PRAGMA table_info(session)").fetchall()}
    for column in ("origin_seal", "head_seal"):
        if column not in columns:
            db.execute(f"ALTER TABLE session ADD COLUMN {column} BLOB")


def add_counters(db: apsw.Connection) -> None:
    """Add the tables of what accounts spend (see ``store.counting``), unless they exist.

    This is not a step either: older programs of this version count nothing. Amounts are texts,
    because they may be larger than SQLite's integers.
    """
    db.execute("""
        CREATE TABLE IF NOT EXISTS counter (
            account TEXT PRIMARY KEY, tokens TEXT NOT NULL, nano_usd TEXT NOT NULL,
            unpriced TEXT NOT NULL
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE IF NOT EXISTS slice (
            account TEXT NOT NULL, owner TEXT NOT NULL, tokens TEXT NOT NULL,
            nano_usd TEXT NOT NULL, until REAL NOT NULL, PRIMARY KEY (account, owner)
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE IF NOT EXISTS uncounted (
            account TEXT NOT NULL, session TEXT NOT NULL, upto INTEGER NOT NULL,
            PRIMARY KEY (account, session)
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX IF NOT EXISTS uncounted_session ON uncounted (session);
    """).fetchall()


def _number(db: apsw.Connection, query: str) -> int:
    number: int = db.execute(query).get
    return number
