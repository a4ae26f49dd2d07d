"""The contract of a store that keeps snapshots."""

from __future__ import annotations

from llmsession.store.protocol import Lease, SnapshotStore

from .actions import StoreStage, written

__all__ = ["SnapshotContract"]

ODD_BODIES = (b"", b"\x00\xff not UTF-8 \x00", b"x" * 3_000_000)


class SnapshotContract(StoreStage):
    """Tests for the promises of ``SnapshotStore``. A store without it passes them."""

    async def test_the_newest_snapshot_is_kept_byte_for_byte(self) -> None:
        async with self.store() as store:
            if not isinstance(store, SnapshotStore):
                return
            assert await store.snapshot("unknown") is None
            lease = await store.create("s", self.ann)
            assert await store.snapshot("s") is None
            lease = await written(store, lease, b"1", b"2")
            for body in (b"one", b"another one of as many records", *ODD_BODIES):
                await store.save_snapshot(lease, 1, body)
                assert await store.snapshot("s") == body
            await store.save_snapshot(lease, 2, b"newer")
            lease = await written(store, lease, b"3")
            await store.release(lease)
            await store.acquire("s", self.bob)
            assert await store.snapshot("s") == b"newer"
            assert list(await store.check()) == []

    async def test_an_older_snapshot_does_not_replace_a_newer_one(self) -> None:
        async with self.store() as store:
            if not isinstance(store, SnapshotStore):
                return
            lease = await written(store, await store.create("s", self.ann), b"1", b"2")
            await store.save_snapshot(lease, 2, b"newer")
            await store.save_snapshot(lease, 1, b"older")
            assert await store.snapshot("s") == b"newer"

    async def test_an_owner_of_an_earlier_epoch_saves_no_snapshot(self) -> None:
        async with self.store() as store:
            if not isinstance(store, SnapshotStore):
                return
            old = await written(store, await store.create("s", self.ann), b"1", b"2")
            new = await store.acquire("s", self.bob, takeover=True)
            await store.save_snapshot(old, 2, b"of the old owner")
            assert await store.snapshot("s") is None
            await store.save_snapshot(new, 1, b"of the new owner")
            await store.save_snapshot(old, 2, b"of the old owner")
            assert await store.snapshot("s") == b"of the new owner"
            await store.release(new)  # and whoever has just released it may still do so
            await store.save_snapshot(new, 2, b"at the end")
            assert await store.snapshot("s") == b"at the end"

    async def test_a_rewrite_removes_the_snapshot_and_none_from_before_it_comes_back(self) -> None:
        async with self.store() as store:
            if not isinstance(store, SnapshotStore):
                return
            for has_one in (True, False):
                name = f"s {has_one}"
                lease = await written(store, await store.create(name, self.ann), b"1", b"2")
                if has_one:
                    await store.save_snapshot(lease, 1, b"has what is erased")
                await store.rewrite(lease, {1: b""})
                assert await store.snapshot(name) is None
                for seq in (1, 2):  # saved before the rewrite, and arriving after it
                    await store.save_snapshot(lease, seq, b"has what is erased")
                    assert await store.snapshot(name) is None
                lease = await written(store, lease, b"3")
                await store.save_snapshot(lease, 3, b"has nothing of it")
                assert await store.snapshot(name) == b"has nothing of it"

    async def test_a_deleted_session_leaves_no_snapshot_and_gets_none(self) -> None:
        async with self.store() as store:
            if not isinstance(store, SnapshotStore):
                return
            lease = await written(store, await store.create("s", self.ann), b"1")
            await store.save_snapshot(lease, 1, b"a snapshot")
            await store.delete("s")
            assert await store.snapshot("s") is None
            await store.save_snapshot(lease, 1, b"too late")
            assert await store.snapshot("s") is None
            again = await written(store, await store.create("s", self.ann), b"1")
            assert await store.snapshot("s") is None
            await store.save_snapshot(lease, 1, b"of the session before")
            assert await store.snapshot("s") is None
            await store.save_snapshot(again, 1, b"its own")
            assert await store.snapshot("s") == b"its own"
            assert list(await store.check()) == []

    async def test_a_fork_and_its_parent_have_snapshots_of_their_own(self) -> None:
        async with self.store() as store:
            if not isinstance(store, SnapshotStore):
                return
            parent = await written(store, await store.create("s", self.ann), b"1", b"2")
            await store.save_snapshot(parent, 2, b"the parent's")
            fork: Lease = await store.fork("s", 2, "fork", self.ann)
            assert await store.snapshot("fork") is None
            await store.save_snapshot(fork, 2, b"the fork's")
            assert await store.snapshot("s") == b"the parent's"
            await store.rewrite(fork, {1: b""})
            assert await store.snapshot("fork") is None
            assert await store.snapshot("s") == b"the parent's"
            await store.rewrite(parent, {2: b""})
            assert await store.snapshot("s") is None
            fork = await written(store, fork, b"3")
            await store.save_snapshot(fork, 3, b"the fork's again")
            await store.delete("s")
            assert await store.snapshot("fork") == b"the fork's again"
            await store.delete("fork")
            assert list(await store.check()) == []
