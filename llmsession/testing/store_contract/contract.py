"""The contract of every store, as tests. Subclass it, implement ``make_store``, and run pytest.

    class TestMyStore(StoreContract):
        pytestmark = pytest.mark.anyio  # unless anyio's pytest mode is "auto"

        async def make_store(self) -> Store:
            return MyStore(...)

The methods are plain coroutines with plain asserts, so any test runner works. For readable failures
call ``pytest.register_assert_rewrite("llmsession.testing.store_contract")`` in a conftest. A store
that uses threads needs an event loop in real time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from random import Random

import anyio
import anyio.lowlevel

from llmsession.errors import SessionExists, SessionInUse, SessionMoved, SessionNotFound
from llmsession.store.protocol import (
    Appended,
    Conflict,
    Lease,
    Owner,
    Store,
    StoredRecord,
)

from .actions import append, bodies_of, raised, written
from .shared_records import SharedRecordsContract
from .snapshots import SnapshotContract
from .unfinished import UnfinishedContract

__all__ = ["StoreContract"]

ODD_BODIES = (
    b'{"kind":"turn.accepted"}',
    b"",
    b"\x00\xff\xfe not UTF-8 \x00",
    "é 漢 🙂".encode(),
    b"' OR 1=1; --\n\r\n",
    b"x" * 1_000_000,
)
ODD_IDS = ("a", "B", "a/b", "a b", "é", "漢", "🙂", "a%", "a_", "'; --", "z" * 200)


class StoreContract(SharedRecordsContract, UnfinishedContract, SnapshotContract):
    """Tests for the promises of ``llmsession.store.protocol``.

    ``make_store`` must return a new, empty store each time. *patience_s* is the timeout of a test.
    """

    # Sessions

    async def test_a_new_session_has_epoch_one_head_zero_and_its_owner(self) -> None:
        async with self.store() as store:
            assert await store.create("s", self.ann) == Lease("s", 1, 0)
            row = await store.row("s")
            assert (row.session, row.epoch, row.head, row.owner) == ("s", 1, 0, self.ann)
            assert list(await store.read("s")) == []

    async def test_an_id_that_is_taken_cannot_be_created_again(self) -> None:
        async with self.store() as store:
            lease = await written(store, await store.create("s", self.ann), b"1")
            await raised(SessionExists, lambda: store.create("s", self.bob))
            await written(store, lease, b"2")
            assert await bodies_of(store, "s") == [b"1", b"2"]

    async def test_an_unknown_session_is_named_by_everything_that_needs_one(self) -> None:
        async with self.store() as store:
            await store.create("known", self.ann)
            asks: list[Callable[[], object]] = [
                lambda: store.acquire("unknown", self.ann),
                lambda: store.acquire("unknown", self.ann, takeover=True),
                lambda: store.read("unknown"),
                lambda: store.row("unknown"),
                lambda: store.delete("unknown"),
            ]
            for ask in asks:
                assert "unknown" in str(await raised(SessionNotFound, ask))

    async def test_an_append_to_an_unknown_session_conflicts_without_a_row(self) -> None:
        async with self.store() as store:
            assert await append(store, Lease("unknown", 1, 0), b"1").wait() == Conflict(None)

    async def test_releasing_an_unknown_session_has_no_effect(self) -> None:
        async with self.store() as store:
            await store.release(Lease("unknown", 1, 0))
            assert list(await store.rows()) == []

    # Owners

    async def test_each_taking_raises_the_epoch_by_one_and_keeps_the_head(self) -> None:
        async with self.store() as store:
            lease = await written(store, await store.create("s", self.ann), b"1", b"2")
            for epoch in (2, 3, 4):
                await store.release(lease)
                lease = await store.acquire("s", self.bob)
                assert lease == Lease("s", epoch, 2)
                assert (await store.row("s")).owner == self.bob

    async def test_a_session_in_use_is_not_given_to_another_owner(self) -> None:
        async with self.store() as store:
            lease = await store.create("s", self.ann)
            error = await raised(SessionInUse, lambda: store.acquire("s", self.bob))
            assert isinstance(error, SessionInUse)
            assert "ann" in error.owner
            row = await store.row("s")
            assert (row.epoch, row.owner) == (1, self.ann)
            await written(store, lease, b"still ann's")

    async def test_a_takeover_gives_a_session_in_use_to_another_owner(self) -> None:
        async with self.store() as store:
            await written(store, await store.create("s", self.ann), b"1")
            assert await store.acquire("s", self.bob, takeover=True) == Lease("s", 2, 1)
            assert (await store.row("s")).owner == self.bob

    async def test_an_owner_may_take_its_own_session_again_and_is_fenced_itself(self) -> None:
        async with self.store() as store:
            first = await store.create("s", self.ann)
            again = await store.acquire("s", self.ann)
            assert again == Lease("s", 2, 0)
            assert isinstance(await append(store, first, b"old").wait(), Conflict)
            await written(store, again, b"new")

    async def test_a_released_session_is_free_for_everybody_and_keeps_its_epoch(self) -> None:
        async with self.store() as store:
            lease = await written(store, await store.create("s", self.ann), b"1")
            await store.release(lease)
            row = await store.row("s")
            assert (row.owner, row.epoch, row.head) == (None, 1, 1)
            assert await store.acquire("s", self.bob) == Lease("s", 2, 1)

    async def test_releasing_an_older_epoch_has_no_effect(self) -> None:
        async with self.store() as store:
            old = await store.create("s", self.ann)
            new = await store.acquire("s", self.bob, takeover=True)
            await store.release(old)
            assert (await store.row("s")).owner == self.bob
            await raised(SessionInUse, lambda: store.acquire("s", self.ann))
            await written(store, new, b"1")

    # Appending

    async def test_bodies_come_back_byte_for_byte_in_order_under_growing_seqs(self) -> None:
        async with self.store() as store:
            lease = await written(store, await store.create("s", self.ann), *ODD_BODIES[:2])
            for body in ODD_BODIES[2:]:
                lease = await written(store, lease, body)
            expected = [StoredRecord(seq, 1, body) for seq, body in enumerate(ODD_BODIES, 1)]
            assert list(await store.read("s")) == expected
            assert (await store.row("s")).head == lease.head == len(ODD_BODIES)

    async def test_after_a_takeover_the_old_owner_is_fenced_and_told_by_whom(self) -> None:
        async with self.store() as store:
            old = await written(store, await store.create("s", self.ann), b"1")
            new = await store.acquire("s", self.bob, takeover=True)
            result = await append(store, old, b"too late").wait()
            assert isinstance(result, Conflict)
            assert result.row is not None
            assert (result.row.epoch, result.row.head) == (2, 1)
            assert result.row.owner == self.bob
            await written(store, new, b"2")
            assert await bodies_of(store, "s") == [b"1", b"2"]

    async def test_an_epoch_that_was_never_given_out_conflicts(self) -> None:
        async with self.store() as store:
            lease = await store.create("s", self.ann)
            result = await append(store, Lease("s", lease.epoch + 1, 0), b"from nowhere").wait()
            assert result == Conflict(await store.row("s"))
            assert await bodies_of(store, "s") == []

    async def test_a_wrong_head_conflicts_and_nothing_is_written(self) -> None:
        async with self.store() as store:
            lease = await written(store, await store.create("s", self.ann), b"1", b"2")
            for head in (0, 1, 3, 100):
                result = await append(store, lease, b"astray", head=head).wait()
                assert result == Conflict(await store.row("s")), head
            assert (await store.row("s")).head == 2
            assert await bodies_of(store, "s") == [b"1", b"2"]
            await written(store, lease, b"3")

    async def test_a_batch_that_conflicts_is_refused_whole(self) -> None:
        async with self.store() as store:
            lease = await written(store, await store.create("s", self.ann), b"1", b"2")
            # The positions of its first records are taken. That of its last record is free.
            result = await append(store, lease, b"x", b"y", b"z", head=1).wait()
            assert isinstance(result, Conflict)
            assert await bodies_of(store, "s") == [b"1", b"2"]

    async def test_a_reader_sees_a_batch_whole_or_not_at_all(self) -> None:
        async with self.store() as store:
            lease = await store.create("s", self.ann)
            answers = [
                append(store, lease, *[b"%d" % index] * 7, head=index * 7) for index in range(30)
            ]
            seen = {len(await store.read("s"))}
            for answer in answers:
                await anyio.lowlevel.checkpoint()
                seen.add(len(await store.read("s")))
                assert isinstance(await answer.wait(), Appended)
            assert {count % 7 for count in seen} == {0}
            assert len(await store.read("s")) == 210

    async def test_batches_that_follow_each_other_without_waiting_are_all_written(self) -> None:
        async with self.store() as store:
            leases = [await store.create(f"s{index}", self.ann) for index in range(3)]
            answers = [
                append(store, lease, b"%d" % head, head=head)
                for head in range(50)
                for lease in leases
            ]
            results = [await answer.wait() for answer in answers]
            assert results == [Appended(head + 1) for head in range(50) for _ in leases]
            for lease in leases:
                assert await bodies_of(store, lease.session) == [
                    b"%d" % index for index in range(50)
                ]

    async def test_the_same_batch_twice_is_written_once(self) -> None:
        async with self.store() as store:
            lease = await store.create("s", self.ann)
            first, second = append(store, lease, b"once"), append(store, lease, b"once")
            assert await first.wait() == Appended(1)
            assert isinstance(await second.wait(), Conflict)
            assert await bodies_of(store, "s") == [b"once"]

    async def test_what_was_acknowledged_can_be_read(self) -> None:
        async with self.store() as store:
            lease = await store.create("s", self.ann)
            for index in range(20):
                lease = await written(store, lease, b"%d" % index)
                assert (await bodies_of(store, "s"))[-1] == b"%d" % index

    async def test_done_is_called_once_in_the_event_loops_thread(self) -> None:
        async with self.store() as store:
            lease = await store.create("s", self.ann)
            answers = [
                append(store, lease, b"1"),
                append(store, lease, b"conflicts"),
                append(store, lease, b"2", head=1),
                append(store, Lease("unknown", 1, 0), b"1"),
            ]
            kinds = [type(await answer.wait()) for answer in answers]
            assert kinds == [Appended, Conflict, Appended, Conflict]
            await store.aclose()
            assert [len(answer.results) for answer in answers] == [1, 1, 1, 1]
            threads = {thread for answer in answers for thread in answer.threads}
            assert threads == {threading.get_ident()}

    async def test_closing_finishes_the_appends_that_were_accepted(self) -> None:
        async with self.store() as store:
            lease = await store.create("s", self.ann)
            answers = [append(store, lease, b"%d" % index, head=index) for index in range(20)]
            await store.aclose()
            assert [answer.results for answer in answers] == [
                [Appended(index + 1)] for index in range(20)
            ]

    async def test_each_record_keeps_the_epoch_that_wrote_it(self) -> None:
        async with self.store() as store:
            lease = await written(store, await store.create("s", self.ann), b"1", b"2")
            await store.acquire("s", self.bob, takeover=True)  # writes nothing
            lease = await store.acquire("s", self.ann, takeover=True)
            lease = await written(store, lease, b"3")
            lease = await written(store, await store.acquire("s", self.bob, takeover=True), b"4")
            records = await store.read("s")
            assert [(record.seq, record.epoch) for record in records] == [
                (1, 1), (2, 1), (3, 3), (4, 4),
            ]  # fmt: skip

    # Reading

    async def test_reading_starts_after_a_seq_and_stops_at_the_limit(self) -> None:
        async with self.store() as store:
            bodies = [b"%d" % number for number in range(1, 11)]
            await written(store, await store.create("s", self.ann), *bodies)

            async def seqs(after: int, limit: int | None = None) -> list[int]:
                records = await store.read("s", after=after, limit=limit)
                assert [record.body for record in records] == [b"%d" % r.seq for r in records]
                return [record.seq for record in records]

            assert await seqs(0) == list(range(1, 11))
            assert await seqs(7) == [8, 9, 10]
            assert await seqs(7, 2) == [8, 9]
            assert await seqs(0, 1) == [1]
            assert await seqs(9, 100) == [10]
            assert await seqs(10) == await seqs(99) == await seqs(99, 5) == []

    async def test_reading_takes_nothing_from_the_owner(self) -> None:
        async with self.store() as store:
            lease = await written(store, await store.create("s", self.ann), b"1")
            before = await store.row("s")
            await store.read("s")
            await store.rows()
            assert await store.row("s") == before
            await written(store, lease, b"2")

    async def test_rows_are_listed_by_id_in_pages(self) -> None:
        async with self.store() as store:
            for session in ODD_IDS:
                await store.create(session, self.ann)
            expected = sorted(ODD_IDS)
            assert [row.session for row in await store.rows()] == expected
            for limit in (1, 2, 3, len(ODD_IDS), 100):
                session_ids: list[str] = []
                while page := await store.rows(
                    after=session_ids[-1] if session_ids else "", limit=limit
                ):
                    assert len(page) <= limit
                    session_ids.extend(row.session for row in page)
                assert session_ids == expected, limit

    async def test_rows_say_who_holds_each_session_and_how_long_its_log_is(self) -> None:
        async with self.store() as store:
            lease = await written(store, await store.create("a", self.ann), b"1", b"2")
            await store.create("b", self.bob)
            await store.release(lease)
            rows = await store.rows()
            assert [(row.session, row.epoch, row.head, row.owner) for row in rows] == [
                ("a", 1, 2, None),
                ("b", 1, 0, self.bob),
            ]
            assert list(rows) == [await store.row("a"), await store.row("b")]

    # Deleting

    async def test_a_deleted_session_is_gone_and_its_owner_is_told(self) -> None:
        async with self.store() as store:
            lease = await written(store, await store.create("s", self.ann), b"1")
            other = await written(store, await store.create("t", self.ann), b"other")
            await store.delete("s")
            assert await append(store, lease, b"2").wait() == Conflict(None)
            await raised(SessionNotFound, lambda: store.read("s"))
            await raised(SessionNotFound, lambda: store.acquire("s", self.ann, takeover=True))
            await raised(SessionNotFound, lambda: store.delete("s"))
            assert [row.session for row in await store.rows()] == ["t"]
            await written(store, other, b"untouched")

    async def test_a_session_that_is_created_after_a_deletion_starts_empty(self) -> None:
        async with self.store() as store:
            await written(store, await store.create("s", self.ann), b"1", b"2")
            await store.delete("s")
            lease = await store.create("s", self.bob)
            assert (lease.head, list(await store.read("s"))) == (0, [])
            await written(store, lease, b"new")
            assert await bodies_of(store, "s") == [b"new"]

    async def test_an_owner_from_before_a_deletion_stays_fenced(self) -> None:
        async with self.store() as store:
            old = await store.create("s", self.ann)
            await store.delete("s")
            new = await store.create("s", self.bob)
            assert new.epoch > old.epoch
            assert isinstance(await append(store, old, b"late").wait(), Conflict)
            await written(store, new, b"1")
            assert await bodies_of(store, "s") == [b"1"]

    async def test_an_owner_deletes_no_session_that_was_taken_from_it(self) -> None:
        async with self.store() as store:
            old = await written(store, await store.create("s", self.ann), b"1")
            new = await written(store, await store.acquire("s", self.bob, takeover=True), b"2")
            row = await store.row("s")
            for epoch in (old.epoch, new.epoch + 1):
                await raised(SessionMoved, partial(store.delete, "s", epoch=epoch))
                assert await store.row("s") == row
            new = await written(store, new, b"3")
            assert await bodies_of(store, "s") == [b"1", b"2", b"3"]
            await store.delete("s", epoch=new.epoch)
            await raised(SessionNotFound, lambda: store.delete("s", epoch=new.epoch))
            await store.create("s", self.ann)
            await raised(SessionMoved, lambda: store.delete("s", epoch=new.epoch))
            assert [row.session for row in await store.rows()] == ["s"]

    # Owners that race

    async def test_two_owners_that_race_never_write_one_position(self) -> None:
        for seed in range(5):
            async with self.store() as store:
                race = _Race(store, Random(seed))
                await race.run(writers=12, sessions=3)
                await race.check()
                assert race.conflicts > 0, "no writer was fenced, so there was no race"


class _Race:
    """Writers that take over each other's sessions, and the appends that were acknowledged."""

    def __init__(self, store: Store, random: Random) -> None:
        self._store = store
        self._random = random
        self._acknowledged: dict[str, list[StoredRecord]] = {}
        self.conflicts = 0

    async def run(self, *, writers: int, sessions: int) -> None:
        names = [f"s{index}" for index in range(sessions)]
        for name in names:
            self._acknowledged[name] = []
            await self._store.create(name, Owner("first"))
        async with anyio.create_task_group() as group:
            for index in range(writers):
                group.start_soon(self._write, Owner(f"writer {index}"), names)

    async def _write(self, owner: Owner, names: list[str]) -> None:
        for round_ in range(8):
            lease = await self._store.acquire(self._random.choice(names), owner, takeover=True)
            head = lease.head
            for index in range(self._random.randint(1, 6)):
                await self._dawdle()
                count = self._random.randint(1, 4)
                marks = [f"{owner.name}/{round_}/{index}/{n}".encode() for n in range(count)]
                result = await append(self._store, lease, *marks, head=head).wait()
                if not isinstance(result, Appended):
                    self.conflicts += 1
                    assert isinstance(result, Conflict)
                    assert result.row is not None
                    assert result.row.epoch > lease.epoch
                    break
                self._acknowledged[lease.session] += [
                    StoredRecord(seq, lease.epoch, mark) for seq, mark in enumerate(marks, head + 1)
                ]
                head = result.head

    async def _dawdle(self) -> None:
        for _ in range(self._random.randrange(5)):
            await anyio.lowlevel.checkpoint()

    async def check(self) -> None:
        for session, acknowledged in self._acknowledged.items():
            records = list(await self._store.read(session))
            # The log has exactly the acknowledged records, each at its acknowledged position.
            assert sorted(acknowledged, key=lambda record: record.seq) == records
            assert [record.seq for record in records] == list(range(1, len(records) + 1))
            epochs = [record.epoch for record in records]
            assert epochs == sorted(epochs)
            assert (await self._store.row(session)).head == len(records)
