"""The contract finds stores that are wrong about forks, rewriting or search, by the promise that
each of them breaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
from msgspec.structs import replace

from llmsession.store import (
    AppendResult,
    Batch,
    Lease,
    MemoryStore,
    Owner,
    SessionFilter,
    SessionRow,
)
from llmsession.store.protocol import EVERYTHING
from tests.testing.store_contract.test_contract import violations


class ForksEverything(MemoryStore):
    """Whatever was asked for, the fork has all of its parent's records."""

    async def fork(self, parent: str, upto: int, session: str, owner: Owner) -> Lease:
        await super().fork(parent, upto, session, owner)
        log, old = self._logs[session], self._logs[parent]
        log.bodies, log.epochs = list(old.bodies), list(old.epochs)
        log.row = replace(log.row, head=old.row.head)
        return Lease(session, log.row.epoch, old.row.head)


class ForksOneList(MemoryStore):
    """What is appended to one is appended to both."""

    async def fork(self, parent: str, upto: int, session: str, owner: Owner) -> Lease:
        lease = await super().fork(parent, upto, session, owner)
        if upto == self._logs[parent].row.head:
            self._logs[session].bodies = self._logs[parent].bodies
        return lease


class ForkingTakes(MemoryStore):
    """The parent is acquired by who forks it."""

    async def fork(self, parent: str, upto: int, session: str, owner: Owner) -> Lease:
        lease = await super().fork(parent, upto, session, owner)
        await self.acquire(parent, owner, takeover=True)
        return lease


class ForksWithTheFirstEpoch(MemoryStore):
    async def fork(self, parent: str, upto: int, session: str, owner: Owner) -> Lease:
        lease = await super().fork(parent, upto, session, owner)
        log = self._logs[session]
        log.row = replace(log.row, epoch=1)
        return replace(lease, epoch=1)


class ForksForgetTheDeleted(MemoryStore):
    """Epochs of deleted sessions are looked at when one is created, not when one is forked."""

    async def fork(self, parent: str, upto: int, session: str, owner: Owner) -> Lease:
        kept, self._highest_epoch = self._highest_epoch, 0
        try:
            return await super().fork(parent, upto, session, owner)
        finally:
            self._highest_epoch = kept


class ForksHaveNoParent(MemoryStore):
    async def fork(self, parent: str, upto: int, session: str, owner: Owner) -> Lease:
        lease = await super().fork(parent, upto, session, owner)
        self._logs[session].row = replace(self._logs[session].row, parent=None)
        return lease


class ForksWhatIsNotThere(MemoryStore):
    async def fork(self, parent: str, upto: int, session: str, owner: Owner) -> Lease:
        head = self._log(parent).row.head
        return await super().fork(parent, max(0, min(upto, head)), session, owner)


class ForksOverOthers(MemoryStore):
    async def fork(self, parent: str, upto: int, session: str, owner: Owner) -> Lease:
        if session in self._logs and session != parent:
            await self.delete(session)
        elif session in self._logs:
            return await self.acquire(session, owner, takeover=True)
        return await super().fork(parent, upto, session, owner)


class ForksGiveTheirOwnEpoch(MemoryStore):
    """The records that are shared carry the fork's epoch."""

    async def fork(self, parent: str, upto: int, session: str, owner: Owner) -> Lease:
        lease = await super().fork(parent, upto, session, owner)
        self._logs[session].epochs = [(1, lease.epoch)] if upto else []
        return lease


class DeletesForTheForksToo(MemoryStore):
    async def delete(self, session: str, *, epoch: int | None = None) -> None:
        for log in self._logs.values():
            if log.row.parent == session:
                log.bodies[:] = [b"" for _ in log.bodies]
        await super().delete(session, epoch=epoch)


class DeletesForTheParentToo(MemoryStore):
    async def delete(self, session: str, *, epoch: int | None = None) -> None:
        parent = self._log(session).row.parent
        if parent in self._logs:
            self._logs[parent].bodies[:2] = [b"", b""]
        await super().delete(session, epoch=epoch)


