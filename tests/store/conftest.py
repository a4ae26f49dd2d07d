"""A real PostgreSQL for the tests of its store: ``postgres_server`` of tests/conftest.py."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from llmsession.store.postgres.store import PostgresStore
from tests.store.crash.nursery import Nursery
from tests.store.postgres.proxy import Proxy, running_proxy
from tests.store.postgres.server import NoServer, PostgresServer, SqlSession, running_server


async def until(holds: Callable[[], object]) -> None:
    """Wait until *holds()*, which only a look can tell."""
    with anyio.fail_after(120):
        while not holds():
            await anyio.lowlevel.checkpoint()


class Database:
    """A schema of its own on the server: what a store keeps there, and what a test does to it."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.dsn = server.dsn
        self.schema = f"t{uuid.uuid4().hex}"

    @asynccontextmanager
    async def store(self, **options: Any) -> AsyncIterator[PostgresStore]:
        """A store on this schema, closed at the end."""
        store = PostgresStore(**{"dsn": self.dsn, "schema": self.schema, **options})
        try:
            yield store
        finally:
            await store.aclose()

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """What *statement* says, by a connection beside the store's; "@" is the schema."""
        return self.server.sql(statement.replace("@", f'"{self.schema}".'), *values)

    def end_lease(self, owner: str) -> None:
        """The lease of *owner* is over, and its store does not renew it any more, as if its process
        were dead. Otherwise it renews it soon after it began, and whenever the machine stood still.
        """
        self.sql(
            "CREATE OR REPLACE FUNCTION @ignore() RETURNS trigger LANGUAGE plpgsql"
            " AS 'BEGIN RETURN NULL; END'"
        )
        self.sql(
            f"CREATE OR REPLACE TRIGGER no_renewal BEFORE UPDATE ON @owner FOR EACH ROW WHEN"
            f" (OLD.name = '{owner}' AND NEW.lease_until > OLD.lease_until)"
            " EXECUTE FUNCTION @ignore()"
        )
        self.sql("UPDATE @owner SET lease_until = now() - interval '1 ms' WHERE name = $1", owner)

    def everything(self) -> bytes:
        """The bytes of the files that the tables are in, with what is dead in them."""
        self.server.sql("CHECKPOINT")
        paths = self.sql(
            """
            SELECT pg_relation_filepath(c.oid) FROM pg_class c
              LEFT JOIN pg_class t ON t.reltoastrelid = c.oid
             WHERE c.relkind IN ('r', 't', 'i', 'S')
               AND coalesce(t.relnamespace, c.relnamespace) = $1::regnamespace
            """,
            self.schema,
        )
        assert len(paths) > 10  # tables, indexes, what is too long for a row
        [folder] = {(self.server.data / path).parent for (path,) in paths}
        begins = tuple(Path(path).name for (path,) in paths)
        files = [file for file in folder.iterdir() if file.name.startswith(begins)]
        return b"".join(file.read_bytes() for file in files)

    @contextmanager
    def locked(self, table: str, rows: str = "") -> Iterator[SqlSession]:
        """Nobody reads or writes *table* meanwhile, or, of *rows*, changes them; until the session
        that is given ends its transaction."""
        with self.server.session() as session:
            lock = (
                f"SELECT FROM @{table} WHERE {rows} FOR UPDATE" if rows else f"LOCK TABLE @{table}"
            )
            session.run(f"BEGIN; {lock}".replace("@", f'"{self.schema}".'))
            yield session
            session.run("ROLLBACK")

    def waiting(self) -> int:
        """How many statements wait for a lock on one of the tables."""
        [(count,)] = self.server.sql("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return int(count)

    async def wait_for(self, count: int) -> None:
        """Wait until *count* statements wait for a lock."""
        await until(lambda: self.waiting() >= count)


@contextmanager
def server_or_skip() -> Iterator[PostgresServer]:
    """A server for tests, which are skipped where none can be run."""
    try:
        with running_server() as server:
            yield server
    except NoServer as error:
        pytest.skip(f"no PostgreSQL can be run here: {error}")


@pytest.fixture(scope="session")
def frail_server() -> Iterator[PostgresServer]:
    """One that is stopped, or whose files are read: there is little on it, so that is fast."""
    with server_or_skip() as server:
        yield server


@pytest.fixture
def database(postgres_server: PostgresServer) -> Database:
    return Database(postgres_server)


@pytest.fixture
async def store(database: Database) -> AsyncIterator[PostgresStore]:
    """A store on *database*, closed at the end."""
    async with database.store() as store:
        yield store


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[Proxy]:
    with running_proxy(postgres_server.socket) as proxy:
        yield proxy


@pytest.fixture
def frail_database(frail_server: PostgresServer) -> Database:
    return Database(frail_server)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """The process that the lives of the crash tests are forked from."""
    with Nursery() as nursery:
        yield nursery
