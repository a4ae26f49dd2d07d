"""Connections to PostgreSQL: opening, losing, opening again; and its errors as our own.

All of this runs in the store's own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, Literal, Protocol, TypeVar, cast
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg  # type: ignore[import-untyped]  # it has no types of its own

from llmsession.errors import InvalidConfig, StoreError

__all__ = [
    "FAILURES",
    "NOTIFY",
    "SETTLE",
    "Connection",
    "Connections",
    "Grouped",
    "RetryPolicy",
    "channel_name",
    "is_damage",
    "is_lost",
    "is_passing",
    "is_refused",
]

T = TypeVar("T")
Item = TypeVar("Item")

CONNECT_S = 10.0
"""How many seconds one attempt to connect may take."""
BACKOFF_S, MAX_BACKOFF_S = 0.02, 1.0
DEAD_S = 30
"""A server that was not heard of for this many seconds is regarded as gone."""
NOTIFY = "SELECT pg_notify($1::text, $2::text)"
"""Sends a text, the second value, to all who listen to a channel, the first."""
GROUPS, MAX_GROUP = 2, 256
"""So many statements of one kind run at a time, for so many calls each. A second one runs where the
first waits for a row."""
IDLE_S = 60.0
"""A shared connection is closed after this many seconds without use."""

# A role or a database may have other defaults, and a store's promises must not depend on them: an
# append is durable, a statement sees what was committed before it, and a vacuum may take long.
# Rows are found by an index, however few there are. A plan that reads a whole table would be kept
# when the table grows, and it would meet every damaged page. Pages come in the order of an index:
# to sort them, all that comes after them would be read first.
SETTLE = """
SELECT set_config('synchronous_commit', 'on', false)
 WHERE current_setting('synchronous_commit') = 'off';
SET default_transaction_isolation = 'read committed';
SET default_transaction_read_only = off;
SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET enable_seqscan = off;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET enable_sort = off;
SET jit = off
"""

LOOK_FOR_CLIENT = "SET client_connection_check_interval = '2s'"
"""A statement that waits for a lock ends soon after its connection has. Otherwise it might be done
long after this side has asked whether it was.
"""


def channel_name(prefix: str, key: str) -> str:
    """The channel for *key*, which may be longer than a channel's name can be."""
    return prefix + hashlib.blake2b(key.encode(), digest_size=16).hexdigest()


class Connection(Protocol):
    """The part of asyncpg's connections that is used here."""

    async def fetch(self, query: str, *args: object) -> Sequence[Any]: ...
    async def fetchrow(self, query: str, *args: object) -> Any: ...
    async def fetchval(self, query: str, *args: object) -> Any: ...
    async def execute(self, query: str, *args: object) -> str: ...
    def transaction(
        self, *, isolation: str | None = None, readonly: bool = False
    ) -> contextlib.AbstractAsyncContextManager[object]: ...
    async def add_listener(
        self, channel: str, callback: Callable[[object, int, str, str], None]
    ) -> None: ...
    def add_termination_listener(self, callback: Callable[[object], None]) -> None: ...
    def is_closed(self) -> bool: ...
    def terminate(self) -> None: ...
    async def close(self) -> None: ...


