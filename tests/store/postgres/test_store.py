"""The store in PostgreSQL: the contract of every store, and what it adds, on a real server."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable
from functools import partial

import anyio
import pytest

from llmsession.errors import InvalidConfig, InvalidInput, SessionNotFound, StoreError
from llmsession.store import (
    Appended,
    Batch,
    Conflict,
    Lease,
    Lost,
    Owner,
    PostgresStore,
    SessionFilter,
    Store,
)
from llmsession.testing import CountingContract, StoreContract
from llmsession.testing.store_contract.actions import Answer, append, bodies_of, raised, written
from llmsession.testing.store_contract.shared_records import SharedRecordsContract
from tests.store.conftest import Database, until
from tests.store.postgres.server import PostgresServer

pytestmark = pytest.mark.real_time

ANN = Owner("ann")


class _OnTheServer:
    options: dict[str, object] = {}  # noqa: RUF012  # read, never written

    @pytest.fixture(autouse=True)
    def _server(self, postgres_server: PostgresServer) -> None:
        self.dsn = postgres_server.dsn

    async def make_store(self) -> Store:
        return PostgresStore(self.dsn, schema=f"t{uuid.uuid4().hex}", **self.options)  # type: ignore[arg-type]


class TestPostgresStore(_OnTheServer, StoreContract, CountingContract):
    pass


class TestPostgresStoreWithAKey(_OnTheServer, SharedRecordsContract, CountingContract):
    options = {"key": bytes(range(32))}  # noqa: RUF012  # read, never written


# Beginning.


def test_importing_llmsession_does_not_import_the_driver() -> None:
    code = "import sys, llmsession; sys.exit('asyncpg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_store_is_found_at_the_root_and_other_names_are_not() -> None:
    code = "import llmsession; llmsession.PostgresStore; llmsession.PostgressStore"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert "no attribute 'PostgressStore'" in done.stderr


@pytest.mark.parametrize(
    "options",
    [
        {"schema": 'x"; DROP'},
        {"schema": ""},
        {"schema": "x" * 64},
        {"key": b"short"},
        {"key": ""},
        {"lease_s": 0.0},
        {"retry_s": -1.0},
        {"lease_s": "10"},
        {"readers": 0},
        {"readers": "4"},
        {"dsn": "mysql://x"},
        {"dsn": "postgresql://host:port/x"},
        {"dsn": ""},
    ],
)
def test_what_cannot_work_is_refused_when_the_store_is_made(options: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig) as error:
        PostgresStore(**{"dsn": "postgresql://u:secret@h/d", **options})  # type: ignore[arg-type]
    assert "secret" not in str(error.value)


async def test_a_store_that_was_never_used_closes_without_a_server() -> None:
    await PostgresStore("postgresql://nobody@127.0.0.1:1/nothing").aclose()


async def test_a_closed_store_says_so(database: Database) -> None:
    async with database.store() as store:
        lease = await store.create("s", ANN)
    error = await raised(StoreError, lambda: store.row("s"))
    assert error.committed is False
    assert await append(store, lease, b"1").wait() == Lost("the store is closed", False)
    await store.aclose()


async def test_stores_in_two_schemas_know_nothing_of_each_other(database: Database) -> None:
    async with database.store() as one, database.store(schema=f"{database.schema}x") as other:
        await one.create("s", ANN)
        await raised(SessionNotFound, lambda: other.row("s"))


async def test_one_store_serves_several_event_loops(store: PostgresStore) -> None:
    await written(store, await store.create("here", ANN), b"1")

    async def elsewhere() -> list[bytes]:
        await written(store, await store.create("there", ANN), b"2")
        return await bodies_of(store, "here")

    def run(backend: str) -> list[bytes]:
        return anyio.run(elsewhere, backend=backend)

    assert await anyio.to_thread.run_sync(run, "asyncio") == [b"1"]
    await store.delete("there")
    assert await anyio.to_thread.run_sync(run, "trio") == [b"1"]
    assert await bodies_of(store, "there") == [b"2"]


# Ids and labels.


async def test_ids_are_listed_in_pythons_order_whatever_the_databases_locale(
    store: PostgresStore,
) -> None:
    ids = ["Z", "a", "ä", "z", "Ω", "\uff5a", "😀", "𐀀", "\ue000", "a\u0301", "A b", "a-b", "ab"]
    for session in ids:
        await store.create(session, ANN)
    assert [row.session for row in await store.rows()] == sorted(ids)
    for after in ids:
        found = [row.session for row in await store.rows(after=after, limit=2)]
        assert found == [session for session in sorted(ids) if session > after][:2]


@pytest.mark.parametrize("odd", ["a\0b", "\ud800"], ids=["nul", "surrogate"])
async def test_an_id_that_postgres_cannot_keep_is_refused_and_otherwise_unknown(
    store: PostgresStore, odd: str
) -> None:
    await store.create("s", ANN)
    refused: list[Callable[[], object]] = [
        lambda: store.create(odd, ANN),
        lambda: store.create("t", Owner(odd)),
        lambda: store.fork("s", 0, odd, ANN),
        lambda: store.acquire("s", Owner(odd)),
        lambda: store.rows(after=odd),
    ]
    for ask in refused:
        await raised(InvalidInput, ask)
    unknown: list[Callable[[], object]] = [
        lambda: store.row(odd),
        lambda: store.read(odd),
        lambda: store.delete(odd),
        lambda: store.acquire(odd, ANN),
        lambda: store.fork(odd, 0, "t", ANN),
        lambda: store.rewrite(Lease(odd, 1, 0), {}),
    ]
    for ask in unknown:
        await raised(SessionNotFound, ask)
    await store.release(Lease(odd, 1, 0))
    assert await append(store, Lease(odd, 1, 0), b"1").wait() == Conflict(None)
    assert [row.session for row in await store.rows()] == ["s"]


@pytest.mark.parametrize("key", [None, bytes(32)], ids=["plain", "encrypted"])
async def test_labels_may_hold_any_text_and_are_found_by_it(
    database: Database, key: bytes | None
) -> None:
    labels = {"nul\0": "\0", "quote": "'\"{}\\,", "": "", "long": "x" * 100_000, "漢": "😀"}
    async with database.store(key=key) as store:
        lease = await store.create("s", ANN)
        await store.create("other", ANN)
        answer = Answer()
        store.append(Batch("s", lease.epoch, 0, (b"1",), 1.0, labels), answer.done)
        assert await answer.wait() == Appended(1)
        assert (await store.row("s")).labels == labels
        for name, value in labels.items():
            for wanted in (value, None):
                found = await store.rows(filter=SessionFilter(labels={name: wanted}))
                assert [row.session for row in found] == ["s"]
            assert await store.rows(filter=SessionFilter(labels={name: value + "?"})) == []
        # The name and the value are no single text.
        assert await store.rows(filter=SessionFilter(labels={"quot": "e'\"{}\\,"})) == []


# Keeping large blocks once, and what is encrypted.


def _body(block: bytes, text: bytes = b"") -> bytes:
    return b'{"text":"' + text + b'","image":"' + block + b'"}'


BLOCK = b"aGVsbG8gd29ybGQh" * 4096


@pytest.mark.parametrize("key", [None, bytes(32)], ids=["plain", "encrypted"])
async def test_a_large_block_is_kept_once_for_all_sessions(
    database: Database, key: bytes | None
) -> None:
    async with database.store(key=key) as store:
        bodies = [_body(BLOCK, b"%d" % at) for at in range(3)]
        leases = [
            await written(store, await store.create(f"s{at}", ANN), *bodies) for at in range(4)
        ]
        assert database.sql("SELECT refs FROM @blob") == [(12,)]
        for lease in leases:
            assert await bodies_of(store, lease.session) == bodies
        await store.rewrite(leases[0], {2: b"gone", 3: _body(BLOCK[::-1])})
        assert sorted(database.sql("SELECT refs FROM @blob")) == [(1,), (10,)]
        for lease in leases[:3]:
            await store.delete(lease.session)
        assert database.sql("SELECT refs FROM @blob") == [(3,)]
        assert await bodies_of(store, "s3") == bodies
        await store.delete("s3")
        assert database.sql("SELECT refs FROM @blob") == []
        assert await store.check() == []


async def test_with_a_key_nothing_that_was_said_is_in_the_tables(frail_database: Database) -> None:
    said = [b'{"text":"the launch code is 0000"}', _body(BLOCK, b"also said")]
    async with frail_database.store(key="a passphrase") as store:
        lease = await store.create("ids are seen", ANN)
        answer = Answer()
        labels = {"customer": "secret name"}
        store.append(Batch(lease.session, lease.epoch, 0, tuple(said), 1.0, labels), answer.done)
        assert await answer.wait() == Appended(2)
        assert await bodies_of(store, lease.session) == said
    kept = frail_database.everything()
    assert b"ids are seen" in kept
    for secret in (b"launch code", b"also said", BLOCK[:64], b"customer", b"secret name"):
        assert secret not in kept


async def test_the_key_is_asked_for_and_compared(database: Database) -> None:
    right, wrong = bytes(32), bytes(31) + b"1"
    async with database.store(key=right) as store:
        await written(store, await store.create("s", ANN), b"1")
    for key, told in ((wrong, "the key is not"), (None, "no key was given")):
        async with database.store(key=key) as store:
            error = await raised(StoreError, partial(store.read, "s"))
            assert told in str(error)
            result = await append(store, Lease("s", 1, 1), b"2").lost()
            assert result.committed is False
    async with database.store(key=right) as store:
        assert await bodies_of(store, "s") == [b"1"]


async def test_a_key_for_a_store_that_has_none_is_refused(database: Database) -> None:
    async with database.store() as store:
        await store.create("s", ANN)
    async with database.store(key=bytes(32)) as store:
        error = await raised(StoreError, lambda: store.row("s"))
        assert "not encrypted" in str(error)


# Cancelling.


async def test_a_call_that_nobody_waits_for_any_more_still_changes_what_it_should(
    database: Database, store: PostgresStore
) -> None:
    await store.create("s", ANN)
    with database.locked("store", "one"):
        async with anyio.create_task_group() as group:
            group.start_soon(store.create, "t", ANN)
            await database.wait_for(1)
            group.cancel_scope.cancel()
        assert [row.session for row in await store.rows()] == ["s"]
    with anyio.fail_after(100):
        while len(await store.rows()) < 2:
            await anyio.lowlevel.checkpoint()


async def test_a_call_that_only_reads_ends_with_who_waits_for_it(database: Database) -> None:
    async with database.store(readers=1) as store:
        await store.create("s", ANN)
        with database.locked("session"):
            with anyio.move_on_after(0.05) as scope:
                await store.rows()
            assert scope.cancelled_caught
            # The one connection is free again: what follows waits for the lock, not for the read.
            await until(lambda: not database.waiting())
        assert [row.session for row in await store.rows()] == ["s"]
