"""Applies the rules for how long sessions and their messages are kept, page by page."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Sequence

import anyio.to_thread

from llmsession.errors import InvalidInput, Refused, SessionError, SessionInUse
from llmsession.store.liveness import owner_is_dead
from llmsession.store.protocol import EVERYTHING, SessionFilter, SessionRow
from llmsession.turns.records import SessionCreated

from ..actor.history_commands import state_excess
from ..handles.session import LLMSession
from ..log.history_cuts import Excess
from ..log.read_state import begun_rows, read_state
from ..log.reader import read_page
from ..registry.runtime import Runtime
from ..values.history_limits import HistoryLimits
from ..values.labels import MAX_AGE_LABEL, tenant_of
from ..values.retention import Retention, RetentionReport, checked_rules, limits_of
from ..values.validation import checked_seconds

__all__ = ["RetentionSchedule", "apply_retention", "checked_interval"]

PAGE = 100
"""Rows that are read at a time."""
MAX_COSTLY = 10
"""A step ends after this many sessions that were deleted or whose log was read."""
PAUSE_S = 0.1
"""The pause between two steps of the schedule, so that it does not slow down the sessions."""
LEFT_S = 3600.0
"""For this many seconds the schedule skips a session that another machine is using."""
EVERY_S = 3600.0
"""The default of ``retention_every_s``."""
MAX_SEEN = 10_000
"""For how many sessions the schedule remembers that nothing exceeds their limits."""
IN_USE = "it is in use in this process"
WRITTEN_TO = "it was written to while retention was looking at it"


async def apply_retention(
    runtime: Runtime, rules: Sequence[Retention], *, now: float, dry_run: bool
) -> RetentionReport:
    """Apply *rules* to every session of the store.

    Raises the errors of ``SessionManager.apply_retention``.
    """
    sweep = _Sweep(runtime, checked_rules(rules), lambda: now, dry_run=dry_run)
    while await sweep.step():
        pass
    return sweep.report()


class RetentionSchedule:
    """Applies the manager's rules to the sessions of its store, again and again.

    It also applies their own age limits to sessions that are not live. It begins at once, and again
    *every_s* seconds after each run has ended. Each step looks at one page. Sessions of another
    live owner are left to that owner.
    """

    def __init__(self, runtime: Runtime, every_s: float) -> None:
        self._runtime = runtime
        self._every_s = every_s
        self._seen = _Seen()
        self._sweep: _Sweep

    def start(self) -> None:
        """Begin. Call it in the event loop's thread, after the manager was entered."""
        self._runtime.after(0.0, self._begin)

    def _begin(self) -> None:
        runtime = self._runtime
        self._sweep = _Sweep(runtime, runtime.retention, runtime.clock, seen=self._seen)
        self._go_on()

    def _go_on(self) -> None:
        self._runtime.run_work("retention", self._step)

    async def _step(self) -> None:
        delay_s, then = self._every_s, self._begin
        try:
            if await self._sweep.step():
                delay_s, then = PAUSE_S, self._go_on
            else:
                self._seen.end_pass()
                self._log_end()
        except SessionError as error:  # the store cannot be listed now; try again later
            self._runtime.log().trouble("retention.failed", error=str(error))
        finally:
            self._runtime.after(delay_s, then)

    def _log_end(self) -> None:
        report = self._sweep.report()
        if report.deleted or report.forgotten or report.skipped:
            self._runtime.log().event(
                "retention.applied",
                deleted=len(report.deleted),
                forgotten=sum(report.forgotten.values()),
                limits=report.limits,
                skipped=len(report.skipped),
            )


class _Seen:
    """Sessions whose log was read, and when something in it will be too old.

    An entry is valid as long as nothing is appended to the log. With ``MAX_SEEN`` of them no more
    are noted: the passes go over the sessions in the same order, so if the oldest entry made room,
    each would be gone before it is asked for again. What a whole pass did not ask for is dropped.
    """

    def __init__(self) -> None:
        self._due: dict[str, tuple[int, HistoryLimits, float]] = {}
        self._earlier: dict[str, tuple[int, HistoryLimits, float]] = {}
        """What this pass has not asked for yet."""

    def is_due(self, row: SessionRow, limits: HistoryLimits, now: float) -> bool:
        session = row.session
        entry = self._due.pop(session, None) or self._earlier.pop(session, None)
        if entry is None or entry[:2] != (row.head, limits) or entry[2] <= now:
            return True
        self._due[session] = entry
        return False

    def note(self, row: SessionRow, limits: HistoryLimits, due: float) -> None:
        if len(self._due) + len(self._earlier) < MAX_SEEN:
            self._due[row.session] = (row.head, limits, due)

    def end_pass(self) -> None:
        """A pass has come by all sessions."""
        self._due, self._earlier = {}, self._due


