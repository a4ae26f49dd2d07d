"""A session whose maker died between the store's row and the log's first record never existed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest

from llmsession import SessionConfig, SessionManager
from llmsession.errors import SessionExists, SessionInUse, SessionNotFound, StoreError
from llmsession.session.log.read_state import begun_rows
from llmsession.session.operations.integrity import examine
from llmsession.store import AppendResult, Batch, Conflict, MemoryStore
from llmsession.store.protocol import Appended, Lost, Owner
from llmsession.testing import ScriptedProvider
from llmsession.testing.scripted import say
from tests.session.actors import meanwhile
from tests.session.probes import log_of

CONFIG = SessionConfig(model="m")
MAKER = Owner("its maker")


async def half_made(*sessions: str, is_alive: bool = False) -> MemoryStore:
    """A store with *sessions* that have no record yet."""
    store = MemoryStore()
    for session in sessions:
        lease = await store.create(session, MAKER)
        if not is_alive:
            await store.release(lease)
    return store


@asynccontextmanager
async def managing(store: MemoryStore) -> AsyncIterator[SessionManager]:
    provider = ScriptedProvider(lambda request, tag: say("fine"))
    with anyio.fail_after(100):
        async with SessionManager(provider=provider, store=store) as manager:
            yield manager


@pytest.mark.parametrize("takeover", [False, True])
async def test_it_cannot_be_opened_and_is_gone_then(takeover: bool) -> None:
    store = await half_made("s")
    async with managing(store) as manager:
        with pytest.raises(SessionNotFound):
            await manager.open("s", takeover=takeover)
        assert await store.rows() == []


async def test_it_can_be_created() -> None:
    store = await half_made("s")
    async with managing(store) as manager:
        session = await manager.create(CONFIG, session_id="s", labels={"a": "b"})
        assert await (await session.send("hello")).text() == "fine"
        assert (await store.row("s")).labels == {"a": "b"}
        log = await log_of(store, "s")
        assert [record.seq for record in log] == list(range(1, len(log) + 1))
        with pytest.raises(SessionExists):
            await manager.create(CONFIG, session_id="s")


async def test_its_maker_if_it_lives_keeps_its_name() -> None:
    store = await half_made("s", is_alive=True)
    async with managing(store) as manager:
        with pytest.raises(SessionExists):
            await manager.create(CONFIG, session_id="s")
        with pytest.raises(SessionInUse):
            await manager.open("s")
        assert (await store.row("s")).owner == MAKER


async def test_it_is_in_no_list_and_no_report() -> None:
    # More of them than there are in a page, before one that has begun.
    store = await half_made("a", "b", "c", "e")
    async with managing(store) as manager:
        await manager.create(CONFIG, session_id="d")
        assert [row.session for row in await manager.list()] == ["d"]
        assert [row.session for row in await manager.list(limit=1)] == ["d"]
        assert await manager.list(after="d", limit=1) == ()
        assert [row.session for row in await begun_rows(store, limit=2)] == ["d"]
        assert [found.session async for found in examine(store)] == ["d"]
        with pytest.raises(SessionNotFound):
            await manager.export_conversation("a")


async def test_it_can_be_deleted() -> None:
    store = await half_made("s")
    async with managing(store) as manager:
        await manager.delete("s")
        assert await store.rows() == []


class SlowToBegin(MemoryStore):
    """The first append meets what the test did to the session meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = anyio.Event()
        self.kept: list[tuple[Batch, object]] = []

    def append(self, batch: Batch, done: object) -> None:
        if not self.reached.is_set():
            self.reached.set()
            self.kept.append((batch, done))
        else:
            super().append(batch, done)  # type: ignore[arg-type]

    def go_on(self) -> None:
        [(batch, done)] = self.kept
        super().append(batch, done)  # type: ignore[arg-type]


async def test_a_maker_that_was_too_slow_takes_nothing_from_who_came_after_it() -> None:
    """It stood still before its first record; meanwhile its session was taken and made anew."""
    store = SlowToBegin()
    async with managing(store) as slow, managing(store) as quick:
        make = partial(slow.create, CONFIG, session_id="s")
        async with meanwhile(make, refused=(StoreError,)) as errors:
            await store.reached.wait()
            with pytest.raises(SessionNotFound):
                await quick.open("s", takeover=True)
            session = await quick.create(CONFIG, session_id="s")
            store.go_on()
        assert [error.committed for error in errors] == [False]
        assert await (await session.send("hello")).text() == "fine"
        assert [row.session for row in await quick.list()] == ["s"]


async def test_a_maker_whose_record_meets_another_epoch_leaves_the_session_alone() -> None:
    store, other = SlowToBegin(), Owner("another")
    async with managing(store) as slow:
        make = partial(slow.create, CONFIG, session_id="s")
        async with meanwhile(make, refused=(StoreError,)) as errors:
            await store.reached.wait()
            lease = await store.acquire("s", other, takeover=True)
            results: list[AppendResult] = []
            MemoryStore.append(store, Batch("s", lease.epoch, 0, (b"{}",)), results.append)
            assert not isinstance(results[0], Conflict)
            store.go_on()
        assert [type(error) for error in errors] == [StoreError]
        row = await store.row("s")
        assert (row.owner, row.head) == (other, 1)


class TakenAtTheLast(MemoryStore):
    """No owner here can write. Each deletion finds the session taken by another, that has."""

    taker = Owner("another")

    def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
        done(Lost("the disk is full", committed=False))

    async def delete(self, session: str, *, epoch: int | None = None) -> None:
        lease = await self.acquire(session, self.taker, takeover=True)
        results: list[AppendResult] = []
        super().append(Batch(session, lease.epoch, 0, (b"{}",)), results.append)
        assert results == [Appended(1)]
        await super().delete(session, epoch=epoch)


async def test_what_is_removed_and_was_taken_at_the_last_moment_is_the_takers() -> None:
    store = TakenAtTheLast()
    await store.release(await store.create("s", MAKER))
    async with managing(store) as manager:
        with pytest.raises(SessionNotFound):
            await manager.open("s")
        with pytest.raises(StoreError):
            await manager.create(CONFIG, session_id="t")
        for session in ("s", "t"):
            row = await store.row(session)
            assert (row.owner, row.head) == (store.taker, 1)
