"""The way of records into the store: in order, one batch on its way at a time."""

from __future__ import annotations

from functools import partial
from itertools import count

import msgspec
import pytest

from llmsession.session.log.journal import Journal, Written
from llmsession.store import Appended, Conflict, Lease, Lost, MemoryStore, Owner
from llmsession.testing import FaultyStore
from llmsession.turns.records import (
    Record,
    SessionForked,
    SessionLabelled,
    TurnAborted,
    TurnAccepted,
    decode_record,
)
from llmsession.turns.usage import Usage

ANN = Owner("ann")
NO_CONFIG = msgspec.Raw(b"{}")


class Writing:
    """A journal on a store that fails on demand, and what came back."""

    def __init__(self, store: FaultyStore, lease: Lease) -> None:
        self.store = store
        self.reports: list[Written] = []
        self.told: list[str] = []
        ticks = count(100)
        self.journal = Journal(store, lease, lambda: float(next(ticks)), self.reports.append)

    def write(self, *turns: int) -> None:
        for turn in turns:
            self.journal.write(accepted(turn), partial(self.told.append, f"t{turn}"))

    def send(self, *turns: int) -> None:
        """Write, and hand over to the store what is written."""
        self.write(*turns)
        self.journal.flush()

    async def stored(self) -> list[Record]:
        return [decode_record(record.body) for record in await self.store.read("s")]

    async def turns(self) -> list[int]:
        return [getattr(record, "turn", 0) for record in await self.stored()]


def accepted(turn: int) -> TurnAccepted:
    return TurnAccepted(turn=turn, body=msgspec.Raw(b"[]"))


def ended(turn: int) -> TurnAborted:
    return TurnAborted(turn=turn, reason="crash", usage=Usage())


async def writing(*earlier: int) -> Writing:
    store = FaultyStore(MemoryStore())
    first = Writing(store, await store.create("s", ANN))
    first.write(*earlier)
    first.journal.flush()
    store.appends.clear()
    return Writing(store, await store.acquire("s", ANN))


async def delayed() -> Writing:
    """The record of turn 1 is on its way into the store."""
    w = await writing()
    w.store.delay()
    w.send(1)
    return w


async def test_records_are_numbered_and_stamped_and_stored_as_they_are_reported() -> None:
    w = await writing()
    w.send(1, 2)
    (report,) = w.reports
    records = [record for record, _ in report.entries]
    assert [(r.seq, r.epoch, r.at) for r in records if r] == [(1, 2, 100.0), (2, 2, 101.0)]
    assert await w.stored() == records
    assert report.result == Appended(2)


async def test_seqs_go_on_where_the_log_stands() -> None:
    w = await writing(1, 2, 3)
    w.send(4)
    assert [record.seq for record in await w.stored()] == [1, 2, 3, 4]
    assert w.journal.lease == Lease("s", 2, 3)


async def test_a_batch_says_so_when_the_first_turn_opens_and_when_the_last_ends() -> None:
    w = await writing()
    for records in (
        (SessionLabelled(labels={}),),
        (accepted(1),),
        (accepted(2), ended(1)),
        (SessionLabelled(labels={}),),
        (ended(2),),
        (SessionLabelled(labels={}),),
        (accepted(3), ended(3)),
        (accepted(4), SessionForked(session="f", parent="s", turn_kept=0, config=NO_CONFIG)),
        (accepted(5),),
    ):
        for record in records:
            w.journal.write(record)
        w.journal.flush()
    marks = [batch.unfinished for batch in w.store.appends]
    assert marks == [False, True, None, None, False, None, None, None, True]


async def test_the_first_batch_says_whether_turns_are_open_that_the_log_left_so() -> None:
    w = await writing()
    for turn, open_turns in ((1, ()), (2, (1,))):
        lease = await w.store.acquire("s", ANN)
        journal = Journal(w.store, lease, lambda: 1.0, w.reports.append, open_turns=open_turns)
        journal.write(ended(1) if turn == 1 else SessionLabelled(labels={}))
        journal.flush()
    assert [batch.unfinished for batch in w.store.appends] == [False, True]