class _Newest:
    """The *count* sessions of each tenant with the newest records, among those that were added."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._kept: dict[str | None, list[tuple[float, str]]] = {}

    def add(self, row: SessionRow) -> tuple[float, str] | None:
        """Add *row*. Returns the session that is now one too many, after the time of its last
        record, or None."""
        kept = self._kept.setdefault(tenant_of(row.labels), [])
        heapq.heappush(kept, (row.touched_at, row.session))
        return heapq.heappop(kept) if len(kept) > self._count else None


class _Sweep:
    """One pass over the sessions of a store, in steps.

    *seen* is set by the schedule. Live sessions of this manager apply the schedule's rules
    themselves.
    """

    def __init__(
        self,
        runtime: Runtime,
        rules: tuple[Retention, ...],
        now: Callable[[], float],
        *,
        dry_run: bool = False,
        seen: _Seen | None = None,
    ) -> None:
        self._runtime = runtime
        self._rules = rules
        self._now = now
        self._dry_run = dry_run
        self._seen = seen
        # Without a rule, only sessions with an age limit of their own are looked for.
        self._filter = EVERYTHING if rules else SessionFilter(labels={MAX_AGE_LABEL: None})
        self._newest = [(rule, _Newest(rule.max_sessions)) for rule in rules if rule.max_sessions]
        self._after = ""
        self._costly = 0
        self._deleted: dict[str, None] = {}
        self._forgotten: dict[str, int] = {}
        self._skipped: dict[str, str] = {}
        self._limits: Counter[str] = Counter()

    def report(self) -> RetentionReport:
        """What was done so far."""
        return RetentionReport(
            dry_run=self._dry_run,
            deleted=tuple(self._deleted),
            forgotten=self._forgotten,
            skipped=self._skipped,
            limits=dict(self._limits),
        )

    async def step(self) -> bool:
        """Look at the next sessions, one page at most. Returns False after the last one.

        Raises StoreError if the store cannot be listed.
        """
        rows = await begun_rows(
            self._runtime.store, after=self._after, limit=PAGE, filter=self._filter
        )
        self._costly = 0
        for row in rows:
            self._after = row.session
            try:
                await self._look_at(row)
            except SessionError as error:
                self._skipped[row.session] = str(error)
            if self._costly >= MAX_COSTLY:
                break
        return bool(rows)

    async def _look_at(self, row: SessionRow) -> None:
        idle_s = min(
            (
                rule.delete_idle_s
                for rule in self._rules
                if rule.delete_idle_s is not None and rule.applies_to(row.labels)
            ),
            default=math.inf,
        )
        if row.touched_at <= self._now() - idle_s:
            await self._delete(row, "idle")
            return
        for rule, newest in self._newest:
            surplus = newest.add(row) if rule.applies_to(row.labels) else None
            if surplus is not None:
                touched_at, session = surplus
                await self._delete_surplus(row, session, touched_at)
                if session == row.session:
                    return
        await self._forget(row, limits_of(self._rules, row.labels, None))

    # Whole sessions.

    async def _delete_surplus(self, row: SessionRow, surplus: str, touched_at: float) -> None:
        if surplus in self._deleted:  # another rule has already deleted it
            return
        try:
            if surplus != row.session:
                row = await self._runtime.store.row(surplus)
                if row.touched_at != touched_at:  # it may be among the newest now
                    raise Refused(WRITTEN_TO)
            await self._delete(row, "sessions")
        except SessionError as error:
            self._skipped[surplus] = str(error)

    async def _delete(self, row: SessionRow, limit: str) -> None:
        if await self._is_left_to_its_owner(row):
            return
        self._costly += 1
        await self._check_unused(row)
        if not self._dry_run:
            runtime, store = self._runtime, self._runtime.store
            async with runtime.exclusive(row.session):
                # It may have been opened while this waited. Acquiring it would fence its actor.
                if runtime.find_live(row.session) is not None:
                    raise Refused(IN_USE)
                # Acquire the session first. That fences an owner that died, and raises if the owner
                # lives.
                lease = await store.acquire(row.session, runtime.owner)
                try:
                    is_as_it_was = (await store.row(row.session)).touched_at == row.touched_at
                    if is_as_it_was:
                        # By our epoch: if this process stood still, another owner may have it now.
                        await store.delete(row.session, epoch=lease.epoch)
                    else:
                        await store.release(lease)
                except BaseException:  # perhaps the caller was cancelled
                    store.release_later(lease)
                    raise
                if not is_as_it_was:
                    raise Refused(WRITTEN_TO)
                runtime.tenants.deleted(row.session)
            runtime.retention_deleted(row.session, limit)
        self._deleted[row.session] = None
        self._limits[limit] += 1

    # Messages within a session.

    async def _forget(self, row: SessionRow, limits: HistoryLimits) -> None:
        if limits.is_unlimited:
            return
        runtime, seen = self._runtime, self._seen
        if seen is not None:
            actor = runtime.find_live(row.session)
            if actor is not None:
                actor.retain()
                return
            if not seen.is_due(row, limits, self._now()) or await self._is_left_to_its_owner(row):
                return
        excess = await self._excess(row, limits)
        if excess is None:
            return
        await self._check_unused(row)
        if not self._dry_run:
            try:
                await self._retain(row.session, limits)
            except SessionInUse:  # its owner is on another machine, or cannot be checked
                self._note(row, limits, self._now() + LEFT_S)
                raise
        self._forgotten[row.session] = sum(excess.limits.values())
        self._limits.update(excess.limits)

    async def _retain(self, session: str, limits: HistoryLimits) -> None:
        actor = await self._runtime.activate(session)  # this applies the manager's rules
        handle = LLMSession(self._runtime, actor)
        try:
            await self._runtime.retain(actor, limits)
        finally:
            del handle
            await self._runtime.evict(actor)

    async def _excess(self, row: SessionRow, limits: HistoryLimits) -> Excess | None:
        """The part of the session to forget; None if there is none.

        Most sessions are younger than the age in *limits*. If that is the only limit, only their
        first record is read. The turns of a fork or an import may be older than that record, so
        their logs are read. Raises Refused if a turn is open.
        """
        store, age_s = self._runtime.store, limits.max_age_s
        if age_s is not None and limits == HistoryLimits(max_age_s=age_s):
            first = await read_page(store, row.session, 0, 1)
            if first and first[0].at >= self._now() - age_s:
                created = first[0]
                if not isinstance(created, SessionCreated) or created.source is None:
                    self._note(row, limits, first[0].at + age_s)
                    return None
        self._costly += 1
        state = await read_state(store, row.session)
        excess = state_excess(state, limits, self._now())
        if excess is None:
            oldest = min(state.accepted_time.values(), default=math.inf)
            self._note(row, limits, math.inf if age_s is None else oldest + age_s)
        elif state.open:
            raise Refused("it has an open turn")
        return excess

    def _note(self, row: SessionRow, limits: HistoryLimits, due: float) -> None:
        if self._seen is not None:
            self._seen.note(row, limits, due)

    # Who uses a session.

    async def _is_left_to_its_owner(self, row: SessionRow) -> bool:
        """Does another live manager hold the session? Then the schedule leaves it to that one."""
        is_other = row.owner is not None and row.owner != self._runtime.owner
        return self._seen is not None and is_other and await _is_dead(row) is False

    async def _check_unused(self, row: SessionRow) -> None:
        """Raises Refused if a handle here refers to the session.

        If another process holds it, the store raises when the session is acquired. A dry run
        acquires nothing, so it asks whether the owner lives.
        """
        actor = self._runtime.find_live(row.session)
        if actor is not None:
            if actor.pins or not actor.is_idle:
                raise Refused(IN_USE)
            if not self._dry_run:
                await self._runtime.evict(actor)
            return
        owner = row.owner
        if not self._dry_run or owner is None or owner == self._runtime.owner:
            return
        if not await _is_dead(row):
            raise SessionInUse(row.session, f"{owner.name} (pid {owner.pid})")


async def _is_dead(row: SessionRow) -> bool | None:
    """Has the process of the session's owner ended? None if that cannot be known here."""
    owner = row.owner
    if owner is None:
        return True
    # In a thread, because asking the operating system may take long.
    return await anyio.to_thread.run_sync(owner_is_dead, owner.pid, owner.started, owner.host)


def checked_interval(every_s: float | None, rules: Sequence[Retention]) -> float | None:
    """How often the schedule applies *rules*, in seconds; None for never. Raises InvalidInput."""
    if every_s is None:
        return EVERY_S if rules else None
    seconds = checked_seconds(every_s, "retention_every_s", minimum=0)
    if not seconds:
        raise InvalidInput("retention_every_s is 0; it must be above 0")
    return seconds