FAILURES = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""The errors of asyncpg. (A TimeoutError is an OSError.)"""

_GONE = (
    OSError,
    asyncpg.PostgresConnectionError,  # class 08
    asyncpg.OperatorInterventionError,  # class 57: it is being shut down, or starts
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,  # a standby: the address will lead to another one
    # What the server said last does not fit: that it ends the connection, between two statements.
    asyncpg.InternalClientError,
)
_PASSING = (asyncpg.TransactionRollbackError,)  # class 40: a deadlock was broken, for example
_DAMAGE = (
    asyncpg.DataCorruptedError,
    asyncpg.IndexCorruptedError,
    asyncpg.InternalServerError,
    asyncpg.PostgresIOError,
)


def is_lost(error: BaseException, *, closed: bool) -> bool:
    """Did the connection or the server fail, so that it may come back? *closed*: the connection is
    closed.
    """
    if isinstance(error, asyncpg.QueryCanceledError):
        return False
    return closed or isinstance(error, _GONE)


def is_passing(error: BaseException) -> bool:
    """Was everything rolled back, and may the same thing succeed at once?"""
    return isinstance(error, _PASSING)


def is_refused(error: BaseException) -> bool:
    """Did the server answer with *error*, or with its cause, because of what it was asked? Then
    nothing was done, and the same thing would fail again.
    """
    told = error.__cause__ if isinstance(error, StoreError) else error
    if not isinstance(told, asyncpg.PostgresError):
        return False
    return not (isinstance(told, _GONE) or is_passing(told))


def is_damage(error: BaseException | None) -> bool:
    """Did the server meet data of its own that it cannot read?"""
    return isinstance(error, _DAMAGE)


class Grouped(Generic[Item, T]):
    """Calls that are made together: those that come while statements run wait for the next one.

    *act* is called with the items of several calls, at most *most*, and returns the result of each,
    in their order. What it raises is raised by each of these calls; but if the server refused the
    statement, because of one of them perhaps, each is made alone.
    """

    def __init__(
        self,
        act: Callable[[Sequence[Item]], Awaitable[Sequence[T]]],
        *,
        most: int = MAX_GROUP,
    ) -> None:
        self._act = act
        self._most = most
        self._waiting: list[tuple[Item, asyncio.Future[T]]] = []
        self._running: set[asyncio.Task[None]] = set()

    async def ask(self, item: Item) -> T:
        """The result for *item*. Cancelling the wait does not stop the statement."""
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, result))
        if len(self._running) < GROUPS:
            self._running.add(asyncio.create_task(self._run()))
        return await result

    async def _run(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                await self._answer(group)
        finally:
            # Here and not when the task is done, which others see one turn of the loop later: who
            # asks in between would wait for a task that does not look any more.
            self._running.remove(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _answer(self, group: Sequence[tuple[Item, asyncio.Future[T]]]) -> None:
        try:
            found = await self._act([item for item, _ in group])
        except Exception as error:  # each caller gets it, of whatever kind it is
            if len(group) > 1 and is_refused(error):
                for each in group:
                    await self._answer([each])
                return
            for _, result in group:
                if not result.done():
                    result.set_exception(error)
        else:
            for (_, result), answer in zip(group, found, strict=True):
                if not result.done():
                    result.set_result(answer)


class RetryPolicy:
    """How long a temporary failure is retried: *retry_s* seconds from the first one on."""

    def __init__(self, retry_s: float) -> None:
        self._retry_s = retry_s
        self._pause_s = BACKOFF_S
        self._until: float | None = None

    async def wait(self) -> bool:
        """Wait for the next attempt, longer each time. Returns False at once if there is none."""
        now = time.monotonic()
        if self._until is None:
            self._until = now + self._retry_s
        pause_s = min(self._pause_s, self._until - now)
        if pause_s <= 0:
            return False
        await asyncio.sleep(pause_s)
        self._pause_s = min(2 * self._pause_s, MAX_BACKOFF_S)
        return True


class Connections:
    """Connections to the database at *dsn*: at most *max_shared* shared ones, and others that are
    not shared.
    """

    def __init__(self, dsn: str, *, max_shared: int, retry_s: float) -> None:
        self._dsn = dsn
        self.where, self._secrets = _place(dsn)
        self._max_shared = max_shared
        self.retry_s = retry_s
        self._pool: Any = None

    async def open(
        self, prepare: Callable[[Connection], Awaitable[object]] | None = None
    ) -> Connection:
        """Open a connection that is not shared, and *prepare* it. If that fails or is cancelled,
        the connection is closed. Raises FAILURES.
        """
        connection: Connection = await asyncpg.connect(
            self._dsn, timeout=CONNECT_S, server_settings={"application_name": "llmsession"}
        )
        try:
            await _settle(connection)
            if prepare is not None:
                await prepare(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def run(self, act: Callable[[Connection], Awaitable[T]]) -> T:
        """Call *act* with a connection, and return its result.

        *act* must be safe to repeat: if the connection fails, it is called again as long as the
        RetryPolicy allows. Raises StoreError instead of asyncpg's errors.
        """
        return await self._run(lambda connection, _: act(connection), changes=False)

    async def change(self, act: Callable[[Connection, bool], Awaitable[T]]) -> T:
        """The same as ``run``, for an *act* that changes something.

        Its second argument says whether an earlier attempt may have succeeded, because the
        connection was lost before the answer.
        """
        return await self._run(act, changes=True)

    async def _run(self, act: Callable[[Connection, bool], Awaitable[T]], *, changes: bool) -> T:
        retry_policy = RetryPolicy(self.retry_s)
        in_doubt = False
        while True:
            begun = closed = False
            try:
                async with self._pool.acquire() as connection:
                    begun = True
                    try:
                        return await act(connection, in_doubt)
                    finally:
                        closed = _is_closed(connection)
            except FAILURES as error:
                lost = is_lost(error, closed=closed)
                in_doubt = in_doubt or (changes and begun and lost)
                if not (lost or is_passing(error)) or not await retry_policy.wait():
                    raise self.failed(error, None if in_doubt else False) from error

    async def execute(self, statement: str, *values: object) -> None:
        """Run *statement*, which must be safe to repeat. Raises the errors of ``run``."""
        await self.run(lambda connection: connection.execute(statement, *values))

    async def fetchrow(self, statement: str, *values: object) -> Any:
        """The first row of *statement*, which must be safe to repeat. Raises the errors of
        ``run``.
        """
        return await self.run(lambda connection: connection.fetchrow(statement, *values))

    async def begin(self) -> None:
        """Make the pool that ``run`` needs, without connecting. Raises StoreError for an unusable
        address.
        """
        if self._pool is not None:
            return
        try:
            self._pool = await asyncpg.create_pool(
                self._dsn,
                min_size=0,
                max_size=self._max_shared,
                max_inactive_connection_lifetime=IDLE_S,
                timeout=CONNECT_S,
                init=_settle,
                reset=_leave,
                server_settings={"application_name": "llmsession"},
            )
        except FAILURES as error:
            raise self.failed(error, False) from error

    async def close(self) -> None:
        """Close the shared connections. Nothing may be running on them."""
        if self._pool is not None:
            with contextlib.suppress(*FAILURES):
                await asyncio.wait_for(self._pool.close(), CONNECT_S)
            self._pool.terminate()

    def failed(self, error: BaseException, committed: Literal[False] | None) -> StoreError:
        """*error* as a StoreError: where it happened, and the first line of what the server
        said.
        """
        return StoreError(f"{self.where}: {self.error_line(error)}", committed=committed)

    def error_line(self, error: BaseException) -> str:
        """The text of *error*, without the password and without details that quote stored data."""
        text = (str(error).strip() or "no answer").splitlines()[0]
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return f"{type(error).__name__}: {text}"


def _is_closed(connection: Connection) -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:
        return True  # the pool has already taken it back, which it does with closed connections


async def _settle(connection: Any) -> None:
    # Without keepalive a statement would wait for ever if the network drops every packet. asyncpg
    # has no option for keepalive and no public access to its socket.
    _keep_alive(connection._transport.get_extra_info("socket"))
    await connection.execute(SETTLE)
    # Servers before version 14 have no such setting, and those on some systems cannot look.
    with contextlib.suppress(asyncpg.PostgresError):
        await connection.execute(LOOK_FOR_CLIENT)


def _keep_alive(connected: Any) -> None:
    """Let the connection fail once the other side was not heard of for DEAD_S seconds."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if connected.family == getattr(socket, "AF_UNIX", None):
        return
    for name, value in (
        ("TCP_KEEPIDLE", DEAD_S // 2),
        ("TCP_KEEPINTVL", DEAD_S // 6),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", DEAD_S * 1000),
    ):
        if hasattr(socket, name):  # Linux has all
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def _leave(connection: Connection) -> None:
    """Nothing must be reset: our settings are the same for all, and asyncpg ends open
    transactions.
    """


def _place(dsn: str) -> tuple[str, list[str]]:
    """The name of the database at *dsn* for messages, and the texts that must not appear in them.

    Raises InvalidConfig if it is not an address of PostgreSQL; the message contains nothing of it.
    """
    try:
        parts = urlsplit(dsn)
        _, _, hosts = parts.netloc.rpartition("@")
        for host in hosts.split(","):
            _ = urlsplit(f"//{host}").port  # raises ValueError for an invalid port
        query = parse_qs(parts.query, keep_blank_values=True)
        written = [parts.password or "", *re.findall(r"(?:^|&)password=([^&]*)", parts.query)]
    except (ValueError, AttributeError, TypeError):
        parts = None
    if parts is None or parts.scheme not in ("postgresql", "postgres"):
        raise InvalidConfig("a PostgreSQL store needs an address like postgresql://user@host/name")
    host = hosts or ",".join(query.get("host", [])) or "localhost"
    place = f"PostgreSQL at {host}, database {parts.path.lstrip('/') or 'by default'}"
    secrets = {dsn, *written, *map(unquote, written), *query.get("password", [])}
    return place, sorted(filter(None, secrets), key=len, reverse=True)
