"""Did anything grow? Decided from samples alone. Pure.

**Rests** are pauses without any client: what one that is due to end has left then, stays. **Load**
is between them. Memory grows where a Theil-Sen line (the median of the slopes of all pairs: no
spike moves it) through the second half of a life, under load or at the rests, rises by more than
``most_bytes_per_hour`` and by more than ``most_share_per_hour`` of the median, and three of four of
the pairs rise. A piece that is shorter than ``least_window_s`` says nothing about an hour, and is
not judged. Through the first rests of all lives goes a line of the same rule. Handles, threads and
tasks have to be at every rest what they were at the first one of the life, with a few to spare;
sessions in memory have to be none.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

import msgspec

__all__ = ["Growth", "Line", "Rules", "Sample", "fit", "growths", "lines"]

HOUR_S = 3600.0
MAX_POINTS = 240
"""Of a line: pairs grow with the square, and more points do not make it better."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The service at a moment. ``life`` counts its processes from 1; ``rest`` the pauses from 1, 0
    under load. None: not known here."""

    at_s: float
    life: int
    rest: int = 0
    rss_bytes: int | None = None
    handles: int | None = None
    threads: int | None = None
    tasks: int = 0
    sessions: int = 0
    open_turns: int = 0
    lag_s: float = 0.0


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What is still flat."""

    most_share_per_hour: float = 0.15
    most_bytes_per_hour: float = 24e6
    least_window_s: float = 240.0
    least_points: int = 4
    spare: int = 6
    """Handles, threads or tasks more than at the first rest: a pool may have warmed up since."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """Memory over a piece of the run: the median, and what it grew by in an hour, by the median and
    by the lower quartile of all pairs."""

    name: str
    window_s: float
    points: int
    median_bytes: float
    bytes_per_hour: float
    least_bytes_per_hour: float

    def grows(self, rules: Rules) -> bool:
        """Is it more than *rules* allow?"""
        return (
            self.bytes_per_hour > rules.most_bytes_per_hour
            and self.bytes_per_hour > rules.most_share_per_hour * self.median_bytes
            and self.least_bytes_per_hour > 0
        )


class Growth(msgspec.Struct, frozen=True):
    """Something that is not flat."""

    what: str
    told: str


def growths(samples: Sequence[Sample], rules: Rules) -> list[Growth]:
    """All that grew; [] if everything is flat."""
    found = []
    for line in lines(samples, rules):
        if line.grows(rules):
            told = f"{line.bytes_per_hour / 1e6:+.1f} MB an hour, of {line.median_bytes / 1e6:.0f}"
            found.append(Growth("memory", f"{line.name}: {told}"))
    found += _left_at_rest(samples, rules)
    return found


def lines(samples: Sequence[Sample], rules: Rules) -> list[Line]:
    """The lines that memory is judged by: of pieces that are long enough."""
    found = []
    lives = sorted({sample.life for sample in samples})
    for life in lives:
        mine = [sample for sample in samples if sample.life == life]
        loaded = [(each.at_s, each.rss_bytes) for each in mine if not each.rest]
        rests = [(each.at_s, each.rss_bytes) for each in _rests(mine)]
        found.append(fit(f"life {life}, load", _second_half(loaded), rules))
        found.append(fit(f"life {life}, rests", _second_half(rests), rules))
    firsts = [next(iter(_rests(each for each in samples if each.life == life)), None)
              for life in lives]  # fmt: skip
    known = [(each.at_s, each.rss_bytes) for each in firsts if each is not None]
    found.append(fit("first rests of all lives", known, rules))
    return [line for line in found if line is not None]


def fit(name: str, points: Sequence[tuple[float, int | None]], rules: Rules) -> Line | None:
    """The line through *points* of seconds and bytes; None for too short a piece, or too few."""
    known = [(at, float(value)) for at, value in points if value is not None]
    if len(known) < rules.least_points or known[-1][0] - known[0][0] < rules.least_window_s:
        return None
    thinned = known[:: -(-len(known) // MAX_POINTS)]
    slopes = sorted(
        (later - earlier) / (after - before) * HOUR_S
        for (before, earlier), (after, later) in combinations(thinned, 2)
        if after > before
    )
    return Line(
        name=name,
        window_s=known[-1][0] - known[0][0],
        points=len(known),
        median_bytes=statistics.median(value for _, value in known),
        bytes_per_hour=statistics.median(slopes),
        least_bytes_per_hour=slopes[len(slopes) // 4],
    )


def _second_half(points: Sequence[tuple[float, int | None]]) -> list[tuple[float, int | None]]:
    """By time: in the first half a process is still warming up."""
    if not points:
        return []
    middle = (points[0][0] + points[-1][0]) / 2
    return [point for point in points if point[0] >= middle]


def _rests(samples: Iterable[Sample]) -> list[Sample]:
    """One for each rest, with the least of everything that was seen in it, in order."""
    by_rest: dict[int, list[Sample]] = {}
    for sample in samples:
        if sample.rest:
            by_rest.setdefault(sample.rest, []).append(sample)
    return [_least(seen) for _, seen in sorted(by_rest.items())]


def _least(seen: Sequence[Sample]) -> Sample:
    return msgspec.structs.replace(
        seen[-1],
        rss_bytes=_known_min(each.rss_bytes for each in seen),
        handles=_known_min(each.handles for each in seen),
        threads=_known_min(each.threads for each in seen),
        tasks=min(each.tasks for each in seen),
        sessions=min(each.sessions for each in seen),
        open_turns=min(each.open_turns for each in seen),
    )


def _known_min(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _left_at_rest(samples: Sequence[Sample], rules: Rules) -> Iterator[Growth]:
    for life in sorted({sample.life for sample in samples}):
        rests = _rests(sample for sample in samples if sample.life == life)
        for what in ("handles", "threads", "tasks"):
            known = [value for rest in rests if (value := getattr(rest, what)) is not None]
            if known and max(known) > known[0] + rules.spare:
                told = f"life {life}: {known[0]} at its first rest, {max(known)} at a later one"
                yield Growth(what, told)
        for what in ("sessions", "open_turns"):
            left = [(getattr(rest, what), rest.rest) for rest in rests if getattr(rest, what)]
            if left:
                yield Growth(what, f"life {life}: {left[0][0]} were there at rest {left[0][1]}")
