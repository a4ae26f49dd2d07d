"""Commands to a cold session wait for it here, and are enqueued in the order of their calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

__all__ = ["ReactivationQueue"]


class ReactivationQueue:
    """The way back of one session. ``callers`` is how many wait, or have not gone on yet."""

    __slots__ = ("__weakref__", "_lock", "callers")

    def __init__(self) -> None:
        self.callers = 0
        self._lock: anyio.Lock | None = None

    @asynccontextmanager
    async def in_turn(self) -> AsyncIterator[None]:
        """The body is entered by one caller after another, first come first served. Who leaves it
        must not wait before it has enqueued its command. Cancellable while it waits."""
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
