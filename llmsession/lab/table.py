"""The rows of the lab: what a policy did to a file in a window."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from llmsession.turns.spending.prices import NANO

from .replaying import Figures

__all__ = ["Row", "frontier", "row_of"]

RELATIVE_NANO = 1_000
"""The cost of a plain input token by the relative prices (``cache.PLAIN``), in billionths."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The results of *policy* for the conversations of *file* in a window of *window* tokens.

    - Tokens are calibrated estimates.
    - ``tokens_sent`` is the size of all prompts, including recalls. ``cache_write`` of them were
      written to the provider's cache, and ``cache_read`` were read from it.
    - ``cost`` is the cost of these prompts and of the calls of ``recall``, in plain input tokens or
      in dollars (``unit``).
    - ``peak_context`` is the largest prompt.
    - ``rewrites`` counts the rewrites of the context, by the policy or because a request did not
      fit; ``summaries`` counts the prefix summaries.
    - ``retained`` is the share of the distinctive strings taken by replies from earlier tool
      results that was in the context then; None if there are none.
    - ``recallable`` is the share of the other strings that ``recalls`` brought back; None if there
      are none. ``recall_cost`` is the part of ``cost`` for the requests of recalls.
    - ``too_large`` requests could not be made to fit. They were not sent, cost nothing and retain
      nothing.
    - ``rescues`` are rewrites that another policy made because this one freed too little.
    - ``schedule`` says when the policy acted: "own" as it declares, "cache" when the provider's
      cache made it cheap.
    """

    file: str
    policy: str
    window: int
    requests: int
    tokens_sent: int
    cache_write: int
    cache_read: int
    cost: float
    peak_context: int
    rewrites: int
    summaries: int
    retained: float | None
    recallable: float | None
    recalls: int
    recall_cost: float
    invalid_requests: int
    too_large: int
    rescues: int
    unit: str = "input_tokens"
    schedule: str = "own"


def row_of(
    file: str, policy: str, window: int, figures: Figures, unit: str, *, schedule: str = "own"
) -> Row:
    """The row for *figures*. *unit* is the unit of costs: "usd" or "input_tokens"."""
    spent = figures.spent
    return Row(
        file=file,
        policy=policy,
        window=window,
        requests=figures.requests,
        tokens_sent=spent.read_tokens + spent.written_tokens,
        cache_write=spent.written_tokens,
        cache_read=spent.read_tokens,
        cost=_told(spent.cost, unit),
        peak_context=figures.peak_context,
        rewrites=figures.rewrites,
        summaries=figures.summaries,
        retained=_share(figures.retained, figures.needs),
        recallable=_share(figures.recallable, figures.needs - figures.retained),
        recalls=figures.recalls,
        recall_cost=_told(figures.recall_cost, unit),
        invalid_requests=figures.invalid_requests,
        too_large=figures.too_large,
        rescues=figures.rescues,
        unit=unit,
        schedule=schedule,
    )


def _told(nano: int, unit: str) -> float:
    return round(nano / NANO, 6) if unit == "usd" else (nano + RELATIVE_NANO // 2) // RELATIVE_NANO


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def frontier(rows: Iterable[Row]) -> list[Row]:
    """The Pareto frontier of *rows*, which are of one file and window, in the order of cost.

    A row is on it if no other row is at least as cheap and retains at least as much, and is better
    in one of both. A policy with a request that could not be sent did not do the work, and is left
    out.
    """
    able = [row for row in rows if row.retained is not None and not row.too_large]
    best: list[Row] = []
    for row in sorted(able, key=_by_cost):
        last = best[-1] if best else None
        if last is None or _held(row) > _held(last) or _by_cost(row) == _by_cost(last):
            best.append(row)
    return best


def _by_cost(row: Row) -> tuple[float, float]:
    return row.cost, -_held(row)


def _held(row: Row) -> float:
    return -1.0 if row.retained is None else row.retained
