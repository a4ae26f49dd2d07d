"""A disk of SQLite's that fails when it is told to: the real one, but for the fault."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import apsw

__all__ = ["Disk", "faulty_disk"]

_numbers = itertools.count()


class Disk:
    """What fails from now on. *on* is the end of the file's name: "-wal", ".db", or "" for all.

    ``writes`` and ``syncs`` count what was done on the WAL while nothing failed.
    """

    def __init__(self, vfs: str) -> None:
        self.vfs = vfs
        self.on = "-wal"
        self.write_error: Exception | None = None
        self.sync_error: Exception | None = None
        self.read_error: Exception | None = None
        self.syncs = 0

    def repair(self) -> None:
        """Nothing fails any more."""
        self.write_error = self.sync_error = self.read_error = None


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._disk = disk
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else name or ""

    def _is_meant(self) -> bool:
        return self._name.endswith(self._disk.on)

    def xWrite(self, data: bytes, offset: int) -> None:
        if self._disk.write_error is not None and self._is_meant():
            raise self._disk.write_error
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        if self._is_meant():
            if self._disk.sync_error is not None:
                raise self._disk.sync_error
            self._disk.syncs += 1
        super().xSync(flags)

    def xRead(self, amount: int, offset: int) -> bytes:
        if self._disk.read_error is not None and self._is_meant():
            raise self._disk.read_error
        return super().xRead(amount, offset)


class _Vfs(apsw.VFS):
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        super().__init__(disk.vfs, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        return _File(self._disk, name, flags)


@contextmanager
def faulty_disk() -> Iterator[Disk]:
    """A disk of its own; its ``vfs`` is to be given to the store."""
    disk = Disk(f"faulty{next(_numbers)}")
    vfs = _Vfs(disk)
    try:
        yield disk
    finally:
        vfs.unregister()