class RewritesForAll(MemoryStore):
    """A rewritten record is rewritten in every session that shares it."""

    async def rewrite(self, lease: Lease, bodies: Mapping[int, bytes]) -> None:
        await super().rewrite(lease, bodies)
        parent = self._logs[lease.session].row.parent
        for log in self._logs.values():
            if lease.session == log.row.parent or log.row.session == parent:
                for seq, body in bodies.items():
                    if seq <= min(3, len(log.bodies)):
                        log.bodies[seq - 1] = body


class RewritesForTheParentToo(MemoryStore):
    async def rewrite(self, lease: Lease, bodies: Mapping[int, bytes]) -> None:
        await super().rewrite(lease, bodies)
        log = self._logs[lease.session]
        if log.row.parent in self._logs:
            self._logs[log.row.parent].bodies[:3] = log.bodies[:3]


class RewritesHalf(MemoryStore):
    """What can be rewritten is, before it is found that something cannot."""

    async def rewrite(self, lease: Lease, bodies: Mapping[int, bytes]) -> None:
        log = self._log(lease.session)
        for seq, body in bodies.items():
            if log.row.epoch == lease.epoch and 1 <= seq <= log.row.head:
                log.bodies[seq - 1] = body
        await super().rewrite(lease, bodies)


class RewritesWithoutFence(MemoryStore):
    async def rewrite(self, lease: Lease, bodies: Mapping[int, bytes]) -> None:
        epoch = self._log(lease.session).row.epoch
        await super().rewrite(replace(lease, epoch=epoch), bodies)


class RewritesUnderItsOwnEpoch(MemoryStore):
    async def rewrite(self, lease: Lease, bodies: Mapping[int, bytes]) -> None:
        await super().rewrite(lease, bodies)
        self._logs[lease.session].epochs = [(1, lease.epoch)]


class RewritesAppend(MemoryStore):
    async def rewrite(self, lease: Lease, bodies: Mapping[int, bytes]) -> None:
        await super().rewrite(lease, bodies)
        log = self._logs[lease.session]
        log.bodies += bodies.values()
        log.row = replace(log.row, head=len(log.bodies))


class ForgetsLabels(MemoryStore):
    """A batch that says nothing of labels takes them away."""

    def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
        super().append(replace(batch, labels=batch.labels or {}), done)


class AddsLabels(MemoryStore):
    """New labels are put beside the old ones."""

    def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
        log = self._logs.get(batch.session)
        if log is not None and batch.labels is not None:
            batch = replace(batch, labels={**log.row.labels, **batch.labels})
        super().append(batch, done)


class CreatedWhenTouched(MemoryStore):
    def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
        super().append(batch, done)
        log = self._logs.get(batch.session)
        if log is not None:
            log.row = replace(log.row, created_at=log.row.touched_at)


class _Searches(MemoryStore):
    """Finds by another search than it was asked for."""

    def other(self, filter: SessionFilter) -> SessionFilter:
        raise NotImplementedError

    async def rows(
        self, *, after: str = "", limit: int = 1000, filter: SessionFilter = EVERYTHING
    ) -> Sequence[SessionRow]:
        return await super().rows(after=after, limit=limit, filter=self.other(filter))


class FindsEverything(_Searches):
    def other(self, filter: SessionFilter) -> SessionFilter:
        return EVERYTHING


class FindsAnyValue(_Searches):
    def other(self, filter: SessionFilter) -> SessionFilter:
        return replace(filter, labels=dict.fromkeys(filter.labels))


class FindsByOneLabel(_Searches):
    def other(self, filter: SessionFilter) -> SessionFilter:
        return replace(filter, labels=dict([*filter.labels.items()][:1]))


class FindsTheUpperBound(_Searches):
    def other(self, filter: SessionFilter) -> SessionFilter:
        ends = filter.touched_before
        return replace(filter, touched_before=None if ends is None else ends + 1e-6)


