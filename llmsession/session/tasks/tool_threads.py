"""The threads of synchronous tools.

A thread cannot be stopped, so a tool that runs in one is a work that ignores its cancellation. It
is listed by name while it runs, and the manager waits for it when it is left.
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
        # Not the backend's own thread pool: tools that hang must not use up the threads of
        # compaction.
        self._limiter = anyio.CapacityLimiter(limit)
        self._running: dict[anyio.CancelScope, str] = {}
        self._emptied: anyio.Event | None = None

    @property
    def running(self) -> tuple[str, ...]:
        """The names of the threads that run now, sorted."""
        return tuple(sorted(self._running.values()))

    async def run(self, name: str, function: Callable[[], T]) -> T:
        """Call *function* in a thread, and return what it returns. *name* is for ``running``.

        A cancellation takes effect while this waits for a thread. Once *function* runs, this waits
        for it. Raises what *function* raises, and RuntimeError if ``wait_all`` gave it up.
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
        raise RuntimeError(f"{name} was still running when its SessionManager was left")

    async def wait_all(self, timeout_s: float) -> tuple[str, ...]:
        """Wait at most *timeout_s* until no thread runs. Returns the names of those that still run.

        Nothing waits for them any more.
        """
        if self._running:
            self._emptied = anyio.Event()
            with anyio.move_on_after(timeout_s):
                await self._emptied.wait()
        names = self.running
        for scope in tuple(self._running):
            scope.cancel()
        return names
