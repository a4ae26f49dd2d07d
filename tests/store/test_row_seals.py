"""A row of an encrypted store that was changed without the key is noticed: when the session is
opened, read, exported or forked, and by ``integrity``. Nobody gets another one's conversation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import apsw
import pytest

from llmsession import SessionConfig, SessionManager, Store
from llmsession.errors import RecordDamaged
from llmsession.session.manager import runtime_of
from llmsession.session.operations.integrity import Examined, examine
from llmsession.store import PostgresStore, SqliteStore, cipher
from llmsession.testing import ScriptedProvider, say
from tests.store.conftest import Database

pytestmark = pytest.mark.real_time
KEY = bytes(range(32))
ANNA, BOB, FORK = "anna/1", "bob/1", "bob/2"

# What somebody does to the tables who has no key: statements for SQLite, and for PostgreSQL.
SWAP_LOGS = (
    """
    UPDATE session SET log = -log, head_seal = (
        SELECT o.head_seal FROM session o WHERE o.id <> session.id AND o.parent IS NULL)
     WHERE parent IS NULL;
    UPDATE session SET log = iif(id = 'anna/1', 2, 1) WHERE log < 0;
    """,
    """
    UPDATE @span SET session = 'x' WHERE session = 'anna/1';
    UPDATE @span SET session = 'anna/1' WHERE session = 'bob/1';
    UPDATE @span SET session = 'bob/1' WHERE session = 'x'
    """,
)
RENAME = (
    """
    UPDATE session SET id = 'x' WHERE id = 'anna/1';
    UPDATE session SET id = 'anna/1' WHERE id = 'bob/1';
    UPDATE session SET id = 'bob/1' WHERE id = 'x';
    """,
    """
    UPDATE @session SET labels = NULL WHERE parent IS NULL;
    UPDATE @session SET id = 'x' WHERE id = 'anna/1';
    UPDATE @session SET id = 'anna/1' WHERE id = 'bob/1';
    UPDATE @session SET id = 'bob/1' WHERE id = 'x';
    UPDATE @span SET session = 'x' WHERE session = 'anna/1';
    UPDATE @span SET session = 'anna/1' WHERE session = 'bob/1';
    UPDATE @span SET session = 'bob/1' WHERE session = 'x'
    """,
)
CUT = (
    """
    DELETE FROM record WHERE place = 1 << 32 | (SELECT head FROM session WHERE id = 'anna/1');
    UPDATE session SET head = head - 1 WHERE id = 'anna/1';
    """,
    """
    DELETE FROM @record r USING @session s
     WHERE s.id = 'anna/1' AND r.log = s.log AND r.seq = s.head;
    UPDATE @session SET head = head - 1 WHERE id = 'anna/1'
    """,
)
POINT_A_FORK_ELSEWHERE = (
    """
    UPDATE segment SET source = 1;
    """,
    """
    UPDATE @span SET log = a.log, born = a.born FROM @span a
     WHERE a.session = 'anna/1' AND @span.session = 'bob/2' AND @span.first = 1
    """,
)
MAKE_A_FORK_OF_ANOTHERS = (
    """
    UPDATE session SET parent = 'bob/1', head_seal = NULL, origin_seal = NULL WHERE id = 'anna/1';
    INSERT INTO segment SELECT log, 1, head, 2 FROM session WHERE id = 'anna/1';
    """,
    """
    UPDATE @session SET parent = 'bob/1', head_seal = NULL, origin_seal = NULL
     WHERE id = 'anna/1';
    DELETE FROM @span WHERE session = 'anna/1';
    INSERT INTO @span SELECT 'anna/1', first, last, log, born FROM @span WHERE session = 'bob/1'
    """,
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # what is tested here lies in files


class Place:
    """An encrypted store, and a way to its tables beside it."""

    def __init__(self, make: Callable[[], Store], tamper: Callable[[tuple[str, str]], None]):
        self.make = make
        self.tamper = tamper

    @asynccontextmanager
    async def managing(self) -> AsyncIterator[SessionManager]:
        provider = ScriptedProvider(lambda request, tag: say("fine"))
        with anyio.fail_after(100):
            async with SessionManager(provider=provider, store=self.make()) as manager:
                yield manager

    async def examined(self) -> list[Examined]:
        store = self.make()
        try:
            return [result async for result in examine(store)]
        finally:
            await store.aclose()


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        path = tmp_path / "s.db"

        def tamper_file(statements: tuple[str, str]) -> None:
            db = apsw.Connection(str(path))
            db.execute(statements[0]).fetchall()
            db.close()

        return Place(lambda: SqliteStore(path, key=KEY), tamper_file)
    database: Database = request.getfixturevalue("database")

    def tamper_tables(statements: tuple[str, str]) -> None:
        for statement in statements[1].split(";"):
            database.sql(statement)

    def make() -> Store:
        return PostgresStore(database.dsn, schema=database.schema, key=KEY)

    return Place(make, tamper_tables)


async def say_something(place: Place) -> None:
    """Two tenants' sessions, of as many records, and a fork of one of them."""
    config = SessionConfig(model="m")
    async with place.managing() as manager:
        for tenant in ("anna", "bob"):
            session = await manager.create(config, session_id=f"{tenant}/1", tenant=tenant)
            assert await (await session.send(f"{tenant}'s secret")).text() == "fine"
        await session.fork(session_id=FORK)
    assert all(result.is_whole for result in await place.examined())


