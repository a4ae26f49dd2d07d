"""The file of a SQLite store: what it may be, how it is opened, and what its errors mean."""

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
from .schema import Foreign, Newer, Older, add_seals, is_empty, migrate
from .session_tables import seal_rows

__all__ = ["SqliteFile", "has_wal_reset_fault", "surely_unwritten"]

RETRY_S = 0.01
"""Between two tries of what SQLite does not wait for by itself: the change to WAL, while another
process is making the file, and another one's checkpoint."""
# A commit is on the disk when it is answered; on macOS only with fullfsync. Checkpoints
# are made beside the writer: see there.
_WRITING = (
    ("synchronous", "FULL"),
    ("fullfsync", True),
    ("checkpoint_fullfsync", True),
    ("wal_autocheckpoint", 0),
    # KiB: a group of thousands of sessions changes a page of each, and what has no room is written
    # twice. Measured at 3,000 sessions: a fifth faster than SQLite's own 2 MiB.
    ("cache_size", -16_384),
)
# A log is read once, from its beginning to its end: pages that are kept are not asked for again,
# and memory for each costs more than the system's own cache does. Measured at 2,000 records: with
# SQLite's 2 MiB a first read took half as long again.
_READING = (("cache_size", -256),)
_SETTINGS = {apsw.SQLITE_OPEN_READWRITE: _WRITING, apsw.SQLITE_OPEN_READONLY: _READING}


def has_wal_reset_fault(version: str) -> bool:
    """Has SQLite *version* ("3.51.2") the WAL-reset fault, which can destroy a file that several
    connections write or checkpoint?

    In all from 3.7.0 to 3.51.2, repaired in 3.51.3 and, of the older ones, in 3.50.7 and 3.44.6
    (https://sqlite.org/wal.html#walresetbug).
    """
    numbers = tuple(int(number) for number in version.split(".")[:3])
    for branch in ((3, 44, 6), (3, 50, 7)):
        if numbers[:2] == branch[:2]:
            return numbers < branch
    return (3, 7, 0) <= numbers < (3, 51, 3)


def check_sqlite(version: str) -> None:
    """Raises InvalidConfig for a SQLite that would endanger what it stores, by name."""
    if has_wal_reset_fault(version):
        raise InvalidConfig(
            f"SQLite {version} has the WAL-reset fault, which can destroy a store:"
            " install apsw 3.53 or newer, with a SQLite of its own"
        )


def surely_unwritten(error: apsw.Error) -> bool:
    """A COMMIT failed with *error*: is it sure that nothing of the transaction stays?

    A lock that was not had, or a write that found no room: then the frame that makes the
    transaction count is not in the WAL. A failed sync or write says nothing: the frame may be
    there all the same, and count after the next recovery.
    """
    return isinstance(error, apsw.BusyError | apsw.FullError)


