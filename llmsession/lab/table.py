"""The rows of the lab: what a policy did to a file in a window, and sums over files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from llmsession.turns.prices import NANO

from .replaying import Replayed

__all__ = ["Figures", "Row", "frontier", "row_of"]

RELATIVE_NANO = 1_000
"""What a plain input token costs by the relative prices (``cache.PLAIN``), in nano."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What *policy* did to the conversations of *file* in a window of so many tokens.

    Tokens are calibrated estimates. ``tokens_sent`` is the prompts of all requests, recalls
    included: ``cache_write`` of them were written to the provider's cache and ``cache_read``
    read from it. ``cost`` is theirs, and that of what a recall's call is: in plain input tokens,
    or in dollars (``unit``). ``peak_context`` is the largest prompt. ``rewrites`` of the context
    were made, by policy or by force, and ``summaries`` for prefixes written.

    ``held``: of the distinctive strings that replies take from earlier tool results, the share
    that was in the context then; ``recallable``: of the others, the share that ``recalls`` have
    brought, which are in the cost, with ``recall_cost`` of it for their own requests. None where
    there is nothing to hold, or nothing left to recall.

    ``too_large`` requests could not be made to fit: they were not sent, cost nothing and hold
    nothing. ``rescues`` are rewrites that another policy made where this one freed too little.
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
    held: float | None
    recallable: float | None
    recalls: int
    recall_cost: float
    invalid_requests: int
    too_large: int
    rescues: int
    unit: str = "input_tokens"


class Figures(msgspec.Struct):
    """Sums over replays, of which rows are made."""

    requests: int = 0
    read_tokens: int = 0
    written_tokens: int = 0
    cost: int = 0
    peak_context: int = 0
    rewrites: int = 0
    summaries: int = 0
    needs: int = 0
    held: int = 0
    recallable: int = 0
    recalls: int = 0
    recall_cost: int = 0
    invalid_requests: int = 0
    too_large: int = 0
    rescues: int = 0

    def add(self, replayed: Replayed) -> None:
        """Count one conversation's replay."""
        self.read_tokens += replayed.spent.read_tokens
        self.written_tokens += replayed.spent.written_tokens
        self.cost += replayed.spent.cost
        self.peak_context = max(self.peak_context, replayed.peak_context)
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(replayed, name))

    def join(self, other: Figures) -> None:
        """Count what *other* counted."""
        peak = max(self.peak_context, other.peak_context)
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.peak_context = peak


_SUMMED = tuple(
    name
    for name in Figures.__struct_fields__
    if name in Replayed.__struct_fields__ and name != "peak_context"
)


def row_of(file: str, policy: str, window: int, figures: Figures, unit: str) -> Row:
    """The row that *figures* are. *unit* is what costs are told in: "usd", or "input_tokens"."""
    return Row(
        file=file,
        policy=policy,
        window=window,
        requests=figures.requests,
        tokens_sent=figures.read_tokens + figures.written_tokens,
        cache_write=figures.written_tokens,
        cache_read=figures.read_tokens,
        cost=_told(figures.cost, unit),
        peak_context=figures.peak_context,
        rewrites=figures.rewrites,
        summaries=figures.summaries,
        held=_share(figures.held, figures.needs),
        recallable=_share(figures.recallable, figures.needs - figures.held),
        recalls=figures.recalls,
        recall_cost=_told(figures.recall_cost, unit),
        invalid_requests=figures.invalid_requests,
        too_large=figures.too_large,
        rescues=figures.rescues,
        unit=unit,
    )


def _told(nano: int, unit: str) -> float:
    return round(nano / NANO, 6) if unit == "usd" else (nano + RELATIVE_NANO // 2) // RELATIVE_NANO


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def frontier(rows: Iterable[Row]) -> list[Row]:
    """Those of *rows*, of one file and window, that no other one beats: none is as cheap and
    holds as much, and better in one of both. By cost. A policy with a request that could not be
    sent did not do the work, and is not among them."""
    able = [row for row in rows if row.held is not None and not row.too_large]
    best: list[Row] = []
    for row in sorted(able, key=_by_cost):
        last = best[-1] if best else None
        if last is None or _held(row) > _held(last) or _by_cost(row) == _by_cost(last):
            best.append(row)
    return best


def _by_cost(row: Row) -> tuple[float, float]:
    return row.cost, -_held(row)


def _held(row: Row) -> float:
    return -1.0 if row.held is None else row.held


def windows_of(rows: Sequence[Row]) -> list[int]:
    """The windows in *rows*, in their order."""
    return list(dict.fromkeys(row.window for row in rows))
