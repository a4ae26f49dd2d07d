"""Syncs what was copied into a SQLite file to the disk, through SQLite's own file.

SQLite syncs the file only in a checkpoint that leaves nothing in the WAL. If others write in the
meantime, that is the last one, and it then waits for the pages of all checkpoints before it.
Opening the file once more in order to sync it is not possible: closing that descriptor would
release SQLite's locks (POSIX).

Source: https://sqlite.org/c3ref/io_methods.html, SQLITE_FCNTL_FILE_POINTER.
"""

from __future__ import annotations

import ctypes

import apsw

__all__ = ["sync_file"]


class _Methods(ctypes.Structure):
    """The beginning of ``sqlite3_io_methods``, which is the same in all of its versions."""

    _fields_ = (
        ("iVersion", ctypes.c_int),
        ("xClose", ctypes.c_void_p),
        ("xRead", ctypes.c_void_p),
        ("xWrite", ctypes.c_void_p),
        ("xTruncate", ctypes.c_void_p),
        ("xSync", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)),
    )


class _File(ctypes.Structure):
    _fields_ = (("methods", ctypes.POINTER(_Methods)),)


def sync_file(db: apsw.Connection) -> bool:
    """Wait until everything that was written to *db*'s file is on the disk. Returns whether it is.

    A caller that must be certain also syncs through another connection: the system reports an error
    to each that had the file open. *db* must not be used in the meantime.
    """
    file = ctypes.c_void_p()
    if not db.file_control("main", apsw.SQLITE_FCNTL_FILE_POINTER, ctypes.addressof(file)):
        return False
    methods = ctypes.cast(file, ctypes.POINTER(_File)).contents.methods
    flags = apsw.SQLITE_SYNC_NORMAL | apsw.SQLITE_SYNC_DATAONLY
    try:
        return bool(methods) and methods.contents.xSync(file, flags) == apsw.SQLITE_OK
    except SystemError:  # raised by a file system that is written in Python
        return False
