"""The part of the store contract about forks, rewriting records, and finding sessions."""

from __future__ import annotations

from llmsession.errors import InvalidInput, SessionExists, SessionMoved, SessionNotFound
from llmsession.store.protocol import Appended, Batch, Conflict, Lease, SessionFilter, Store

from .actions import Answer, StoreStage, append, bodies_of, raised, written

__all__ = ["SharedRecordsContract"]

LARGE = b'{"text":"' + b"0123456789abcdef" * 20_000 + b'"}'


class SharedRecordsContract(StoreStage):
    """Part of ``StoreContract``."""

    # Forks

    async def _parent(self, store: Store) -> Lease:
        return await written(store, await store.create("p", self.ann), b"1", LARGE, b"3", b"4")

    async def test_a_fork_begins_with_its_parents_records_and_goes_on_alone(self) -> None:
        async with self.store() as store:
            parent = await self._parent(store)
            fork = await store.fork("p", 3, "f", self.bob)
            assert (fork.session, fork.head) == ("f", 3)
            assert fork.epoch > parent.epoch
            await written(store, fork, b"mine")
            await written(store, parent, b"5")
            assert await bodies_of(store, "f") == [b"1", LARGE, b"3", b"mine"]
            assert await bodies_of(store, "p") == [b"1", LARGE, b"3", b"4", b"5"]
            records = await store.read("f", after=1, limit=3)
            assert [record.seq for record in records] == [2, 3, 4]
            assert [record.epoch for record in records] == [1, 1, fork.epoch]
            row = await store.row("f")
            assert (row.head, row.owner, row.parent) == (4, self.bob, "p")
            assert (await store.row("p")).parent is None

    async def test_a_fork_takes_nothing_from_its_parents_owner(self) -> None:
        async with self.store() as store:
            parent = await self._parent(store)
            before = await store.row("p")
            fork = await store.fork("p", 4, "f", self.bob)
            assert await store.row("p") == before
            await written(store, parent, b"5")
            assert await bodies_of(store, "f") == [b"1", LARGE, b"3", b"4"]
            await written(store, fork, b"mine")
            assert await bodies_of(store, "p") == [b"1", LARGE, b"3", b"4", b"5"]

    async def test_a_fork_at_nothing_is_empty(self) -> None:
        async with self.store() as store:
            await self._parent(store)
            fork = await store.fork("p", 0, "f", self.bob)
            assert await bodies_of(store, "f") == []
            await written(store, fork, b"first")
            assert await bodies_of(store, "f") == [b"first"]

    async def test_a_fork_of_a_fork_has_the_records_of_both(self) -> None:
        async with self.store() as store:
            await self._parent(store)
            fork = await written(store, await store.fork("p", 2, "f", self.ann), b"f3", b"f4")
            await written(store, await store.fork("f", 3, "g", self.ann), b"g4")
            await written(store, await store.fork("f", 1, "h", self.ann), b"h2")
            assert await bodies_of(store, "g") == [b"1", LARGE, b"f3", b"g4"]
            assert await bodies_of(store, "h") == [b"1", b"h2"]
            await written(store, fork, b"f5")
            assert await bodies_of(store, "g") == [b"1", LARGE, b"f3", b"g4"]

    async def test_a_fork_outlives_its_parent(self) -> None:
        async with self.store() as store:
            await self._parent(store)
            fork = await store.fork("p", 2, "f", self.bob)
            await store.delete("p")
            await store.vacuum()
            await written(store, fork, b"mine")
            assert await bodies_of(store, "f") == [b"1", LARGE, b"mine"]
            again = await store.create("p", self.ann)
            await written(store, again, b"new")
            assert await bodies_of(store, "f") == [b"1", LARGE, b"mine"]

    async def test_a_parent_outlives_its_fork(self) -> None:
        async with self.store() as store:
            await self._parent(store)
            await store.fork("p", 2, "f", self.bob)
            await store.delete("f")
            await store.vacuum()
            assert await bodies_of(store, "p") == [b"1", LARGE, b"3", b"4"]

    async def test_a_fork_needs_a_parent_a_free_id_and_records_that_are_there(self) -> None:
        async with self.store() as store:
            await self._parent(store)
            await raised(SessionNotFound, lambda: store.fork("no", 0, "f", self.bob))
            await raised(SessionExists, lambda: store.fork("p", 1, "p", self.bob))
            await raised(InvalidInput, lambda: store.fork("p", 5, "f", self.bob))
            await raised(InvalidInput, lambda: store.fork("p", -1, "f", self.bob))
            assert [row.session for row in await store.rows()] == ["p"]

    async def test_an_owner_from_before_a_deletion_is_fenced_from_a_fork_of_that_id(self) -> None:
        async with self.store() as store:
            await self._parent(store)
            old = await store.create("f", self.ann)
            for _ in range(5):
                old = await store.acquire("f", self.ann)
            await store.delete("f")
            fork = await store.fork("p", 1, "f", self.bob)
            assert fork.epoch > old.epoch
            assert isinstance(await append(store, old, b"late", head=1).wait(), Conflict)

    # Rewriting

    async def test_rewriting_changes_the_named_records_and_nothing_else(self) -> None:
        async with self.store() as store:
            lease = await self._parent(store)
            lease = await store.acquire("p", self.ann)
            lease = await written(store, lease, b"5")
            await store.rewrite(lease, {2: b"gone", 4: LARGE, 5: b""})
            records = await store.read("p")
            assert [record.body for record in records] == [b"1", b"gone", b"3", LARGE, b""]
            assert [record.epoch for record in records] == [1, 1, 1, 1, 2]
            assert (await store.row("p")).head == 5
            await written(store, lease, b"6")
            await store.vacuum()
            assert await bodies_of(store, "p") == [b"1", b"gone", b"3", LARGE, b"", b"6"]

    async def test_a_fork_keeps_the_records_that_its_parent_rewrites(self) -> None:
        async with self.store() as store:
            lease = await self._parent(store)
            fork = await written(store, await store.fork("p", 3, "f", self.bob), b"mine")
            await store.rewrite(lease, {2: b"gone"})
            await store.vacuum()
            assert await bodies_of(store, "f") == [b"1", LARGE, b"3", b"mine"]
            assert await bodies_of(store, "p") == [b"1", b"gone", b"3", b"4"]
            await store.rewrite(fork, {1: b"also", 4: b"ours"})
            assert await bodies_of(store, "f") == [b"also", LARGE, b"3", b"ours"]
            assert await bodies_of(store, "p") == [b"1", b"gone", b"3", b"4"]
            await written(store, fork, b"more")
            await written(store, lease, b"5")
            await store.delete("p")
            assert await bodies_of(store, "f") == [b"also", LARGE, b"3", b"ours", b"more"]

    async def test_a_parent_keeps_the_records_that_its_fork_rewrites(self) -> None:
        async with self.store() as store:
            await self._parent(store)
            fork = await store.fork("p", 3, "f", self.bob)
            await store.rewrite(fork, {1: b"mine", 2: b"mine"})
            assert await bodies_of(store, "f") == [b"mine", b"mine", b"3"]
            assert await bodies_of(store, "p") == [b"1", LARGE, b"3", b"4"]
            await store.rewrite(fork, {2: b"again"})
            await store.delete("f")
            await store.vacuum()
            assert await bodies_of(store, "p") == [b"1", LARGE, b"3", b"4"]

    async def test_only_the_owner_rewrites_and_only_what_is_there(self) -> None:
        async with self.store() as store:
            lease = await self._parent(store)
            await raised(InvalidInput, lambda: store.rewrite(lease, {1: b"x", 5: b"y"}))
            await raised(InvalidInput, lambda: store.rewrite(lease, {0: b"x"}))
            await store.acquire("p", self.bob, takeover=True)
            await raised(SessionMoved, lambda: store.rewrite(lease, {1: b"x"}))
            assert await bodies_of(store, "p") == [b"1", LARGE, b"3", b"4"]
            await store.delete("p")
            await raised(SessionNotFound, lambda: store.rewrite(lease, {1: b"x"}))

    # Finding

    async def _labelled(
        self, store: Store, session: str, time_s: float, labels: dict[str, str] | None
    ) -> Lease:
        lease = await store.create(session, self.ann)
        batch = Batch(session, lease.epoch, 0, (b"1",), time_s, labels)
        return await self._append(store, batch)

    @staticmethod
    async def _append(store: Store, batch: Batch) -> Lease:
        answer = Answer()
        store.append(batch, answer.done)
        result = await answer.wait()
        assert isinstance(result, Appended), result
        return Lease(batch.session, batch.epoch, result.head)

    async def test_a_row_has_its_times_and_its_newest_labels(self) -> None:
        async with self.store() as store:
            lease = await self._labelled(store, "a", 100.0, {"user": "7", "é": "漢"})
            row = await store.row("a")
            assert (row.created_at, row.touched_at) == (100.0, 100.0)
            assert row.labels == {"user": "7", "é": "漢"}
            lease = await self._append(store, Batch("a", lease.epoch, lease.head, (b"2",), 250.5))
            row = await store.row("a")
            assert (row.created_at, row.touched_at) == (100.0, 250.5)
            assert row.labels == {"user": "7", "é": "漢"}
            await self._append(store, Batch("a", lease.epoch, lease.head, (b"3",), 251.0, {}))
            assert (await store.row("a")).labels == {}
            assert list(await store.rows()) == [await store.row("a")]

    async def test_sessions_are_found_by_label_and_time(self) -> None:
        async with self.store() as store:
            await self._labelled(store, "a", 100.0, {"user": "7", "team": "x"})
            await self._labelled(store, "b", 200.0, {"user": "8", "team": "x"})
            await self._labelled(store, "c", 300.0, None)
            await store.create("d", self.ann)
            old = await self._labelled(store, "e", 50.0, None)
            await self._append(store, Batch("e", old.epoch, old.head, (b"2",), 350.0))

            async def matching(**filters: object) -> str:
                filter = SessionFilter(**filters)  # type: ignore[arg-type]  # what each caller gives
                names = [row.session for row in await store.rows(filter=filter)]
                paged: list[str] = []
                while page := await store.rows(
                    after=paged[-1] if paged else "", limit=1, filter=filter
                ):
                    paged += [row.session for row in page]
                assert paged == names
                return "".join(names)

            assert await matching() == "abcde"
            assert await matching(labels={"user": "7"}) == "a"
            assert await matching(labels={"team": "x"}) == "ab"
            assert await matching(labels={"team": None}) == "ab"
            assert await matching(labels={"team": "x", "user": "8"}) == "b"
            assert await matching(labels={"team": "y"}) == ""
            assert await matching(labels={"nobody": None}) == ""
            assert await matching(without=("team",)) == "cde"
            assert await matching(without=("nobody",)) == "abcde"
            assert await matching(without=("nobody", "user"), labels={"team": "x"}) == ""
            assert await matching(touched_before=200.0) == "ad"
            assert await matching(touched_after=200.0) == "bce"
            assert await matching(created_after=100.0, created_before=300.0) == "ab"
            assert await matching(created_before=100.0, touched_after=300.0) == "e"
            assert await matching(labels={"team": "x"}, touched_after=150.0) == "b"
            row = await store.row("b")
            labels = {"team": "y", "user": "8", "new": "1"}
            await self._append(store, Batch("b", row.epoch, row.head, (b"2",), 201.0, labels))
            assert await matching(labels={"team": "x"}) == "a"
            assert await matching(labels={"team": "y", "new": None}) == "b"
            assert await matching(labels={"user": None, "team": None}) == "ab"
            await store.delete("a")
            assert await matching(labels={"user": None}) == "b"
            assert list(await store.check()) == []

    async def test_a_store_that_is_whole_has_nothing_to_complain_of(self) -> None:
        async with self.store() as store:
            lease = await self._parent(store)
            await store.fork("p", 2, "f", self.bob)
            await store.rewrite(lease, {1: b"x"})
            await store.delete("f")
            assert list(await store.check()) == []
            assert await store.vacuum() >= 0
            assert list(await store.check()) == []
