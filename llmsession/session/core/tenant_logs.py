"""Makes known what a tenant has spent when it is first needed.

A store that counts it is asked. If it began to count only now, the logs of the tenant's sessions
are read once, by whichever managers need it first. With any other store, each manager reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from llmsession.errors import RecordDamaged, SessionNotFound, StoreError
from llmsession.store.checked import checked_counting
from llmsession.store.counting import CountingStore, Uncounted
from llmsession.store.protocol import SessionFilter, Store
from llmsession.turns import records as r
from llmsession.turns.spending.prices import PriceTable
from llmsession.turns.spending.spending import Spending

from ..log.read_state import begun_rows, read_state
from ..log.state import SessionState
from ..tasks.promise import Promise
from ..values.labels import TENANT_LABEL
from .account import Account
from .shared_tenants import SharedTenants
from .tenants import Tenants

__all__ = ["TenantLogs", "tenants_of"]

PAGE = 500
"""Rows read at a time."""
COUNT_PAGE = 20
"""Logs that are read and then added to a counter at a time."""


def tenants_of(store: object, owner: str, budgets: Any) -> Tenants:
    """The tenants of the manager *owner*. Raises InvalidInput and InvalidConfig for *budgets*."""
    counting = checked_counting(store)
    return Tenants(budgets) if counting is None else SharedTenants(counting, owner, budgets)


class TenantLogs:
    """Makes known to *tenants* what those with sessions in *store* have spent.

    *given* is the store itself. *live* returns the accounts of a tenant's sessions that are
    live here; these are newer than their logs.
    """

    def __init__(
        self,
        store: Store,
        given: object,
        prices: PriceTable,
        tenants: Tenants,
        live: Callable[[str], Iterable[Account]],
    ) -> None:
        self._store = store
        self._counting = checked_counting(given)
        self._prices = prices
        self._tenants = tenants
        self._live = live
        self._summing: dict[str, Promise[None]] = {}

    async def sum_up(self, tenant: str) -> None:
        """Make known what *tenant* has spent. The first call may read the logs of all its sessions.

        A damaged log counts up to the damage. Raises StoreError; another call tries again.
        """
        while tenant in self._summing:
            await self._summing[tenant].wait()
        if self._tenants.is_summed(tenant):
            return
        summing = self._summing[tenant] = Promise()
        try:
            if self._counting is not None and isinstance(self._tenants, SharedTenants):
                self._tenants.begin_counted(tenant, await self._count(self._counting, tenant))
            else:
                self._tenants.begin(tenant, await self._read(tenant))
            for account in self._live(tenant):
                account.tell_tenant()
        finally:
            del self._summing[tenant]
            summing.set(None)

    async def load_budget(self, tenant: str | None) -> None:
        """``sum_up`` for a *tenant* with a budget, which cannot be enforced before its spending is
        known.
        """
        if tenant is not None and self._tenants.budget(tenant) is not None:
            await self.sum_up(tenant)

    async def spent(self, tenant: str) -> Spending:
        """What *tenant* has spent, at all managers if the store counts it. Raises StoreError."""
        await self.sum_up(tenant)
        if self._counting is not None and isinstance(self._tenants, SharedTenants):
            return await self._counting.spent_by(tenant) + self._tenants.pending(tenant)
        return self._tenants.spent(tenant)

    async def _count(self, store: CountingStore, tenant: str) -> Spending:
        """What *store* has counted for *tenant*, once it has counted everything."""
        labels = {TENANT_LABEL: tenant}
        before: Sequence[Uncounted] = ()
        while uncounted := await store.begin_count(tenant, labels, limit=COUNT_PAGE):
            if uncounted == before:
                raise StoreError("the store lists sessions again that were counted", committed=None)
            before = uncounted
            spent = {
                each.session: await self._spent_by(each.session, each.upto) for each in uncounted
            }
            await store.add_counted(tenant, spent)
        return await store.spent_by(tenant)

    async def _read(self, tenant: str) -> dict[str, Spending]:
        filter, spent, after = (
            SessionFilter(labels={TENANT_LABEL: tenant}),
            dict[str, Spending](),
            "",
        )
        while rows := await begun_rows(self._store, after=after, limit=PAGE, filter=filter):
            for row in rows:
                spent[row.session] = await self._spent_by(row.session, None)
            after = rows[-1].session
        return spent

    async def _spent_by(self, session: str, upto: int | None) -> Spending:
        """What the records of *session* up to *upto* spent, or all of them."""
        state = SessionState(session)

        def folded(so_far: SessionState, record: r.Record) -> None:
            nonlocal state
            state = so_far

        try:
            await read_state(self._store, session, folded, head=upto)
        except SessionNotFound:  # deleted since it was listed
            return Spending()
        except RecordDamaged:
            pass
        if state.session != session:  # a fork without a record of its own has spent nothing
            return Spending()
        return Account(state, self._prices, self._tenants).spent()
