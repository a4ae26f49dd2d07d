"""Threads of synchronous tools. A thread cannot be stopped, so a tool that runs in one is a work
that ignores its cancellation: it is named while it runs, and waited for at the manager's end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

__all__ = ["ToolThreads"]

T = TypeVar("T")

MAX_THREADS = 256
"""How many synchronous tools of one manager run at the same time. Others wait for a thread."""


class ToolThreads:
    """The threads of one manager's tools."""

    def __init__(self, limit: int = MAX_THREADS) -> None:
        # Not the backend's own threads: hanging tools must not block the threads of compaction.
        self._limiter = anyio.CapacityLimiter(limit)
        self._running: dict[anyio.CancelScope, str] = {}
        self._emptied: anyio.Event | None = None

    @property
    def running(self) -> tuple[str, ...]:
        """The names of the threads that run now, sorted."""
        return tuple(sorted(self._running.values()))

    async def run(self, name: str, function: Callable[[], T]) -> T:
        """What *function* returns, called in a thread; *name* is for ``running``.

        A cancellation takes effect while it waits for a thread. Once *function* runs, it is waited
        for. Raises what it raises, and RuntimeError where ``wait_all`` gave it up.
        """
        async with self._limiter:
            with anyio.CancelScope(shield=True) as scope:
                self._running[scope] = name
                try:
                    return await anyio.to_thread.run_sync(
                        function, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
                    )
                finally:
                    del self._running[scope]
                    if self._emptied is not None and not self._running:
                        self._emptied.set()
        raise RuntimeError(f"{name} still ran when its manager had been left")

    async def wait_all(self, timeout_s: float) -> tuple[str, ...]:
        """Wait until no thread runs, at most *timeout_s*. Returns the names of those that still
        run: nothing waits for them any more."""
        if self._running:
            self._emptied = anyio.Event()
            with anyio.move_on_after(timeout_s):
                await self._emptied.wait()
        names = self.running
        for scope in tuple(self._running):
            scope.cancel()
        return names
