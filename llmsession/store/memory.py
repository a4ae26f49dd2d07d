"""A store in memory, for tests and for sessions that need not survive their process."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

import anyio
from msgspec.structs import replace

from llmsession.errors import (
    InvalidInput,
    SessionExists,
    SessionInUse,
    SessionNotFound,
)
from llmsession.turns.spending.spending import Spending

from .counting import Amounts, Grant, Uncounted, grant_of, not_begun
from .ownership import check_epoch, has_given_up
from .protocol import (
    EVERYTHING,
    Appended,
    AppendResult,
    Batch,
    Conflict,
    Lease,
    Owner,
    SessionFilter,
    SessionRow,
    StoredRecord,
)

__all__ = ["MemoryStore"]


class _Log:
    """One session's row, records and snapshot.

    A fork's list begins with its parent's records, which are the same bytes objects.
    """

    __slots__ = ("bodies", "epochs", "least_snapshot", "row", "snapshot")

    def __init__(self, row: SessionRow) -> None:
        self.row = row
        self.bodies: list[bytes] = []
        # (first seq, epoch) of each owner that wrote: epochs change rarely.
        self.epochs: list[tuple[int, int]] = []
        self.snapshot: bytes | None = None
        self.least_snapshot = 0
        """How many records a snapshot must cover."""


class _Counter:
    """What one account has spent, and who may spend how much more."""

    __slots__ = ("slices", "spent", "uncounted")

    def __init__(self, uncounted: dict[str, int]) -> None:
        self.spent = Spending()
        self.uncounted = uncounted
        """By session: the record up to which its log is not counted yet."""
        self.slices: dict[str, tuple[Spending, float]] = {}
        """By owner: how much, and until when by the event loop's clock."""


def _those_after(names: Sequence[str], name: str) -> Iterator[str]:
    """The sorted *names* that come after *name*, without a copy: a page may be of many sessions."""
    return map(names.__getitem__, range(bisect_right(names, name), len(names)))


