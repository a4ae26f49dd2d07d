"""What many requests used and cost, summed up by model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from llmsession.turns.records import ModelRequest
from llmsession.turns.spending.prices import Price, PriceTable
from llmsession.turns.usage import Usage

from .outcome import ModelUsage

__all__ = ["NO_SUMS", "Sums", "with_requests"]


class Sums(msgspec.Struct, frozen=True):
    """The requests of the first *turns* turns of a session that ended, and of its first *summaries*
    requests for summaries.
    """

    turns: int = 0
    summaries: int = 0
    models: dict[str, ModelUsage] = {}
    """By model; "" for an unknown one."""
    prices: dict[str, Price | None] = {}
    """The prices by which they were priced, by model."""

    def are_priced_by(self, prices: PriceTable) -> bool:
        """Would *prices* price them alike?"""
        return all(prices.find(model) == price for model, price in self.prices.items())


NO_SUMS = Sums()


def with_requests(
    models: Mapping[str, ModelUsage], requests: Iterable[ModelRequest], prices: PriceTable
) -> dict[str, ModelUsage]:
    """*models* with *requests* added."""
    sums = dict(models)
    for request in requests:
        model = request.model or ""
        known = sums.get(model) or ModelUsage(0, Usage(), 0)
        more = prices.cost(request.model, request.usage)
        before = known.cost_nano_usd
        cost = None if before is None or more is None else before + more
        sums[model] = ModelUsage(known.requests + 1, known.usage + request.usage, cost)
    return sums
