"""The simulated disk: one store, and a link to it for each incarnation of a process."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import anyio
from anyio.abc import TaskGroup

from llmsession.errors import StoreError
from llmsession.store.protocol import (
    EVERYTHING,
    Appended,
    AppendResult,
    Batch,
    Lease,
    Lost,
    Owner,
    SessionFilter,
    SessionRow,
    StoredRecord,
)
from llmsession.turns import records as r
from llmsession.turns.usage import Usage

from ..checker.callers import token_of
from ..recording.recorder import KeepingStore
from .schedule import DiskFault

__all__ = ["DiskLink", "SimDisk"]

LATENCY_S = (0.0, 0.0002, 0.001, 0.004)
SLOW_S = 0.03


class SimDisk:
    """The records that are really written. ``tokens`` names the send of each turn."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"disk {seed}")
        self.truth = KeepingStore()
        self.dead: set[str] = set()
        """Names of owners whose process has died."""
        self.tokens: dict[tuple[str, int], str] = {}
        self.written_at: dict[tuple[str, int], float] = {}
        """The time at which each record was written, by session and seq."""
        self.violations: list[tuple[int, str, str]] = []
        """Violations that were seen here: the invariant, the session, one sentence."""
        self.snapshots: Counter[str] = Counter()
        """How many snapshots were written, read whole and read damaged."""
        self._damage = Random(f"snapshots {seed}")
        self._spent: dict[tuple[str, int], tuple[int, int]] = {}
        self._faults: deque[DiskFault] = deque()
        self._slow_until = 0.0

    def fail(self, fault: DiskFault, seconds: float) -> None:
        """Make the next operation fail, or all of them slow for *seconds*."""
        if fault == "slow":
            self._slow_until = anyio.current_time() + seconds
        else:
            self._faults.append(fault)

    def stop_faults(self) -> None:
        """Stop all faults of the disk."""
        self._faults.clear()
        self._slow_until = 0.0

    def fault(self, *, reads: bool) -> DiskFault | None:
        """The fault of the next operation."""
        if self._faults and (self._faults[0] == "unread") == reads:
            return self._faults.popleft()
        return None

    async def latency(self) -> None:
        """Wait for the latency of one message to the disk or back."""
        slow = anyio.current_time() < self._slow_until
        await anyio.sleep(self.random.uniform(0, SLOW_S) if slow else self.random.choice(LATENCY_S))

    def write(self, batch: Batch) -> AppendResult:
        """Append *batch* if its epoch and head are current."""
        results: list[AppendResult] = []
        self.truth.append(batch, results.append)
        if isinstance(results[0], Appended):
            if batch.epoch != self.epoch(batch.session):
                text = f"the owner {batch.epoch} wrote after another one had taken the session"
                self.violations.append((6, batch.session, text))
            for seq, body in enumerate(batch.bodies, batch.head + 1):
                self.written_at[batch.session, seq] = anyio.current_time()
                record = r.decode_record(body)
                if isinstance(record, r.TurnAccepted):
                    self.tokens[batch.session, record.turn] = token_of(record)
                elif r.is_terminal(record):
                    self._check_spent(batch, record)
        return results[0]

    def spent(self, session: str, turn: int, epoch: int, usage: Usage) -> None:
        """Note that the owner *epoch* has received the usage of a request of *turn*."""
        owner, tokens = self._spent.get((session, turn), (epoch, 0))
        tokens = _tokens(usage) + (tokens if owner == epoch else 0)
        self._spent[session, turn] = epoch, tokens

    def _check_spent(self, batch: Batch, record: r.Terminal) -> None:
        """Check that the end of a turn has all the usage that its writer has received. Usage that
        only a dead owner has received is lost."""
        epoch, tokens = self._spent.get((batch.session, record.turn), (0, 0))
        if epoch == batch.epoch and _tokens(record.usage) < tokens:
            text = f"turn {record.turn} has used {tokens} tokens, and ended with"
            self.violations.append((12, batch.session, f"{text} {_tokens(record.usage)}"))

    async def save_snapshot(self, lease: Lease, seq: int, body: bytes) -> None:
        """Save a snapshot, if the lease is current."""
        await self.truth.save_snapshot(lease, seq, body)
        self.snapshots["snapshots written"] += 1

    async def snapshot(self, session: str) -> bytes | None:
        """The session's snapshot, one in five of them damaged."""
        body = await self.truth.snapshot(session)
        if body is None:
            return None
        if self._damage.random() < 0.8:
            self.snapshots["snapshots read"] += 1
            return body
        self.snapshots["snapshots damaged"] += 1
        at = self._damage.randrange(len(body))
        return body[:at] + self._damage.choice((b"", bytes([body[at] ^ 1]) + body[at + 1 :]))

    def epoch(self, session: str) -> int:
        """The session's newest epoch, or 0 if it has none."""
        row = self.truth.row_of(session)
        return row.epoch if row else 0

    def head(self, session: str) -> int:
        """The session's newest seq."""
        row = self.truth.row_of(session)
        return row.head if row else 0

    async def holder(self, session: str) -> Owner | None:
        """The owner of the session, whether its process is alive or not."""
        return (await self.truth.row(session)).owner


