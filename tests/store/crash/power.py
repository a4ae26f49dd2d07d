"""A disk that may lose its power: what was not synced then is there, or not, or torn in pieces.

It stands between SQLite and the real files, and knows at every moment what is surely on it. A write
may reach it before the sync that asks for it, in any order with the others; a sector of 512 bytes
is whole. A new file is there for sure after its first sync, and what was deleted before that is
gone for sure: SQLite syncs the folder of a journal and of a WAL with them.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import TypeAlias

import apsw

__all__ = ["Image", "PowerDisk", "power_disk"]

SECTOR = 512
_numbers = itertools.count()
Write: TypeAlias = tuple[int, bytes | None]
"""At an offset these bytes; or, None, the file ends there."""
Image: TypeAlias = dict[str, bytes]
"""What is in each file, by its name, after the power came back."""


class _Known:
    """A file: what is surely on the disk, None for no file, and what may be, in order."""

    def __init__(self, durable: bytes | None) -> None:
        self.durable = durable
        self.pending: list[Write] = []
        self.may_be_gone = False

    def sync(self) -> None:
        self.durable = _written(self.durable or b"", self.pending)
        self.pending.clear()


def _written(content: bytes, writes: list[Write]) -> bytes:
    image = bytearray(content)
    for offset, piece in writes:
        if piece is None:
            del image[offset:]
        else:
            image.extend(bytes(max(0, offset - len(image))))
            image[offset : offset + len(piece)] = piece
    return bytes(image)


class PowerDisk:
    """``vfs`` is to be given to the store. *after* is called after each thing that is done to it,
    in the thread that does it."""

    def __init__(self, after: Callable[[], None]) -> None:
        self.vfs = f"power{next(_numbers)}"
        self.after = after
        self.lock = threading.RLock()
        """A store writes and checkpoints in several threads."""
        self.files: dict[str, _Known] = {}

    def forget_deleted(self) -> None:
        """What was deleted is gone for sure."""
        for path in [path for path, known in self.files.items() if known.may_be_gone]:
            del self.files[path]

    def without_power(self, random: Random) -> Image:
        """What the disk may hold if the power goes now."""
        image: Image = {}
        for path, known in self.files.items():
            if known.may_be_gone and random.random() < 0.5:
                continue
            if known.durable is None and random.random() < 0.5:
                continue
            # All of it, nothing, or anything between.
            share = random.choice((0.0, 1.0, random.random()))
            reached = [
                piece
                for write in known.pending
                for piece in _sectors(write, random)
                if random.random() < share
            ]
            image[os.path.basename(path)] = _written(known.durable or b"", reached)
        return image


def _sectors(write: Write, random: Random) -> list[Write]:
    """*write*, whole or in sectors that come apart."""
    offset, piece = write
    if piece is None or random.random() < 0.7:
        return [write]
    first = -offset % SECTOR or SECTOR
    edges = [0, *range(min(first, len(piece)), len(piece), SECTOR), len(piece)]
    return [(offset + a, piece[a:b]) for a, b in itertools.pairwise(edges) if a < b]


class _File(apsw.VFSFile):
    def __init__(self, disk: PowerDisk, name: str, flags: list[int], known: _Known | None) -> None:
        super().__init__("", name, flags)
        self._disk = disk
        self._known = known

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        if self._known is not None:
            with self._disk.lock:
                self._known.pending.append((offset, bytes(data)))
                self._disk.after()

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        if self._known is not None:
            with self._disk.lock:
                self._known.pending.append((newsize, None))
                self._disk.after()

    def xSync(self, flags: int) -> None:
        # The real disk keeps its power.
        if self._known is not None:
            with self._disk.lock:
                if self._known.durable is None:
                    self._disk.forget_deleted()
                self._known.sync()
                self._disk.after()


class _Vfs(apsw.VFS):
    def __init__(self, disk: PowerDisk) -> None:
        self._disk = disk
        super().__init__(disk.vfs, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        if name is None:  # a temporary file, of which nothing is kept
            return super().xOpen(name, flags)
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        with self._disk.lock:
            return _File(self._disk, path, flags, self._known(path, flags[0]))

    def _known(self, path: str, flags: int) -> _Known | None:
        known = self._disk.files.get(path)
        if (known is None or known.may_be_gone) and flags & apsw.SQLITE_OPEN_READWRITE:
            self._disk.files[path] = _Known(None)  # SQLite makes it, perhaps once more
        return self._disk.files.get(path)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        with self._disk.lock:
            known = self._disk.files.pop(filename, None)
            if known is not None and not syncdir:
                known.may_be_gone = True
                self._disk.files[filename] = known
            self._disk.after()


@contextmanager
def power_disk(after: Callable[[], None]) -> Iterator[PowerDisk]:
    """A disk with nothing on it."""
    disk = PowerDisk(after)
    vfs = _Vfs(disk)
    try:
        yield disk
    finally:
        vfs.unregister()
