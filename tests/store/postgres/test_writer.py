"""Appends to PostgreSQL: connections that are cut, servers that go and come back, batches that
cannot be written."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import anyio
import anyio.to_thread
import pytest

from llmsession.errors import StoreError
from llmsession.store import Appended, AppendResult, Batch, Conflict, Lease, Lost, Owner
from llmsession.store.postgres import writer
from llmsession.store.postgres.connections import Connections, RetryPolicy
from llmsession.store.postgres.groups import MAX_BATCHES
from llmsession.store.postgres.store import PostgresStore
from llmsession.store.postgres.thread import LoopThread
from llmsession.store.postgres.writer import WORKERS, Writer
from llmsession.testing.store_contract.actions import Answer, append, bodies_of, raised, written
from tests.store.conftest import Database
from tests.store.postgres.proxy import Proxy, When

pytestmark = pytest.mark.real_time

ANN, BOB = Owner("ann"), Owner("bob")
MARK = b"cut here, please"


@asynccontextmanager
async def in_one_group(database: Database, store: PostgresStore) -> AsyncIterator[None]:
    """What is appended in here waits until it is left, and is then written together."""
    leases = [await store.create(f"busy {uuid.uuid4().hex}", ANN) for _ in range(WORKERS)]
    with database.locked("session", "id LIKE 'busy %'") as lock:
        answers: list[Answer] = []
        for lease in leases:
            answers.append(append(store, lease, b"1"))
            await database.wait_for(len(answers))
        yield
        lock.run("ROLLBACK")
    for answer in answers:
        assert await answer.wait() == Appended(1)


# Connections that are cut in the middle.


@pytest.mark.parametrize("when", ["before", "within", "after"])
async def test_a_batch_whose_connection_is_cut_is_written_once_all_the_same(
    database: Database, proxy: Proxy, when: When
) -> None:
    async with database.store(dsn=proxy.dsn) as store:
        lease = await written(store, await store.create("s", ANN), b"1")
        other = await store.create("t", ANN)
        proxy.cut(MARK, when)
        answers = [append(store, lease, MARK, b"3"), append(store, other, b"t1")]
        assert [await answer.wait() for answer in answers] == [Appended(3), Appended(1)]
        assert proxy.cuts == 1
        await written(store, Lease("s", 1, 3), b"4")
        assert await bodies_of(store, "s") == [b"1", MARK, b"3", b"4"]
        assert await bodies_of(store, "t") == [b"t1"]
        assert await store.check() == []


@pytest.mark.parametrize("when", ["before", "within", "after"])
async def test_without_patience_nobody_knows_what_became_of_a_batch_that_was_cut(
    database: Database, proxy: Proxy, when: When
) -> None:
    async with database.store(dsn=proxy.dsn, retry_s=0.0) as store:
        lease = await written(store, await store.create("s", ANN), b"1")
        proxy.cut(MARK, when)
        result = await append(store, lease, MARK).lost()
        assert result.committed is None
        assert "open-sesame" not in result.error
        # The log knows; the next one finds a new connection.
        bodies = await bodies_of(store, "s")
        assert bodies == ([b"1", MARK] if when == "after" else [b"1"])
        await written(store, Lease("s", 1, len(bodies)), b"next")


async def test_batches_that_follow_a_doubtful_one_find_their_places(
    database: Database, proxy: Proxy
) -> None:
    async with database.store(dsn=proxy.dsn) as store:
        lease = await store.create("s", ANN)
        proxy.cut(MARK, "after")
        answers = [append(store, lease, body, head=at) for at, body in enumerate([MARK, b"2"])]
        answers += [append(store, lease, b"%d" % at, head=at - 1) for at in range(3, 30)]
        assert [await a.wait() for a in answers] == [Appended(at) for at in range(1, 30)]
        assert len(await bodies_of(store, "s")) == 29


async def left_in_doubt(store: PostgresStore, proxy: Proxy, when: When) -> Answer:
    """A session ``s`` with one record, and the answer for a second one: its connection was cut
    before or after the server got it, and nothing reaches the server now."""
    lease = await written(store, await store.create("s", ANN), b"1")
    proxy.cut(MARK, when, hold_back=True)
    answer = append(store, lease, MARK)
    await proxy.wait_until_cut()
    return answer


@pytest.mark.parametrize(
    ("when", "theirs", "written_is_ours"),
    [("before", b"bob's", False), ("after", b"bob's", True), ("before", MARK, False)],
    ids=[
        "the server has not heard of it",
        "it was written before the other owner came",
        "the other owner wrote an equal one, in another epoch",
    ],
)
async def test_a_doubtful_batch_that_another_owner_overtook_is_told_as_the_log_has_it(
    database: Database, proxy: Proxy, when: When, theirs: bytes, written_is_ours: bool
) -> None:
    async with database.store(dsn=proxy.dsn) as store, database.store() as elsewhere:
        # While the store connects again, the session is taken over.
        answer = await left_in_doubt(store, proxy, when)
        await written(elsewhere, await elsewhere.acquire("s", BOB, takeover=True), theirs)
        proxy.let_through()
        result = await answer.wait()
        if written_is_ours:
            assert result == Appended(2)
        else:
            assert isinstance(result, Conflict)
            assert result.row is not None
            assert (result.row.epoch, result.row.head) == (2, 2)
        ours = [MARK] if written_is_ours else []
        assert await bodies_of(store, "s") == [b"1", *ours, theirs]


async def test_a_doubtful_batch_of_a_session_that_was_deleted_conflicts_without_a_row(
    database: Database, proxy: Proxy
) -> None:
    async with database.store(dsn=proxy.dsn) as store, database.store() as elsewhere:
        answer = await left_in_doubt(store, proxy, "after")
        await elsewhere.delete("s")
        proxy.let_through()
        assert await answer.wait() == Conflict(None)


# Servers that are not there.


async def test_where_no_server_is_surely_nothing_was_written(database: Database) -> None:
    dsn = "postgresql://me:open-sesame@127.0.0.1:1/things"
    async with database.store(dsn=dsn, retry_s=0.05) as store:
        result = await append(store, Lease("s", 1, 0), b"1").lost()
        assert result.committed is False
        error = await raised(StoreError, lambda: store.create("s", ANN))
        assert error.committed is False
        for told in (result.error, str(error)):
            assert "PostgreSQL at 127.0.0.1:1, database things" in told
            assert "open-sesame" not in told


async def test_all_that_wait_for_a_server_are_given_up_at_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[bool] = []
    all_wait = threading.Event()

    async def run(self: Connections, act: object) -> None:
        await asyncio.to_thread(all_wait.wait)
        tried.append(True)
        raise StoreError("nobody is there", committed=False)

    monkeypatch.setattr(Connections, "run", run)
    async with database.store() as store:
        answers = [append(store, Lease(f"s{at}", 1, 0), b"1") for at in range(9 * MAX_BATCHES)]
        all_wait.set()
        results = [await answer.wait() for answer in answers]
        assert all(result == Lost("nobody is there", False) for result in results)
    assert len(tried) <= WORKERS + 1  # the first worker had looked for the server before


async def test_before_the_first_use_all_callers_wait_for_a_server_together(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, all_wait = 0, asyncio.Event()

    async def wait(self: RetryPolicy) -> bool:
        nonlocal waiting
        waiting += 1
        if waiting == 5:
            all_wait.set()
        await asyncio.wait_for(all_wait.wait(), 60)
        return False

    monkeypatch.setattr(RetryPolicy, "wait", wait)
    async with database.store(dsn="postgresql://me@127.0.0.1:1/things") as store:
        async with anyio.create_task_group() as group:
            for at in range(5):
                group.start_soon(raised, StoreError, partial(store.create, f"s{at}", ANN))
        assert waiting == 5


async def test_a_server_that_refuses_what_it_lost_before_is_waited_for_as_long_the_next_time(
    database: Database, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies: list[RetryPolicy] = []

    class Noted(RetryPolicy):
        def __init__(self, retry_s: float) -> None:
            super().__init__(retry_s)
            policies.append(self)

    monkeypatch.setattr(writer, "RetryPolicy", Noted)
    async with database.store(dsn=proxy.dsn) as store:
        lease = await written(store, await store.create("s", ANN), b"1")
        database.sql("ALTER TABLE @record ADD CHECK (length(body) < 1000)")
        proxy.cut(MARK, "before")
        before = len(policies)
        await append(store, lease, MARK + b"x" * 2000).lost()
        assert proxy.cuts == 1
        assert len(policies) == before + 1


async def test_a_server_that_comes_back_in_time_is_waited_for(frail_database: Database) -> None:
    server = frail_database.server
    async with frail_database.store() as store:
        lease = await written(store, await store.create("s", ANN), b"1")
        await anyio.to_thread.run_sync(server.stop)
        answers = [append(store, lease, b"2"), append(store, lease, b"3", head=2)]
        async with anyio.create_task_group() as group:
            read: list[list[bytes]] = []

            async def look() -> None:
                read.append(await bodies_of(store, "s"))

            group.start_soon(look)
            await anyio.to_thread.run_sync(server.start)
        assert [await answer.wait() for answer in answers] == [Appended(2), Appended(3)]
        assert read[0][:1] == [b"1"]
        assert await bodies_of(store, "s") == [b"1", b"2", b"3"]


async def test_a_server_that_stays_away_is_given_up_and_found_again_later(
    frail_database: Database,
) -> None:
    server = frail_database.server
    async with frail_database.store(retry_s=0.1) as store:
        lease = await written(store, await store.create("s", ANN), b"1")
        await anyio.to_thread.run_sync(server.stop)
        try:
            results = [await append(store, lease, b"2").wait() for _ in range(2)]
            await raised(StoreError, lambda: store.row("s"))
        finally:
            await anyio.to_thread.run_sync(server.start)
        # Whether the first one was sent before the end was noticed nobody can say; the second one
        # met no server.
        assert [type(result) for result in results] == [Lost, Lost]
        assert isinstance(results[1], Lost)
        assert results[1].committed is False
        await written(store, lease, b"2")
        assert await bodies_of(store, "s") == [b"1", b"2"]


async def test_a_server_that_restarts_under_load_loses_nothing_and_doubles_nothing(
    frail_database: Database,
) -> None:
    server = frail_database.server
    async with frail_database.store() as store:
        acknowledged: dict[str, list[bytes]] = {}
        stopping = anyio.Event()

        async def write(session: str) -> None:
            lease = await store.create(session, ANN)
            bodies = acknowledged[session] = []
            while not stopping.is_set():
                batch = [b"%s/%d" % (session.encode(), len(bodies) + at) for at in range(2)]
                lease = await written(store, lease, *batch)
                bodies += batch

        async with anyio.create_task_group() as group:
            for at in range(20):
                group.start_soon(write, f"s{at}")
            for _ in range(3):
                before = sum(map(len, acknowledged.values()))
                await anyio.to_thread.run_sync(server.restart)
                while sum(map(len, acknowledged.values())) < before + 200:
                    await anyio.lowlevel.checkpoint()
            stopping.set()
        for session, bodies in acknowledged.items():
            assert await bodies_of(store, session) == bodies
        assert await store.check() == []


# Batches that cannot be written.


async def test_a_batch_that_cannot_be_written_is_lost_alone(
    database: Database, store: PostgresStore
) -> None:
    leases = [await store.create(f"s{at}", ANN) for at in range(5)]
    # What is wrong with it is the server's to say: as with a body that is too large for it.
    database.sql("ALTER TABLE @record ADD CHECK (length(body) < 1000)")
    async with in_one_group(database, store):
        answers = [append(store, lease, b"fine") for lease in leases[:2]]
        bad = append(store, leases[2], b"x" * 2000)
        after_bad = append(store, leases[2], b"after", head=1)
        answers += [append(store, lease, b"fine") for lease in leases[3:]]
    assert [await answer.wait() for answer in answers] == [Appended(1)] * 4
    result = await bad.lost()
    assert result.committed is False
    assert "xxx" not in result.error
    assert isinstance(await after_bad.wait(), Conflict)
    await written(store, leases[2], b"small")
    assert await store.check() == []


async def test_a_done_that_raises_keeps_no_other_from_its_answer(database: Database) -> None:
    problems: list[str] = []
    async with database.store() as store:
        leases = [await store.create(f"s{at}", ANN) for at in range(3)]
        answers = [Answer() for _ in leases]

        def done(answer: Answer, result: AppendResult) -> None:
            answer.done(result)
            if answer is answers[0]:
                problems.append("raised")

        for lease, answer in zip(leases, answers, strict=True):
            store.append(Batch(lease.session, 1, 0, (b"1",)), partial(done, answer))
        assert [await answer.wait() for answer in answers] == [Appended(1)] * 3
        assert problems == ["raised"]


async def test_done_may_append_the_next_batch(store: PostgresStore) -> None:
    everything = anyio.Event()
    lease = await store.create("s", ANN)

    def done(result: AppendResult) -> None:
        assert isinstance(result, Appended)
        if result.head == 20:
            everything.set()
        else:
            write(result.head)

    def write(head: int) -> None:
        store.append(Batch("s", lease.epoch, head, (b"%d" % head,)), done)

    write(0)
    with anyio.fail_after(100):
        await everything.wait()
    assert await bodies_of(store, "s") == [b"%d" % at for at in range(20)]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_is_appended_in_one_pass_of_the_loop_wakes_one_worker_once() -> None:
    appended = 0
    woken_after: list[int] = []

    class Thread(LoopThread):
        def soon(self, call: Callable[[], object]) -> None:
            woken_after.append(appended)

    unused = cast(Any, None)
    writer = Writer(Thread("unused"), unused, unused, unused, unused)
    for _ in range(3):
        writer.put(Batch("s", 1, appended, (b"1",)), lambda result: None)
        appended += 1
    assert woken_after == []
    await anyio.lowlevel.checkpoint()
    assert woken_after == [3]


async def test_batches_of_many_shapes_go_in_one_group(
    database: Database, store: PostgresStore
) -> None:
    bodies: list[tuple[bytes, ...]] = [
        (),
        (b"",),
        (b"", b"", b"x"),
        (b"one",),
        (b"two", b"three" * 10_000),
        (b'{"image":"' + b"A" * 20_000 + b'"}',),
        (b"a", b'{"image":"' + b"A" * 20_000 + b'","more":"' + b"B" * 20_000 + b'"}', b"c"),
    ]
    leases = [await store.create(f"s{at}", ANN) for at in range(len(bodies))]
    labels: list[dict[str, str] | None] = [None, {}, {"a": "1"}, None, {"b": "2"}, None, {}]
    answers = [Answer() for _ in leases]
    async with in_one_group(database, store):
        for lease, batch, given, answer in zip(leases, bodies, labels, answers, strict=True):
            store.append(Batch(lease.session, 1, 0, batch, 7.0, given), answer.done)
    assert [await a.wait() for a in answers] == [Appended(len(batch)) for batch in bodies]
    for lease, batch, given in zip(leases, bodies, labels, strict=True):
        assert await bodies_of(store, lease.session) == list(batch)
        row = await store.row(lease.session)
        assert (row.labels, row.touched_at) == (given or {}, 7.0)
    # One that gives labels changes nobody else's, though they are written together.
    again = [Answer() for _ in leases]
    async with in_one_group(database, store):
        for at, (lease, batch, answer) in enumerate(zip(leases, bodies, again, strict=True)):
            new = {"new": "1"} if at == 0 else None
            store.append(Batch(lease.session, 1, len(batch), (b"more",), 8.0, new), answer.done)
    assert [await a.wait() for a in again] == [Appended(len(batch) + 1) for batch in bodies]
    labels[0] = {"new": "1"}
    for lease, given in zip(leases, labels, strict=True):
        assert (await store.row(lease.session)).labels == (given or {})
    assert await store.check() == []


async def test_a_role_whose_commits_are_not_durable_gets_durable_ones(database: Database) -> None:
    role = f"lazy_{database.schema}"
    database.sql(f"CREATE ROLE {role} SUPERUSER LOGIN")
    database.sql(f"ALTER ROLE {role} SET synchronous_commit = off")
    database.sql(f"ALTER ROLE {role} SET default_transaction_isolation = serializable")
    database.sql(f"ALTER ROLE {role} SET default_transaction_read_only = on")
    dsn = database.dsn.replace("postgres@", f"{role}@")
    async with database.store(dsn=dsn) as store:
        lease = await store.create("s", ANN)
        database.sql(
            """
            CREATE FUNCTION @told() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF current_setting('synchronous_commit') <> 'on'
                   OR current_setting('transaction_isolation') <> 'read committed'
                THEN RAISE 'not durable'; END IF;
                RETURN NULL;
            END $$""".replace("@told", f'"{database.schema}".told')
        )
        call = f'EXECUTE FUNCTION "{database.schema}".told()'
        database.sql(f"CREATE TRIGGER told AFTER INSERT ON @record {call}")
        await written(store, lease, b"1")