class SqliteFile:
    """Opens connections to the file *path*, and makes or upgrades it before the first. May be
    used by several threads; every method may block.

    *busy_s* is how long a connection waits for another process's lock.
    """

    def __init__(
        self, path: str, *, key: Key | None = None, busy_s: float = 30.0, vfs: str | None = None
    ) -> None:
        check_key(key)
        self.path = path
        self._key = key
        self._busy_s = busy_s
        self._vfs = vfs
        self._cipher: Cipher | None = None
        self._inodes: dict[str, _Inode] = {}
        """Of the file, and of its WAL while the writer has it open."""
        self._held: weakref.finalize[..., SqliteFile] | None = None
        """Closes a descriptor of the file, where the system has one that neither reads nor locks.
        While it is open, no other file gets the number (inode) of this one, also where SQLite has
        no connection: after an error all may be closed. macOS, which has no such descriptor, gives
        no number twice."""
        self._is_lost = False
        self._lock = threading.Lock()

    def writer(self) -> tuple[apsw.Connection, Cipher]:
        """A connection that writes durably, and the cipher of what it writes. Raises StoreError
        and InvalidConfig."""
        return self._open(apsw.SQLITE_OPEN_READWRITE)

    def reader(self) -> tuple[apsw.Connection, Cipher]:
        """A connection that only reads, and the cipher of what it reads. Raises as ``writer``."""
        return self._open(apsw.SQLITE_OPEN_READONLY)

    def _open(self, flags: int) -> tuple[apsw.Connection, Cipher]:
        with self._lock:
            if self._cipher is None:
                # It stays the same file when the process changes its folder.
                self.path = os.path.abspath(self.path)
                self._cipher = self._prepare()
        self.check_place(committed=False)
        try:
            db = self._connect(flags)
        except apsw.Error as error:
            raise self.error(error, committed=False) from error
        try:
            self.check_place(committed=False)  # it was opened by its path
        except StoreError:
            db.close(True)
            raise
        return db, self._cipher

    # Is it still there?

    def check_place(self, *, committed: Literal[False] | None) -> None:
        """Raises StoreError if another file is at the path now, or none, or another WAL beside it:
        then what is written goes where nobody will find it. From then on it always raises, because
        an owner in the new file may have the epochs of one in the old file."""
        if not self._is_lost:
            if all(_inode(path) == inode for path, inode in tuple(self._inodes.items())):
                return
            self._is_lost = True
        raise StoreError(
            f"the store {self.path} was replaced or deleted while it was open, so what is written"
            " to it would be lost: restart whatever uses it",
            committed=committed,
        )

    def close(self, db: apsw.Connection) -> None:
        """Close a connection that writes, and roll back what is open. Raises nothing."""
        with suppress(apsw.Error):
            if self._is_lost:
                # SQLite would delete the WAL by its name, and it may be the new file's.
                db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            db.close(True)

    def release(self) -> None:
        """Nobody opens another connection: the file need not be told from a later one any more."""
        if self._held is not None:
            self._held()

    def note_wal(self) -> None:
        """The WAL that is beside the file now is the one to be there until ``forget_wal``. To be
        called after a commit, by whoever keeps the connection that made it."""
        wal = f"{self.path}-wal"
        if wal not in self._inodes and self._vfs is None:
            inode = _inode(wal)
            if inode is not None:
                self._inodes[wal] = inode

    def forget_wal(self) -> None:
        """The connection is closed: SQLite may delete the WAL, and make a new one."""
        self._inodes.pop(f"{self.path}-wal", None)

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
        check_installed(self._key)  # before there is a file
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
            except Older as error:
                raise self._refusal(
                    f"was written by an earlier llmsession ({error}): export its sessions with that"
                    " one, and import them into a new file"
                ) from error

    def _prepare_once(self) -> Cipher:
        if self._vfs is None:
            self._make_private()
        db = self._connect(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
        try:
            is_empty(db)  # or another program's, which is left as it is
            if db.pragma("journal_mode", "wal") != "wal":
                raise self._refusal("is on a file system without shared memory, which WAL needs")
            locked: tuple[Cipher, str] | None = None
            while True:
                with _transaction(db):
                    if not is_empty(db) or self._key is None or locked is not None:
                        cipher = self._bring_up(db, locked)
                        break
                # Outside of the transaction: a passphrase takes a while.
                locked = lock(self._key)
            if self._vfs is None:  # else a file system of tests
                self._hold()
            return cipher
        finally:
            db.close()

    def _hold(self) -> None:
        if self._held is None and _ONLY_HOLD:
            # Closing any other descriptor of a file frees the locks that SQLite has on it.
            with suppress(OSError):
                held = os.open(self.path, _ONLY_HOLD | os.O_CLOEXEC)
                self._held = weakref.finalize(self, os.close, held)
        inode = _inode(self.path)
        if inode is not None:
            self._inodes[self.path] = inode

    def _bring_up(self, db: apsw.Connection, locked: tuple[Cipher, str] | None) -> Cipher:
        """Make the tables, or bring them up to date. *locked* is for a file that is still empty."""
        if locked is not None and is_empty(db):
            migrate(db)
            add_seals(db)
            db.execute("INSERT INTO meta VALUES ('key', ?)", (locked[1],))
            return locked[0]
        migrate(db)
        add_seals(db)
        note = db.execute("SELECT value FROM meta WHERE name = 'key'").get
        cipher = unlock(self._key, note, f"the store {self.path}")
        new_note = note_of_sealed_rows(cipher, note)
        if new_note is not None:
            seal_rows(db, cipher)
            db.execute("UPDATE meta SET value = ? WHERE name = 'key'", (new_note,))
        return cipher

    def _make_private(self) -> None:
        """A new file is for its owner alone; SQLite would go by the umask. It gives the rights of
        the file to those that it puts beside it."""
        with suppress(OSError):  # it is there, or SQLite will say what is wrong
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

    def empty_wal(self, db: apsw.Connection) -> None:
        """Put all that is in the WAL into the file, by the connection *db*, and cut the WAL to
        nothing. Raises BusyError if another program keeps it for longer than *busy_s*."""
        deadline = time.monotonic() + self._busy_s
        while True:
            try:
                db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                return
            except apsw.BusyError:  # for a checkpoint of another process SQLite does not wait
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_S)

    def size_bytes(self) -> int:
        """How large the file and its WAL are."""
        files = (self.path, f"{self.path}-wal")
        return sum(os.path.getsize(file) for file in files if os.path.exists(file))

    # What went wrong.

    def error(self, error: Exception, *, committed: Literal[False] | None) -> StoreError:
        """What SQLite's *error* means to a user, with the path; to be raised ``from`` it."""
        message = f"the store {self.path} {self._reason(error)}"
        # Where a write may have gone through it is not said that it did not.
        if isinstance(error, apsw.CorruptError) and committed is False:
            return StoreDamaged(message)
        return StoreError(message, committed=committed)

    def _refusal(self, message: str) -> StoreError:
        return StoreError(f"the store {self.path} {message}", committed=False)

    def _reason(self, error: Exception) -> str:
        match error:
            case apsw.CantOpenError() if not os.path.isdir(os.path.dirname(self.path)):
                return "cannot be opened: its folder is not there"
            case apsw.CantOpenError() if os.path.isdir(self.path):
                return "cannot be opened: it is a folder"
            case apsw.CantOpenError():
                return "cannot be opened: is it yours to read and write?"
            case apsw.NotADBError():
                return "is no SQLite database, or its beginning is damaged"
            case apsw.ReadOnlyError() | apsw.PermissionsError():
                return "cannot be written: it is read-only"
            case apsw.FullError():
                return "cannot grow: the disk is full"
            case apsw.BusyError() | apsw.LockedError():
                return f"is held by another program; {self._busy_s:g} s were waited"
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
    """Waits for a lock, at most *most_s*. SQLite's own waiting grows to 100 ms between two looks,
    and finds the lock taken again by whoever writes all the time: with three processes the last
    one waited ten times as long."""

    def __init__(self, max_s: float) -> None:
        self._max_s = max_s
        self._since = 0.0

    def waits(self, looks: int) -> bool:
        """The lock was not free for the time number *looks*, from 0: was waited for the next?"""
        now = time.monotonic()
        if looks == 0:
            self._since = now
        waited_s = now - self._since
        if waited_s >= self._max_s:
            return False
        time.sleep(0.001 if waited_s < 1 else 0.01)
        return True


class _transaction:
    """Holds the write lock; commits at its end, or rolls back what failed."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._db.execute("COMMIT")
        elif self._db.in_transaction:
            self._db.execute("ROLLBACK")
