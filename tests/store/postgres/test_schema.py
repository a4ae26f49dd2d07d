"""The tables in PostgreSQL come to be once, and only those that are understood are used."""

from __future__ import annotations

import anyio
import pytest

from llmsession.errors import StoreError
from llmsession.store import Lease, Owner, SessionFilter, SessionRow, this_process
from llmsession.store.cipher import PLAIN
from llmsession.store.postgres.schema import FIRST_VERSION, MIGRATIONS
from llmsession.store.postgres.sql import label_marks
from llmsession.testing.store_contract.actions import append, raised
from tests.store.conftest import Database

# On one backend: what is tested runs in the store's own loop, whoever asks.
pytestmark = [pytest.mark.real_time, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

ANN = Owner("ann")


async def test_stores_that_begin_at_once_make_the_tables_once(database: Database) -> None:
    async def begin(at: int) -> None:
        async with database.store() as store:
            await store.create(f"s{at}", ANN)

    async with anyio.create_task_group() as group:
        for at in range(6):
            group.start_soon(begin, at)
    assert database.sql("SELECT version FROM @store") == [(FIRST_VERSION + len(MIGRATIONS) - 1,)]
    async with database.store() as store:
        assert len(await store.rows()) == 6


def first_version(database: Database) -> None:
    s = f'"{database.schema}"'
    for statement in (f"CREATE SCHEMA {s};" + MIGRATIONS[0].format(s=s)).split(";\n"):
        if statement.strip():
            database.sql(statement)
    database.sql(f"UPDATE @store SET version = {FIRST_VERSION}")


async def test_older_tables_are_left_as_they_are_while_a_process_uses_them(
    database: Database,
) -> None:
    """That process looked at the version when it began."""
    first_version(database)
    database.sql("INSERT INTO @owner VALUES ('old', now() + interval '1 hour')")
    async with database.store() as store:
        error = await raised(StoreError, lambda: store.create("s", ANN))
        assert "an earlier llmsession still uses it (owner old)" in str(error)
        assert database.sql("SELECT version FROM @store") == [(FIRST_VERSION,)]
        us = this_process("old")
        database.sql(
            "INSERT INTO @session (id, log, epoch, head, owner, owner_pid, owner_started,"
            " owner_host) VALUES ('a', 1, 1, 0, 'old', $1, 'before', $2)",
            us.pid,
            us.host,
        )  # another process had this pid: the owner is dead
        await store.create("s", ANN)


async def test_tables_of_the_first_version_are_upgraded_and_every_session_is_looked_at_once(
    database: Database,
) -> None:
    first_version(database)
    database.sql(
        "INSERT INTO @session (id, log, epoch, head, created_at, touched_at, parent, labels)"
        " VALUES ('a', 1, 1, 0, 1, 2, NULL, NULL), ('b', 2, 3, 0, 3, 4, 'a', '{\"l\":\"v\"}')"
    )
    marks = label_marks({"l": "v"}, PLAIN)
    database.sql("UPDATE @session SET label_marks = $1 WHERE id = 'b'", marks)
    async with database.store() as store:
        rows = await store.unfinished()
        assert rows == [
            SessionRow("a", 1, 0, created_at=1.0, touched_at=2.0),
            SessionRow("b", 3, 0, None, 3.0, 4.0, {"l": "v"}, "a"),
        ]
        for value in ("v", None):
            assert await store.rows(filter=SessionFilter(labels={"l": value})) == rows[1:]
        assert await store.check() == []
        await store.settle(rows[0])
        assert [row.session for row in await store.unfinished()] == ["b"]
        assert (await store.acquire("a", ANN)).epoch == 2


@pytest.mark.parametrize(
    ("version", "said"),
    [(99, "version 99"), (1, "version 1, but this llmsession reads 2 and later: export")],
    ids=["newer", "earlier"],
)
async def test_tables_of_another_version_are_refused_and_left_alone(
    database: Database, version: int, said: str
) -> None:
    async with database.store() as store:
        await store.create("s", ANN)
    database.sql(f"UPDATE @store SET version = {version}")
    async with database.store() as store:
        error = await raised(StoreError, lambda: store.create("t", ANN))
        assert said in str(error)
        result = await append(store, Lease("s", 1, 0), b"1").lost()
        assert (result.committed, said in result.error) == (False, True)
    assert database.sql("SELECT id FROM @session") == [("s",)]


async def test_a_schema_that_is_there_is_used_without_the_right_to_make_one(
    database: Database,
) -> None:
    role = f"guest_{database.schema}"
    database.sql(f"CREATE ROLE {role} LOGIN")
    database.sql(f'CREATE SCHEMA "{database.schema}" AUTHORIZATION {role}')
    dsn = database.dsn.replace("postgres@", f"{role}@")
    async with database.store(dsn=dsn) as store:
        lease = await store.create("s", ANN)
        await append(store, lease, b"1").wait()
        await store.vacuum()
        assert await store.check() == []
    async with database.store(dsn=dsn, schema=f"{database.schema}x") as store:
        error = await raised(StoreError, lambda: store.create("s", ANN))
        assert "permission denied" in str(error)


async def test_every_text_is_compared_as_python_compares_it(database: Database) -> None:
    async with database.store() as store:
        await store.rows()
    columns = database.sql(
        """
        SELECT c.relname, a.attname, l.collname
          FROM pg_attribute a
          JOIN pg_class c ON c.oid = a.attrelid
          LEFT JOIN pg_collation l ON l.oid = a.attcollation
         WHERE c.relnamespace = $1::regnamespace AND a.atttypid = 'text'::regtype
        """,
        database.schema,
    )
    assert len(columns) > 8
    assert {collation for _, _, collation in columns} == {"C"}


async def test_a_database_in_another_encoding_is_refused(database: Database) -> None:
    name = f"latin_{database.schema}"
    database.sql(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    async with database.store(dsn=database.dsn.replace("@/postgres", f"@/{name}")) as store:
        error = await raised(StoreError, lambda: store.create("s", ANN))
        assert "LATIN1" in str(error)


async def test_a_database_that_is_not_there_is_named_at_once(database: Database) -> None:
    dsn = database.dsn.replace("postgres@/postgres", "postgres:s3cret@/nowhere")
    async with database.store(dsn=dsn, retry_s=3600.0) as store:
        with anyio.fail_after(120):
            error = await raised(StoreError, lambda: store.row("s"))
        assert "database nowhere" in str(error)
        assert "s3cret" not in str(error)


@pytest.mark.parametrize("schema", ["user", "select", "pgx", "_", "a" * 63])
async def test_any_plain_word_may_name_the_schema(database: Database, schema: str) -> None:
    try:
        async with database.store(schema=schema) as store:
            lease = await store.create("s", ANN)
            await append(store, lease, b"1").wait()
            await store.fork("s", 1, "f", ANN)
            await store.rewrite(lease, {1: b"2"})
            await store.delete("f")
            await store.vacuum()
            assert await store.check() == []
    finally:
        database.sql(f'DROP SCHEMA "{schema}" CASCADE')
