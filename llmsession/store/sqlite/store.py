"""The default store for embedding: every session of one machine in one SQLite file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import anyio.to_thread
import apsw
from anyio.lowlevel import RunVar

from llmsession.errors import InvalidConfig, InvalidInput, StoreError
from llmsession.turns.spending.spending import Spending

from ..cipher import Key
from ..counting import Amounts, Grant, Uncounted
from ..held_leases import check_lease_and_wait
from ..protocol import (
    EVERYTHING,
    AppendResult,
    Batch,
    Lease,
    Owner,
    SessionFilter,
    SessionRow,
    StoredRecord,
    Word,
)
from .file import SqliteFile
from .reading import Reading
from .session_tables import SessionTables
from .word_index import Behind
from .writer import SqliteWriter

__all__ = ["SqliteStore"]

T = TypeVar("T")

READERS = 4
"""The number of concurrent reads in one event loop. Each takes a thread and a connection."""


class SqliteStore:
    """Keeps every session in the SQLite file *path*; ``-wal`` and ``-shm`` files lie beside it.

    Each method does what ``Store`` promises.

    - **Durability.** An append is on the disk (WAL, ``synchronous=FULL``) when it is answered. One
      thread writes, and it commits the waiting batches of all sessions together. Reads run beside
      it.
    - **Several processes** may use one file on one machine, but not on a network file system. They
      wait at most *busy_s* seconds for each other. After that StoreError is raised, and nothing was
      written.
    - **Leases.** A manager holds its sessions by a lease of *lease_s* seconds, which is renewed in
      the background. The lease matters only where nobody can see whether the owner's process still
      lives (see ``liveness``): a process that has ended holds nothing. *clock* gives the time in
      seconds since the epoch.
    - **Encryption.** With *key*, 32 bytes or a passphrase, records are encrypted (AES-256-GCM;
      needs ``llmsession[encryption]``): all messages and the configuration. Ids, labels, times,
      sizes, parents and owners stay readable in the file. A file is encrypted from its beginning or
      not at all. If the key is lost, the records cannot be read any more. What accounts have spent
      stays readable, too.
    - **Space.** Large blocks, such as base64 images, are kept once for all sessions. Deleted and
      rewritten records disappear for every reader at once, and from the file after ``vacuum``.
    - **The file** is made at first use, readable by its owner only; its folder must exist. A
      relative *path* is resolved at that time. If the file is replaced or deleted while it is open,
      each later call raises StoreError (or answers ``Lost``). Other problems with the file raise
      StoreError, with the path, at first use.

    *vfs* names one of SQLite's file systems, for tests of failing disks. Raises InvalidConfig for
    an invalid *path*, *key*, *lease_s*, *busy_s* or *clock*.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        key: Key | None = None,
        lease_s: float = 30.0,
        busy_s: float = 30.0,
        clock: Callable[[], float] = time.time,
        vfs: str | None = None,
    ) -> None:
        self.path = _checked(path)
        check_lease_and_wait(lease_s, busy_s=busy_s)
        if not callable(clock):
            raise InvalidConfig(f"clock is {clock!r}; it must be a function, such as time.time")
        self._clock = clock
        self._is_encrypted = key is not None
        self._file = SqliteFile(self.path, key=key, busy_s=busy_s, vfs=vfs)
        self._writer = SqliteWriter(self._file, clock=clock, lease_s=lease_s)
        self._readers = _Readers(self._file)

    def __repr__(self) -> str:
        return f"SqliteStore({self.path!r})"

    async def create(self, session: str, owner: Owner) -> Lease:
        return await self._writer.run(lambda do: do.create(session, owner), owner=owner)

    async def acquire(self, session: str, owner: Owner, *, takeover: bool = False) -> Lease:
        return await self._writer.run(lambda do: do.acquire(session, owner, takeover), owner=owner)

    async def fork(self, parent: str, upto: int, session: str, owner: Owner) -> Lease:
        return await self._writer.run(lambda do: do.fork(parent, upto, session, owner), owner=owner)

    async def release(self, lease: Lease) -> None:
        await self._writer.run(lambda do: do.release(lease))

    def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
        self._writer.append(batch, done)

    async def read(
        self, session: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredRecord]:
        return await self._readers.run(lambda look: look.read(session, after, limit))

    async def row(self, session: str) -> SessionRow:
        return await self._readers.run(lambda look: look.row(session))

    async def rows(
        self, *, after: str = "", limit: int = 1000, filter: SessionFilter = EVERYTHING
    ) -> Sequence[SessionRow]:
        """See ``Store.rows``. Labels are found by an index, times by looking at the rows."""
        return await self._readers.run(lambda look: look.rows(after, limit, filter))

    async def unfinished(self, *, after: str = "", limit: int = 1000) -> Sequence[SessionRow]:
        return await self._readers.run(lambda look: look.unfinished(after, limit, self._clock()))

    async def settle(self, row: SessionRow) -> None:
        await self._writer.run(lambda do: do.settle(row))

    async def rows_with(
        self,
        words: Sequence[Word],
        words_of: Callable[[bytes], Iterable[str]],
        *,
        after: str = "",
        limit: int = 1000,
        filter: SessionFilter = EVERYTHING,
    ) -> Sequence[SessionRow]:
        """See ``WordIndex.rows_with``. Uses FTS5.

        The first search makes the index, and each search brings it up to date, so a search writes
        to the file.
        """
        if self._is_encrypted:
            return await self.rows(after=after, limit=limit, filter=filter)
        await self._bring_words_up_to_date(words_of)
        return await self._readers.run(lambda look: look.rows(after, limit, filter, words))

    async def _bring_words_up_to_date(self, words_of: Callable[[bytes], Iterable[str]]) -> None:
        last = 0
        while True:
            behind = await self._readers.run(partial(_logs_behind, last))
            if behind is None:
                await self._writer.run(lambda do: do.words.make())
                continue
            if not behind:
                return
            last = behind[-1][0]
            left: Sequence[Behind] = behind
            while left:
                left = await self._writer.run(partial(_index_next, left, words_of))

    async def begin_count(
        self, account: str, labels: Mapping[str, str], *, limit: int
    ) -> Sequence[Uncounted]:
        return await self._writer.run(lambda do: do.counters.begin(account, labels, limit))

    async def add_counted(self, account: str, spent: Mapping[str, Spending]) -> None:
        await self._writer.run(lambda do: do.counters.add_counted(account, spent))

    async def spent_by(self, account: str) -> Spending:
        return await self._writer.run(lambda do: do.counters.spent_by(account))

    async def reserve(
        self,
        account: str,
        owner: str,
        limit: Amounts,
        asked: Amounts,
        *,
        pending: Spending,
        hold_s: float,
    ) -> Grant:
        return await self._writer.run(
            lambda do: do.counters.reserve(
                account, owner, limit, asked, pending=pending, hold_s=hold_s
            )
        )

    async def give_back(self, owner: str) -> None:
        await self._writer.run(lambda do: do.counters.give_back(owner))

    async def rewrite(self, lease: Lease, bodies: Mapping[int, bytes]) -> None:
        """See ``Store.rewrite``. Raises RecordDamaged for a record that is missing."""
        await self._writer.run(lambda do: do.rewrite(lease, bodies))

    async def save_snapshot(self, lease: Lease, seq: int, body: bytes) -> None:
        await self._writer.run(lambda do: do.save_snapshot(lease, seq, body))

    async def snapshot(self, session: str) -> bytes | None:
        return await self._readers.run(lambda look: look.snapshot(session))

    async def delete(self, session: str, *, epoch: int | None = None) -> None:
        await self._writer.run(lambda do: do.delete(session, epoch))

    async def vacuum(self) -> int:
        """See ``Store.vacuum``. While it works it needs as much free space as the file has.

        Raises StoreError if another program reads or writes for longer than *busy_s*.
        """
        return await self._writer.run(self._vacuum, alone=True)

    def _vacuum(self, sessions: SessionTables) -> int:
        before = self._file.size_bytes()
        # The WAL is moved into the file. Then the file is written anew, through the WAL, which is
        # emptied after that.
        sessions.words.erase_removed()
        self._file.empty_wal(sessions.db)
        sessions.db.execute("VACUUM")
        self._file.empty_wal(sessions.db)
        return max(0, before - self._file.size_bytes())

    async def check(self) -> Sequence[str]:
        """See ``Store.check``. Runs SQLite's own check, and looks for missing and stray records and
        blocks.
        """
        return await self._readers.run(self._check)

    def _check(self, _: Reading) -> list[str]:
        # A connection that has searched takes a word index that was changed since then for damaged.
        look = Reading(*self._file.reader())
        try:
            return look.check()
        finally:
            look.close()

    async def aclose(self) -> None:
        """See ``Store.aclose``.

        A session that is still held stays held as long as this process lives. A manager releases
        its sessions when it is left; those that the store does not release, it gives up. Calls to
        a closed store fail with StoreError or ``Lost``.
        """
        await self._readers.close()
        await self._writer.close()
        self._file.release()