class MemoryStore:
    """Keeps every log in this process. Nothing survives the process.

    It is fenced like every other store: each method does what ``Store`` promises, and none of them
    waits. An owner is alive as long as it holds the session, because in memory no lease can run
    out. Do not use it from several threads.
    """

    def __init__(self) -> None:
        self._logs: dict[str, _Log] = {}
        self._names: list[str] = []
        self._unfinished: list[str] = []
        self._highest_epoch = 0
        """The highest epoch of all deleted sessions. A new session with a deleted one's id starts
        above it, so that old owners stay fenced.
        """
        self._counters: dict[str, _Counter] = {}

    def _log(self, session: str) -> _Log:
        log = self._logs.get(session)
        if log is None:
            raise SessionNotFound(session)
        return log

    def _add(self, row: SessionRow) -> _Log:
        if row.session in self._logs:
            raise SessionExists(row.session)
        log = self._logs[row.session] = _Log(row)
        insort(self._names, row.session)
        return log

    async def create(self, session: str, owner: Owner) -> Lease:
        epoch = self._highest_epoch + 1
        self._add(SessionRow(session, epoch, 0, owner))
        return Lease(session, epoch, 0)

    async def acquire(self, session: str, owner: Owner, *, takeover: bool = False) -> Lease:
        log = self._log(session)
        holder = log.row.owner
        if holder is not None and holder != owner and not (takeover or has_given_up(holder)):
            raise SessionInUse(session, f"{holder.name} (pid {holder.pid})")
        log.row = replace(log.row, epoch=log.row.epoch + 1, owner=owner)
        return Lease(session, log.row.epoch, log.row.head)

    async def fork(self, parent: str, upto: int, session: str, owner: Owner) -> Lease:
        old = self._log(parent)
        if not 0 <= upto <= old.row.head:
            raise InvalidInput(f"session {parent!r} has no record {upto}")
        epoch = max(self._highest_epoch, old.row.epoch) + 1
        time = old.row.touched_at
        log = self._add(SessionRow(session, epoch, upto, owner, time, time, parent=parent))
        log.bodies = old.bodies[:upto]
        log.epochs = old.epochs[: bisect_left(old.epochs, upto + 1, key=lambda entry: entry[0])]
        return Lease(session, epoch, upto)

    async def release(self, lease: Lease) -> None:
        log = self._logs.get(lease.session)
        if log is not None and log.row.epoch == lease.epoch:
            log.row = replace(log.row, owner=None)

    def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
        log = self._logs.get(batch.session)
        if log is None or (log.row.epoch, log.row.head) != (batch.epoch, batch.head):
            done(Conflict(log.row if log else None))
            return
        if not log.epochs or log.epochs[-1][1] != batch.epoch:
            log.epochs.append((batch.head + 1, batch.epoch))
        log.bodies.extend(batch.bodies)
        if batch.unfinished is not None:
            self._mark(batch.session, batch.unfinished)
        row = log.row
        head = batch.head + len(batch.bodies)
        log.row = SessionRow(
            row.session,
            row.epoch,
            head,
            row.owner,
            row.created_at or batch.at,
            batch.at,
            row.labels if batch.labels is None else batch.labels,
            row.parent,
        )
        charge = batch.charge
        if charge is not None and charge.account in self._counters:
            self._counters[charge.account].spent += charge.spent
        done(Appended(head))

    async def read(
        self, session: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredRecord]:
        log = self._log(session)
        end = None if limit is None else after + limit
        return [
            StoredRecord(seq, self._epoch_at(log, seq), body)
            for seq, body in enumerate(log.bodies[after:end], start=after + 1)
        ]

    @staticmethod
    def _epoch_at(log: _Log, seq: int) -> int:
        index = bisect_right(log.epochs, seq, key=lambda entry: entry[0])
        return log.epochs[index - 1][1]

    async def row(self, session: str) -> SessionRow:
        return self._log(session).row

    async def rows(
        self, *, after: str = "", limit: int = 1000, filter: SessionFilter = EVERYTHING
    ) -> Sequence[SessionRow]:
        matches: list[SessionRow] = []
        for name in _those_after(self._names, after):
            if len(matches) >= limit:
                break
            row = self._logs[name].row
            if filter.finds(row):
                matches.append(row)
        return matches

    async def unfinished(self, *, after: str = "", limit: int = 1000) -> Sequence[SessionRow]:
        rows = (self._logs[name].row for name in _those_after(self._unfinished, after))
        free = (row for row in rows if row.owner is None or has_given_up(row.owner))
        return list(islice(free, limit))

    async def settle(self, row: SessionRow) -> None:
        log = self._logs.get(row.session)
        if log is not None and (log.row.epoch, log.row.head) == (row.epoch, row.head):
            self._mark(row.session, False)

    def _mark(self, session: str, unfinished: bool) -> None:
        at = bisect_left(self._unfinished, session)
        is_marked = self._unfinished[at : at + 1] == [session]
        if unfinished and not is_marked:
            self._unfinished.insert(at, session)
        elif is_marked and not unfinished:
            del self._unfinished[at]

    async def rewrite(self, lease: Lease, bodies: Mapping[int, bytes]) -> None:
        log = self._log(lease.session)
        check_epoch(lease.session, lease.epoch, now=log.row.epoch)
        for seq in bodies:
            if not 1 <= seq <= log.row.head:
                raise InvalidInput(f"session {lease.session!r} has no record {seq}")
        for seq, body in bodies.items():
            log.bodies[seq - 1] = body
        log.snapshot, log.least_snapshot = None, log.row.head + 1

    async def save_snapshot(self, lease: Lease, seq: int, body: bytes) -> None:
        log = self._logs.get(lease.session)
        if log is not None and log.row.epoch == lease.epoch and seq >= log.least_snapshot:
            log.snapshot, log.least_snapshot = body, seq

    async def snapshot(self, session: str) -> bytes | None:
        log = self._logs.get(session)
        return None if log is None else log.snapshot

    async def delete(self, session: str, *, epoch: int | None = None) -> None:
        row = self._log(session).row
        check_epoch(session, epoch, now=row.epoch)
        self._highest_epoch = max(self._highest_epoch, row.epoch)
        del self._logs[session]
        del self._names[bisect_left(self._names, session)]
        self._mark(session, False)
        for counter in self._counters.values():
            counter.uncounted.pop(session, None)

    # Counters: see ``CountingStore``.

    async def begin_count(
        self, account: str, labels: Mapping[str, str], *, limit: int
    ) -> Sequence[Uncounted]:
        if account not in self._counters:
            filter = SessionFilter(labels={**labels})
            rows = (self._logs[name].row for name in self._names)
            listed = {row.session: row.head for row in rows if row.head and filter.finds(row)}
            self._counters[account] = _Counter(listed)
        uncounted = self._counters[account].uncounted
        return [Uncounted(*entry) for entry in sorted(uncounted.items())[:limit]]

    def _counter(self, account: str) -> _Counter:
        counter = self._counters.get(account)
        if counter is None:
            raise not_begun(account)
        return counter

    async def add_counted(self, account: str, spent: Mapping[str, Spending]) -> None:
        counter = self._counter(account)
        for session, amount in spent.items():
            if counter.uncounted.pop(session, None) is not None:
                counter.spent += amount

    async def spent_by(self, account: str) -> Spending:
        return self._counter(account).spent

    async def reserve(
        self,
        account: str,
        owner: str,
        limit: Amounts,
        asked: Amounts,
        *,
        pending: Spending,
        hold_s: float,
    ) -> Grant:
        counter = self._counter(account)
        now = anyio.current_time()
        others = {
            name: (part, until)
            for name, (part, until) in counter.slices.items()
            if until > now and name != owner
        }
        held = sum((part for part, _ in others.values()), Spending())
        part = grant_of(limit, asked, counter.spent, held, pending)
        counter.slices = others
        if not part.is_used_up:
            kept = Spending(part.tokens or 0, part.nano_usd or 0) + pending
            counter.slices = {**others, owner: (kept, now + hold_s)}
        retry_s = min((until - now for _, until in others.values()), default=0.0)
        return Grant(counter.spent, part, retry_s)

    async def give_back(self, owner: str) -> None:
        for counter in self._counters.values():
            counter.slices.pop(owner, None)

    async def vacuum(self) -> int:
        """Returns 0: there is no space to free."""
        return 0

    async def check(self) -> Sequence[str]:
        """Returns (): nothing can be damaged."""
        return ()

    async def aclose(self) -> None:
        """Does nothing. The logs stay readable."""
