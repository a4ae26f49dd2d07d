"""PostgreSQL's addresses and failures, in our words."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it has no types of its own
import pytest

from llmsession.errors import InvalidConfig, StoreError
from llmsession.store.postgres.connections import (
    DEAD_S,
    Connections,
    Grouped,
    is_damage,
    is_lost,
    is_passing,
    is_refused,
)
from tests.store.postgres.proxy import Proxy

PATIENCE_S = 60.0


def made(dsn: str) -> Connections:
    return Connections(dsn, max_shared=1, retry_s=0.0)


@pytest.mark.parametrize(
    ("dsn", "where"),
    [
        ("postgresql://u@db.example:5433/app", "PostgreSQL at db.example:5433, database app"),
        ("postgres://u:p@db.example/app?sslmode=require", "PostgreSQL at db.example, database app"),
        ("postgresql:///app?host=/run/pg", "PostgreSQL at /run/pg, database app"),
        ("postgresql://[::1]:5432/app", "PostgreSQL at [::1]:5432, database app"),
        ("postgresql://", "PostgreSQL at localhost, database by default"),
        ("postgresql://u:p@a:1,b:2/app", "PostgreSQL at a:1,b:2, database app"),
    ],
)
def test_a_database_is_called_by_its_place(dsn: str, where: str) -> None:
    assert made(dsn).where == where


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u:open%20sesame@h/d",
        "postgresql://u@h/d?password=open%20sesame",
        "postgresql://u@h/d?password=open+sesame&user=x",
    ],
)
def test_the_password_is_in_no_message(dsn: str) -> None:
    connections = made(dsn)
    for text in ("no open sesame here", "dsn " + dsn, "first\nopen sesame"):
        told = str(connections.failed(OSError(text), False))
        assert "open" not in told
        assert "sesame" not in told


@pytest.mark.parametrize("dsn", ["", "mysql://h/d", "host=h dbname=d", "postgresql://h:x/d", None])
def test_what_is_no_address_is_refused(dsn: str) -> None:
    with pytest.raises(InvalidConfig, match="postgresql://user@host/name"):
        made(dsn)


def test_details_which_quote_what_was_stored_are_left_out() -> None:
    error = asyncpg.UniqueViolationError("duplicate key")
    error.detail = "Key (body)=(said in confidence)"
    assert "confidence" in str(error)
    told = str(made("postgresql://h/d").failed(error, None))
    assert told == "PostgreSQL at h, database d: UniqueViolationError: duplicate key"


@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_machine_that_is_not_heard_of_is_noticed(proxy: Proxy) -> None:
    connection: Any = await made(proxy.dsn).open()
    kept = connection._transport.get_extra_info("socket")
    assert kept.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        assert kept.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == DEAD_S * 1000
        idle = kept.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        every = kept.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
        count = kept.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
        assert idle + every * count == DEAD_S
    await connection.close()


@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_connection_that_the_server_ends_before_its_first_statement_is_replaced(
    proxy: Proxy,
) -> None:
    connections = Connections(proxy.dsn, max_shared=1, retry_s=PATIENCE_S)
    proxy.dismiss(2)
    await connections.begin()
    assert await connections.run(lambda it: it.fetchval("SELECT 7")) == 7
    await connections.close()


@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_connection_that_cannot_be_prepared_or_is_given_up_meanwhile_is_closed(
    proxy: Proxy,
) -> None:
    connections, seen, waits = made(proxy.dsn), list[Any](), asyncio.Event()

    async def prepare(connection: Any) -> None:
        seen.append(connection)
        if len(seen) == 1:
            await connection.execute("no statement")
        waits.set()
        await connection.execute("SELECT pg_sleep(60)")

    with pytest.raises(asyncpg.PostgresSyntaxError):
        await connections.open(prepare)
    opening = asyncio.create_task(connections.open(prepare))
    await waits.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert [connection.is_closed() for connection in seen] == [True, True]


@pytest.mark.parametrize(
    ("error", "lost", "passing", "damage"),
    [
        (ConnectionRefusedError(), True, False, False),
        (TimeoutError(), True, False, False),
        (asyncpg.ConnectionDoesNotExistError(""), True, False, False),
        (asyncpg.AdminShutdownError(""), True, False, False),
        (asyncpg.CrashShutdownError(""), True, False, False),
        (asyncpg.CannotConnectNowError(""), True, False, False),
        (asyncpg.TooManyConnectionsError(""), True, False, False),
        (asyncpg.ReadOnlySQLTransactionError(""), True, False, False),
        (asyncpg.InternalClientError(""), True, False, False),
        (asyncpg.QueryCanceledError(""), False, False, False),
        (asyncpg.DeadlockDetectedError(""), False, True, False),
        (asyncpg.SerializationError(""), False, True, False),
        (asyncpg.DataCorruptedError(""), False, False, True),
        (asyncpg.InvalidPasswordError(""), False, False, False),
        (asyncpg.InvalidCatalogNameError(""), False, False, False),
        (asyncpg.DiskFullError(""), False, False, False),
        (asyncpg.UndefinedTableError(""), False, False, False),
    ],
)
def test_failures_are_told_apart(error: Exception, lost: bool, passing: bool, damage: bool) -> None:
    assert is_lost(error, closed=False) is lost
    assert is_lost(error, closed=True) is not isinstance(error, asyncpg.QueryCanceledError)
    assert is_passing(error) is passing
    assert is_damage(error) is damage


# Calls that are made together.


class Statements:
    """A server whose statements wait until ``go_on``: it doubles numbers. *refuses* is a number
    that makes a statement fail with *error*."""

    def __init__(self, refuses: int | None = None, error: Exception | None = None) -> None:
        self.asked: list[list[int]] = []
        self._refuses, self._error = refuses, error
        self._may_run = asyncio.Event()

    def go_on(self) -> None:
        self._may_run.set()

    async def run(self, numbers: Sequence[int]) -> list[int]:
        self.asked.append(list(numbers))
        await self._may_run.wait()
        if self._refuses in numbers:
            assert self._error is not None
            raise self._error
        return [2 * number for number in numbers]

    async def all_of(self, calls: Sequence[int], *, most: int = 256) -> list[int | BaseException]:
        """What each of *calls* returns or raises. They are made in this order, each once those
        before it were made or wait."""
        grouped = Grouped(self.run, most=most)
        tasks = []
        for number in calls:
            tasks.append(asyncio.create_task(grouped.ask(number)))
            for _ in range(3):
                await asyncio.sleep(0)
        self.go_on()
        return await asyncio.gather(*tasks, return_exceptions=True)


def refused(error: Exception) -> StoreError:
    """*error* of the server, as the store's connections raise it."""
    failed = StoreError("refused", committed=False)
    failed.__cause__ = error
    return failed


