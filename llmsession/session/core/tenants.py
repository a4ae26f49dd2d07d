"""What tenants have spent, over all their sessions, and what they may."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmsession.errors import InvalidConfig
from llmsession.turns.records import ExceededBudget
from llmsession.turns.spending.spending import Spending, SpendingBudget, find_exceeded

from ..values.labels import checked_tenant

__all__ = ["Tenants"]


class Tenants:
    """The accounts of one manager's tenants. One is summed from its sessions' logs when it is
    first touched (``tenant_logs``), and kept from then on by the sessions that are live here.

    What other managers' sessions spend meanwhile is seen when such a session is opened here.
    What a deleted session spent counts as long as this manager lives; its log was all that knew.
    """

    def __init__(self, budgets: Any = None) -> None:
        self._budgets: dict[str, SpendingBudget] = {}
        self._spent: dict[str, dict[str, Spending]] = {}
        """By tenant and session; deleted ones are in the totals only."""
        self._totals: dict[str, Spending] = {}
        if budgets is not None and not isinstance(budgets, Mapping):
            told = f"tenant_budgets are a SpendingBudget by tenant, not {type(budgets).__name__}"
            raise InvalidConfig(told)
        for tenant, budget in (budgets or {}).items():
            self.set_budget(tenant, budget)

    def set_budget(self, tenant: str, budget: SpendingBudget | None) -> None:
        """What *tenant* may spend from now on. Raises InvalidInput, InvalidConfig."""
        checked_tenant(tenant)
        if budget is None:
            self._budgets.pop(tenant, None)
            return
        if not isinstance(budget, SpendingBudget):
            raise InvalidConfig(f"the budget of tenant {tenant!r} is no SpendingBudget: {budget!r}")
        self._budgets[tenant] = budget.checked()

    def budget(self, tenant: str | None) -> SpendingBudget | None:
        """What *tenant* may spend; None is no limit."""
        return self._budgets.get(tenant) if tenant is not None else None

    def is_summed(self, tenant: str) -> bool:
        """Was the tenant touched before?"""
        return tenant in self._totals

    def begin(self, tenant: str, spent: dict[str, Spending]) -> None:
        """*tenant* has *spent* so much until now, by session."""
        self._spent[tenant] = spent
        self._totals[tenant] = sum(spent.values(), Spending())

    def note(self, tenant: str, session: str, spent: Spending) -> None:
        """*session* has spent so much, all in all."""
        known = self._spent[tenant].get(session, Spending())
        self._spent[tenant][session] = spent
        total = self._totals[tenant]
        self._totals[tenant] = Spending(
            total.tokens + spent.tokens - known.tokens,
            total.cost_nano_usd + spent.cost_nano_usd - known.cost_nano_usd,
            total.unpriced | spent.unpriced,
        )

    def deleted(self, session: str) -> None:
        """*session* is gone: what it spent stays, and another one may get its id."""
        for spent in self._spent.values():
            spent.pop(session, None)  # not from the total

    def spent(self, tenant: str) -> Spending:
        """What a tenant that is summed has spent."""
        return self._totals[tenant]

    def exceeded(self, tenant: str) -> ExceededBudget | None:
        """The tenant's budget, if it is used up."""
        budget = self._budgets.get(tenant)
        if budget is None or tenant not in self._totals:
            return None
        return find_exceeded(budget, self._totals[tenant], "tenant", tenant)
