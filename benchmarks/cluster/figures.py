"""Rows out of pairs of measurements that were made in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from benchmarks.report import Row

__all__ = ["Measured", "absolute", "in_turns", "paired"]

Measured: TypeAlias = dict[str, float]
"""Figures by name."""


async def in_turns(
    sides: Sequence[Callable[[], Awaitable[Measured]]], rounds: int
) -> list[list[Measured]]:
    """The figures of each of *sides*, round by round. Each round begins with another side."""
    found: list[list[Measured]] = [[] for _ in sides]
    for round_ in range(rounds):
        for place in range(len(sides)):
            side = (round_ + place) % len(sides)
            found[side].append(await sides[side]())
    return found


def paired(
    name: str,
    figure: str,
    ours: Sequence[Measured],
    bare: Sequence[Measured],
    *,
    unit: str,
    bound: float | None,
    note: str = "",
) -> Row:
    """The row of *figure*: the median of each side, and of the ratios of the rounds."""
    pairs = [(a[figure], b[figure]) for a, b in zip(ours, bare, strict=True)]
    return Row(
        name=name,
        ours=statistics.median(a for a, _ in pairs),
        bare=statistics.median(b for _, b in pairs),
        unit=unit,
        ratios=tuple(a / b for a, b in pairs),
        bound=bound,
        note=note,
    )


def absolute(name: str, values: Sequence[float], most: float, unit: str, note: str = "") -> Row:
    """A row whose bound is a figure and no ratio: *most*, which stands in the place of the bare
    side."""
    return Row(
        name=name,
        ours=statistics.median(values),
        bare=most,
        unit=unit,
        ratios=tuple(value / most for value in values),
        bound=1.0,
        note=note,
    )


class Cpu:
    """The CPU seconds of a process since this was made."""

    def __init__(self, read: Callable[[], float] = time.process_time) -> None:
        self._read = read
        self._before = read()

    def us_each(self, count: float) -> float:
        """Microseconds for each of *count*."""
        return (self._read() - self._before) / count * 1e6
