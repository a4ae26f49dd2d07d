"""The contract finds stores that break it: each of these is wrong in one way."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import anyio
import msgspec
import pytest

from llmsession.store import (
    Appended,
    AppendResult,
    Batch,
    Conflict,
    Lease,
    MemoryStore,
    Owner,
    SessionFilter,
    SessionRow,
    Store,
    StoredRecord,
)
from llmsession.store.protocol import EVERYTHING
from llmsession.testing import StoreContract

Done = Callable[[AppendResult], None]


class WithoutFence(MemoryStore):
    """Looks at the head alone."""

    def append(self, batch: Batch, done: Done) -> None:
        log = self._logs.get(batch.session)
        epoch = log.row.epoch if log else batch.epoch
        super().append(msgspec.structs.replace(batch, epoch=epoch), done)


class WithoutHead(MemoryStore):
    """Appends wherever the log ends."""

    def append(self, batch: Batch, done: Done) -> None:
        log = self._logs.get(batch.session)
        head = log.row.head if log else batch.head
        super().append(msgspec.structs.replace(batch, head=head), done)


class HalfBatches(MemoryStore):
    """Writes the first record of a batch that conflicts."""

    def append(self, batch: Batch, done: Done) -> None:
        log = self._logs.get(batch.session)
        if log is not None and batch.head != log.row.head and batch.epoch == log.row.epoch:
            log.bodies.append(batch.bodies[0])
        super().append(batch, done)


class AnswersTwice(MemoryStore):
    def append(self, batch: Batch, done: Done) -> None:
        super().append(batch, done)
        done(Appended(batch.head + len(batch.bodies)))


class RaisesOnConflict(MemoryStore):
    def append(self, batch: Batch, done: Done) -> None:
        def answer(result: AppendResult) -> None:
            if isinstance(result, Conflict):
                raise RuntimeError("conflict")
            done(result)

        super().append(batch, answer)


class ForgetsTheRow(MemoryStore):
    def append(self, batch: Batch, done: Done) -> None:
        super().append(batch, lambda r: done(Conflict(None) if isinstance(r, Conflict) else r))


class LosesWhatIsOnItsWay(MemoryStore):
    """Answers only when somebody reads: what was accepted is not finished on closing."""

    def __init__(self) -> None:
        super().__init__()
        self._late: list[tuple[Done, AppendResult]] = []

    def append(self, batch: Batch, done: Done) -> None:
        super().append(batch, lambda result: self._late.append((done, result)))

    async def read(
        self, session: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredRecord]:
        late, self._late = self._late, []
        for done, result in late:
            done(result)
        return await super().read(session, after=after, limit=limit)


class KeepsEpoch(MemoryStore):
    async def acquire(self, session: str, owner: Owner, *, takeover: bool = False) -> Lease:
        lease = await super().acquire(session, owner, takeover=takeover)
        log = self._logs[session]
        log.row = msgspec.structs.replace(log.row, epoch=1)
        return msgspec.structs.replace(lease, epoch=1)


class GivesAwayWhatIsInUse(MemoryStore):
    async def acquire(self, session: str, owner: Owner, *, takeover: bool = False) -> Lease:
        return await super().acquire(session, owner, takeover=True)


class AnybodyReleases(MemoryStore):
    async def release(self, lease: Lease) -> None:
        log = self._logs.get(lease.session)
        if log is not None:
            log.row = msgspec.structs.replace(log.row, owner=None)


class NeverReleases(MemoryStore):
    async def release(self, lease: Lease) -> None:
        pass


class OneEpochForAll(MemoryStore):
    """Records carry the epoch of whoever holds the session now."""

    async def read(
        self, session: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredRecord]:
        epoch = self._log(session).row.epoch
        records = await super().read(session, after=after, limit=limit)
        return [msgspec.structs.replace(record, epoch=epoch) for record in records]


class ReadsFromTheCursor(MemoryStore):
    async def read(
        self, session: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredRecord]:
        return await super().read(session, after=max(0, after - 1), limit=limit)


class IgnoresTheLimit(MemoryStore):
    async def read(
        self, session: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredRecord]:
        return await super().read(session, after=after)


class StoresText(MemoryStore):
    def append(self, batch: Batch, done: Done) -> None:
        bodies = tuple(body.decode("utf-8", "replace").encode() for body in batch.bodies)
        super().append(msgspec.structs.replace(batch, bodies=bodies), done)


class RowsAsTheyCame(MemoryStore):
    async def rows(
        self, *, after: str = "", limit: int = 1000, filter: SessionFilter = EVERYTHING
    ) -> Sequence[SessionRow]:
        rows = [
            log.row for name, log in self._logs.items() if name > after and filter.finds(log.row)
        ]
        return rows[:limit]


class DeletesTheRowOnly(MemoryStore):
    """The log is still there when the id is used again."""

    async def delete(self, session: str, *, epoch: int | None = None) -> None:
        bodies = self._log(session).bodies
        await super().delete(session, epoch=epoch)
        self._old = {**getattr(self, "_old", {}), session: bodies}

    async def create(self, session: str, owner: Owner) -> Lease:
        lease = await super().create(session, owner)
        self._logs[session].bodies += getattr(self, "_old", {}).get(session, [])
        return lease


class DeletesWithoutFence(MemoryStore):
    async def delete(self, session: str, *, epoch: int | None = None) -> None:
        await super().delete(session)


class ReadingAcquires(MemoryStore):
    async def row(self, session: str) -> SessionRow:
        await self.acquire(session, Owner("reader"), takeover=True)
        return await super().row(session)


class OverwritesOnCreate(MemoryStore):
    async def create(self, session: str, owner: Owner) -> Lease:
        if session in self._logs:
            await self.delete(session)
        return await super().create(session, owner)


class RacesOnAcquire(MemoryStore):
    """Reads the epoch, waits, writes it: two owners can get one epoch."""

    async def acquire(self, session: str, owner: Owner, *, takeover: bool = False) -> Lease:
        epoch = (await self.row(session)).epoch + 1
        await anyio.lowlevel.checkpoint()
        lease = await super().acquire(session, owner, takeover=takeover)
        log = self._logs[session]
        log.row = msgspec.structs.replace(log.row, epoch=epoch)
        return Lease(session, epoch, lease.head)


BROKEN = [
    WithoutFence,
    WithoutHead,
    HalfBatches,
    AnswersTwice,
    RaisesOnConflict,
    ForgetsTheRow,
    LosesWhatIsOnItsWay,
    KeepsEpoch,
    GivesAwayWhatIsInUse,
    AnybodyReleases,
    NeverReleases,
    OneEpochForAll,
    ReadsFromTheCursor,
    IgnoresTheLimit,
    StoresText,
    RowsAsTheyCame,
    DeletesTheRowOnly,
    DeletesWithoutFence,
    ReadingAcquires,
    OverwritesOnCreate,
    RacesOnAcquire,
]


async def violations(store: type[MemoryStore], *, of: str = "test_") -> list[str]:
    """The promises that *store* does not keep, of those whose names begin with *of*."""

    class Contract(StoreContract):
        patience_s = 1.0

        async def make_store(self) -> Store:
            return store()

    contract, found = Contract(), []
    for name, promise in inspect.getmembers(contract, inspect.iscoroutinefunction):
        if name.startswith(of):
            try:
                await promise()
            except (Exception, BaseExceptionGroup):
                found.append(name)
    return found


async def test_a_store_that_keeps_every_promise_passes() -> None:
    assert await violations(MemoryStore) == []


@pytest.mark.parametrize("store", BROKEN, ids=lambda store: store.__name__)
async def test_a_store_that_breaks_a_promise_is_found(store: type[MemoryStore]) -> None:
    assert await violations(store) != []


async def test_only_the_race_finds_an_epoch_that_is_given_out_twice() -> None:
    assert await violations(RacesOnAcquire) == [
        "test_two_owners_that_race_never_write_one_position"
    ]
