"""Rows of figures, and whether they hold their bounds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

__all__ = ["Row", "percentile", "print_rows"]


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
