"""Sums up what a tenant has spent, from the logs of its sessions, once when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from llmsession.errors import RecordDamaged, SessionNotFound
from llmsession.store.protocol import SessionFilter, Store
from llmsession.turns import records as r
from llmsession.turns.spending.prices import PriceTable
from llmsession.turns.spending.spending import Spending

from ..log.read_state import begun_rows, read_state
from ..log.state import SessionState
from ..tasks.promise import Promise
from ..values.labels import TENANT_LABEL
from .account import Account
from .tenants import Tenants

__all__ = ["TenantLogs"]

PAGE = 500
"""Rows read at a time."""


class TenantLogs:
    """Sums up the spending of tenants from the sessions in *store*.

    *live* returns the accounts of the sessions that are live here; these are newer than their logs.
    """

    def __init__(
        self,
        store: Store,
        prices: PriceTable,
        tenants: Tenants,
        live: Callable[[], Iterable[Account]],
    ) -> None:
        self._store = store
        self._prices = prices
        self._tenants = tenants
        self._live = live
        self._summing: dict[str, Promise[None]] = {}

    async def sum_up(self, tenant: str) -> None:
        """Make known what *tenant* has spent. The first call reads the logs of all its sessions.

        A damaged log counts up to the damage. Raises StoreError; another call tries again.
        """
        while tenant in self._summing:
            await self._summing[tenant].wait()
        if self._tenants.is_summed(tenant):
            return
        summing = self._summing[tenant] = Promise()
        try:
            self._tenants.begin(tenant, await self._read(tenant))
            for account in self._live():
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

    async def _read(self, tenant: str) -> dict[str, Spending]:
        filter, spent, after = (
            SessionFilter(labels={TENANT_LABEL: tenant}),
            dict[str, Spending](),
            "",
        )
        while rows := await begun_rows(self._store, after=after, limit=PAGE, filter=filter):
            for row in rows:
                spent[row.session] = await self._spent_by(row.session)
            after = rows[-1].session
        return spent

    async def _spent_by(self, session: str) -> Spending:
        state = SessionState(session)

        def folded(so_far: SessionState, record: r.Record) -> None:
            nonlocal state
            state = so_far

        try:
            await read_state(self._store, session, folded)
        except SessionNotFound:  # deleted since it was listed
            return Spending()
        except RecordDamaged:
            pass
        if state.session != session:  # a fork without a record of its own has spent nothing
            return Spending()
        return Account(state, self._prices, self._tenants).spent()
