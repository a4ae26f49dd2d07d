"""A store that fails on demand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, TypeAlias

import anyio
import msgspec

from llmsession.store.protocol import (
    EVERYTHING,
    AppendResult,
    Batch,
    Conflict,
    Lease,
    Lost,
    Owner,
    SessionFilter,
    SessionRow,
    SnapshotStore,
    Store,
    StoredRecord,
)

__all__ = ["FaultyStore"]

Done: TypeAlias = Callable[[AppendResult], None]


class _Fault(msgspec.Struct, frozen=True):
    """What happens to one append."""

    kind: Literal["fail", "lose", "conflict", "deleted"]
    error: str = ""


class FaultyStore:
    """Wraps the store *inner* and adds faults to appends.

    Each fault applies to one append, in the order in which the faults were requested. Reads, and
    appends without a fault, are passed to *inner* unchanged.

    ``delay`` keeps all answers back until ``deliver``. Meanwhile the records are already written,
    but the caller of ``append`` does not know it. ``appends`` contains all batches.
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.appends: list[Batch] = []
        self._faults: deque[_Fault] = deque()
        self._delaying = False
        self._delayed: deque[Callable[[], None]] = deque()
        self._arrived: anyio.Event | None = None

    def fail_next(self, error: str = "the disk is full") -> None:
        """The next append writes nothing, and its result is ``Lost`` with ``committed=False``."""
        self._faults.append(_Fault("fail", error))

    def lose_acknowledgement(self, error: str = "the connection broke") -> None:
        """The next append is written, but its result is ``Lost`` with ``committed=None``."""
        self._faults.append(_Fault("lose", error))

    def conflict_next(self, *, deleted: bool = False) -> None:
        """The next append is refused, as if another owner had taken over the session. With
        *deleted*, as if the session had been deleted. *inner* does not change."""
        self._faults.append(_Fault("deleted" if deleted else "conflict"))

    def delay(self) -> None:
        """Keep back the answers of all appends from now on, until ``deliver``."""
        self._delaying = True

    def deliver(self) -> None:
        """Deliver the answers that were kept back, in order. Later answers are not delayed."""
        self._delaying = False
        while self._delayed and not self._delaying:
            self._delayed.popleft()()

    @property
    def delayed(self) -> int:
        """How many answers are being kept back."""
        return len(self._delayed)

    async def wait_delayed(self, count: int = 1) -> None:
        """Wait until *count* answers are kept back."""
        while len(self._delayed) < count:
            self._arrived = anyio.Event()
            await self._arrived.wait()

    def append(self, batch: Batch, done: Done) -> None:
        self.appends.append(batch)
        answer = partial(self._answer, done)
        if not self._faults:
            self.inner.append(batch, answer)
            return
        fault = self._faults.popleft()
        match fault.kind:
            case "fail":
                answer(Lost(fault.error, committed=False))
            case "lose":
                self.inner.append(batch, lambda _: answer(Lost(fault.error, committed=None)))
            case "conflict":
                thief = Owner("another owner")
                answer(Conflict(SessionRow(batch.session, batch.epoch + 1, batch.head, thief)))
            case "deleted":
                answer(Conflict(None))

    def _answer(self, done: Done, result: AppendResult) -> None:
        if not self._delaying:
            done(result)
            return
        self._delayed.append(partial(done, result))
        if self._arrived is not None:
            self._arrived.set()

    async def create(self, session: str, owner: Owner) -> Lease:
        return await self.inner.create(session, owner)

    async def acquire(self, session: str, owner: Owner, *, takeover: bool = False) -> Lease:
        return await self.inner.acquire(session, owner, takeover=takeover)

    async def release(self, lease: Lease) -> None:
        await self.inner.release(lease)

    async def read(
        self, session: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredRecord]:
        return await self.inner.read(session, after=after, limit=limit)

    async def row(self, session: str) -> SessionRow:
        return await self.inner.row(session)

    async def rows(
        self, *, after: str = "", limit: int = 1000, filter: SessionFilter = EVERYTHING
    ) -> Sequence[SessionRow]:
        return await self.inner.rows(after=after, limit=limit, filter=filter)

    async def fork(self, parent: str, upto: int, session: str, owner: Owner) -> Lease:
        return await self.inner.fork(parent, upto, session, owner)

    async def rewrite(self, lease: Lease, bodies: Mapping[int, bytes]) -> None:
        await self.inner.rewrite(lease, bodies)

    async def save_snapshot(self, lease: Lease, seq: int, body: bytes) -> None:
        """Does nothing if *inner* keeps no snapshots."""
        if isinstance(self.inner, SnapshotStore):
            await self.inner.save_snapshot(lease, seq, body)

    async def snapshot(self, session: str) -> bytes | None:
        """None if *inner* keeps no snapshots."""
        return await self.inner.snapshot(session) if isinstance(self.inner, SnapshotStore) else None

    async def delete(self, session: str, *, epoch: int | None = None) -> None:
        await self.inner.delete(session, epoch=epoch)

    async def vacuum(self) -> int:
        return await self.inner.vacuum()

    async def check(self) -> Sequence[str]:
        return await self.inner.check()

    async def aclose(self) -> None:
        """Deliver the answers that are kept back, and close *inner*."""
        self.deliver()
        await self.inner.aclose()
