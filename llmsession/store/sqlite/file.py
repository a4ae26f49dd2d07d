"""The file of a SQLite store: how it is made and opened, and what its errors mean."""

from __future__ import annotations

import os
import threading
import time
import weakref
from contextlib import suppress
from typing import Literal

import apsw

from llmsession.errors import InvalidConfig, StoreDamaged, StoreError

from ..cipher import Cipher, Key, check_installed, check_key, lock, note_of_sealed_rows, unlock
from .schema import (
    Foreign,
    Held,
    Newer,
    Older,
    add_counters,
    add_seals,
    index_unfinished,
    is_empty,
    keep_in_order_of_arrival,
    migrate,
)
from .session_tables import seal_rows

__all__ = ["PAGE_BYTES", "SqliteFile", "has_wal_reset_fault", "surely_unwritten"]

RETRY_S = 0.01
"""The pause between two attempts where SQLite does not wait by itself: for the change to WAL while
another process is making the file, and for another process's checkpoint.
"""
PAGE_BYTES = 1024
"""The page size of new files; an older file keeps SQLite's default of 4096. A commit writes whole
pages, and an append changes one page of its session, so most of what is written was there before.
Measured with records of 0.3 to 3 kB: two fifths of the bytes for a turn, and as much CPU. Records
of 4 kB and more take twice the CPU to read, which is still a quarter of decoding them.
"""
# A commit is on the disk when it is answered; on macOS only with fullfsync. Checkpoints are made
# beside the writer: see ``checkpoints``.
_WRITING = (
    ("synchronous", "FULL"),
    ("fullfsync", True),
    ("checkpoint_fullfsync", True),
    ("wal_autocheckpoint", 0),
    # In KiB. A group of thousands of sessions changes a page of each, and a page that has no room
    # in the cache is written twice. Measured with 3,000 sessions: a fifth faster than with SQLite's
    # default of 2 MiB.
    ("cache_size", -16_384),
)
# A log is read once from its beginning to its end, so cached pages are not read again, and memory
# for them costs more than the system's own cache. Measured with 2,000 records: with SQLite's
# default of 2 MiB a first read took half as long again.
_READING = (("cache_size", -256),)
_SETTINGS = {apsw.SQLITE_OPEN_READWRITE: _WRITING, apsw.SQLITE_OPEN_READONLY: _READING}


def has_wal_reset_fault(version: str) -> bool:
    """Does SQLite *version* ("3.51.2") have the WAL-reset fault?

    The fault can destroy a file that several connections write or checkpoint. All versions from
    3.7.0 to 3.51.2 have it. It was repaired in 3.51.3 and, for older branches, in 3.50.7 and 3.44.6
    (https://sqlite.org/wal.html#walresetbug).
    """
    numbers = tuple(int(number) for number in version.split(".")[:3])
    for branch in ((3, 44, 6), (3, 50, 7)):
        if numbers[:2] == branch[:2]:
            return numbers < branch
    return (3, 7, 0) <= numbers < (3, 51, 3)


def check_sqlite(version: str) -> None:
    """Raises InvalidConfig for a version of SQLite that would endanger the stored data."""
    if has_wal_reset_fault(version):
        raise InvalidConfig(
            f"SQLite {version} has the WAL-reset fault, which can destroy a store:"
            " install apsw 3.53 or newer, which brings its own SQLite"
        )


def surely_unwritten(error: apsw.Error) -> bool:
    """A COMMIT failed with *error*: is it certain that nothing of the transaction stays?

    It is if a lock was not obtained or a write found no room: then the frame that makes the
    transaction count is not in the WAL. After a failed sync or write it is not certain: the frame
    may be there and count after the next recovery.
    """
    return isinstance(error, apsw.BusyError | apsw.FullError)


