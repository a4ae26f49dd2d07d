"""A record of a kind that a newer version wrote is refused by its name. Nothing of it is guessed,
nothing is written, and the other sessions of the store go on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from llmsession import MemoryStore, Retention, SessionConfig, SessionManager, Store
from llmsession.errors import RecordDamaged, UnknownRecord
from llmsession.session.operations.integrity import examine
from llmsession.store import PostgresStore, SqliteStore
from llmsession.store.protocol import Lease, Owner
from llmsession.testing import ScriptedProvider
from llmsession.testing.store_contract.actions import bodies_of, raised, written
from tests.store.conftest import Database

pytestmark = pytest.mark.real_time

CONFIG = SessionConfig(model="m")
KIND = "turn.exploded"
NEWER = Owner("a newer process")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # what is tested here lies in files


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """What opens the store again. It has the sessions ``new``, whose last record is of a newer
    version, and ``old``, which has none."""
    in_memory = MemoryStore()

    def make() -> Store:
        match request.param:
            case "memory":
                return in_memory
            case "sqlite":
                return SqliteStore(tmp_path / "s.db")
        database: Database = request.getfixturevalue("database")
        return PostgresStore(database.dsn, schema=database.schema)

    async with managing(make) as manager:
        for name in ("new", "old"):
            session = await manager.create(CONFIG, session_id=name, labels={"n": name})
            await (await session.send("where is the bus")).text()
            await session.close()
    async with opened(make) as store:
        lease = await store.acquire("new", NEWER)
        await store.release(await with_record(store, lease, KIND))
    return make


@asynccontextmanager
async def opened(make: Callable[[], Store]) -> AsyncIterator[Store]:
    """The store, closed at the end."""
    with anyio.fail_after(150):
        store = make()
        try:
            yield store
        finally:
            await store.aclose()


@asynccontextmanager
async def managing(make: Callable[[], Store]) -> AsyncIterator[SessionManager]:
    """A manager with the store; it closes the store at the end."""
    provider = ScriptedProvider(lambda request, tag: "at the stop")
    with anyio.fail_after(150):
        async with SessionManager(provider=provider, store=make()) as manager:
            yield manager


async def with_record(store: Store, lease: Lease, kind: str) -> Lease:
    """*lease*, after a record of *kind* was appended under it."""
    body = f'{{"kind":"{kind}","seq":{lease.head + 1},"epoch":{lease.epoch},"at":1.0,"turn":2}}'
    return await written(store, lease, body.encode())


def said_in(error: RecordDamaged, seq: int) -> None:
    """*error* names the record, its kind and what to do."""
    assert isinstance(error, UnknownRecord)
    assert (error.session, error.seq, error.kind) == ("new", seq, KIND)
    assert str(error) == (
        f"record {seq} of session 'new' cannot be read: this version of llmsession does not know"
        f" the kind '{KIND}'. A newer version wrote it: upgrade llmsession"
    )


async def test_a_session_with_it_is_not_opened_read_or_exported_and_its_log_stays(
    make: Callable[[], Store],
) -> None:
    async with opened(make) as store:
        before, row = await bodies_of(store, "new"), await store.row("new")
    async with managing(make) as manager:
        uses: list[Callable[[], object]] = [
            lambda: manager.open("new"),
            lambda: manager.open("new", takeover=True),
            lambda: manager.export_conversation("new"),
        ]
        for use in uses:
            said_in(await raised(UnknownRecord, use), len(before))
    async with opened(make) as store:
        assert await bodies_of(store, "new") == before
        after = await store.row("new")
    assert (after.head, after.touched_at) == (row.head, row.touched_at)
    assert after.owner is None  # it is free for the newer version


async def test_the_other_sessions_of_the_store_go_on(make: Callable[[], Store]) -> None:
    async with managing(make) as manager:
        await raised(UnknownRecord, lambda: manager.open("new"))
        session = await manager.open("old")
        assert await (await session.send("and now?")).text() == "at the stop"
        assert len((await manager.export_conversation("old")).messages) == 4


async def test_it_is_listed_and_a_search_names_it_among_what_it_could_not_read(
    make: Callable[[], Store],
) -> None:
    async with managing(make) as manager:
        assert [row.session for row in await manager.list(titles=True)] == ["new", "old"]
        page = await manager.search("bus")
        assert [hit.session for hit in page.hits] == ["old"]
        assert list(page.skipped) == ["new"]
        assert f"does not know the kind '{KIND}'" in page.skipped["new"]


async def test_an_integrity_check_tells_it_from_damage(make: Callable[[], Store]) -> None:
    async with opened(make) as store:
        head = (await store.row("new")).head
        results = {result.session: result async for result in examine(store)}
    assert results["old"].is_whole
    new = results["new"]
    assert not new.is_whole
    assert (new.records, new.damaged, new.unknown_kind) == (head - 1, head, KIND)


async def test_a_takeover_leaves_it_to_the_newer_owner_that_has_it(
    make: Callable[[], Store],
) -> None:
    async with opened(make) as store:
        lease = await store.acquire("new", NEWER)
        before = await store.row("new")
    async with managing(make) as manager:
        await raised(UnknownRecord, lambda: manager.open("new", takeover=True))
    async with opened(make) as store:
        assert await store.row("new") == before
        await with_record(store, lease, "turn.calmed")


async def test_retention_of_messages_leaves_it_as_it_is(make: Callable[[], Store]) -> None:
    async with opened(make) as store:
        before = await bodies_of(store, "new")
    async with managing(make) as manager:
        report = await manager.apply_retention([Retention(max_messages=1)])
        assert KIND in report.skipped["new"]
    async with opened(make) as store:
        assert await bodies_of(store, "new") == before


def test_a_kind_of_any_length_is_quoted_in_short() -> None:
    error = UnknownRecord("s", 3, "x" * 1_000_000)
    assert len(str(error)) < 400
    assert error.kind == "x" * 1_000_000
