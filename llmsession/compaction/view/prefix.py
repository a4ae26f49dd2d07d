"""The length of the common beginning of two sequences, which every cache of a growing conversation
needs.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

__all__ = ["shared_prefix"]


def shared_prefix(known: Sequence[object], now: Sequence[object]) -> int:
    """How many items at the beginning of *now* are those of *known*. Both must be tuples, or both
    lists.

    This is asked before each request, and nearly always *now* is *known* with more items behind it.
    That case is one comparison of two sequences, which looks only at the identity of the items.
    """
    length = len(known)
    if known == now[:length]:
        return length
    same = bytes(map(operator.is_, known, now))
    end = same.find(0)
    return len(same) if end < 0 else end