on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@on_asyncio
async def test_calls_that_come_while_statements_run_are_made_together_in_their_order() -> None:
    statements = Statements()
    assert await statements.all_of([5, 4, 3, 2, 1]) == [10, 8, 6, 4, 2]
    assert statements.asked == [[5], [4], [3, 2, 1]]


@on_asyncio
async def test_a_call_that_comes_when_all_statements_have_just_ended_is_made() -> None:
    statements = Statements()
    grouped = Grouped(statements.run)
    calls = []
    for number in (1, 2):
        calls.append(asyncio.create_task(grouped.ask(number)))
        for _ in range(3):
            await asyncio.sleep(0)
    statements.go_on()  # both wake up in the next turn of the loop, and the third call behind them
    calls.append(asyncio.create_task(grouped.ask(3)))
    async with asyncio.timeout(60):
        assert await asyncio.gather(*calls) == [2, 4, 6]


@on_asyncio
async def test_a_statement_is_for_no_more_calls_than_it_may_be() -> None:
    statements = Statements()
    assert await statements.all_of([1, 2, 3, 4, 5, 6], most=3) == [2, 4, 6, 8, 10, 12]
    assert statements.asked == [[1], [2], [3, 4, 5], [6]]


@on_asyncio
async def test_what_the_server_refuses_fails_the_call_that_is_why_and_no_other() -> None:
    error = refused(asyncpg.DataCorruptedError("page 7"))
    statements = Statements(refuses=4, error=error)
    assert await statements.all_of([1, 2, 3, 4, 5]) == [2, 4, 6, error, 10]
    assert statements.asked == [[1], [2], [3, 4, 5], [3], [4], [5]]


@on_asyncio
@pytest.mark.parametrize(
    "error",
    [refused(OSError("lost")), refused(asyncpg.DeadlockDetectedError("again")), KeyError("a bug")],
    ids=lambda error: repr(error.__cause__ or error),
)
async def test_what_is_nobodys_fault_fails_all_calls_of_the_statement_at_once(
    error: Exception,
) -> None:
    statements = Statements(refuses=4, error=error)
    assert await statements.all_of([1, 2, 3, 4, 5]) == [2, 4, error, error, error]
    assert statements.asked == [[1], [2], [3, 4, 5]]


@on_asyncio
async def test_a_call_that_is_cancelled_costs_the_others_nothing() -> None:
    statements = Statements()
    grouped = Grouped(statements.run)
    tasks = [asyncio.create_task(grouped.ask(number)) for number in (1, 2, 3)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert statements.asked == [[1, 2, 3]]
    late = [asyncio.create_task(grouped.ask(number)) for number in range(4, 8)]
    for _ in range(3):
        await asyncio.sleep(0)
    for cancelled in (tasks[1], late[1], late[-1]):
        cancelled.cancel()
    statements.go_on()
    found = await asyncio.gather(*tasks, *late, return_exceptions=True)
    assert [each for each in found if isinstance(each, int)] == [2, 6, 8, 12]
    assert sum(isinstance(each, asyncio.CancelledError) for each in found) == 3
    assert await grouped.ask(9) == 18


@pytest.mark.parametrize(
    ("error", "is_the_servers_answer"),
    [
        (asyncpg.DataCorruptedError("page 7"), True),
        (asyncpg.UniqueViolationError("twice"), True),
        (asyncpg.DeadlockDetectedError("again"), False),
        (asyncpg.AdminShutdownError("bye"), False),
        (asyncpg.InterfaceError("closed"), False),
        (OSError("lost"), False),
    ],
)
def test_only_what_the_server_says_of_a_statement_refuses_it(
    error: Exception, is_the_servers_answer: bool
) -> None:
    assert is_refused(error) is is_the_servers_answer
    assert is_refused(refused(error)) is is_the_servers_answer
