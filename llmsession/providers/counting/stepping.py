"""Long work in short steps: in a thread, with an event loop that goes on and a cancel that is
heard between two steps."""

from __future__ import annotations

from collections.abc import Iterator

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar, checkpoint

__all__ = ["INLINE_BYTES", "Stepper"]

INLINE_BYTES = 2048
"""Below it the way to a thread and back (0.1 ms) costs more than to count."""
THREADS = 2
"""More are no faster: tokenising does not scale with threads. Two, so that a short text does not
wait for all of a long one."""

_limiter: RunVar[CapacityLimiter] = RunVar("llmsession counting threads")


def counting_threads() -> CapacityLimiter:
    """The threads that count, of the running event loop."""
    # Its own: synchronous tools may hold all threads of the common one for minutes.
    try:
        return _limiter.get()
    except LookupError:
        limiter = CapacityLimiter(THREADS)
        _limiter.set(limiter)
        return limiter


class Stepper:
    """Runs iterators to their end. What is at most *inline_bytes* large runs where it is; without
    *threads*, for simulations in virtual time, everything does."""

    def __init__(self, inline_bytes: int = INLINE_BYTES, *, threads: bool = True) -> None:
        self._inline_bytes = inline_bytes
        self._uses_threads = threads

    async def run(
        self, steps: Iterator[None], *, size_bytes: int, waits_for_disk: bool = False
    ) -> None:
        """Take every step of *steps*, one after the other; none begins after a cancel. Raises
        what a step raises."""
        is_short = size_bytes <= self._inline_bytes and not waits_for_disk
        if is_short or not self._uses_threads:
            for _step in steps:
                pass
            await checkpoint()
            return
        while await to_thread.run_sync(_advance, steps, limiter=counting_threads()):
            pass


def _advance(steps: Iterator[None]) -> bool:
    # next() itself would raise StopIteration, which no coroutine can pass on.
    for _step in steps:
        return True
    return False
