"""The contract of a store that knows which sessions have unfinished work."""

from __future__ import annotations

from llmsession.store.protocol import Appended, Batch, Lease, Store, UnfinishedIndex

from .actions import Answer, StoreStage

__all__ = ["UnfinishedContract"]


async def _marked(store: Store, lease: Lease, unfinished: bool | None) -> Lease:
    answer = Answer()
    batch = Batch(lease.session, lease.epoch, lease.head, (b"1",), unfinished=unfinished)
    store.append(batch, answer.done)
    assert await answer.wait() == Appended(lease.head + 1)
    return Lease(lease.session, lease.epoch, lease.head + 1)


class UnfinishedContract(StoreStage):
    """Tests for the promises of ``UnfinishedIndex``. A store without it passes them."""

    async def test_a_session_is_unfinished_from_the_batch_that_says_so_to_the_one_that_ends_it(
        self,
    ) -> None:
        async with self.store() as store:
            if not isinstance(store, UnfinishedIndex):
                return
            lease = await store.create("s", self.ann)
            for mark, found in ((None, []), (True, ["s"]), (None, ["s"]), (True, ["s"]),
                                (False, []), (None, []), (False, []), (True, ["s"])):  # fmt: skip
                lease = await _marked(store, lease, mark)
                await store.release(lease)
                assert [row.session for row in await store.unfinished()] == found
                lease = await store.acquire("s", self.ann)

    async def test_unfinished_sessions_that_a_living_owner_holds_are_left_to_it(self) -> None:
        async with self.store() as store:
            if not isinstance(store, UnfinishedIndex):
                return
            held = await _marked(store, await store.create("held", self.ann), True)
            free = await _marked(store, await store.create("free", self.ann), True)
            await store.release(free)
            assert [row.session for row in await store.unfinished()] == ["free"]
            taken = await store.acquire("free", self.bob)
            assert list(await store.unfinished()) == []
            # Whoever took it says no more of it, and gives it up: it is still unfinished.
            await store.release(taken)
            await store.release(held)
            assert list(await store.unfinished()) == [
                await store.row("free"), await store.row("held"),
            ]  # fmt: skip

    async def test_unfinished_sessions_are_listed_by_id_page_by_page(self) -> None:
        async with self.store() as store:
            if not isinstance(store, UnfinishedIndex):
                return
            for name in ("b", "a", "é", "d", "c"):
                lease = await _marked(store, await store.create(name, self.ann), name != "b")
                if name != "d":
                    await store.release(lease)
            found, after = list[str](), ""
            while page := await store.unfinished(after=after, limit=2):
                assert len(page) <= 2
                found += [row.session for row in page]
                after = page[-1].session
            assert found == ["a", "c", "é"]

    async def test_a_session_that_is_settled_is_not_found_unless_it_went_on_meanwhile(
        self,
    ) -> None:
        async with self.store() as store:
            if not isinstance(store, UnfinishedIndex):
                return
            lease = await _marked(store, await store.create("s", self.ann), True)
            earlier = await store.row("s")
            lease = await _marked(store, lease, None)
            await store.release(lease)
            await store.settle(earlier)
            [row] = await store.unfinished()
            await store.release(await store.acquire("s", self.ann))
            await store.settle(row)  # its epoch has changed
            [row] = await store.unfinished()
            await store.settle(row)
            assert list(await store.unfinished()) == []
            await _marked(store, await store.acquire("s", self.ann), True)
            await store.release(await store.acquire("s", self.ann))
            assert [row.session for row in await store.unfinished()] == ["s"]

    async def test_new_forked_and_deleted_sessions_have_no_unfinished_work(self) -> None:
        async with self.store() as store:
            if not isinstance(store, UnfinishedIndex):
                return
            parent = await _marked(store, await store.create("s", self.ann), True)
            await store.release(parent)
            await store.release(await store.fork("s", 1, "fork", self.ann))
            await store.release(await store.create("new", self.ann))
            assert [row.session for row in await store.unfinished()] == ["s"]
            row = await store.row("s")
            await store.delete("s")
            assert list(await store.unfinished()) == []
            await store.settle(row)
            await store.release(await store.create("s", self.ann))
            assert list(await store.unfinished()) == []
