"""How many items two sequences share at their start: the question of every cache of a growing
conversation."""

from __future__ import annotations

import operator
from collections.abc import Sequence

__all__ = ["shared_prefix"]


def shared_prefix(known: Sequence[object], now: Sequence[object]) -> int:
    """How many of the first items of *now* are those of *known*. Both are tuples, or lists.

    Asked before each request, and nearly always *now* is *known* with more behind it. That case
    is one comparison of two sequences, which looks at the addresses of the items alone.
    """
    length = len(known)
    if known == now[:length]:
        return length
    same = bytes(map(operator.is_, known, now))
    end = same.find(0)
    return len(same) if end < 0 else end
