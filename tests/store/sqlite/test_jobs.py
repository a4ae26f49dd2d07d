"""Which of the waiting items the writer of a SQLite store performs in its next transaction."""

from __future__ import annotations

from collections import deque

from llmsession.store import Batch
from llmsession.store.caller import Caller
from llmsession.store.large_batches import LARGE_BATCH_BYTES, MAX_LARGE_BYTES, LargeBatches
from llmsession.store.sqlite.jobs import Append, Item, Job, next_group


def appended(session: str, size: int = 1, head: int = 0) -> Item:
    batch = Batch(session, 1, head, (bytes(size),))
    return Append(batch, lambda _: None, Caller(), size)


def groups_of(items: list[Item]) -> list[list[Item]]:
    waiting, large = deque(items), LargeBatches()
    groups = []
    while waiting:
        groups.append(next_group(waiting, large))
        assert groups[-1], "each group takes at least one item"
    return groups


async def test_without_large_batches_a_group_is_all_that_waits() -> None:
    items = [appended(f"s{at}", LARGE_BATCH_BYTES - 1) for at in range(50)]
    assert groups_of(items) == [items]


async def test_a_hot_session_makes_no_group_longer_than_one_of_its_batches() -> None:
    hot = [appended("hot", 8 * MAX_LARGE_BYTES, head) for head in range(5)]
    quiet = [appended(f"quiet {at}") for at in range(1000)]
    assert groups_of(hot + quiet) == [[hot[0], *quiet], *([batch] for batch in hot[1:])]


async def test_ten_hot_sessions_share_the_room_for_large_batches() -> None:
    hot = [appended(f"hot {at}", MAX_LARGE_BYTES // 4) for at in range(10)]
    quiet = [appended(f"quiet {at}") for at in range(1000)]
    groups = groups_of(hot + quiet)
    assert groups == [[*hot[:4], *quiet], hot[4:8], hot[8:]]


async def test_while_small_batches_wait_every_second_group_has_none_but_small_ones() -> None:
    hot = deque(appended(f"hot {at}", MAX_LARGE_BYTES) for at in range(3))
    waiting: deque[Item] = deque(hot)
    large, groups = LargeBatches(), []
    for at in range(6):
        waiting.append(appended(f"quiet {at}"))
        groups.append([item.size > 1 for item in next_group(waiting, large)])
    assert groups == [[True, False], [False]] * 3


async def test_batches_of_a_session_stay_in_their_order() -> None:
    first, second = appended("a", MAX_LARGE_BYTES), appended("b", MAX_LARGE_BYTES)
    small = appended("b", 1, 1)
    assert groups_of([first, second, small]) == [[first], [second, small]]


async def test_nothing_overtakes_a_job_and_a_job_overtakes_nothing() -> None:
    first, second = appended("a", MAX_LARGE_BYTES), appended("b", MAX_LARGE_BYTES)
    job: Item = Job(lambda _: None)
    before, after = appended("c"), appended("d")
    groups = groups_of([first, second, before, job, after])
    assert groups == [[first, before], [second, job, after]]


async def test_a_large_batch_of_many_sessions_is_written_in_the_end() -> None:
    waiting = deque([appended(f"hot {at}", MAX_LARGE_BYTES) for at in range(3)])
    oldest = list(waiting)
    large = LargeBatches()
    for at, item in enumerate(oldest):
        waiting.extend(appended(f"later {at} {number}", MAX_LARGE_BYTES) for number in range(5))
        assert item in next_group(waiting, large)
