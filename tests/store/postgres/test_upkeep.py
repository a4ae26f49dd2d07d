"""What is deleted in PostgreSQL is gone after a vacuum, and what is wrong there is found."""

from __future__ import annotations

import re

import anyio
import pytest

from llmsession.errors import StoreError
from llmsession.store import Batch, Owner, PostgresStore
from llmsession.store.postgres import upkeep as postgres_upkeep
from llmsession.testing.store_contract.actions import Answer, append, bodies_of, raised, written
from tests.store.conftest import Database

# On one backend: what is tested runs in the store's own loop, whoever asks.
pytestmark = [pytest.mark.real_time, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

ANN = Owner("ann")


def _body(text: bytes, block: bytes) -> bytes:
    return b'{"text":"' + text + b'","image":"' + block + b'"}'


def _random_block(seed: int) -> bytes:
    """As incompressible as an image: what is looked for is there as it was written."""
    return b"".join(b"%016x" % (hash((seed, at)) & (2**64 - 1)) for at in range(2500))


@pytest.mark.parametrize("key", [None, bytes(32)], ids=["plain", "encrypted"])
async def test_after_a_vacuum_nothing_that_was_deleted_or_rewritten_is_in_the_tables(
    frail_database: Database, key: bytes | None
) -> None:
    async with frail_database.store(key=key) as store:
        blocks = [_random_block(at) for at in range(3)]
        lease = await written(
            store,
            await store.create("kept", ANN),
            _body(b"rewritten text", blocks[0]),
            _body(b"kept text", blocks[1]),
        )
        gone = await store.create("forgotten id", ANN)
        answer = Answer()
        bodies = (_body(b"deleted text", blocks[2]),)
        labels = {"name": "forgotten label"}
        store.append(Batch("forgotten id", gone.epoch, 0, bodies, 1.0, labels), answer.done)
        await answer.wait()
        seen = [b"forgotten id"]
        if key is None:
            seen += [b"rewritten text", b"deleted text", b"forgotten label"]
            seen += [blocks[0][:64], blocks[2][:64]]
        before = frail_database.everything()
        for secret in seen:
            assert secret in before
        await store.rewrite(lease, {1: b"new text"})
        await store.delete("forgotten id")
        assert await store.vacuum() > 0
        after = frail_database.everything()
        for secret in seen:
            assert secret not in after
        assert key is not None or b"kept text" in after
        assert await bodies_of(store, "kept") == [b"new text", _body(b"kept text", blocks[1])]
        await written(store, lease, b"more")
        assert await store.check() == []


async def test_a_vacuum_waits_for_whoever_may_still_see_what_was_deleted(
    frail_database: Database,
) -> None:
    async with frail_database.store() as store:
        await written(store, await store.create("s", ANN), b"deleted text")
        with frail_database.server.session() as old:
            # Reads only, so no lock keeps the vacuum away, and it would keep what old can see.
            old.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
            await store.delete("s")
            async with anyio.create_task_group() as group:
                freed: list[int] = []

                async def vacuum() -> None:
                    freed.append(await store.vacuum())

                group.start_soon(vacuum)
                with anyio.fail_after(120):
                    while not frail_database.sql(
                        "SELECT FROM pg_stat_activity WHERE query LIKE '%virtualxid%'"
                        " AND pid <> pg_backend_pid()"
                    ):
                        await anyio.lowlevel.checkpoint()
                assert freed == []
                old.run("COMMIT")
        assert b"deleted text" not in frail_database.everything()


async def test_a_vacuum_that_waited_long_enough_says_for_whom(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_upkeep, "OLD_READERS_S", 0.0)
    async with database.store() as store:
        lease = await store.create("s", ANN)
        with database.server.session() as old:
            old.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
            [(pid,)] = old.ask("SELECT pg_backend_pid()")
            error = await raised(StoreError, store.vacuum)
            # The server may have a transaction of its own open, such as autovacuum's.
            [pids] = re.findall(r"\(server processes ([\d, ]+)\)", str(error))
            assert str(pid) in pids.split(", ")
            await written(store, lease, b"1")


async def test_writes_wait_for_a_vacuum_and_are_not_lost(store: PostgresStore) -> None:
    leases = [await store.create(f"s{at}", ANN) for at in range(10)]
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(store.vacuum)
        for lease in leases:
            for head in range(10):
                await append(store, lease, b"%d" % head, head=head).wait()
    for lease in leases:
        assert await bodies_of(store, lease.session) == [b"%d" % at for at in range(10)]


# What check() finds.

FAULTS = {
    "session 'p' lacks record 2 (2 in all)": "DELETE FROM @record WHERE seq IN (2, 3)",
    "session 'p' has record 1 twice": (
        "INSERT INTO @span SELECT session, 0, 1, log, born FROM @span WHERE session = 'p'"
    ),
    "session 'p' is at epoch 0 and has records of epoch 1": (
        "UPDATE @session SET epoch = 0 WHERE id = 'p'"
    ),
    "session 'x' is not there, and 1 spans of it are": (
        "INSERT INTO @span VALUES ('x', 1, 1, 1, 'x')"
    ),
    "session 'p' has unfinished work and is not listed with it": (
        "UPDATE @session SET unfinished = true WHERE id = 'p'"
    ),
    "log 99 has 1 records that no session has, from 5 on": (
        "INSERT INTO @record VALUES (99, 5, 1, '', NULL)"
    ),
    "log 1 has 1 records that no session has, from 5 on": (
        "INSERT INTO @record VALUES (1, 5, 1, '', NULL)"
    ),
    "is not there, and 1 times referred to": "DELETE FROM @blob",
    "counts 5 references of 1": "UPDATE @blob SET refs = 5",
    "counts 1 references of 0": "INSERT INTO @blob VALUES ('unused', '', 1)",
    "the large blocks of a record cannot be read": "UPDATE @record SET large = 'x' WHERE seq = 4",
}


@pytest.mark.parametrize("told", FAULTS)
async def test_what_is_wrong_with_the_tables_is_told(
    database: Database, store: PostgresStore, told: str
) -> None:
    body = _body(b"", b"x" * 20_000)
    await written(store, await store.create("p", ANN), b"1", b"2", b"3", body)
    await store.fork("p", 1, "f", ANN)
    assert await store.check() == []
    database.sql(FAULTS[told])
    assert [line for line in await store.check() if told in line]
