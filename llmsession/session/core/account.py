"""How much one session has spent, and whether it may spend more."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice

from llmsession.errors import InvalidConfig
from llmsession.store.counting import Charge
from llmsession.turns.records import ExceededBudget, ModelRequest
from llmsession.turns.spending.prices import PriceTable
from llmsession.turns.spending.spending import Spending, SpendingBudget, cost_of, find_exceeded
from llmsession.turns.usage import Usage

from ..log.state import SessionState
from ..values.labels import tenant_of
from ..values.outcome import USAGE_TURNS, ModelUsage, SessionUsage
from ..values.sums import NO_SUMS, Sums, with_requests
from ..values.tables import last_values
from .tenants import Tenants
from .turn_run import Run

__all__ = ["Account", "UsageByModel", "check_priced", "usage_of"]


class Account:
    """The spending of one live session: the requests in its log, and each new one when it ends.

    A live session and the same session opened again give the same sum, except for replies that a
    crash kept out of the log. The sum is computed only when it is needed.
    """

    def __init__(self, state: SessionState, prices: PriceTable, tenants: Tenants) -> None:
        self._state = state
        self._session = state.session
        self._prices = prices
        self._tenants = tenants
        self.tenant = tenant_of(state.labels)
        self._turns = len(state.requests)
        open_requests = [turn.requests for turn in state.open.values()]
        self._new: list[ModelRequest] = list(chain.from_iterable(open_requests))
        """Requests that are not yet in ``_spent`` and not in the first ``_turns`` ended turns."""
        self._summaries = tuple(state.summary_requests)
        self.by_model = UsageByModel(state, prices)
        """What the session's log says of its spending, for ``usage_of``."""
        self._sums = _sums_of(state, prices)
        self._new_beside: list[ModelRequest] = []
        """Requests for summaries that are not yet in ``_spent`` and not in ``_summaries``."""
        self._charged = state.charged
        self._spent: Spending | None = None
        self._has_left = False

    def add(self, request: ModelRequest) -> None:
        """The stream of *request* has ended, whether complete or broken off."""
        self._new.append(request)
        self.tell_tenant()

    def add_summaries(self, requests: Iterable[ModelRequest]) -> None:
        """*requests* were made for a summary, whatever came of them."""
        self._new_beside.extend(requests)
        self.tell_tenant()

    def settled(self, charge: Charge | None) -> None:
        """A batch with *charge* is in the log."""
        if charge is not None:
            self._tenants.settled(charge.account, self._session, charge.spent)

    def leave(self) -> None:
        """The session is no longer live here."""
        self._has_left = True
        if self.tenant is not None:
            self._tenants.left(self.tenant, self._session)

    @property
    def has_room(self) -> bool:
        """May a request begin, as far as the tenant's budget is shared with other managers?"""
        return self.tenant is None or self._tenants.has_room(self.tenant)

    async def make_room(self) -> None:
        """Wait for ``has_room``, or until it is known that the budget is used up. Raises
        StoreError.
        """
        if self.tenant is not None:
            await self._tenants.make_room(self.tenant)

    def spent(self) -> Spending:
        """What this session itself has spent, including the open turn."""
        if self._spent is None:
            sums, models = self._sums, self._sums.models
            requests = self._state.requests
            ended = last_values(requests, len(requests) - sums.turns)[: self._turns - sums.turns]
            known = [usage.cost_nano_usd for usage in models.values()]
            unpriced = frozenset(name for name in models if models[name].cost_nano_usd is None)
            before = Spending(0, sum(cost or 0 for cost in known), unpriced)
            summaries = self._summaries[sums.summaries :]
            self._spent = before.and_cost(chain(*ended, summaries), self._prices)
        if self._new or self._new_beside or self._spent.tokens != self._charged.tokens:
            self._charged = self._charged.after(self._new).beside(self._new_beside)
            priced = self._spent.and_cost(chain(self._new, self._new_beside), self._prices)
            self._spent = Spending(self._charged.tokens, priced.cost_nano_usd, priced.unpriced)
            self._new.clear()
            self._new_beside.clear()
        return self._spent

    def tell_tenant(self) -> None:
        """Update the sum of the session's tenant, if it has one whose sum is in use."""
        if self.tenant is None or not self._tenants.is_summed(self.tenant):
            return
        if self._has_left:
            self._tenants.note_late(self.tenant, self._session, self.spent())
        else:
            self._tenants.note(self.tenant, self._session, self.spent(), self._unrecorded)

    def _unrecorded(self) -> Spending:
        """What of ``spent`` is not in the log yet."""
        return self.spent() - Account(self._state, self._prices, self._tenants).spent()

    def exceeded(self, budget: SpendingBudget | None) -> ExceededBudget | None:
        """The budget that is used up, the session's own or else its tenant's; None if none is."""
        if budget is not None:
            exceeded = find_exceeded(budget, self.spent(), "session", self._session)
            if exceeded is not None:
                return exceeded
        return self._tenants.exceeded(self.tenant) if self.tenant is not None else None