async def test_nothing_is_handed_over_before_it_is_flushed() -> None:
    w = await writing()
    w.write(1)
    assert (w.store.appends, w.reports, w.journal.is_idle) == ([], [], False)
    w.journal.flush()
    assert len(w.store.appends) == len(w.reports) == 1
    assert w.journal.is_idle


async def test_flushing_nothing_asks_the_store_nothing() -> None:
    w = await writing()
    w.journal.flush()
    assert (w.store.appends, w.reports, w.journal.is_idle) == ([], [], True)


async def test_what_is_written_while_a_batch_is_on_its_way_follows_it_in_one_batch() -> None:
    w = await delayed()
    for turn in (2, 3, 4):
        w.send(turn)
    assert (len(w.store.appends), w.reports, w.journal.is_idle) == (1, [], False)
    w.store.deliver()
    assert len(w.reports) == 1
    w.journal.flush()
    assert [(batch.head, len(batch.bodies)) for batch in w.store.appends] == [(0, 1), (1, 3)]
    assert await w.turns() == [1, 2, 3, 4]
    assert w.journal.is_idle


async def test_batches_come_back_in_order_each_with_what_is_to_follow_its_records() -> None:
    w = await writing()
    for turns in ((1, 2), (3,)):
        w.send(*turns)
    assert w.told == []  # the actor calls them, not the journal
    for report in w.reports:
        for _, then in report.entries:
            assert then is not None
            then()
    assert w.told == ["t1", "t2", "t3"]


async def test_a_follower_comes_back_with_the_batch_of_the_records_before_it() -> None:
    w = await writing()
    w.write(1)
    w.journal.follow(lambda: None)
    w.send(2)
    (report,) = w.reports
    assert [record is None for record, _ in report.entries] == [False, True, False]
    assert [record.seq for record in await w.stored()] == [1, 2]


async def test_a_follower_alone_comes_back_without_a_write() -> None:
    w = await writing(1)
    w.journal.follow(lambda: None)
    w.journal.flush()
    (report,) = w.reports
    assert (report.result, w.store.appends) == (Appended(1), [])


async def test_a_follower_waits_for_the_batch_that_is_on_its_way() -> None:
    w = await delayed()
    w.journal.follow(lambda: None)
    w.journal.flush()
    assert w.reports == []
    w.store.deliver()
    w.journal.flush()
    assert [report.result for report in w.reports] == [Appended(1), Appended(1)]


@pytest.mark.parametrize("fault", ["fail_next", "lose_acknowledgement", "conflict_next"])
async def test_what_the_store_answers_is_reported_as_it_is(fault: str) -> None:
    w = await writing()
    getattr(w.store, fault)()
    w.send(1)
    (report,) = w.reports
    expected = {"fail_next": Lost, "lose_acknowledgement": Lost, "conflict_next": Conflict}
    assert isinstance(report.result, expected[fault])
    if isinstance(report.result, Lost):
        assert report.result.committed is (None if fault == "lose_acknowledgement" else False)
    assert await w.turns() == ([1] if fault == "lose_acknowledgement" else [])


async def test_nothing_is_written_behind_a_batch_that_failed() -> None:
    w = await writing()
    w.store.fail_next()
    w.send(1)
    w.send(2)  # before anybody has read the first report
    assert [type(report.result) for report in w.reports] == [Lost]
    assert await w.turns() == []


async def test_a_fenced_owner_writes_nothing_and_is_told_by_whom() -> None:
    w = await writing()
    await w.store.acquire("s", Owner("bob"), takeover=True)
    w.send(1)
    (report,) = w.reports
    assert isinstance(report.result, Conflict)
    assert report.result.row is not None
    assert report.result.row.epoch > w.journal.lease.epoch
    assert await w.turns() == []


async def test_a_stopped_journal_drops_its_queue_and_writes_nothing_more() -> None:
    w = await writing()
    w.write(1)
    w.journal.stop()
    w.send(2)
    assert (w.store.appends, w.reports, w.journal.is_idle) == ([], [], True)


async def test_a_batch_that_was_on_its_way_at_the_stop_still_comes_back() -> None:
    w = await delayed()
    w.write(2)
    w.journal.stop()
    w.store.deliver()
    w.journal.flush()
    assert [report.result for report in w.reports] == [Appended(1)]
    assert await w.turns() == [1]
