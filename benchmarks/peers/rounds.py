"""Which run comes next, and what several rounds of one work say together. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .adapters.common import percentile

__all__ = ["Figure", "Run", "figure", "planned", "rotated", "said"]


class Run(NamedTuple):
    """One work of one peer. ``round`` is its number for them, from 0."""

    round: int
    work: str
    peer: str


def rotated(names: Sequence[str], by: int) -> list[str]:
    """*names*, from the one with the number *by* on, and then those before it."""
    start = by % len(names)
    return [*names[start:], *names[:start]]


def planned(
    rounds: int,
    works: Sequence[str],
    everyone: Sequence[str],
    peers: Collection[str],
    done: Callable[[str, str], int],
) -> Iterator[Run]:
    """The runs that are missing, in their order: each round has every work with all *peers*.

    A round begins with another peer than the one before it. The order is that of *everyone*, so
    that it does not depend on which *peers* are asked for. *done* is how many rounds of a work a
    peer has, so a run that was broken off goes on where it stopped.
    """
    for at in range(rounds):
        for work in works:
            for peer in rotated(everyone, at):
                if peer in peers and done(work, peer) <= at:
                    yield Run(at, work, peer)


class Figure(NamedTuple):
    """The median over the rounds, and the least and the most of them."""

    median: float
    least: float
    most: float


def one_figure(measured: Mapping[str, Any], name: str) -> float | None:
    """A measure of one round as one number: of a list the median, of a truth value 1 or 0; None
    where it is none."""
    value = measured.get(name)
    if isinstance(value, list):
        return statistics.median(value) if value else None
    return float(value) if isinstance(value, int | float) else None


def figure(rounds: Sequence[Mapping[str, Any]], name: str) -> Figure | None:
    """A measure over *rounds*; None if no round has a number of it."""
    found = [one_figure(measured, name) for measured in rounds]
    numbers = [value for value in found if value is not None]
    if not numbers:
        return None
    return Figure(statistics.median(numbers), min(numbers), max(numbers))


def said(rounds: Sequence[Mapping[str, Any]], name: str) -> Any:
    """A measure over *rounds* that is no number: the word of most of them, or counts added up; of
    lists, the 99th percentile of each round, and of these the median."""
    values = [measured[name] for measured in rounds if measured.get(name) is not None]
    if not values:
        return None
    if isinstance(values[0], dict):
        whole: Counter[str] = Counter()
        for counts in values:
            whole.update(counts)
        return dict(sorted(whole.items()))
    if isinstance(values[0], list):
        slow = [percentile(value, 0.99) for value in values if value]
        return statistics.median(slow) if slow else None
    return Counter(values).most_common(1)[0][0]
