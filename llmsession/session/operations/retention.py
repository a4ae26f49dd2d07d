"""Retention: rules for how long sessions and their messages are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio.to_thread
import msgspec

from llmsession.errors import InvalidInput, Refused, SessionError, SessionInUse, refusing
from llmsession.store.liveness import owner_is_dead
from llmsession.store.protocol import SessionFilter, SessionRow
from llmsession.turns.records import SessionCreated

from ..handles.session import LLMSession
from ..log.history_cuts import first_since, forgotten_turns
from ..log.read_state import begun_rows, read_state
from ..log.reader import read_page
from ..registry.runtime import Runtime
from ..values.validation import checked_filter, checked_seconds

__all__ = ["Retention", "RetentionReport", "apply_retention"]

PAGE = 500
"""Rows read at a time."""


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """One rule, for the sessions that have all of ``labels`` (a value of None is any value).

    ``delete_idle_s``: a session without a new record for so many seconds is deleted.
    ``forget_after_s``: turns that are older than that are forgotten, as by ``forget``. Of several
    rules for one session the strictest counts.
    """

    labels: dict[str, str | None] = {}
    delete_idle_s: float | None = None
    forget_after_s: float | None = None

    @refusing
    def checked(self) -> Retention:
        """This rule. Raises InvalidInput for one that does nothing, or whose time is not a positive
        number, or whose labels are none."""
        checked_filter(SessionFilter(labels=self.labels))
        if self.delete_idle_s is None and self.forget_after_s is None:
            raise InvalidInput("a retention rule deletes or forgets after some time; this does not")
        for name in ("delete_idle_s", "forget_after_s"):
            seconds: Any = getattr(self, name)
            if seconds is not None and not checked_seconds(seconds, name, minimum=0) > 0:
                raise InvalidInput(f"{name} is {seconds!r}; it must be greater than 0")
        return self


class RetentionReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was done, or with ``dry_run`` would be done. ``deleted`` are sessions, ``forgotten`` how
    many turns each other session has forgotten. ``skipped`` says why a session that a rule applies
    to was left as it is: it is in use, or its log cannot be read."""

    dry_run: bool
    deleted: tuple[str, ...] = ()
    forgotten: dict[str, int] = {}
    skipped: dict[str, str] = {}


async def apply_retention(
    runtime: Runtime, rules: Sequence[Retention], *, now: float, dry_run: bool
) -> RetentionReport:
    """Apply *rules* to every session of the store. Raises as ``SessionManager.apply_retention``."""
    if not isinstance(rules, list | tuple):
        raise InvalidInput(f"rules are a list of Retention, not {type(rules).__name__}")
    for rule in rules:
        if not isinstance(rule, Retention):
            raise InvalidInput(f"a retention rule is a Retention, not {type(rule).__name__}")
        rule.checked()
    sweep = _Sweep(runtime, tuple(rules), now, dry_run)
    after = ""
    while rows := await begun_rows(runtime.store, after=after, limit=PAGE):
        for row in rows:
            await sweep.look_at(row)
        after = rows[-1].session
    return RetentionReport(
        dry_run=dry_run,
        deleted=tuple(sweep.deleted),
        forgotten=sweep.forgotten,
        skipped=sweep.skipped,
    )


class _Sweep:
    def __init__(
        self, runtime: Runtime, rules: tuple[Retention, ...], now: float, dry_run: bool
    ) -> None:
        self._runtime = runtime
        self._rules = rules
        self._now = now
        self._dry_run = dry_run
        self.deleted: list[str] = []
        self.forgotten: dict[str, int] = {}
        self.skipped: dict[str, str] = {}

    async def look_at(self, row: SessionRow) -> None:
        """Apply the rules to one session. An error of it is noted in ``skipped``."""
        rules = [rule for rule in self._rules if SessionFilter(labels=rule.labels).finds(row)]
        idle_s = min((r.delete_idle_s for r in rules if r.delete_idle_s is not None), default=None)
        age_s = min((r.forget_after_s for r in rules if r.forget_after_s is not None), default=None)
        try:
            if idle_s is not None and row.touched_at <= self._now - idle_s:
                await self._delete(row)
            elif age_s is not None:
                await self._forget(row, self._now - age_s)
        except SessionError as error:
            self.skipped[row.session] = str(error)

    async def _delete(self, row: SessionRow) -> None:
        await self._check_unused(row)
        if not self._dry_run:
            async with self._runtime.exclusive(row.session):
                store = self._runtime.store
                # Acquired first: that fences an owner that died, and raises if one lives.
                lease = await store.acquire(row.session, self._runtime.owner)
                if (await store.row(row.session)).touched_at != row.touched_at:
                    await store.release(lease)
                    raise Refused("it was written to meanwhile")
                await store.delete(row.session)
                self._runtime.tenants.deleted(row.session)
        self.deleted.append(row.session)

    async def _forget(self, row: SessionRow, moment: float) -> None:
        count = await self._forgettable(row.session, moment)
        if not count:
            return
        await self._check_unused(row)
        if not self._dry_run:
            actor = await self._runtime.activate(row.session)
            session = LLMSession(self._runtime, actor)
            try:
                await session.forget(moment)
            finally:
                del session
                await self._runtime.evict(actor)
        self.forgotten[row.session] = count

    async def _forgettable(self, session: str, moment: float) -> int:
        """How many turns are to be forgotten. Most sessions are younger than *moment*: only their
        first record is read. The turns of a fork or an import may be older than that record."""
        store = self._runtime.store
        first = await read_page(store, session, 0, 1)
        if first and first[0].at >= moment:
            created = first[0]
            if not isinstance(created, SessionCreated) or created.source is None:
                return 0
        state = await read_state(store, session)
        before, edge = first_since(
            state.history, state.accepted_at, state.accepted_time, moment, state.head
        )
        turns = forgotten_turns(state.history, state.accepted_at, state.open, before, edge)
        count = len(turns & state.accepted_time.keys())
        if count and state.open:
            raise Refused("a turn is open in it")
        return count

    async def _check_unused(self, row: SessionRow) -> None:
        """Raises Refused where a handle holds the session here. If another process holds it, the
        store raises when it is acquired; a dry run asks whether its owner lives."""
        actor = self._runtime.find_live(row.session)
        if actor is not None:
            if actor.pins or not actor.is_idle:
                raise Refused("it is in use here")
            if not self._dry_run:
                await self._runtime.evict(actor)
            return
        owner = row.owner
        if not self._dry_run or owner is None or owner == self._runtime.owner:
            return
        # In a thread: this asks the operating system, which may be slow.
        if not await anyio.to_thread.run_sync(owner_is_dead, owner.pid, owner.started, owner.host):
            raise SessionInUse(row.session, f"{owner.name} (pid {owner.pid})")
