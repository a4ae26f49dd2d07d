"""ReactivationQueue: commands to a cold session wait here and are enqueued in the order of
calls.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

__all__ = ["ReactivationQueue"]


class ReactivationQueue:
    """The callers that wait for one session.

    ``callers`` counts those that wait and the one that is inside ``in_turn``.
    """

    __slots__ = ("__weakref__", "_lock", "callers")

    def __init__(self) -> None:
        self.callers = 0
        self._lock: anyio.Lock | None = None

    @asynccontextmanager
    async def in_turn(self) -> AsyncIterator[None]:
        """Callers enter the body one after the other, in the order in which they came.

        A caller that leaves the body must enqueue its command before it awaits anything; otherwise
        the next caller may overtake it. Cancellable while it waits.
        """
        if self._lock is None:
            self._lock = anyio.Lock(fast_acquire=True)
        self.callers += 1
        try:
            async with self._lock:
                yield
        finally:
            self.callers -= 1
            if not self.callers:
                self._lock = None