class DiskLink:
    """The store of one incarnation of a process. It behaves as ``Store`` says.

    A link that was ``cut`` does nothing any more, and answers that the result is unknown. While
    ``flows`` is not set, nothing passes in either direction.
    """

    def __init__(self, disk: SimDisk, group: TaskGroup) -> None:
        self._disk = disk
        self._group = group
        self.flows = anyio.Event()
        self.flows.set()
        self.is_cut = False
        self.held_epochs: dict[str, int] = {}
        """The newest epoch of each session that this incarnation has owned."""
        self.owners: set[str] = set()

    def cut(self) -> None:
        """Note that the process has died. Operations that it had already sent may be carried out or
        not."""
        self.is_cut = True
        self._disk.dead |= self.owners
        self.flows.set()

    def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
        if self.is_cut:
            done(_gone())
        else:
            self._group.start_soon(self._append, batch, done)

    async def _append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
        disk = self._disk
        is_sent = await self._travel()
        arrives = is_sent and (not self.is_cut or disk.random.random() < 0.5)
        result = self._written(batch) if arrives else _gone()
        is_answered = await self._travel() and not self.is_cut
        done(result if is_answered else _gone())

    def _written(self, batch: Batch) -> AppendResult:
        match self._disk.fault(reads=False):
            case "fail":
                return Lost("the disk is full", committed=False)
            case "void":
                return Lost("the connection broke", committed=None)
            case "lose":
                self._disk.write(batch)
                return Lost("the connection broke", committed=None)
            case "echo":  # the driver repeats it, and is told that the position is taken
                first = self._disk.write(batch)
                return self._disk.write(batch) if isinstance(first, Appended) else first
            case _:
                return self._disk.write(batch)

    async def _travel(self) -> bool:
        """Let a message travel to the disk or back. Returns whether it arrives."""
        await self._disk.latency()
        await self.flows.wait()
        return True

    @asynccontextmanager
    async def trip(self, *, reads: bool = False) -> AsyncIterator[KeepingStore]:
        """Waits for the latency to the disk and back. Raises the fault of the operation, if any."""
        if self.is_cut:
            raise _dead()
        await self._pass()
        if reads and self._disk.fault(reads=True):
            raise StoreError("the disk cannot be read", committed=False)
        yield self._disk.truth
        await self._pass()

    async def _pass(self) -> None:
        arrives = await self._travel()
        if self.is_cut:
            raise _dead()
        if not arrives:
            raise StoreError("the connection broke", committed=None)

    async def _held(self, owner: Owner, take: Callable[[KeepingStore], Awaitable[Lease]]) -> Lease:
        async with self.trip() as truth:
            self.owners.add(owner.name)
            lease = await take(truth)
            self.held_epochs[lease.session] = lease.epoch
        return lease

    async def create(self, session: str, owner: Owner) -> Lease:
        return await self._held(owner, lambda truth: truth.create(session, owner))

    async def acquire(self, session: str, owner: Owner, *, takeover: bool = False) -> Lease:
        return await self._held(owner, partial(self._take, session, owner, takeover))

    async def _take(self, session: str, owner: Owner, takeover: bool, truth: KeepingStore) -> Lease:
        holder = await self._disk.holder(session)
        dead = holder is not None and holder.name in self._disk.dead
        return await truth.acquire(session, owner, takeover=takeover or dead)

    async def fork(self, parent: str, upto: int, session: str, owner: Owner) -> Lease:
        return await self._held(owner, lambda truth: truth.fork(parent, upto, session, owner))

    async def release(self, lease: Lease) -> None:
        async with self.trip() as truth:
            await truth.release(lease)

    async def read(
        self, session: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredRecord]:
        async with self.trip(reads=True) as truth:
            return await truth.read(session, after=after, limit=limit)

    async def row(self, session: str) -> SessionRow:
        async with self.trip(reads=True) as truth:
            return await truth.row(session)

    async def rows(
        self, *, after: str = "", limit: int = 1000, filter: SessionFilter = EVERYTHING
    ) -> Sequence[SessionRow]:
        async with self.trip(reads=True) as truth:
            return await truth.rows(after=after, limit=limit, filter=filter)

    async def rewrite(self, lease: Lease, bodies: Mapping[int, bytes]) -> None:
        async with self.trip() as truth:
            await truth.rewrite(lease, bodies)

    async def save_snapshot(self, lease: Lease, seq: int, body: bytes) -> None:
        async with self.trip():
            await self._disk.save_snapshot(lease, seq, body)

    async def snapshot(self, session: str) -> bytes | None:
        async with self.trip(reads=True):
            return await self._disk.snapshot(session)

    async def delete(self, session: str, *, epoch: int | None = None) -> None:
        async with self.trip() as truth:
            await truth.delete(session, epoch=epoch)

    async def vacuum(self) -> int:
        return 0

    async def check(self) -> Sequence[str]:
        return ()

    async def aclose(self) -> None:
        """Do nothing: the disk outlives every process."""


def _tokens(usage: Usage) -> int:
    return usage.prompt_tokens + usage.output_tokens


def _gone() -> Lost:
    return Lost("the process is dead, or the connection broke", committed=None)


def _dead() -> StoreError:
    return StoreError("the process is dead", committed=None)
