"""A store in PostgreSQL, for the sessions of several processes and machines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import anyio

from llmsession.errors import InvalidConfig, InvalidInput, SessionNotFound, StoreError
from llmsession.turns.blocks import plain_number
from llmsession.turns.spending.spending import Spending

from ..cipher import PLAIN, Cipher, Key, check_key
from ..counting import Amounts, Grant, Uncounted
from ..held_leases import check_lease_and_wait
from ..protocol import (
    EVERYTHING,
    AppendResult,
    Batch,
    Conflict,
    Lease,
    Owner,
    OwnerListener,
    SessionFilter,
    SessionRow,
    StoredRecord,
    Word,
)
from . import upkeep
from .connections import Connection, Connections
from .counters import Counters
from .owners import Owners
from .reading import Reading
from .schema import check_schema, migrate
from .shared_records import SharedRecords
from .sql import Statements
from .thread import CLOSED, LoopThread
from .word_index import WordIndex, query_of
from .writer import Writer

__all__ = ["PostgresStore"]

T = TypeVar("T")


class PostgresStore:
    """Keeps sessions in the schema *schema* of the database at *dsn*.

    The schema and its tables are made if they are missing. Each method does what ``Store``
    promises.

    - **Threads.** The store works in a thread of its own, on asyncio and trio alike. Several event
      loops may use one store. Waiting batches are committed together.
    - **Encryption.** With *key*, 32 bytes or a passphrase, the content of sessions and their labels
      are encrypted. Ids, owners, times, and what accounts have spent are not.
    - **Leases.** A session's owner has a lease of *lease_s* seconds by the database's clock, which
      is renewed while the store is open. After a machine is lost, its sessions are free once their
      lease has run out. The sessions of a process that died on this machine are free at once, and
      those of an owner that the store is told is dead: see ``end_lease_of``.
    - **Lost servers.** *retry_s* is how many seconds a call waits for a server that cannot be
      reached. An append that was being sent when the server went away is settled if the server is
      back within that time, and otherwise answered ``Lost``.
    - **Connections.** *readers* is the largest number of shared connections. In addition there are
      up to two for appends and one for leases.

    Raises InvalidConfig for invalid arguments. Nothing is connected before the first use. Errors
    then are StoreErrors, which name the place and never the password. Cancelling a call stops it if
    it only reads; a call that changes something continues without its caller.
    """

    def __init__(
        self,
        dsn: str,
        *,
        key: Key | None = None,
        schema: str = "llmsession",
        lease_s: float = 15.0,
        retry_s: float = 10.0,
        readers: int = 4,
    ) -> None:
        check_key(key)
        check_schema(schema)
        check_lease_and_wait(lease_s, retry_s=retry_s)
        if (plain_number(readers) or 0) < 1:
            raise InvalidConfig(f"readers is {readers!r}; it must be a whole number, 1 or more")
        self._key = key
        self._schema = schema
        statements = Statements(schema)
        self._connections = Connections(dsn, max_shared=readers, retry_s=retry_s)
        self._owners = Owners(self._connections, statements, schema, lease_s)
        self._reading = Reading(self._connections, statements)
        self._words = WordIndex(self._connections, schema)
        self._counters = Counters(self._connections, schema)
        self._shared_records = SharedRecords(schema, statements, self._words)
        self._thread = LoopThread("llmsession-postgres")
        self._writer = Writer(
            self._thread, self._connections, statements, self._reading, self._begin
        )
        self._cipher: Cipher | None = None
        self._starting = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None
        self._closed = False

    async def create(self, session: str, owner: Owner) -> Lease:
        _check_new(session, owner)
        return await self._take(lambda cipher: self._owners.create(session, owner, cipher))

    async def acquire(self, session: str, owner: Owner, *, takeover: bool = False) -> Lease:
        _check_known(session)
        _check_new(session, owner)
        return await self._take(
            lambda cipher: self._owners.acquire(session, owner, takeover, cipher)
        )

    async def fork(self, parent: str, upto: int, session: str, owner: Owner) -> Lease:
        _check_known(parent)
        _check_new(session, owner)
        return await self._change(lambda cipher: self._fork(parent, upto, session, owner, cipher))

    async def release(self, lease: Lease) -> None:
        if _is_text(lease.session):
            await self._change(lambda _: self._owners.release(lease))

    def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
        if not (batch.session.isprintable() or _is_text(batch.session)):
            done(Conflict(None))
            return
        self._writer.put(batch, done)

    async def read(
        self, session: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredRecord]:
        _check_known(session)
        return await self._look(partial(self._reading.records, session, after, limit))

    async def row(self, session: str) -> SessionRow:
        _check_known(session)
        return await self._look(partial(self._reading.row, session))

    async def rows(
        self, *, after: str = "", limit: int = 1000, filter: SessionFilter = EVERYTHING
    ) -> Sequence[SessionRow]:
        if not _is_text(after):
            raise InvalidInput(f"no session can have an id like {after!r}")
        return await self._look(partial(self._reading.rows, after, limit, filter))

    async def unfinished(self, *, after: str = "", limit: int = 1000) -> Sequence[SessionRow]:
        """See ``UnfinishedIndex.unfinished``. Looks only at what owners left that are gone."""
        if not _is_text(after):
            raise InvalidInput(f"no session can have an id like {after!r}")
        return await self._look(partial(self._reading.unfinished, after, limit))

    async def settle(self, row: SessionRow) -> None:
        if _is_text(row.session):
            await self._change(lambda _: self._owners.settle(row))

    async def rows_with(
        self,
        words: Sequence[Word],
        words_of: Callable[[bytes], Iterable[str]],
        *,
        after: str = "",
        limit: int = 1000,
        filter: SessionFilter = EVERYTHING,
    ) -> Sequence[SessionRow]:
        """See ``WordIndex.rows_with``. Uses PostgreSQL's text search.

        The first search makes tables, and each search brings them up to date, so a search writes.
        """
        if not _is_text(after):
            raise InvalidInput(f"no session can have an id like {after!r}")

        async def look(cipher: Cipher) -> Sequence[SessionRow]:
            queries: tuple[str, ...] = ()
            if cipher is PLAIN:
                await self._words.bring_up_to_date(words_of)
                queries = tuple(map(query_of, words))
            return await self._reading.rows(after, limit, filter, cipher, queries=queries)

        return await self._look(look)

    def watch_owner(self, owner: Owner, listener: OwnerListener) -> None:
        self._owners.watch(owner, listener)

    def is_lease_valid(self, owner: Owner) -> bool:
        return self._owners.is_valid(owner)

    async def epochs(self, sessions: Sequence[str]) -> Mapping[str, int]:
        return await self._look(lambda _: self._owners.epochs(sessions))

    async def end_lease_of(self, owner: str) -> None:
        """Tell the store that the process of the owner named *owner* is dead: whatever it held can
        be taken at once, from every machine.

        If it is not true, nothing durable is lost. The owner that lives is told, renews its lease
        and keeps what nobody took meanwhile; from what was taken it is fenced. Has no effect if
        there is no such owner. Raises StoreError.
        """
        if _is_text(owner):
            await self._change(lambda _: self._owners.end_lease_of(owner))

    async def begin_count(
        self, account: str, labels: Mapping[str, str], *, limit: int
    ) -> Sequence[Uncounted]:
        return await self._change(
            lambda cipher: self._counters.begin(account, labels, limit, cipher)
        )

    async def add_counted(self, account: str, spent: Mapping[str, Spending]) -> None:
        await self._change(lambda cipher: self._counters.add_counted(account, spent, cipher))

    async def spent_by(self, account: str) -> Spending:
        return await self._look(partial(self._counters.spent_by, account))

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
        return await self._change(
            lambda cipher: self._counters.reserve(
                account, owner, limit, asked, pending=pending, hold_s=hold_s, cipher=cipher
            )
        )

    async def give_back(self, owner: str) -> None:
        await self._change(lambda _: self._counters.give_back(owner))

    async def rewrite(self, lease: Lease, bodies: Mapping[int, bytes]) -> None:
        _check_known(lease.session)
        copy = dict(bodies)
        await self._change(lambda cipher: self._rewrite(lease, copy, cipher))

    async def save_snapshot(self, lease: Lease, seq: int, body: bytes) -> None:
        if _is_text(lease.session):
            await self._change(lambda cipher: self._save_snapshot(lease, seq, body, cipher))

    async def snapshot(self, session: str) -> bytes | None:
        if not _is_text(session):
            return None
        return await self._look(partial(self._reading.snapshot, session))

    async def delete(self, session: str, *, epoch: int | None = None) -> None:
        _check_known(session)
        await self._change(lambda _: self._delete(session, epoch))

    async def vacuum(self) -> int:
        """See ``Store.vacuum``.

        Raises StoreError if a transaction of another program, older than this call and still open a
        minute later, might see what was deleted.
        """
        return await self._look(lambda _: self._vacuum())

    async def check(self) -> Sequence[str]:
        return await self._look(
            lambda _: self._connections.run(lambda it: upkeep.check(it, self._schema))
        )

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._writer.close()  # later appends are rejected
        if self._thread.has_begun:
            with anyio.CancelScope(shield=True):
                await self._thread.run(self._end)
                await self._thread.end()

    async def _take(self, work: Callable[[Cipher], Coroutine[Any, Any, Lease]]) -> Lease:
        """The lease that *work* takes. Wakes the writer, so that it is ready for appends."""

        async def take(cipher: Cipher) -> Lease:
            lease = await work(cipher)
            self._writer.wake()
            return lease

        return await self._change(take)

    async def _look(self, work: Callable[[Cipher], Coroutine[Any, Any, T]]) -> T:
        """Run *work*, which only reads, in the store's loop. Cancelling the caller ends it."""
        return await self._run(work, ends=True)

    async def _change(self, work: Callable[[Cipher], Coroutine[Any, Any, T]]) -> T:
        """Run *work* in the store's loop. It continues if its caller is cancelled."""
        return await self._run(work, ends=False)

    async def _run(self, work: Callable[[Cipher], Coroutine[Any, Any, T]], *, ends: bool) -> T:
        if self._closed:
            raise StoreError(CLOSED, committed=False)

        async def begin() -> T:
            return await work(await self._begin())

        return await self._thread.run(begin, ends=ends)

    # In our own loop.

    async def _begin(self) -> Cipher:
        """The cipher, once the tables exist. Raises StoreError; then the next call tries again."""
        if self._cipher is not None:
            return self._cipher
        async with self._starting:
            await self._connections.begin()
        # Each caller waits for a server that is away as long as it would later, and none for
        # another one.
        return await self._connections.run(self._migrated)

    async def _migrated(self, connection: Connection) -> Cipher:
        async with self._starting:
            if self._cipher is None:
                self._cipher = await migrate(
                    connection, self._schema, self._key, self._connections.where
                )
                self._renewing = asyncio.create_task(self._owners.renew())
            return self._cipher

    async def _end(self) -> None:
        await self._writer.end()
        if self._renewing is not None:
            await self._owners.end(self._renewing)
        await self._connections.close()

    async def _fork(
        self, parent: str, upto: int, session: str, owner: Owner, cipher: Cipher
    ) -> Lease:
        await self._owners.lease(owner)
        return await self._connections.change(
            lambda it, in_doubt: self._shared_records.fork(
                it, parent, upto, session, owner, cipher=cipher, in_doubt=in_doubt
            )
        )

    async def _rewrite(self, lease: Lease, bodies: Mapping[int, bytes], cipher: Cipher) -> None:
        await self._connections.change(
            lambda it, _: self._shared_records.rewrite(it, lease, bodies, cipher)
        )

    async def _save_snapshot(self, lease: Lease, seq: int, body: bytes, cipher: Cipher) -> None:
        await self._connections.change(
            lambda it, _: self._shared_records.save_snapshot(it, lease, seq, body, cipher)
        )

    async def _delete(self, session: str, epoch: int | None) -> None:
        await self._connections.change(self._shared_records.deletion(session, epoch))

    async def _vacuum(self) -> int:
        def act(connection: Connection) -> Coroutine[Any, Any, int]:
            return upkeep.vacuum(connection, self._schema, self._connections.where)

        return await self._connections.run(act)


def _is_text(*texts: str) -> bool:
    """Can PostgreSQL store *texts*? It stores no NUL and no lone surrogate."""
    try:
        return all(text.isprintable() or b"\0" not in text.encode() for text in texts)
    except UnicodeEncodeError:
        return False


def _check_known(session: str) -> None:
    if not _is_text(session):
        raise SessionNotFound(session)


def _check_new(session: str, owner: Owner) -> None:
    if not _is_text(session, owner.name, owner.started, owner.host):
        raise InvalidInput(
            f"PostgreSQL cannot keep session id {session!r} of owner {owner.name!r}: no NUL and no"
            " surrogate may be in them"
        )
