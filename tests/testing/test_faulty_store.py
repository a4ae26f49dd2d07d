"""A store that fails when it is told to, and keeps the contract when it is not."""

from __future__ import annotations

import anyio

from llmsession.store import (
    Appended,
    AppendResult,
    Batch,
    Conflict,
    Lease,
    Lost,
    MemoryStore,
    Owner,
    Store,
)
from llmsession.testing import FaultyStore, StoreContract

ANN = Owner("ann")


class TestFaultyStoreWithoutFaults(StoreContract):
    async def make_store(self) -> Store:
        return FaultyStore(MemoryStore())


async def opened() -> tuple[FaultyStore, Lease, list[AppendResult]]:
    store = FaultyStore(MemoryStore())
    return store, await store.create("s", ANN), []


def batch(lease: Lease, head: int, *bodies: bytes) -> Batch:
    return Batch(lease.session, lease.epoch, head, bodies)


async def bodies(store: Store) -> list[bytes]:
    return [record.body for record in await store.read("s")]


async def test_a_failed_append_writes_nothing_and_says_so() -> None:
    store, lease, answers = await opened()
    store.fail_next("no space")
    store.append(batch(lease, 0, b"1"), answers.append)
    assert answers == [Lost("no space", committed=False)]
    assert await bodies(store) == []


async def test_a_lost_acknowledgement_hides_that_the_batch_was_written() -> None:
    store, lease, answers = await opened()
    store.lose_acknowledgement("broken pipe")
    store.append(batch(lease, 0, b"1"), answers.append)
    assert answers == [Lost("broken pipe", committed=None)]
    assert await bodies(store) == [b"1"]


async def test_a_conflict_looks_like_a_takeover_and_changes_nothing() -> None:
    store, lease, answers = await opened()
    store.conflict_next()
    store.append(batch(lease, 0, b"1"), answers.append)
    (answer,) = answers
    assert isinstance(answer, Conflict)
    assert answer.row is not None
    assert answer.row.epoch > lease.epoch
    assert answer.row.owner not in (None, ANN)
    assert await bodies(store) == []


async def test_a_conflict_may_look_like_a_deletion() -> None:
    store, lease, answers = await opened()
    store.conflict_next(deleted=True)
    store.append(batch(lease, 0, b"1"), answers.append)
    assert answers == [Conflict(None)]


async def test_faults_are_used_up_one_by_one_in_order() -> None:
    store, lease, answers = await opened()
    store.fail_next()
    store.conflict_next()
    for _ in range(3):
        store.append(batch(lease, 0, b"1"), answers.append)
    assert [type(answer) for answer in answers] == [Lost, Conflict, Appended]
    assert [len(one.bodies) for one in store.appends] == [1, 1, 1]


async def test_delayed_answers_come_in_order_when_they_are_delivered() -> None:
    store, lease, answers = await opened()
    store.delay()
    store.append(batch(lease, 0, b"1"), answers.append)
    store.lose_acknowledgement("gone")
    store.append(batch(lease, 1, b"2"), answers.append)
    assert (answers, store.delayed) == ([], 2)
    assert await bodies(store) == [b"1", b"2"]  # written all the same
    store.deliver()
    assert (answers, store.delayed) == ([Appended(1), Lost("gone", committed=None)], 0)
    store.append(batch(lease, 2, b"3"), answers.append)
    assert answers[-1] == Appended(3)


async def test_a_test_can_wait_until_an_answer_is_kept_back() -> None:
    store, lease, answers = await opened()
    store.delay()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(store.wait_delayed, 2)
            await anyio.sleep(1)
            store.append(batch(lease, 0, b"1"), answers.append)
            await anyio.sleep(1)
            store.append(batch(lease, 1, b"2"), answers.append)
        assert store.delayed == 2


async def test_closing_delivers_what_was_kept_back() -> None:
    store, lease, answers = await opened()
    store.delay()
    store.append(batch(lease, 0, b"1"), answers.append)
    await store.aclose()
    assert answers == [Appended(1)]
