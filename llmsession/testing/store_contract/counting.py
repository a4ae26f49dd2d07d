"""The contract of stores that count what accounts spend: ``CountingStore``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol, cast

import anyio
import msgspec

from llmsession.errors import InvalidInput
from llmsession.store.counting import Amounts, Charge, CountingStore, Uncounted, grant_of
from llmsession.store.protocol import Appended, Batch, Conflict, Lease, Store
from llmsession.turns.spending.spending import Spending

from .actions import Answer, StoreStage, raised

__all__ = ["CountingContract"]

ACME = {"tenant": "acme"}
LONG_S = 1_000.0
SHORT_S = 0.05
HUGE = 10**30


class _Both(Store, CountingStore, Protocol):
    """A store with counters."""


class CountingContract(StoreStage):
    """Tests for the promises of ``CountingStore``; ``make_store`` as in ``StoreContract``."""

    @asynccontextmanager
    async def _counting(self) -> AsyncIterator[_Both]:
        async with self.store() as store:
            assert isinstance(store, CountingStore)
            yield cast(_Both, store)

    async def _list(self, store: CountingStore, limit: int = 100) -> list[Uncounted]:
        return list(await store.begin_count("acme", ACME, limit=limit))

    async def _spend(
        self, store: Store, lease: Lease, tokens: int, *, account: str = "acme", **more: object
    ) -> Lease:
        spent = Spending(tokens, 10 * tokens, **more)  # type: ignore[arg-type]
        batch = Batch(lease.session, lease.epoch, lease.head, (b"1", b"2"), 1.0, ACME)
        answer = Answer()
        store.append(_charged(batch, Charge(account, spent)), answer.done)
        assert await answer.wait() == Appended(lease.head + 2)
        return Lease(lease.session, lease.epoch, lease.head + 2)

    async def test_what_is_appended_is_counted_in_every_unit(self) -> None:
        async with self._counting() as store:
            assert await self._list(store) == []
            first = await store.create("a", self.ann)
            second = await store.create("b", self.bob)
            first = await self._spend(store, first, 3, unpriced=frozenset({"m", ""}))
            second = await self._spend(store, second, 4, unpriced=frozenset({"m", "漢\0"}))
            await self._spend(store, first, 5)
            assert await store.spent_by("acme") == Spending(12, 120, frozenset({"m", "", "漢\0"}))
            await self._spend(store, second, HUGE)
            assert (await store.spent_by("acme")).cost_nano_usd == 120 + 10 * HUGE

    async def test_what_is_not_appended_is_not_counted(self) -> None:
        async with self._counting() as store:
            assert await self._list(store) == []
            old = await store.create("a", self.ann)
            await store.acquire("a", self.bob, takeover=True)
            for lease in (old, Lease("a", old.epoch + 1, 7), Lease("unknown", 1, 0)):
                batch = Batch(lease.session, lease.epoch, lease.head, (b"1",))
                answer = Answer()
                store.append(_charged(batch, Charge("acme", Spending(9, 9))), answer.done)
                assert isinstance(await answer.wait(), Conflict)
            assert await store.spent_by("acme") == Spending()

    async def test_batches_that_are_appended_at_once_are_all_counted(self) -> None:
        async with self._counting() as store:
            assert await self._list(store) == []
            leases = [await store.create(f"s{number}", self.ann) for number in range(20)]
            answers = []
            for head in range(5):
                for lease in leases:
                    batch = Batch(lease.session, lease.epoch, head, (b"1",))
                    answers.append(Answer())
                    charge = Charge("acme", Spending(1, 2)) if head else None
                    store.append(_charged(batch, charge), answers[-1].done)
            for answer in answers:
                assert isinstance(await answer.wait(), Appended)
            assert await store.spent_by("acme") == Spending(80, 160)

    async def test_only_accounts_whose_counter_was_begun_are_counted(self) -> None:
        async with self._counting() as store:
            assert await self._list(store) == []
            lease = await store.create("a", self.ann)
            await self._spend(store, lease, 3, account="other")
            assert await store.spent_by("acme") == Spending()
            error = await raised(InvalidInput, lambda: store.spent_by("other"))
            assert "'other'" in str(error)

    async def test_sessions_from_before_are_listed_up_to_their_head_and_added_once(self) -> None:
        async with self._counting() as store:
            leases = {}
            for session in ("a", "b", "c"):
                leases[session] = await self._spend(store, await store.create(session, self.ann), 3)
            other = await store.create("other", self.ann)
            answer = Answer()
            store.append(Batch("other", other.epoch, 0, (b"1",), 1.0, {"tenant": "x"}), answer.done)
            await answer.wait()
            await store.create("empty", self.ann)
            assert await self._list(store, 2) == [Uncounted("a", 2), Uncounted("b", 2)]
            await self._spend(store, leases["a"], 5)  # from here on it is charged
            assert await self._list(store, 1) == [Uncounted("a", 2)]
            await store.delete("c")
            counted = {"a": Spending(3, 30), "b": Spending(3, 30), "c": Spending(3, 30)}
            for _ in range(2):  # two managers may read the same logs
                await store.add_counted("acme", counted)
            assert await self._list(store) == []
            assert await store.spent_by("acme") == Spending(11, 110)

    async def test_what_a_deleted_session_spent_stays_counted(self) -> None:
        async with self._counting() as store:
            assert await self._list(store) == []
            await self._spend(store, await store.create("a", self.ann), 3)
            await store.delete("a")
            assert await store.spent_by("acme") == Spending(3, 30)

    # Slices

    async def _reserve(
        self,
        store: CountingStore,
        owner: str,
        asked: int = 1_000,
        *,
        limit: int = 100,
        pending: int = 0,
        hold_s: float = LONG_S,
    ) -> int | None:
        grant = await store.reserve(
            "acme",
            owner,
            Amounts(limit),
            Amounts(asked),
            pending=Spending(pending),
            hold_s=hold_s,
        )
        assert grant.part.nano_usd is None
        return grant.part.tokens

    async def test_slices_of_all_owners_together_are_never_more_than_what_is_left(self) -> None:
        async with self._counting() as store:
            assert await self._list(store) == []
            lease = await store.create("a", self.ann)
            await self._spend(store, lease, 20)
            assert await self._reserve(store, "ann") == 40  # at most half of what is left
            assert await self._reserve(store, "bob", pending=10) == 15
            assert await self._reserve(store, "bob", 3) == 3  # instead of the 15 and the 10
            assert await self._reserve(store, "bob", limit=50) == 0
            assert await self._reserve(store, "ann", limit=20) == 0
            assert await self._reserve(store, "ann") == 40

    async def test_a_slice_that_ended_or_was_given_back_is_granted_again(self) -> None:
        async with self._counting() as store:
            assert await self._list(store) == []
            assert await self._reserve(store, "ann") == 50
            await store.give_back("ann")
            assert await self._reserve(store, "bob", hold_s=SHORT_S) == 50
            ask = (Amounts(50), Amounts(50))
            while not (
                grant := await store.reserve("acme", "ann", *ask, pending=Spending(), hold_s=LONG_S)
            ).part.tokens:
                assert 0 < grant.retry_s <= SHORT_S
                await anyio.sleep(grant.retry_s)
            assert grant.part.tokens == 25

    async def test_a_grant_says_what_was_spent_and_limits_every_unit(self) -> None:
        async with self._counting() as store:
            assert await self._list(store) == []
            lease = await store.create("a", self.ann)
            await self._spend(store, lease, 8, unpriced=frozenset({"m"}))
            limit, asked = Amounts(1_000, 100), Amounts(64, 5)
            grant = await store.reserve(
                "acme", "ann", limit, asked, pending=Spending(), hold_s=LONG_S
            )
            assert grant.spent == Spending(8, 80, frozenset({"m"}))
            assert grant.part == Amounts(64, 5)
            grant = await store.reserve(
                "acme", "bob", Amounts(1_000, 80), asked, pending=Spending(), hold_s=LONG_S
            )
            assert grant.part == grant_of(
                Amounts(1_000, 80), asked, grant.spent, Spending(64, 5), Spending()
            )
            assert grant.part == Amounts(0, 0)

    async def test_owners_that_ask_at_once_share_what_is_left(self) -> None:
        async with self._counting() as store:
            assert await self._list(store) == []
            granted: list[int] = []

            async def ask(owner: str) -> None:
                part = await self._reserve(store, owner, 30)
                granted.append(part or 0)

            async with anyio.create_task_group() as group:
                for number in range(8):
                    group.start_soon(ask, f"owner {number}")
            assert sum(granted) <= 100
            assert sorted(granted, reverse=True) == [30, 30, 20, 10, 5, 3, 1, 1]

    async def test_nothing_is_reserved_of_a_counter_that_was_not_begun(self) -> None:
        async with self._counting() as store:
            await raised(InvalidInput, lambda: self._reserve(store, "ann"))
            await store.give_back("ann")


def _charged(batch: Batch, charge: Charge | None) -> Batch:
    return msgspec.structs.replace(batch, charge=charge)
