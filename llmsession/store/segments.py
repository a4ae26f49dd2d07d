"""Where a session's records lie if it shares some with other sessions.

A session appends to a log of its own. The first records of a fork lie in its parent's log under the
same seqs. So the records of a session are a list of segments: ranges of seqs in other logs, and at
the end a range in its own. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

import msgspec

__all__ = [
    "LAST_SEQ", "Segment", "cut", "layout", "moved", "segment_of", "stored", "united", "unused",
    "within",
]  # fmt: skip

LAST_SEQ = 2**32 - 1
"""The greatest seq that a log can hold."""


class Segment(msgspec.Struct, frozen=True):
    """The records *first* to *upto*, both included, lie in the log *source*."""

    first: int
    upto: int
    source: int


def layout(segments: Sequence[Segment], own: int, head: int) -> list[Segment]:
    """All segments of the records 1 to *head*: the stored *segments*, then the log *own*."""
    last = segments[-1].upto if segments else 0
    if last >= head:
        return list(segments)
    return [*segments, Segment(last + 1, head, own)]


def stored(segments: Iterable[Segment], own: int) -> list[Segment]:
    """The part of *segments* that must be stored: all but the last range, which is in *own*."""
    parts = _joined(segments)
    if parts and parts[-1].source == own:
        parts.pop()
    return parts


def within(segments: Iterable[Segment], first: int, upto: int) -> list[Segment]:
    """The part of *segments* that holds the records *first* to *upto*."""
    return [
        Segment(max(part.first, first), min(part.upto, upto), part.source)
        for part in segments
        if part.first <= upto and part.upto >= first
    ]


def segment_of(segments: Sequence[Segment], seq: int) -> Segment | None:
    """The one of *segments*, which are in order and apart, that holds the record *seq*; None if
    none does.
    """
    index = bisect_right(segments, seq, key=attrgetter("first")) - 1
    return segments[index] if index >= 0 and segments[index].upto >= seq else None


def united(ranges: Iterable[tuple[int, int]], source: int) -> list[Segment]:
    """The records of *source* that are in one of *ranges* at least, in order and apart."""
    parts: list[Segment] = []
    for first, upto in sorted(ranges):
        if parts and first <= parts[-1].upto + 1:
            first, upto = parts[-1].first, max(upto, parts.pop().upto)
        parts.append(Segment(first, upto, source))
    return parts


def cut(segments: Iterable[Segment], upto: int) -> list[Segment]:
    """The part of *segments* that holds the records 1 to *upto*."""
    return within(segments, 1, upto)


def moved(segments: Iterable[Segment], seqs: Iterable[int], source: int) -> list[Segment]:
    """*segments* with the records *seqs* in the log *source* instead."""
    ordered = sorted(seqs)
    parts: list[Segment] = []
    index = 0
    for part in segments:
        first = part.first
        while index < len(ordered) and ordered[index] <= part.upto:
            seq = ordered[index]
            if first < seq:
                parts.append(Segment(first, seq - 1, part.source))
            parts.append(Segment(seq, seq, source))
            first, index = seq + 1, index + 1
        if first <= part.upto:
            parts.append(Segment(first, part.upto, part.source))
    return _joined(parts)


def unused(used: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The ranges of seqs that are in none of *used*, with both ends included."""
    first = 1
    for start, end in sorted(used):
        if first < start:
            yield first, start - 1
        first = max(first, end + 1)
    if first <= LAST_SEQ:
        yield first, LAST_SEQ


def _joined(segments: Iterable[Segment]) -> list[Segment]:
    """*segments* with neighbours in the same log joined."""
    joined: list[Segment] = []
    for part in segments:
        if joined and joined[-1].source == part.source and joined[-1].upto + 1 == part.first:
            joined[-1] = Segment(joined[-1].first, part.upto, part.source)
        else:
            joined.append(part)
    return joined
