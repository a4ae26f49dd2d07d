"""PostgreSQL's addresses and failures, in our words."""

from __future__ import annotations

import socket
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it has no types of its own
import pytest

from llmsession.errors import InvalidConfig
from llmsession.store.postgres.connections import (
    DEAD_S,
    Connections,
    is_damage,
    is_lost,
    is_passing,
)
from tests.store.postgres.proxy import Proxy


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