class MissesTheLowerBound(_Searches):
    def other(self, filter: SessionFilter) -> SessionFilter:
        begins = filter.touched_after
        return replace(filter, touched_after=None if begins is None else begins + 1e-6)


class ConfusesTheTimes(_Searches):
    def other(self, filter: SessionFilter) -> SessionFilter:
        return replace(
            filter, created_after=filter.touched_after, created_before=filter.touched_before,
            touched_after=filter.created_after, touched_before=filter.created_before,
        )  # fmt: skip


class FindsInThePageOnly(MemoryStore):
    """Looks for the sessions among the first *limit*."""

    async def rows(
        self, *, after: str = "", limit: int = 1000, filter: SessionFilter = EVERYTHING
    ) -> Sequence[SessionRow]:
        page = await super().rows(after=after, limit=limit)
        return [row for row in page if filter.finds(row)]


class NeverSatisfied(MemoryStore):
    async def check(self) -> Sequence[str]:
        return ("something is wrong",)


class VacuumsTooMuch(MemoryStore):
    """What two sessions share is taken for garbage once the first of them is gone."""

    async def vacuum(self) -> int:
        for log in self._logs.values():
            if log.row.parent is not None and log.row.parent not in self._logs:
                log.bodies[0] = b""
        return 0


FORK = "test_a_fork_begins_with_its_parents_records_and_goes_on_alone"
NEEDS = "test_a_fork_needs_a_parent_a_free_id_and_records_that_are_there"
REWRITE = "test_rewriting_changes_the_named_records_and_nothing_else"
ONLY_THE_OWNER = "test_only_the_owner_rewrites_and_only_what_is_there"
ROW = "test_a_row_has_its_times_and_its_newest_labels"
SEARCH = "test_sessions_are_found_by_label_and_time"

BROKEN: dict[type[MemoryStore], str] = {
    ForksEverything: FORK,
    ForksOneList: "test_a_fork_takes_nothing_from_its_parents_owner",
    ForkingTakes: "test_a_fork_takes_nothing_from_its_parents_owner",
    ForksWithTheFirstEpoch: FORK,
    ForksForgetTheDeleted: (
        "test_an_owner_from_before_a_deletion_is_fenced_from_a_fork_of_that_id"
    ),
    ForksHaveNoParent: FORK,
    ForksWhatIsNotThere: NEEDS,
    ForksOverOthers: NEEDS,
    ForksGiveTheirOwnEpoch: FORK,
    DeletesForTheForksToo: "test_a_fork_outlives_its_parent",
    DeletesForTheParentToo: "test_a_parent_outlives_its_fork",
    VacuumsTooMuch: "test_a_fork_outlives_its_parent",
    RewritesForAll: "test_a_fork_keeps_the_records_that_its_parent_rewrites",
    RewritesForTheParentToo: "test_a_parent_keeps_the_records_that_its_fork_rewrites",
    RewritesHalf: ONLY_THE_OWNER,
    RewritesWithoutFence: ONLY_THE_OWNER,
    RewritesUnderItsOwnEpoch: REWRITE,
    RewritesAppend: REWRITE,
    ForgetsLabels: ROW,
    AddsLabels: ROW,
    CreatedWhenTouched: ROW,
    FindsEverything: SEARCH,
    FindsAnyValue: SEARCH,
    FindsByOneLabel: SEARCH,
    FindsTheUpperBound: SEARCH,
    MissesTheLowerBound: SEARCH,
    ConfusesTheTimes: SEARCH,
    FindsInThePageOnly: SEARCH,
    NeverSatisfied: "test_a_store_that_is_whole_has_nothing_to_complain_of",
}


@pytest.mark.parametrize("store", BROKEN, ids=lambda store: store.__name__)
async def test_a_store_that_breaks_a_promise_is_found_by_it(store: type[MemoryStore]) -> None:
    assert BROKEN[store] in await violations(store, of=BROKEN[store])
