"""Out of the WAL into the file, beside the writer: it would stand still for as long as the disk
takes for thousands of pages, and the slowest percent of the appends would be those that wait.

Passes beside it copy what the WAL has by then, a few pages at a time, and have them written to the
disk. When the WAL is long the writer itself copies what is left, so that it begins anew.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Literal, TypeAlias

import apsw

from llmsession.errors import SessionError

from .file import SqliteFile
from .sync import sync_file

__all__ = ["CHECKPOINT_PAGES", "PASS_PAGES", "Checkpoints", "next_step"]

CHECKPOINT_PAGES = 32_000
"""From so many pages in the WAL on, 128 MiB, it begins anew. Each time the writer waits for the
disk, so it is seldom."""
PASS_PAGES = 1_000
"""So many more pages in the WAL are copied at a time, 4 MiB. While they are written to the disk,
what is appended waits for it, too: with all 32,000 at once 10 ms and more, with a thousand busy
sessions every 0.8 s. That was the slowest percent: 16 medians, and 4.5 so."""

Standing: TypeAlias = Literal["rest", "copying", "copied"]
Step: TypeAlias = Literal["nothing", "copy", "finish"]


def next_step(standing: Standing, wal_pages: int, copied_pages: int) -> Step:
    """What the writer is to do after a group, with *wal_pages* in the WAL, of which the first
    *copied_pages* are copied or being copied."""
    if standing == "copying":
        return "nothing"
    if standing == "copied" and wal_pages >= CHECKPOINT_PAGES:
        return "finish"
    # Another process may have begun the WAL anew.
    new = wal_pages - copied_pages if wal_pages >= copied_pages else wal_pages
    return "copy" if new >= PASS_PAGES else "nothing"


class Checkpoints:
    """Of the WAL of *file*. All but the copying itself happens in the writer's thread."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._wal_pages = 0
        self._copied_pages = 0
        self._standing: Standing = "rest"
        self._copying: threading.Thread | None = None
        self._db: apsw.Connection | None = None
        """The one that copies; used by one thread at a time."""

    def watch(self, db: apsw.Connection) -> None:
        """Look at what the writer's connection *db* commits."""
        db.set_wal_hook(self._grown)

    def _grown(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def step(self, db: apsw.Connection) -> None:
        """Begin a pass or finish a checkpoint, if it is time. *db* is the writer's."""
        match next_step(self._standing, self._wal_pages, self._copied_pages):
            case "copy":
                self._standing = "copying"
                self._copied_pages = self._wal_pages
                self._copying = threading.Thread(target=self._copy, name="llmsession checkpoint")
                self._copying.daemon = True
                self._copying.start()
            case "finish":
                self._standing = "rest"
                self._wal_pages = self._copied_pages = 0
                _checkpoint(db)

    def _copy(self) -> None:
        try:
            if self._db is None:
                self._db = self._file.writer()[0]
            self._file.check_place(committed=False)
            _checkpoint(self._db)
            # Whether it could is not asked: the last pass syncs by the writer's connection.
            sync_file(self._db)
        except (SessionError, apsw.Error):  # the writer will meet it, too, and say so
            pass
        finally:
            self._standing = "copied"

    def wait(self) -> None:
        """Until nothing is copied beside the writer; no connection stays open for it."""
        if self._copying is not None:
            self._copying.join()
            self._copying = None
        if self._db is not None:
            self._file.close(self._db)
            self._db = None


def _checkpoint(db: apsw.Connection) -> None:
    # It failed, or another process is at it: what was committed is in the WAL; another time.
    with suppress(apsw.Error):
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
