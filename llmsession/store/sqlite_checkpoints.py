"""Out of the WAL into the file, beside the writer: it would stand still for as long as the disk
takes for thousands of pages, and the slowest percent of the appends would be those that wait.

Passes beside it copy what the WAL has by then. What the writer has added meanwhile is little,
and the writer copies that itself, so that nothing is left and the WAL begins anew.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Literal, TypeAlias

import apsw

from llmsession.errors import SessionError

from .sqlite_file import SqliteFile

__all__ = ["CHECKPOINT_PAGES", "Checkpoints", "next_step"]

CHECKPOINT_PAGES = 32_000
"""From so many pages in the WAL on, 128 MiB, they are copied. A page that is changed again and
again is copied once, so less often is less work: with a thousand busy sessions 4,000 pages were
there four times a second, and the disk was busy copying when every twentieth append came."""
PASSES = 2
"""So often it is copied beside the writer: the second time only what came during the first."""

Standing: TypeAlias = Literal["rest", "copying", "copied"]
Step: TypeAlias = Literal["nothing", "copy", "finish"]


def next_step(standing: Standing, wal_pages: int) -> Step:
    """What the writer is to do after a group, with *wal_pages* in the WAL."""
    if standing == "copied":
        return "finish"
    if standing == "rest" and wal_pages >= CHECKPOINT_PAGES:
        return "copy"
    return "nothing"


class Checkpoints:
    """Of the WAL of *file*. All but the copying itself happens in the writer's thread."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._wal_pages = 0
        self._standing: Standing = "rest"
        self._copying: threading.Thread | None = None

    def watch(self, db: apsw.Connection) -> None:
        """Look at what the writer's connection *db* commits."""
        db.set_wal_hook(self._grown)

    def _grown(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def step(self, db: apsw.Connection) -> None:
        """Begin or finish a checkpoint, if it is time. *db* is the writer's."""
        match next_step(self._standing, self._wal_pages):
            case "copy":
                self._standing = "copying"
                self._copying = threading.Thread(target=self._copy, name="llmsession checkpoint")
                self._copying.daemon = True
                self._copying.start()
            case "finish":
                self._standing = "rest"
                self._wal_pages = 0
                _checkpoint(db)

    def _copy(self) -> None:
        try:
            db, _ = self._file.writer()
        except SessionError:  # the writer will meet it, too, and say so
            pass
        else:
            for _ in range(PASSES):
                _checkpoint(db)
            with suppress(apsw.Error):
                db.close(True)
        self._standing = "copied"

    def wait(self) -> None:
        """Until nothing is copied beside the writer."""
        if self._copying is not None:
            self._copying.join()
            self._copying = None


def _checkpoint(db: apsw.Connection) -> None:
    # It failed, or another process is at it: what was committed is in the WAL; another time.
    with suppress(apsw.Error):
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
