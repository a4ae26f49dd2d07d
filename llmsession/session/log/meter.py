"""What each record of a session's log adds to the session's spending.

The sum over a log is what the fold of the log has spent, whatever the batches in which its records
were appended. So a store that counts these charges agrees with the logs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TypeAlias

from llmsession.store.counting import Charge
from llmsession.turns import records as r
from llmsession.turns.spending.prices import PriceTable
from llmsession.turns.spending.spending import Charged, Spending, with_unrecorded

from ..values.labels import tenant_of
from .state import SessionState

__all__ = ["ChargeOf", "charge_of"]

ChargeOf: TypeAlias = Callable[[Sequence[r.Record]], Charge | None]
"""Called once with the records of each batch, in order: what they spend, and who pays. None if they
spend nothing.
"""


def charge_of(state: SessionState, prices: PriceTable) -> ChargeOf | None:
    """The charges of what is appended after *state*; None for a session without a tenant."""
    tenant = tenant_of(state.labels)
    if tenant is None:
        return None
    meter = _Meter(state, prices)

    def charge(records: Sequence[r.Record]) -> Charge | None:
        spent = sum(map(meter.spent_by, records), Spending())
        return None if spent == _NOTHING else Charge(tenant, spent)

    return charge


_NOTHING = Spending()


class _Meter:
    """The spending of one session, after one record after another."""

    def __init__(self, state: SessionState, prices: PriceTable) -> None:
        self._prices = prices
        self._charged = state.charged
        self._open = {turn.number: turn.requests for turn in state.open.values() if turn.requests}
        """By open turn: the requests whose replies are in the log."""

    def spent_by(self, record: r.Record) -> Spending:
        """What *record*, the next one, spends."""
        match record:
            case r.ToolsRequested(reply=reply) | r.StepCompleted(reply=reply):
                return self._reply(record.turn, reply)
            case r.TurnCommitted(reply=reply):
                return self._reply(record.turn, reply) + self._end(record)
            case r.TurnAborted() | r.TurnFailed():
                return self._end(record)
            case r.SummariesStored(requests=requests):
                before, self._charged = self._charged, self._charged.beside(requests)
                return self._priced(self._charged.tokens - before.tokens, requests)
            case r.SessionForked():  # what the parent spent is not the fork's
                self._charged, self._open = Charged(0, self._charged.prompt_tokens), {}
        return _NOTHING

    def _reply(self, turn: int, reply: r.AssistantReply | None) -> Spending:
        if reply is None or reply.usage is None:
            return _NOTHING
        before, request = self._tokens(), r.ModelRequest(reply.model, reply.usage)
        self._open[turn] = (*self._open.get(turn, ()), request)
        return self._priced(self._tokens() - before, (request,))

    def _end(self, record: r.Terminal) -> Spending:
        before, recorded = self._tokens(), self._open.pop(record.turn, ())
        every = with_unrecorded(recorded, record.unrecorded_usage, record.usage)
        self._charged = self._charged.after(every)
        if every == recorded:
            return _NOTHING
        spent = self._priced(self._tokens() - before, every)
        known = self._priced(0, recorded)
        return Spending(spent.tokens, spent.cost_nano_usd - known.cost_nano_usd, spent.unpriced)

    def _tokens(self) -> int:
        return self._charged.after(chain.from_iterable(self._open.values())).tokens

    def _priced(self, tokens: int, requests: Iterable[r.ModelRequest]) -> Spending:
        return Spending(tokens).and_cost(requests, self._prices)
