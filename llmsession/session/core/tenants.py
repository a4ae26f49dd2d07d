"""What tenants have spent in all their sessions, and what they may spend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llmsession.errors import InvalidConfig, refusing
from llmsession.turns.records import ExceededBudget
from llmsession.turns.spending.spending import Spending, SpendingBudget, find_exceeded

from ..values.labels import checked_tenant

__all__ = ["Tenants"]


class Tenants:
    """The accounts of one manager's tenants, where the store does not count what they spend: see
    ``SharedTenants``.

    An account is summed up from the logs of the tenant's sessions when it is first needed (see
    ``tenant_logs``). From then on, the sessions that are live here keep it up to date.

    What a session spends at another manager counts once that session is opened here. What a deleted
    session has spent counts until this manager ends, because it was recorded only in the deleted
    log.
    """

    def __init__(self, budgets: Any = None) -> None:
        self._budgets: dict[str, SpendingBudget] = {}
        self._spent: dict[str, dict[str, Spending]] = {}
        """By tenant and session. Deleted sessions are in the totals only."""
        self._totals: dict[str, Spending] = {}
        if budgets is not None and not isinstance(budgets, Mapping):
            kind = type(budgets).__name__
            raise InvalidConfig(f"tenant_budgets must be a dict of SpendingBudget, not {kind}")
        for tenant, budget in (budgets or {}).items():
            self.set_budget(tenant, budget)

    @refusing
    def set_budget(self, tenant: str, budget: SpendingBudget | None) -> None:
        """Set what *tenant* may spend from now on; None removes the limit.

        Raises InvalidInput, InvalidConfig.
        """
        tenant = checked_tenant(tenant)
        if budget is None:
            self._budgets.pop(tenant, None)
            return
        if not isinstance(budget, SpendingBudget):
            kind = type(budget).__name__
            raise InvalidConfig(
                f"the budget of tenant {tenant!r} must be a SpendingBudget, not {kind}"
            )
        self._budgets[tenant] = budget.checked()

    def budget(self, tenant: str | None) -> SpendingBudget | None:
        """What *tenant* may spend; None if it has no limit."""
        return self._budgets.get(tenant) if tenant is not None else None

    def is_summed(self, tenant: str) -> bool:
        """Is it known what the tenant has spent?"""
        return tenant in self._totals

    def begin(self, tenant: str, spent: dict[str, Spending]) -> None:
        """Begin the account of *tenant*. *spent* is what each of its sessions has spent so far."""
        self._spent[tenant] = spent
        self._totals[tenant] = sum(spent.values(), Spending())

    def note(
        self,
        tenant: str,
        session: str,
        spent: Spending,
        unrecorded: Callable[[], Spending] = Spending,
    ) -> None:
        """*session* has spent *spent* in total. *unrecorded* returns what of it is not in its log
        yet.
        """
        before = self._spent[tenant].get(session, Spending())
        self._spent[tenant][session] = spent
        total = self._totals[tenant]
        self._totals[tenant] = Spending(
            total.tokens + spent.tokens - before.tokens,
            total.cost_nano_usd + spent.cost_nano_usd - before.cost_nano_usd,
            total.unpriced | spent.unpriced,
        )

    def settled(self, tenant: str, session: str, spent: Spending) -> None:
        """*session* has appended records that *spent* this."""

    def left(self, tenant: str, session: str) -> None:
        """*session* is no longer live here."""

    def note_late(self, tenant: str, session: str, spent: Spending) -> None:
        """*session*, which has left, has spent *spent* in total. What is new of it is in no log,
        and will not be.
        """
        self.note(tenant, session, spent)

    def has_room(self, tenant: str) -> bool:
        """May a request begin now, as far as the budget is shared with other managers?"""
        return True

    async def make_room(self, tenant: str) -> None:
        """Wait until ``has_room``, or until it is known that the budget is used up. Raises
        StoreError.
        """

    async def give_back(self) -> None:
        """Keep nothing from other managers any more. Raises StoreError."""

    def deleted(self, session: str) -> None:
        """*session* was deleted. Its spending stays in the total, and its id may be used again."""
        for spent in self._spent.values():
            spent.pop(session, None)

    def spent(self, tenant: str) -> Spending:
        """What *tenant*, which is summed up, has spent."""
        return self._totals[tenant]

    def exceeded(self, tenant: str) -> ExceededBudget | None:
        """The tenant's budget if it is used up; None if not."""
        budget = self._budgets.get(tenant)
        if budget is None or tenant not in self._totals:
            return None
        return find_exceeded(budget, self._totals[tenant], "tenant", tenant)
