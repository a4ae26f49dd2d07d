"""The store in memory keeps the contract of every store."""

from __future__ import annotations

from llmsession.store import Appended, AppendResult, Batch, MemoryStore, Owner, Store
from llmsession.testing import CountingContract, StoreContract


class TestMemoryStore(StoreContract, CountingContract):
    async def make_store(self) -> Store:
        return MemoryStore()


async def test_an_append_is_answered_before_it_returns() -> None:
    store = MemoryStore()
    lease = await store.create("s", Owner("ann"))
    answers: list[AppendResult] = []
    store.append(Batch("s", lease.epoch, lease.head, (b"1",)), answers.append)
    assert answers == [Appended(1)]


async def test_a_closed_memory_store_can_still_be_read() -> None:
    store = MemoryStore()
    lease = await store.create("s", Owner("ann"))
    store.append(Batch("s", lease.epoch, lease.head, (b"1",)), lambda _: None)
    await store.aclose()
    assert [record.body for record in await store.read("s")] == [b"1"]


async def test_what_was_read_does_not_change_when_more_is_written() -> None:
    store = MemoryStore()
    lease = await store.create("s", Owner("ann"))
    store.append(Batch("s", lease.epoch, 0, (b"1",)), lambda _: None)
    before = await store.read("s")
    store.append(Batch("s", lease.epoch, 1, (b"2",)), lambda _: None)
    assert len(before) == 1
