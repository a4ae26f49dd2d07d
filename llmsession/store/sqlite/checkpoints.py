"""Checkpoints: copies the WAL into the file, in a thread beside the writer.

If the writer did it, it would stand still while the disk writes thousands of pages, and the appends
of that time would be the slowest percent. Instead, passes beside the writer copy what is in the
WAL, a few pages at a time, and have them written to the disk. When the WAL is long, or little of it
is left, the writer itself copies the rest, so that the WAL starts again from its beginning.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Literal, TypeAlias

import apsw

from llmsession.errors import SessionError

from .file import SqliteFile
from .sync import sync_file

__all__ = ["CHECKPOINT_PAGES", "PASS_BYTES", "Checkpoints", "next_step"]

CHECKPOINT_PAGES = 32_000
"""The WAL starts again from its beginning when it has this many pages (32 MiB, or 128 in an older
file, whose pages are larger). The writer waits for the disk then, so it is seldom.
"""
PASS_BYTES = 4 * 2**20
"""A pass copies the WAL when it has this much that is new. While that is written to the disk,
appends wait for it, too. Copying 128 MiB at once takes 10 ms and more, and with a thousand busy
sessions that happened every 0.8 s. That made the slowest percent of appends 16 times the median;
with passes it was 4.5 times. Smaller passes copy pages that are about to change again: with 1 MiB
an append of one of 50 sessions takes a fifth more CPU.
"""
SMALL_COMMIT_PAGES = 8
SMALL_PASS_BYTES = 2**20
REST_PAGES = 64
"""While commits have at most SMALL_COMMIT_PAGES, as those of one session have, passes are smaller.
Few pages come during such a pass, and if at most REST_PAGES are left, the writer copies them: that
takes about as long as a commit. So the WAL hardly grows. A commit that makes a file longer waits
for the file system to write that down, too: an append took 1.3 times as long.
"""

Standing: TypeAlias = Literal["rest", "copying", "copied"]
Step: TypeAlias = Literal["nothing", "copy", "finish"]


def next_step(standing: Standing, wal_pages: int, copied_pages: int, pass_pages: int) -> Step:
    """What the writer must do after a group.

    The WAL has *wal_pages*. The first *copied_pages* are copied or being copied. A pass copies
    *pass_pages* or more.
    """
    if standing == "copying":
        return "nothing"
    rest = wal_pages - copied_pages
    if standing == "copied" and (rest <= REST_PAGES or wal_pages >= CHECKPOINT_PAGES):
        return "finish"
    return "copy" if rest >= pass_pages else "nothing"


class Checkpoints:
    """The checkpoints of *file*'s WAL. Everything but the copying happens in the writer's
    thread.
    """

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._wal_pages = 0
        self._commit_pages = 0
        self._copied_pages = 0
        self._page_bytes = 0
        self._standing: Standing = "rest"
        self._copying: threading.Thread | None = None
        self._db: apsw.Connection | None = None
        """The connection that copies. Only one thread uses it at a time."""

    def watch(self, db: apsw.Connection) -> None:
        """Follow the commits of the writer's connection *db*."""
        self._page_bytes = db.pragma("page_size")
        db.set_wal_hook(self._grown)

    def _grown(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        if pages < self._wal_pages:  # the WAL has started again, by us or by another process
            self._wal_pages = self._copied_pages = 0
        self._commit_pages = pages - self._wal_pages
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def step(self, db: apsw.Connection) -> None:
        """Begin a pass or finish a checkpoint if it is time. *db* is the writer's connection."""
        is_small = self._commit_pages <= SMALL_COMMIT_PAGES
        pass_pages = (SMALL_PASS_BYTES if is_small else PASS_BYTES) // self._page_bytes
        match next_step(self._standing, self._wal_pages, self._copied_pages, pass_pages):
            case "copy":
                self._standing = "copying"
                self._copied_pages = self._wal_pages
                copying = threading.Thread(target=self._copy, name="llmsession checkpoint")
                copying.daemon = True
                try:
                    copying.start()
                    self._copying = copying
                except RuntimeError:  # the system starts no more threads: the writer copies it all
                    self._standing = "copied"
            case "finish":
                self._standing = "rest"
                self._copied_pages = self._wal_pages
                _checkpoint(db)

    def _copy(self) -> None:
        try:
            if self._db is None:
                self._db = self._file.writer()[0]
            self._file.check_place(committed=False)
            _checkpoint(self._db)
            # The result is not needed: the last pass syncs through the writer's connection.
            sync_file(self._db)
        except (SessionError, apsw.Error):  # the writer will meet the same error and report it
            pass
        finally:
            self._standing = "copied"

    def wait(self) -> None:
        """Wait until no pass is running, and close the connection of the passes."""
        if self._copying is not None:
            self._copying.join()
            self._copying = None
        if self._db is not None:
            self._file.close(self._db)
            self._db = None


def _checkpoint(db: apsw.Connection) -> None:
    # It may fail, or another process may be doing it. The commits are safe in the WAL, so it can be
    # done another time.
    with suppress(apsw.Error):
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