@pytest.mark.parametrize(
    ("tampering", "damaged"),
    [
        pytest.param(SWAP_LOGS, {ANNA, BOB}, id="logs are swapped"),
        pytest.param(RENAME, {ANNA, BOB}, id="sessions are renamed"),
        pytest.param(CUT, {ANNA}, id="the last record is cut off"),
        pytest.param(POINT_A_FORK_ELSEWHERE, {FORK}, id="a fork shares another's records"),
        pytest.param(MAKE_A_FORK_OF_ANOTHERS, {ANNA}, id="a session becomes another's fork"),
    ],
)
async def test_what_is_put_in_anothers_place_without_the_key_is_damaged_and_read_by_nobody(
    place: Place, tampering: tuple[str, str], damaged: set[str]
) -> None:
    await say_something(place)
    place.tamper(tampering)
    assert {result.session for result in await place.examined() if not result.is_whole} == damaged
    async with place.managing() as manager:
        for session in sorted(damaged):
            with pytest.raises(RecordDamaged):
                await manager.open(session)
            with pytest.raises(RecordDamaged):
                await manager.export_conversation(session)
            with pytest.raises(RecordDamaged):
                await manager.store.read(session)
            with pytest.raises(RecordDamaged):
                await manager.store.fork(session, 1, "f", runtime_of(manager).owner)
            assert manager.live == ()
        for session in {ANNA, BOB, FORK} - damaged:
            await manager.open(session)


async def test_a_row_with_the_label_of_another_tenant_is_damaged(place: Place) -> None:
    await say_something(place)
    unlabelled = ("UPDATE session SET labels = '{}'", "UPDATE @session SET labels = NULL")
    place.tamper(unlabelled)
    assert not any(result.is_whole for result in await place.examined())
    async with place.managing() as manager:
        with pytest.raises(RecordDamaged, match="tenant label of its row"):
            await manager.open(ANNA)


async def test_what_was_appended_forked_forgotten_and_deleted_with_the_key_is_whole(
    place: Place,
) -> None:
    await say_something(place)
    async with place.managing() as manager:
        for name in (BOB, FORK):
            session = await manager.open(name)
            assert await (await session.send("more")).text() == "fine"
        await session.fork(session_id="bob/3")
        await session.forget(before="u2")
        await manager.delete(BOB)
    assert [result.session for result in await place.examined() if result.is_whole] == [
        ANNA, FORK, "bob/3",
    ]  # fmt: skip
    async with place.managing() as manager:
        session = await manager.open("bob/3")
        assert await (await session.send("and more")).text() == "fine"


UNSEALED = (
    """
    ALTER TABLE session DROP COLUMN origin_seal;
    ALTER TABLE session DROP COLUMN head_seal;
    """,
    """
    ALTER TABLE @session DROP COLUMN origin_seal;
    ALTER TABLE @session DROP COLUMN head_seal
    """,
)


async def test_a_store_from_before_there_were_seals_gets_them_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(cipher, "_CHECK_WITH_SEALS", cipher._CHECK)
        await say_something(place)
    place.tamper(UNSEALED)
    assert all(result.is_whole for result in await place.examined())
    place.tamper(CUT)
    assert {result.session for result in await place.examined() if not result.is_whole} == {ANNA}
    place.tamper(UNSEALED)  # now the note of the key says that there were some
    assert not any(result.is_whole for result in await place.examined())