def check_priced(model: str, budget: SpendingBudget | None, prices: PriceTable) -> None:
    """Raises InvalidConfig if *budget* is in dollars and *model* has no price."""
    if budget is not None and budget.max_cost_usd is not None and prices.find(model) is None:
        raise InvalidConfig(
            f"the budget is in dollars, but the price of model {model!r} is not known; pass it"
            " to SessionManager(prices={...}), or set prices in the service's configuration"
        )


class UsageByModel:
    """The ended turns and the summaries of a session, by model: tokens and cost.

    It follows the fold: what was added since it was last asked is added then. So each request is
    priced once.
    """

    def __init__(self, state: SessionState, prices: PriceTable) -> None:
        sums = _sums_of(state, prices)
        self._state = state
        self.prices = prices
        self._id_ranges = state.id_ranges
        self._turns, self._summaries, self._models = sums.turns, sums.summaries, sums.models

    @property
    def sums(self) -> Sums:
        """What is summed up so far."""
        if self._id_ranges is not self._state.id_ranges:
            return NO_SUMS
        return Sums(self._turns, self._summaries, self._models)

    def with_requests(self, more: Iterable[ModelRequest] = ()) -> dict[str, ModelUsage]:
        """Everything so far, and *more* requests, which are not kept."""
        state = self._state
        if self._id_ranges is not state.id_ranges:  # a fork begins with nothing
            self._id_ranges = state.id_ranges
            self._turns, self._summaries, self._models = 0, 0, {}
        ended = last_values(state.requests, len(state.requests) - self._turns)
        summaries = state.summary_requests[self._summaries :]
        self._turns, self._summaries = len(state.requests), len(state.summary_requests)
        new = chain(*ended, summaries)
        self._models = with_requests(self._models, new, self.prices)
        return with_requests(self._models, more, self.prices)


def _sums_of(state: SessionState, prices: PriceTable) -> Sums:
    """What the snapshot of *state* has summed up, if by *prices*."""
    return state.sums if state.sums.are_priced_by(prices) else NO_SUMS


def usage_of(
    state: SessionState,
    by_model: UsageByModel,
    run: Run | None = None,
    *,
    turns: int = USAGE_TURNS,
) -> SessionUsage:
    """The usage and cost of a session: its ended turns from the log, and *run*, the open turn.

    Without *run*, open turns count as far as the log has them. The newest *turns* turns are listed.
    """
    unended: dict[int, tuple[ModelRequest, ...]] = {}
    if run is not None and run.number not in state.turn_usage:
        streaming = run.streaming()
        unended = {run.number: (*run.requests, *((streaming,) if streaming else ()))}
    elif run is None:
        unended = {turn.number: turn.requests for turn in state.open.values() if turn.requests}
    used = {
        number: sum((request.usage for request in requests), Usage())
        for number, requests in unended.items()
    }
    more = tuple(chain.from_iterable(unended.values()))
    newest = list(islice(chain(reversed(used), reversed(state.turn_usage)), turns))[::-1]
    listed = {number: unended.get(number) or state.requests.get(number, ()) for number in newest}
    models = by_model.with_requests(more)
    return SessionUsage(
        total=sum(used.values(), state.usage),
        turns={number: (used if number in used else state.turn_usage)[number] for number in newest},
        summaries=state.summary_usage,
        charged_tokens=state.charged.after(more).tokens,
        cost_nano_usd=_sum(usage.cost_nano_usd for usage in models.values()),
        turn_costs_nano_usd={
            number: cost_of(requests, by_model.prices) for number, requests in listed.items()
        },
        models=models,
        unpriced=tuple(
            sorted(model for model, usage in models.items() if usage.cost_nano_usd is None)
        ),
    )


def _sum(costs: Iterable[int | None]) -> int | None:
    total = 0
    for cost in costs:
        if cost is None:
            return None
        total += cost
    return total
