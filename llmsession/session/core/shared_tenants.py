"""Tenants whose budgets several managers share, because their store counts what tenants spend.

What a tenant has spent is in the store. A manager may begin requests as long as it has a slice of
what is left of the budget: it reserves one before the tenant's first request, and another one when
that is used up or has ended. So it asks the store now and then and not for each request, and the
slices of all managers together are never more than what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import msgspec

from llmsession.store.counting import Amounts, CountingStore
from llmsession.store.liveness import lease_clock
from llmsession.turns.records import ExceededBudget
from llmsession.turns.spending.prices import nano_usd
from llmsession.turns.spending.spending import Spending, SpendingBudget, find_exceeded

from ..tasks.promise import Promise
from .tenants import Tenants

__all__ = ["SharedTenants"]

HOLD_S = 5.0
"""A slice ends after so long. That of a manager that died is free again then."""
VALID_SHARE = 0.9
"""The share of this time for which a manager relies on its slice: clocks differ a little."""
SLICES = 32
"""A slice is at most this part of a budget."""
MIN_RETRY_S, MAX_RETRY_S = 0.05, 1.0
"""How soon the store is asked again where other managers have all that is left."""


class _Account(msgspec.Struct):
    """What is known here of one tenant."""

    counted: Spending
    """What the store had counted when it was last asked."""
    seen: Spending = Spending()
    """What the sessions here have spent since its answer."""
    part: Amounts | None = None
    """The slice; None if there is none."""
    used: Spending = Spending()
    """What the sessions here have spent since the slice was asked for."""
    until: tuple[float, float] = (0.0, 0.0)
    """When the slice ends, by both clocks."""
    pending: Spending = Spending()
    """What the sessions here have spent, and is not appended yet."""
    sessions: dict[str, tuple[Spending, Spending]] = {}
    """By session that is live here: what it has spent, and what of it is not appended yet."""
    asking: Promise[None] | None = None


class SharedTenants(Tenants):
    """The accounts of one manager's tenants in *store*, whose slices belong to *owner*."""

    def __init__(self, store: CountingStore, owner: str, budgets: Any = None) -> None:
        self._store = store
        self._owner = owner
        self._accounts: dict[str, _Account] = {}
        super().__init__(budgets)

    def set_budget(self, tenant: str, budget: SpendingBudget | None) -> None:
        """See ``Tenants.set_budget``."""
        super().set_budget(tenant, budget)
        if tenant in self._accounts:
            self._accounts[tenant].part = None  # it was a part of the old budget

    def is_summed(self, tenant: str) -> bool:
        """See ``Tenants.is_summed``."""
        return tenant in self._accounts

    def begin_counted(self, tenant: str, spent: Spending) -> None:
        """Begin the account of *tenant*, of which the store has counted *spent*."""
        self._accounts[tenant] = _Account(spent)

    def note(
        self,
        tenant: str,
        session: str,
        spent: Spending,
        unrecorded: Callable[[], Spending] = Spending,
    ) -> None:
        """See ``Tenants.note``."""
        account = self._accounts[tenant]
        if session in account.sessions:
            before, pending = account.sessions[session]
            more = spent - before
        else:  # what is in its log is counted
            more, pending = unrecorded(), Spending()
        account.sessions[session] = (spent, pending + more)
        account.pending += more
        account.seen += more
        account.used += more

    def settled(self, tenant: str, session: str, spent: Spending) -> None:
        """See ``Tenants.settled``."""
        account = self._accounts.get(tenant)
        if account is None or session not in account.sessions:
            return
        total, pending = account.sessions[session]
        left = Spending(
            max(0, pending.tokens - spent.tokens),
            max(0, pending.cost_nano_usd - spent.cost_nano_usd),
        )
        account.sessions[session] = (total, left)
        account.pending += left - pending

    def left(self, tenant: str, session: str) -> None:
        """See ``Tenants.left``."""
        account = self._accounts.get(tenant)
        if account is None or session not in account.sessions:
            return
        _, pending = account.sessions.pop(session)
        account.pending -= pending
        if pending.tokens or pending.cost_nano_usd:
            # It may never be appended. Only the store knows now what was spent.
            account.seen, account.part = Spending(), None

    def note_late(self, tenant: str, session: str, spent: Spending) -> None:
        """See ``Tenants.note_late``. The store will not count it, so it is not pending either:
        nothing would ever take it back.
        """

    def pending(self, tenant: str) -> Spending:
        """What the sessions of *tenant* that are live here have spent, and the store has not
        counted yet.
        """
        return self._accounts[tenant].pending

    def deleted(self, session: str) -> None:
        """See ``Tenants.deleted``. What it spent stays counted."""

    def exceeded(self, tenant: str) -> ExceededBudget | None:
        """See ``Tenants.exceeded``: by what is known here of the spending elsewhere."""
        budget, account = self.budget(tenant), self._accounts.get(tenant)
        if budget is None or account is None:
            return None
        return find_exceeded(budget, account.counted + account.seen, "tenant", tenant)

    def has_room(self, tenant: str) -> bool:
        """See ``Tenants.has_room``."""
        account = self._accounts.get(tenant)
        if account is None or self.budget(tenant) is None:
            return True
        part = account.part
        if part is None or part.without(account.used).is_used_up:
            return False
        now, until = _now(), account.until
        return now[0] < until[0] and now[1] < until[1]

    async def make_room(self, tenant: str) -> None:
        """See ``Tenants.make_room``. Several callers ask the store once."""
        while not self.has_room(tenant) and self.exceeded(tenant) is None:
            account = self._accounts[tenant]
            if account.asking is not None:
                await account.asking.wait()
                continue
            asking = account.asking = Promise()
            try:
                await self._ask(tenant, account)
            finally:
                account.asking = None
                asking.set(None)

    async def _ask(self, tenant: str, account: _Account) -> None:
        budget = self.budget(tenant)
        if budget is None:
            return
        cost = budget.max_cost_usd
        limit = Amounts(budget.max_tokens, None if cost is None else nano_usd(cost))
        account.part, account.used, begun = None, Spending(), _now()
        grant = await self._store.reserve(
            tenant,
            self._owner,
            limit,
            Amounts(_share(limit.tokens), _share(limit.nano_usd)),
            pending=account.pending,
            hold_s=HOLD_S,
        )
        account.counted, account.seen = grant.spent, Spending()
        if not grant.part.is_used_up:
            if budget is self.budget(tenant):
                valid_s = VALID_SHARE * HOLD_S
                account.part, account.until = grant.part, (begun[0] + valid_s, begun[1] + valid_s)
        elif self.exceeded(tenant) is None:
            # What is left is in slices of other managers, or about to be counted.
            await anyio.sleep(min(max(grant.retry_s, MIN_RETRY_S), MAX_RETRY_S))

    async def give_back(self) -> None:
        """Give all slices back. Raises StoreError."""
        if any(account.part is not None for account in self._accounts.values()):
            await self._store.give_back(self._owner)


def _now() -> tuple[float, float]:
    """The time in seconds by the event loop's clock, and by one that a sleeping machine does not
    stop.
    """
    return anyio.current_time(), lease_clock()


def _share(limit: int | None) -> int | None:
    return None if limit is None else limit // SLICES + 1
