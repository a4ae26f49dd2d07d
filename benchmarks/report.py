"""Rows of figures, and whether they hold their bounds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import msgspec

__all__ = ["Row", "exceeded", "percentile", "print_rows", "settled"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison. ``bound`` None is information only."""

    name: str
    ours: float
    bare: float
    unit: str
    ratios: tuple[float, ...] = ()
    bound: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float:
        """The median over the rounds, or of the two figures."""
        return statistics.median(self.ratios) if self.ratios else self.ours / self.bare

    @property
    def holds(self) -> bool:
        return self.bound is None or self.ratio <= self.bound


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which *share* of *values* lies, by nearest rank."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def settled(run: Callable[[], Sequence[Row]]) -> list[Row]:
    """The rows of *run*. Where one is over its bound, all is measured once more: what a busy
    machine did to one measurement it does not do twice. Of such a row the better one counts."""
    first = list(run())
    if all(row.holds for row in first):
        return first
    again = {row.name: row for row in run()}
    return [row if row.holds else _better(row, again.get(row.name)) for row in first]


def _better(row: Row, again: Row | None) -> Row:
    told = f"measured twice, because of {row.ratio:.2f} at first"
    if again is None or again.ratio > row.ratio:
        again = row
    return msgspec.structs.replace(again, note=f"{again.note}; {told}" if again.note else told)


def exceeded(rows: Sequence[Row]) -> list[str]:
    """A line for each row that is over its bound."""
    return [
        f"{row.name}: ratio {row.ratio:.2f}, bound {row.bound:g}"
        for row in rows
        if row.bound is not None and not row.holds
    ]


def print_rows(rows: Sequence[Row]) -> bool:
    """Print *rows*; True if all hold."""
    for row in rows:
        spread = f" ({min(row.ratios):.2f} to {max(row.ratios):.2f})" if row.ratios else ""
        bound = f", bound {row.bound:g}" if row.bound is not None else ""
        verdict = "" if row.bound is None else " ok" if row.holds else " EXCEEDED"
        print(
            f"{row.name}: ours {row.ours:.4g} {row.unit}, bare {row.bare:.4g} {row.unit},"
            f" ratio {row.ratio:.2f}{spread}{bound}{verdict}"
        )
        if row.note:
            print(f"    {row.note}")
    return all(row.holds for row in rows)
