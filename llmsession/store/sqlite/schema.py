"""The tables of a SQLite store, and the steps that bring an older file up to them."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

__all__ = ["APPLICATION_ID", "STEPS", "Foreign", "Newer", "is_empty", "migrate"]

APPLICATION_ID = 0x4C4C4D53
"""Says that a SQLite file is one of ours: "LLMS" in PRAGMA application_id."""

# Version 1. A record lies at ``log << 32 | seq``: one B-tree, in which a log is one range. The
# sizes of bodies stand before them, so that what is looked for is not behind an overflow page.
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

STEPS: tuple[str, ...] = (_FIRST,)
"""Step n brings a file from version n to n + 1. A step that was released never changes."""


class Newer(Exception):
    """The file was written by a later version of llmsession."""


class Foreign(Exception):
    """The file is a SQLite database, but none of ours."""


def is_empty(db: apsw.Connection) -> bool:
    """Has the database nothing in it yet? Raises Foreign if somebody else's is in it."""
    made_by = _number(db, "PRAGMA application_id")
    if made_by == APPLICATION_ID:
        return False
    if made_by or _number(db, "SELECT count(*) FROM sqlite_schema"):
        raise Foreign
    return True


def migrate(db: apsw.Connection, steps: Sequence[str] = STEPS) -> None:
    """Bring the database up to version ``len(steps)``, in the transaction that is open.

    Raises Newer, with the file's version, if it is beyond that, and Foreign.
    """
    is_empty(db)
    version = _number(db, "PRAGMA user_version")
    if version > len(steps):
        raise Newer(f"schema {version}, and this one knows {len(steps)}")
    if version == len(steps):
        return
    for step in steps[version:]:
        db.execute(step).fetchall()  # all of it: apsw stops at a row, and goes on when it is read
    db.pragma("application_id", APPLICATION_ID)
    db.pragma("user_version", len(steps))


def _number(db: apsw.Connection, query: str) -> int:
    found: int = db.execute(query).get
    return found