def _logs_behind(after: int, reading: Reading) -> Sequence[Behind] | None:
    return reading.logs_behind(after)


def _index_next(
    behind: Sequence[Behind],
    words_of: Callable[[bytes], Iterable[str]],
    sessions: SessionTables,
) -> Sequence[Behind]:
    return sessions.words.index_next(behind, words_of)


class _Readers:
    """Connections that read, each in a thread while it does.

    A cancelled call returns at once. Its thread finishes, and then gives the connection back.
    """

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._idle: list[Reading] = []
        self._closed = False
        self._limiter: RunVar[anyio.CapacityLimiter] = RunVar("llmsession.readers")

    async def run(self, look: Callable[[Reading], T]) -> T:
        """Call *look* in a thread with a connection, and return its result."""
        return await anyio.to_thread.run_sync(
            self._run, look, abandon_on_cancel=True, limiter=self._places()
        )

    def _places(self) -> anyio.CapacityLimiter:
        try:
            return self._limiter.get()
        except LookupError:
            limiter = anyio.CapacityLimiter(READERS)
            self._limiter.set(limiter)
            return limiter

    def _run(self, look: Callable[[Reading], T]) -> T:
        reading = self._take()
        try:
            result = look(reading)
        except apsw.Error as error:
            reading.close()
            raise self._file.error(error, committed=False) from error
        except UnicodeEncodeError as error:
            self._give_back(reading)
            raise InvalidInput(f"text that is not valid Unicode: {error.reason}") from error
        except BaseException:
            self._give_back(reading)
            raise
        self._give_back(reading)
        return result

    def _take(self) -> Reading:
        if self._closed:
            raise StoreError(f"the store {self._file.path} was closed", committed=False)
        self._file.check_place(committed=False)
        try:
            return self._idle.pop()
        except IndexError:
            return Reading(*self._file.reader())

    def _give_back(self, reading: Reading) -> None:
        # The connection is put back first, and ``_closed`` is checked after that. So either
        # ``close`` finds the connection, or it is closed here.
        self._idle.append(reading)
        # There may be more than can be used at once, if calls returned before their threads.
        self._close_idle(0 if self._closed else READERS)

    def _close_idle(self, limit: int) -> None:
        while len(self._idle) > limit:
            try:
                reading = self._idle.pop()
            except IndexError:  # another thread has taken it
                return
            reading.close()

    async def close(self) -> None:
        """Close the connections. Those that are reading are closed when they are done."""
        self._closed = True
        if self._idle:
            await anyio.to_thread.run_sync(self._close_idle, 0)


def _checked(path: str | os.PathLike[str]) -> str:
    """*path* as a text. Raises InvalidConfig."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidConfig(f"{text!r} is not the path of a file")
    if text == ":memory:":
        raise InvalidConfig("':memory:' is not a file; use MemoryStore() for a store in memory")
    return text