class SqliteFile:
    """Opens connections to the file *path*, and makes or upgrades the file before the first.

    May be used by several threads. Every method may block. *busy_s* is how many seconds a
    connection waits for another process's lock.
    """

    def __init__(
        self, path: str, *, key: Key | None = None, busy_s: float = 30.0, vfs: str | None = None
    ) -> None:
        check_key(key)
        self.path = path
        self._wal_path = f"{path}-wal"
        self._key = key
        self._busy_s = busy_s
        self._vfs = vfs
        self._cipher: Cipher | None = None
        self._inode: _Inode | None = None
        self._wal_inode: _Inode | None = None
        """That of the WAL, while the writer has it open."""
        self._held: weakref.finalize[..., SqliteFile] | None = None
        """Closes a descriptor of the file that neither reads nor locks, on systems that have such
        descriptors. While it is open, no other file gets the inode number of this one. That holds
        also while SQLite has no connection, because after an error all may be closed. macOS has no
        such descriptor, but it uses no number twice.
        """
        self._is_lost = False
        self._lock = threading.Lock()

    def writer(self) -> tuple[apsw.Connection, Cipher]:
        """A connection that writes durably, and the cipher of what it writes.

        Raises StoreError and InvalidConfig.
        """
        return self._open(apsw.SQLITE_OPEN_READWRITE)

    def reader(self) -> tuple[apsw.Connection, Cipher]:
        """A connection that only reads, and the cipher of what it reads. Raises the errors of
        ``writer``.
        """
        return self._open(apsw.SQLITE_OPEN_READONLY)

    def _open(self, flags: int) -> tuple[apsw.Connection, Cipher]:
        with self._lock:
            if self._cipher is None:
                # An absolute path stays valid when the process changes its working directory.
                self.path = os.path.abspath(self.path)
                self._wal_path = f"{self.path}-wal"
                self._cipher = self._prepare()
        self.check_place(committed=False)
        try:
            db = self._connect(flags)
        except apsw.Error as error:
            raise self.error(error, committed=False) from error
        try:
            self.check_place(committed=False)  # another file may have been opened at the path
        except StoreError:
            db.close(True)
            raise
        return db, self._cipher

    # Is it still there?

    def check_place(self, *, committed: Literal[False] | None) -> None:
        """Raises StoreError if the file or its WAL was replaced or deleted.

        Then writes go to a place where nobody will find them. From then on it always raises: an
        owner in the new file may have the same epochs as one in the old file.
        """
        if not self._is_lost:
            # Another thread may forget the WAL, so its inode is read once.
            inode, wal_inode = self._inode, self._wal_inode
            is_there = inode is None or _inode(self.path) == inode
            if is_there and (wal_inode is None or _inode(self._wal_path) == wal_inode):
                return
            self._is_lost = True
        raise StoreError(
            f"the store {self.path} was replaced or deleted while it was open, so new writes"
            " would be lost: restart the programs that use it",
            committed=committed,
        )

    def close(self, db: apsw.Connection) -> None:
        """Close a connection that writes, and roll back an open transaction. Raises nothing."""
        with suppress(apsw.Error):
            if self._is_lost:
                # SQLite would delete the WAL by its name, and that may be the new file's WAL.
                db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            db.close(True)

    def release(self) -> None:
        """No other connection will be opened, so the file need not be told from a later one any
        more.
        """
        if self._held is not None:
            self._held()

    def note_wal(self) -> None:
        """Expect the present WAL to stay beside the file until ``forget_wal``.

        Call it after a commit, and keep the connection that made the commit.
        """
        if self._wal_inode is None and self._vfs is None:
            self._wal_inode = _inode(self._wal_path)

    def forget_wal(self) -> None:
        """The connection is closed, so SQLite may delete the WAL and make a new one."""
        self._wal_inode = None

    def _connect(self, flags: int) -> apsw.Connection:
        db = apsw.Connection(self.path, flags=flags, vfs=self._vfs)
        try:
            db.set_busy_handler(_RetryPolicy(self._busy_s).waits)
            db.pragma("trusted_schema", False)
            for setting in _SETTINGS.get(flags, ()):
                db.pragma(*setting)
        except BaseException:
            db.close()
            raise
        return db

    # Making it.

    def _prepare(self) -> Cipher:
        """Make the file, or bring an older one up to date."""
        check_sqlite(apsw.sqlite_lib_version())
        check_installed(self._key)  # checked before the file is made
        deadline = time.monotonic() + self._busy_s
        while True:
            try:
                return self._prepare_once()
            except apsw.BusyError as error:
                if time.monotonic() > deadline:
                    raise self.error(error, committed=False) from error
                time.sleep(RETRY_S)
            except apsw.Error as error:
                raise self.error(error, committed=False) from error
            except Foreign as error:
                raise self._refusal("is a database of another program") from error
            except Newer as error:
                raise self._refusal(
                    f"was written by a newer llmsession ({error}): upgrade llmsession to open it"
                ) from error
            except Held as error:
                raise self._refusal(
                    f"has to be upgraded, and an earlier llmsession still uses it ({error}): stop"
                    " that process first, or wait until its lease has run out"
                ) from error
            except Older as error:
                raise self._refusal(
                    f"was written by an earlier llmsession ({error}): export its sessions with that"
                    " version, and import them into a new file"
                ) from error

    def _prepare_once(self) -> Cipher:
        if self._vfs is None:
            self._make_private()
        db = self._connect(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
        try:
            is_empty(db)  # raises for a file of another program, which must stay unchanged
            db.pragma("page_size", PAGE_BYTES)  # has no effect on a file that has pages
            if db.pragma("journal_mode", "wal") != "wal":
                raise self._refusal("is on a file system without shared memory, which WAL needs")
            locked: tuple[Cipher, str] | None = None
            while True:
                with _transaction(db):
                    if not is_empty(db) or self._key is None or locked is not None:
                        cipher = self._bring_up(db, locked)
                        break
                # Outside of the transaction, because deriving a key from a passphrase takes long.
                locked = lock(self._key)
            if self._vfs is None:  # otherwise it is a file system of tests
                self._hold()
            return cipher
        finally:
            db.close()

    def _hold(self) -> None:
        if self._held is None and _ONLY_HOLD:
            # Closing any other kind of descriptor of the file would release SQLite's locks on it
            # (POSIX).
            with suppress(OSError):
                held = os.open(self.path, _ONLY_HOLD | os.O_CLOEXEC)
                self._held = weakref.finalize(self, os.close, held)
        self._inode = _inode(self.path)

    def _bring_up(self, db: apsw.Connection, locked: tuple[Cipher, str] | None) -> Cipher:
        """Make the tables, or bring them up to date. *locked* is for a file that is still empty."""
        is_new = is_empty(db)
        migrate(db)
        if is_new:
            keep_in_order_of_arrival(db)
        index_unfinished(db)
        add_seals(db)
        add_counters(db)
        if is_new and locked is not None:
            db.execute("INSERT INTO meta VALUES ('key', ?)", (locked[1],))
            return locked[0]
        note = db.execute("SELECT value FROM meta WHERE name = 'key'").get
        cipher = unlock(self._key, note, f"the store {self.path}")
        new_note = note_of_sealed_rows(cipher, note)
        if new_note is not None:
            seal_rows(db, cipher)
            db.execute("UPDATE meta SET value = ? WHERE name = 'key'", (new_note,))
        return cipher

    def _make_private(self) -> None:
        """Make a new file readable by its owner only.

        SQLite itself would use the umask. It gives the files beside it the same rights.
        """
        with suppress(OSError):  # the file exists, or SQLite will report the error
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

    def empty_wal(self, db: apsw.Connection) -> None:
        """Move everything in the WAL into the file, by the connection *db*, and truncate the WAL.

        Raises BusyError if another program uses the WAL for longer than *busy_s*.
        """
        deadline = time.monotonic() + self._busy_s
        while True:
            try:
                db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                return
            except apsw.BusyError:  # SQLite does not wait for another process's checkpoint
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_S)

    def size_bytes(self) -> int:
        """The size of the file and its WAL together."""
        files = (self.path, self._wal_path)
        return sum(os.path.getsize(file) for file in files if os.path.exists(file))

    # What went wrong.

    def error(self, error: Exception, *, committed: Literal[False] | None) -> StoreError:
        """What SQLite's *error* means to a user, with the path. Raise it ``from`` that error."""
        message = f"the store {self.path} {self._reason(error)}"
        # If a write may have succeeded, the error must not say that it did not.
        if isinstance(error, apsw.CorruptError) and committed is False:
            return StoreDamaged(message)
        return StoreError(message, committed=committed)

    def _refusal(self, message: str) -> StoreError:
        return StoreError(f"the store {self.path} {message}", committed=False)

    def _reason(self, error: Exception) -> str:
        match error:
            case apsw.CantOpenError() if not os.path.isdir(os.path.dirname(self.path)):
                return "cannot be opened: its folder does not exist"
            case apsw.CantOpenError() if os.path.isdir(self.path):
                return "cannot be opened: it is a folder"
            case apsw.CantOpenError():
                return "cannot be opened: check that you may read and write it"
            case apsw.NotADBError():
                return "is not a SQLite database, or its beginning is damaged"
            case apsw.ReadOnlyError() | apsw.PermissionsError():
                return "cannot be written: it is read-only"
            case apsw.FullError():
                return "cannot grow: the disk is full"
            case apsw.BusyError() | apsw.LockedError():
                return f"is locked by another program; gave up after {self._busy_s:g} s"
            case apsw.CorruptError():
                return f"is damaged: {error}"
            case apsw.IOError():
                return f"cannot be read or written: {_io_text(error)}"
        return f"failed: {type(error).__name__}: {error}"


_Inode = tuple[int, int]
_ONLY_HOLD = getattr(os, "O_PATH", 0)


def _inode(path: str) -> _Inode | None:
    """The device and the inode of the file at *path*; None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _io_text(error: apsw.Error) -> str:
    name = apsw.mapping_extended_result_codes.get(getattr(error, "extendedresult", 0))
    return str(name or error)


class _RetryPolicy:
    """Waits for a lock, at most *max_s* seconds.

    SQLite's own waiting grows to 100 ms between two attempts, and then a program that writes all
    the time has taken the lock again. With three processes, the last one waited ten times as long.
    """

    def __init__(self, max_s: float) -> None:
        self._max_s = max_s
        self._since = 0.0

    def waits(self, looks: int) -> bool:
        """The lock was not free at attempt number *looks*, from 0. Waits; False if the time is
        over.
        """
        now = time.monotonic()
        if looks == 0:
            self._since = now
        waited_s = now - self._since
        if waited_s >= self._max_s:
            return False
        time.sleep(0.001 if waited_s < 1 else 0.01)
        return True


class _transaction:
    """Holds the write lock. Commits at its end, or rolls back after an error."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._db.execute("COMMIT")
        elif self._db.in_transaction:
            self._db.execute("ROLLBACK")
