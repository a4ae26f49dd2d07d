"""Runs long work in short steps in a thread, so that the event loop goes on and a cancellation
takes effect between two steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar, checkpoint

__all__ = ["INLINE_BYTES", "Stepper"]

INLINE_BYTES = 2048
"""Below this size, the way to a thread and back (0.1 ms) costs more than the count itself."""
THREADS = 2
"""More threads are no faster, because tokenising does not scale with threads. Two, so that a short
text need not wait for all of a long one.
"""

_limiter: RunVar[CapacityLimiter] = RunVar("llmsession counting threads")


def counting_threads() -> CapacityLimiter:
    """The limiter of the threads that count, for the running event loop."""
    # A limiter of its own: synchronous tools may occupy all threads of the common one for minutes.
    try:
        return _limiter.get()
    except LookupError:
        limiter = CapacityLimiter(THREADS)
        _limiter.set(limiter)
        return limiter


class Stepper:
    """Runs iterators to their end.

    Work of at most *inline_bytes* runs in the event loop. Without *threads* all work does;
    simulations in virtual time need that.
    """

    def __init__(self, inline_bytes: int = INLINE_BYTES, *, threads: bool = True) -> None:
        self._inline_bytes = inline_bytes
        self._uses_threads = threads

    async def run(
        self, steps: Iterator[None], *, size_bytes: int, waits_for_disk: bool = False
    ) -> None:
        """Take every step of *steps*, one after the other. No step begins after a cancellation.
        Raises what a step raises.
        """
        is_short = size_bytes <= self._inline_bytes and not waits_for_disk
        if is_short or not self._uses_threads:
            for _step in steps:
                pass
            await checkpoint()
            return
        while await to_thread.run_sync(_advance, steps, limiter=counting_threads()):
            pass


def _advance(steps: Iterator[None]) -> bool:
    # next() itself would raise StopIteration, which must not leave a coroutine.
    for _step in steps:
        return True
    return False
