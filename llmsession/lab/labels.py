"""Labels of charts: ticks that differ from each other, and names of dots that do not overlap.
Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

__all__ = ["Box", "Frame", "Label", "Spot", "numbers", "placed", "short", "ticks"]

CHAR_WIDTH, LINE_HEIGHT = 5.8, 11.0
"""The size of a character of a label, in the units of the chart. No browser's font is wider on
average.
"""
SAME_SPOT = 6.0
"""Dots that are no further apart than this look like one."""
MAX_RANGES = 6
"""A label lists this many ranges of numbers, and counts the others."""
MAX_TICKS = 6
_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


class Box(NamedTuple):
    """A rectangle, by its corners."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        """Do they share more than an edge?"""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def holds(self, other: Box) -> bool:
        """Is *other* inside it?"""
        return (
            self.left <= other.left
            and self.top <= other.top
            and other.right <= self.right
            and other.bottom <= self.bottom
        )


Frame = Box
"""The area where labels may stand."""


class Spot(NamedTuple):
    """A dot in the chart. ``number`` is the number of its row, and ``name`` its label if it stands
    alone.
    """

    number: int
    name: str
    x: float
    y: float


class Label(NamedTuple):
    """A text and its place. ``spots`` are the dots that it labels."""

    text: str
    box: Box
    spots: tuple[Spot, ...]


def short(value: float) -> str:
    """A number in few characters: 1.2M, 340k, 0.85."""
    for size, unit in _UNITS:
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


# Ticks.


def ticks(least: float, most: float, *, whole: bool = False) -> list[tuple[float, str]]:
    """Round values from *least* to *most*, each with its text: at most ``MAX_TICKS``, and no two
    with the same text. With *whole* they are whole numbers.
    """
    step = _step(most - least, whole=whole)
    if not step:
        return [(least, short(least))]
    first, last = math.ceil(least / step - 1e-9), math.floor(most / step + 1e-9)
    values = [number * step for number in range(first, last + 1)]
    unit_size, unit = next(
        ((size, unit) for size, unit in _UNITS if max(abs(least), abs(most)) >= size), (1.0, "")
    )
    texts: dict[str, float] = {}
    for digits in range(13):
        texts = {
            f"{value / unit_size:.{digits}f}{unit}" if value else "0": value for value in values
        }
        written = [float(text.removesuffix(unit)) * unit_size for text in texts]
        exact = all(
            abs(value - text) < step / 100 for value, text in zip(values, written, strict=False)
        )
        if len(texts) == len(values) and exact:
            break
    return [(value, text) for text, value in texts.items()]


def _step(span: float, *, whole: bool) -> float:
    """The smallest round step that *span* holds few of; 0 if there is none."""
    if not math.isfinite(span) or span <= 0:
        return 0.0
    size = 10.0 ** math.floor(math.log10(span / MAX_TICKS))
    steps = (factor * size for factor in (1, 2, 5, 10, 20))
    step = next(step for step in steps if span / step <= MAX_TICKS - 1)
    return max(1.0, float(math.ceil(step))) if whole else step


# Names of dots.


def numbers(values: Iterable[int]) -> str:
    """*values* as ranges: 1, 3-5, 9."""
    ranges: list[list[int]] = []
    for value in sorted(values):
        if ranges and value == ranges[-1][1] + 1:
            ranges[-1][1] = value
        else:
            ranges.append([value, value])
    texts = [str(low) if low == high else f"{low}-{high}" for low, high in ranges]
    if len(texts) > MAX_RANGES:
        left = sum(high - low + 1 for low, high in ranges[MAX_RANGES:])
        texts[MAX_RANGES:] = [f"and {left} more"]
    return ", ".join(texts)


def placed(spots: Sequence[Spot], frame: Frame) -> list[Label]:
    """A label for each of *spots*, inside *frame*, so that no two overlap. If there is no room for
    each, neighbours share a label with their numbers.
    """
    groups: list[list[Spot]] = []
    for spot in spots:
        home = next((group for group in groups if _distance(group[0], spot) <= SAME_SPOT), None)
        if home is None:
            groups.append([spot])
        else:
            home.append(spot)
    while True:
        labels, without_room = _tried(groups, frame)
        if without_room is None:
            return labels
        others = [group for group in groups if group is not without_room]
        nearest = min(others, key=lambda group: _distance(group[0], without_room[0]))
        nearest.extend(without_room)
        groups = others


def _distance(one: Spot, other: Spot) -> float:
    return math.hypot(one.x - other.x, one.y - other.y)


def _tried(groups: list[list[Spot]], frame: Frame) -> tuple[list[Label], list[Spot] | None]:
    """The labels of *groups*; or those before the first group without room, and that group."""
    labels: list[Label] = []
    spots = [spot for group in groups for spot in group]
    for group in groups:
        text = group[0].name if len(group) == 1 else numbers(spot.number for spot in group)
        free = [
            box
            for box in _around(group[0], len(text) * CHAR_WIDTH, frame)
            if frame.holds(box) and not any(box.overlaps(label.box) for label in labels)
        ]
        if not free and len(groups) > 1:
            return labels, group
        box = min(free, key=lambda box: _covered(box, spots)) if free else frame
        labels.append(Label(text, box, tuple(group)))
    return labels, None


def _around(spot: Spot, width: float, frame: Frame) -> Iterator[Box]:
    """The places where a label of the given *width* may stand beside *spot*."""
    for rise in (-5.0, 4.0, -14.0, 14.0):
        for left in (spot.x + 6, spot.x - 6 - width, spot.x - width / 2):
            inside = min(max(left, frame.left), frame.right - width)
            bottom = min(max(spot.y + rise, frame.top + LINE_HEIGHT), frame.bottom)
            yield Box(inside, bottom - LINE_HEIGHT, inside + width, bottom)


def _covered(box: Box, spots: Sequence[Spot]) -> int:
    """How many dots a label in *box* would cover."""
    return sum(
        box.left <= spot.x <= box.right and box.top <= spot.y <= box.bottom for spot in spots
    )
