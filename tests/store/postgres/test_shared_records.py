"""Records that several sessions share in PostgreSQL: forked, rewritten and deleted by many at once,
and with connections that are cut."""

from __future__ import annotations

from functools import partial
from random import Random

import anyio
import pytest

from llmsession.errors import SessionError, SessionExists, SessionMoved, SessionNotFound
from llmsession.store import Owner, Word
from llmsession.store.postgres.store import PostgresStore
from llmsession.testing.store_contract.actions import append, bodies_of, raised, written
from tests.store.conftest import Database
from tests.store.postgres.proxy import Proxy, When

# On one backend: what is tested runs in the store's own loop, whoever asks.
pytestmark = [pytest.mark.real_time, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

ANN = Owner("ann")
BLOCK = b'{"image":"' + b"0123456789abcdef" * 2000 + b'"}'


async def test_a_fork_copies_no_record(database: Database, store: PostgresStore) -> None:
    await written(store, await store.create("p", ANN), *[b"%d" % at for at in range(100)])
    await store.fork("p", 90, "f", ANN)
    await store.fork("f", 80, "g", ANN)
    assert database.sql("SELECT count(*) FROM @record") == [(100,)]
    assert await bodies_of(store, "g") == [b"%d" % at for at in range(80)]


async def test_rewriting_what_nobody_shares_copies_no_record(
    database: Database, store: PostgresStore
) -> None:
    lease = await written(store, await store.create("p", ANN), b"1", b"2", b"3")
    await store.fork("p", 1, "f", ANN)
    await store.rewrite(lease, {2: b"two"})
    assert database.sql("SELECT count(*) FROM @record") == [(3,)]
    await store.rewrite(lease, {1: b"one", 3: b"three"})
    assert database.sql("SELECT count(*) FROM @record") == [(4,)]  # both versions of the first
    await store.delete("f")
    assert database.sql("SELECT count(*) FROM @record") == [(3,)]
    assert await bodies_of(store, "p") == [b"one", b"two", b"three"]


async def test_a_deletion_leaves_no_record_that_no_session_has(
    database: Database, store: PostgresStore
) -> None:
    parent = await written(store, await store.create("p", ANN), *[b"%d" % at for at in range(9)])
    fork = await written(store, await store.fork("p", 4, "f", ANN), b"f5", b"f6")
    await store.fork("f", 5, "g", ANN)
    await store.rewrite(fork, {2: b"f2", 6: b"f6!"})
    await store.rewrite(parent, {1: b"p1"})
    await store.delete("p")
    # 1, 3 and 4 of the parent's, 2 of it for g, f's own 2, 5 and 6.
    assert database.sql("SELECT count(*) FROM @record") == [(7,)]
    assert await bodies_of(store, "f") == [b"0", b"f2", b"2", b"3", b"f5", b"f6!"]
    assert await bodies_of(store, "g") == [b"0", b"1", b"2", b"3", b"f5"]
    await store.delete("f")
    assert database.sql("SELECT count(*) FROM @record") == [(5,)]
    await store.delete("g")
    for table in ("record", "span", "session", "blob"):
        assert database.sql(f"SELECT count(*) FROM @{table}") == [(0,)]


async def test_forks_rewrites_and_deletions_at_once_leave_nothing_astray(
    database: Database,
) -> None:
    async with database.store() as one, database.store() as two:
        parent = await one.create("p", ANN)
        await written(one, parent, *([BLOCK, b"1"] * 10))
        done: list[str] = []

        async def live(at: int) -> None:
            random = Random(at)
            store = (one, two)[at % 2]
            for turn in range(12):
                name = f"f{at}-{turn}"
                of = random.choice(["p", f"f{(at + 1) % 6}-{turn - 1}"])
                try:
                    lease = await store.fork(of, 10, name, ANN)
                    await store.rewrite(lease, {random.randint(1, 10): BLOCK + b"%d" % at})
                    await append(store, lease, BLOCK).wait()
                    if random.random() < 0.7:
                        await store.delete(name)
                    done.append(name)
                except SessionNotFound:
                    pass  # what was to be forked is gone

        async with anyio.create_task_group() as group:
            for at in range(6):
                group.start_soon(live, at)
        assert len(done) > 20
        assert await one.check() == []
        assert await bodies_of(one, "p") == [BLOCK, b"1"] * 10


async def test_a_rewriting_waits_for_forks_in_the_order_in_which_appends_lock_them(
    database: Database,
) -> None:
    """It has their new words indexed. In another order the server would have to end a deadlock."""
    async with database.store() as store:
        lease = await written(store, await store.create("p", ANN), b"1", b"2")
        for fork in ("f4", "f1", "f5", "f2", "f3"):  # so they lie in the table
            await store.fork("p", 2, fork, ANN)
        lease = await written(store, lease, b"3")
        assert await store.rows_with([Word("3")], lambda body: [body.decode()])
        with database.locked("session", "id = 'f2'") as appends:
            async with anyio.create_task_group() as group:
                group.start_soon(store.rewrite, lease, {3: b"4"})
                await database.wait_for(1)
                # Those behind it are free: who holds one waits for none that comes before it.
                appends.run(
                    f'SELECT FROM "{database.schema}".session'
                    " WHERE id IN ('f3', 'f4', 'f5') FOR UPDATE NOWAIT"
                )
                appends.run("COMMIT")
        assert database.sql("SELECT bool_and(unindexed) FROM @session") == [(True,)]


async def test_two_that_share_records_and_are_deleted_at_once_leave_none(
    database: Database, store: PostgresStore
) -> None:
    await written(store, await store.create("p", ANN), BLOCK, b"2")
    await store.fork("p", 2, "f", ANN)
    # The first one comes as far as its end, with its spans gone and not committed.
    with database.locked("store", "one") as lock:
        async with anyio.create_task_group() as group:
            for count, session in enumerate(("p", "f"), 1):
                group.start_soon(store.delete, session)
                await database.wait_for(count)
            lock.run("ROLLBACK")
    assert database.sql("SELECT count(*) FROM @record") == [(0,)]
    assert await store.check() == []


async def test_a_deletion_waits_for_nobody_that_appends_elsewhere(
    database: Database, store: PostgresStore
) -> None:
    await store.create("s", ANN)
    other = await store.create("t", ANN)
    with database.locked("session", "id = 's'") as lock:
        async with anyio.create_task_group() as group:
            group.start_soon(store.delete, "s")
            await database.wait_for(1)
            for at in range(5):
                other = await written(store, other, b"%d" % at)
            await store.create("u", ANN)
            lock.run("ROLLBACK")
    assert [row.session for row in await store.rows()] == ["t", "u"]


# Answers that are lost: of a statement in the middle, and of the commit.


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("mark", [b"here", b"COMMIT"])
async def test_a_change_that_was_cut_off_is_done_once(
    database: Database, proxy: Proxy, mark: bytes, when: When
) -> None:
    async with database.store(dsn=proxy.dsn) as store:
        lease = await written(store, await store.create("here", ANN), BLOCK, b"2", b"3")
        proxy.cut(mark, when)
        fork = await store.fork("here", 2, "here too", ANN)
        assert await bodies_of(store, "here too") == [BLOCK, b"2"]
        proxy.cut(mark, when)
        await store.rewrite(lease, {1: BLOCK + b"!", 3: b"three"})
        assert await bodies_of(store, "here") == [BLOCK + b"!", b"2", b"three"]
        assert await bodies_of(store, "here too") == [BLOCK, b"2"]
        proxy.cut(mark, when)
        await store.delete("here")
        await raised(SessionNotFound, lambda: store.delete("here"))
        await written(store, fork, b"mine")
        assert proxy.cuts == 3
        assert await store.check() == []


async def test_a_fork_of_somebody_else_is_not_taken_for_one_that_was_cut_off(
    database: Database, proxy: Proxy
) -> None:
    async with database.store() as there, database.store(dsn=proxy.dsn) as here:
        await written(there, await there.create("p", ANN), b"1", b"2")
        await there.fork("p", 1, "f", Owner("bob"))
        await here.rows()
        proxy.cut(b"\x00\x00\x00\x01f", "after")
        await raised(SessionExists, lambda: here.fork("p", 1, "f", ANN))
        assert proxy.cuts == 1


@pytest.mark.parametrize("is_fenced", [False, True])
async def test_a_deletion_that_was_cut_off_leaves_a_session_that_was_created_since(
    database: Database, proxy: Proxy, is_fenced: bool
) -> None:
    async with database.store() as there, database.store(dsn=proxy.dsn, retry_s=120.0) as here:
        lease = await here.create("s", ANN)
        proxy.cut(b"COMMIT", "after", hold_back=True)
        async with anyio.create_task_group() as group:
            epoch = lease.epoch if is_fenced else None
            group.start_soon(partial(here.delete, "s", epoch=epoch))
            await proxy.wait_until_cut()
            await written(there, await there.create("s", Owner("bob")), b"new")
            proxy.let_through()
        assert await bodies_of(there, "s") == [b"new"]
        assert proxy.cuts == 1


@pytest.mark.parametrize("is_fenced", [False, True])
async def test_a_deletion_that_was_not_done_finds_the_session_with_its_new_owner(
    database: Database, proxy: Proxy, is_fenced: bool
) -> None:
    async with database.store() as there, database.store(dsn=proxy.dsn, retry_s=120.0) as here:
        lease = await here.create("s", ANN)
        proxy.cut(b"COMMIT", "before", hold_back=True)
        delete = partial(here.delete, "s", epoch=lease.epoch if is_fenced else None)
        moved: list[SessionError] = []

        async def perform() -> None:
            try:
                await delete()
            except SessionMoved as error:
                moved.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(perform)
            await proxy.wait_until_cut()
            await there.acquire("s", Owner("bob"), takeover=True)
            proxy.let_through()
        assert len(moved) == is_fenced
        assert len(await there.rows()) == is_fenced
        assert proxy.cuts == 1


async def test_without_patience_a_change_that_was_cut_off_is_told_as_unknown(
    database: Database, proxy: Proxy
) -> None:
    async with database.store(dsn=proxy.dsn, retry_s=0.0) as store:
        await store.create("here", ANN)
        for when in ("before", "after"):
            proxy.cut(b"COMMIT", when)
            error = await raised(SessionError, lambda: store.fork("here", 0, "f", ANN))
            assert getattr(error, "committed", False) is None
        assert sorted(row.session for row in await store.rows()) == ["f", "here"]
