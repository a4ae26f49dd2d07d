"""How much of a commit large batches may take, so that small ones do not wait for all of them.

Who appends a word waits for the group that is being written, and for its own. Sessions that append
megabytes without a pause would make every group as long as the disk takes for all of them. So a
group has room for some large batches, and those that find none wait for a later group; small ones
overtake them. And while small ones wait, every second group has no large ones at all: so a small
one waits for one group with large ones, whether it is the group before its own or its own. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import TypeVar

__all__ = ["LARGE_BATCH_BYTES", "LargeBatches"]

LARGE_BATCH_BYTES = 64 * 1024
"""A batch of at least this size is large. Most have less than a tenth of it."""
MAX_LARGE_BYTES = 1024 * 1024
"""The size of the large batches in a group together, unless there is only one. Writing and syncing
it takes about as long as a commit of a thousand small batches.
"""


G = TypeVar("G", bound=Sized)


class LargeBatches:
    """The large batches in the groups of one writer."""

    __slots__ = ("_had_some", "_is_closed", "_size")

    def __init__(self) -> None:
        self._size = 0
        self._is_closed = self._had_some = False

    def form_group(self, take: Callable[[], G]) -> G:
        """The next group, as *take* takes it from what waits, asking ``have_room``. It has room for
        none if the one before had some, unless nothing else can go into it.
        """
        self._is_closed, self._size = self._had_some, 0
        group = take()
        if not group and self._is_closed:
            self._is_closed = False
            group = take()
        if group:
            self._had_some = self._size > 0
        return group

    def have_room(self, size: int) -> bool:
        """May a batch of *size* bytes go into the group? If so, it counts as one that did."""
        if size >= LARGE_BATCH_BYTES:
            if self._is_closed or (self._size and self._size + size > MAX_LARGE_BYTES):
                return False
            self._size += size
        return True
