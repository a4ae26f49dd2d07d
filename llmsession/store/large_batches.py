"""How much of a commit large batches may take, so that small ones do not wait for all of them.

Who appends a word waits for the group that is being written, and for its own. Sessions that append
megabytes without a pause would make every group as long as the disk takes for all of them. So a
group has room for some large batches, and those that find none wait for a later group; small ones
overtake them. And while small ones wait, every second group has no large ones at all: so a small
one waits for one group with large ones, whether it is the group before its own or its own. Pure.
"""

from __future__ import annotations

__all__ = ["LARGE_BATCH_BYTES", "LargeBatches"]

LARGE_BATCH_BYTES = 64 * 1024
"""A batch of at least this size is large. Most have less than a tenth of it."""
MAX_LARGE_BYTES = 1024 * 1024
"""The size of the large batches in a group together, unless there is only one. Writing and syncing
it takes about as long as a commit of a thousand small batches.
"""


class LargeBatches:
    """The large batches in the groups of one writer."""

    __slots__ = ("_had_some", "_is_closed", "_size")

    def __init__(self) -> None:
        self._size = 0
        self._is_closed = self._had_some = False

    def begin_group(self) -> None:
        """The next group begins. It has room for none if the one before had some."""
        self._is_closed = self._had_some
        self._size = 0

    def reopen(self) -> bool:
        """Make room after all, because nothing else can go into the group. Returns whether there
        was none.
        """
        was_closed, self._is_closed = self._is_closed, False
        return was_closed

    def end_group(self) -> None:
        """The group, which is not empty, will be written."""
        self._had_some = self._size > 0

    def have_room(self, size: int) -> bool:
        """May a batch of *size* bytes go into the group? If so, it counts as one that did."""
        if size >= LARGE_BATCH_BYTES:
            if self._is_closed or (self._size and self._size + size > MAX_LARGE_BYTES):
                return False
            self._size += size
        return True
