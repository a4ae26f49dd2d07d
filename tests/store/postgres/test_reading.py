"""Records in PostgreSQL that cannot be given as they were appended: named, and no others lost."""

from __future__ import annotations

import anyio
import anyio.to_thread
import pytest

from llmsession.errors import RecordDamaged, SessionNotFound
from llmsession.store import Owner, PostgresStore
from llmsession.store.postgres.reading import SMALL_BYTES
from llmsession.store.postgres.sql import LONGEST_IN_A_ROW, RECORDS_A_ROW, Statements
from llmsession.testing.store_contract.actions import append, bodies_of, raised, written
from tests.store.conftest import Database

# On one backend: what is tested runs in the store's own loop, whoever asks.
pytestmark = [pytest.mark.real_time, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

ANN = Owner("ann")
BLOCK = b'{"image":"' + b"0123456789abcdef" * 2000 + b'"}'
KEY = bytes(32)

# What goes wrong with the third of five records, and in stores with which key it is seen.
DAMAGES = {
    "gone": ("DELETE FROM @record r WHERE seq = 3", (None, KEY)),
    "block gone": ("DELETE FROM @blob", (None, KEY)),
    "block changed": ("UPDATE @blob SET body = body || 'x'", (None, KEY)),
    "blocks not told": ("UPDATE @record r SET large = 'x' WHERE seq = 3", (None, KEY)),
    "block misplaced": (
        "UPDATE @record r SET large = set_byte(large, 0, 255) WHERE seq = 3",
        (None, KEY),
    ),
    "another's block": (
        "UPDATE @record r SET large = set_byte(large, 8, 255 - get_byte(large, 8)) WHERE seq = 3",
        (None, KEY),
    ),
    "changed": ("UPDATE @record r SET body = body || 'x' WHERE seq = 3", (KEY,)),
    "cut short": ("UPDATE @record r SET body = 'x' WHERE seq = 3", (KEY,)),
    "swapped": (
        """
        UPDATE @record r SET body = o.body FROM @record o
         WHERE r.seq = 3 AND o.seq = 2 AND o.log = r.log
        """,
        (KEY,),
    ),
    "of another epoch": ("UPDATE @record r SET epoch = 7 WHERE seq = 3", (KEY,)),
}

OF_S = " AND r.log = (SELECT log FROM @session WHERE id = 's')"


@pytest.mark.parametrize(
    ("damage", "key"),
    [
        pytest.param(name, key, id=f"{name}, {'encrypted' if key else 'plain'}")
        for name, (_, keys) in DAMAGES.items()
        for key in keys
    ],
)
async def test_a_damaged_record_is_named_and_what_is_before_it_is_read(
    database: Database, damage: str, key: bytes | None
) -> None:
    async with database.store(key=key) as store:
        lease = await written(store, await store.create("s", ANN), b"1", b"2", BLOCK, b"4", b"5")
        other = await written(store, await store.create("t", ANN), b"1", b"2", b"3")
        statement = DAMAGES[damage][0]
        database.sql(statement + ("" if "blob" in statement else OF_S))
        assert await bodies_of(store, "s") == [b"1", b"2"]
        assert [r.body for r in await store.read("s", after=1, limit=3)] == [b"2"]
        error = await raised(RecordDamaged, lambda: store.read("s", after=2))
        assert (error.session, error.seq, error.committed) == ("s", 3, False)
        assert [r.body for r in await store.read("s", after=3)] == [b"4", b"5"]
        assert await bodies_of(store, "t") == [b"1", b"2", b"3"]
        # Nothing is overwritten, and both go on.
        await written(store, lease, b"6")
        await written(store, other, b"4")
        # What is damaged can be replaced, where there is something to replace.
        if damage == "gone":
            await raised(RecordDamaged, lambda: store.rewrite(lease, {3: b"new"}))
        else:
            database.sql("UPDATE @record r SET large = NULL WHERE length(large) <> 40")
            await store.rewrite(lease, {3: b"new"})
            read = await store.read("s", after=2, limit=1)
            assert damage == "of another epoch" or read[0].body == b"new"


async def test_the_last_record_is_missed_when_it_is_gone(
    database: Database, store: PostgresStore
) -> None:
    await written(store, await store.create("s", ANN), b"1", b"2")
    database.sql("DELETE FROM @record WHERE seq = 2")
    assert await bodies_of(store, "s") == [b"1"]
    await raised(RecordDamaged, lambda: store.read("s", after=1))
    assert await store.read("s", after=2) == []


async def test_a_page_that_the_server_cannot_read_costs_the_records_on_it_alone(
    frail_database: Database,
) -> None:
    server = frail_database.server
    if frail_database.sql("SHOW data_checksums") != [("on",)]:
        pytest.skip("this server's pages have no checksums")
    async with frail_database.store() as store:
        lease = await store.create("s", ANN)
        await written(store, lease, *[b"%d" % at * 300 for at in range(100)])
        await written(store, await store.create("sound", ANN), b"a", b"b")
        [(path,)] = frail_database.sql(
            "SELECT pg_relation_filepath($1)", f'"{frail_database.schema}".record'
        )
        [(first,)] = frail_database.sql(
            "SELECT min(seq) FROM @record WHERE (ctid::text::point)[0] = 1"
        )
        frail_database.sql("CHECKPOINT")
        await anyio.to_thread.run_sync(server.stop)
        with (server.data / path).open("r+b") as file:
            file.seek(8192 + 4000)
            file.write(b"damage")
        await anyio.to_thread.run_sync(server.start)
        bodies = await bodies_of(store, "s")
        assert bodies == [b"%d" % at * 300 for at in range(first - 1)]
        error = await raised(RecordDamaged, lambda: store.read("s", after=first - 1))
        assert error.seq == first
        together: dict[str, object] = {}

        async def read(name: str, after: int) -> None:
            try:
                records = await store.read(name, after=after, limit=2)
                together[name] = [record.body for record in records]
            except RecordDamaged as error:
                together[name] = error.seq

        async with anyio.create_task_group() as group:
            group.start_soon(read, "s", first - 1)
            group.start_soon(read, "sound", 0)
        assert together == {"s": first, "sound": [b"a", b"b"]}
        assert (await store.read("s", after=98))[-1].body == b"99" * 300
        limited = await store.read("s", after=first - 3, limit=50)
        assert [record.seq for record in limited] == [first - 2, first - 1]


async def test_large_records_come_back_in_any_number(
    database: Database, store: PostgresStore
) -> None:
    bodies = [BLOCK + b"%d" % at for at in range(40)]
    lease = await store.create("s", ANN)
    answers = [append(store, lease, body, head=at) for at, body in enumerate(bodies)]
    for answer in answers:
        await answer.wait()
    assert await bodies_of(store, "s") == bodies
    assert database.sql("SELECT count(*) FROM @blob") == [(1,)]


async def test_logs_of_any_length_are_read_alike_with_small_records_and_with_larger_ones(
    store: PostgresStore,
) -> None:
    for size in (5, 2 * SMALL_BYTES):
        bodies = [b"%d" % at * size for at in range(200)]
        lease = await written(store, await store.create(f"s{size}", ANN), *bodies[:150])
        fork = await store.fork(lease.session, 100, f"f{size}", ANN)
        await written(store, fork, *bodies[100:])
        taken = await store.acquire(lease.session, ANN)
        await written(store, taken, *bodies[150:])
        # Twice, because the first time tells how large the records are.
        for session in [lease.session, fork.session] * 2:
            for after in (0, 1, 63, 64, 65, 99, 100, 150, 199, 200, 201):
                for limit in (None, 17, 64, 100, 128):
                    records = await store.read(session, after=after, limit=limit)
                    seqs = range(after + 1, 201 if limit is None else min(200, after + limit) + 1)
                    assert [record.seq for record in records] == [*seqs]
                    assert [record.body for record in records] == [bodies[at - 1] for at in seqs]
        records = await store.read(lease.session)
        assert {record.epoch for record in records[:150]} == {lease.epoch}
        assert {record.epoch for record in records[150:]} == {taken.epoch}


async def test_a_row_of_many_records_is_never_large_however_long_they_are(
    database: Database, store: PostgresStore
) -> None:
    """PostgreSQL refuses an array of 1 GiB, and has each row in memory as a whole."""
    long = b"x" * (LONGEST_IN_A_ROW + 1)
    bodies = [long] * 70 + [b"%d" % at for at in range(130)]
    await written(store, await store.create("s", ANN), *bodies)
    statement = Statements(database.schema).read_small
    rows = database.sql(statement, "s", 0, 200)
    sizes = [sum(map(len, records)) for _, _, records in rows if records is not None]
    assert 0 < max(sizes) <= RECORDS_A_ROW * LONGEST_IN_A_ROW
    for _ in range(2):
        for after in (0, 10, 60, 64, 70, 90, 200):
            assert [record.body for record in await store.read("s", after=after)] == bodies[after:]


@pytest.mark.parametrize("gone", [1, 64, 65, 100, 128, 129, 200])
async def test_many_small_records_are_read_up_to_one_that_is_gone(
    database: Database, store: PostgresStore, gone: int
) -> None:
    bodies = [b"%d" % at for at in range(200)]
    await written(store, await store.create("s", ANN), *bodies)
    database.sql("DELETE FROM @record WHERE seq = $1", gone)
    database.sql("DELETE FROM @record WHERE seq BETWEEN 130 AND 195")
    if gone > 1:
        assert await bodies_of(store, "s") == bodies[: min(gone, 130) - 1]
    error = await raised(RecordDamaged, lambda: store.read("s", after=gone - 1))
    assert error.seq == gone
    rest = [record.seq for record in await store.read("s", after=195)]
    assert rest == [*range(196, 200 if gone == 200 else 201)]


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
async def test_sessions_that_are_read_together_get_their_own_records_each(
    database: Database, key: bytes | None
) -> None:
    found: dict[str, list[tuple[int, bytes]] | None] = {}
    async with database.store(key=key) as store:
        for number in range(40):
            lease = await store.create(f"s{number}", ANN)
            await written(store, lease, *[b"%d/%d" % (number, at) for at in range(1, number + 1)])

        async def read(name: str, after: int, limit: int | None) -> None:
            try:
                records = await store.read(name, after=after, limit=limit)
            except SessionNotFound:
                found[name] = None
            else:
                found[name] = [(record.seq, record.body) for record in records]

        async with anyio.create_task_group() as group:
            for number in range(41):
                group.start_soon(read, f"s{number}", number % 3, None if number % 5 == 0 else 16)
    expected = {
        f"s{number}": [
            (at, b"%d/%d" % (number, at))
            for at in range(number % 3 + 1, number + 1)
            if number % 5 == 0 or at <= number % 3 + 16
        ]
        for number in range(40)
    }
    assert found == {**expected, "s40": None}
