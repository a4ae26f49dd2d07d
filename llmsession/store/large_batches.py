"""How much of a commit large batches may take, so that small ones do not wait for all of them.

Who appends a word waits for its whole group. Sessions that append megabytes without a pause would
make every group as long as the disk takes for all of them. So a group has room for some large
batches, and those that find none wait for a later group. Small ones overtake them. Pure.
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
    """The large batches in one group."""

    __slots__ = ("_size",)

    def __init__(self) -> None:
        self._size = 0

    def have_room(self, size: int) -> bool:
        """May a batch of *size* bytes go into the group? If so, it counts as one that did."""
        if size >= LARGE_BATCH_BYTES:
            if self._size and self._size + size > MAX_LARGE_BYTES:
                return False
            self._size += size
        return True
