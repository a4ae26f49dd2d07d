"""The deadlines of all sessions of a manager, in one task that exists while there are any."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count

import anyio

from llmsession.errors import contained_in_work, starting_scope

from .task_host import LoopCalls, Tasks

__all__ = ["Timer", "Timers"]

PRUNE_AT = 256
"""From this number on, cancelled deadlines are removed whenever the number may have doubled."""


class Timer:
    """A call at the time ``at`` (of the backend's clock), unless it is cancelled first."""

    __slots__ = ("_fire", "at")

    def __init__(self, at: float, fire: Callable[[], None]) -> None:
        self.at = at
        self._fire: Callable[[], None] | None = fire

    def cancel(self) -> None:
        """Do not call. Has no effect once it has fired."""
        self._fire = None

    @property
    def is_cancelled(self) -> bool:
        """Was it cancelled, or has it fired?"""
        return self._fire is None

    def fire(self) -> None:
        """Call now, once, unless it was cancelled."""
        fire, self._fire = self._fire, None
        if fire is not None:
            fire()


class Timers:
    """Many deadlines in one sleeping task.

    A task per deadline would cost more than the work it watches: an interrupt sets a deadline and
    almost always cancels it again, before the loop turns twice. So an earlier deadline wakes the
    task one turn after it was set, if it still stands.
    """

    def __init__(self, tasks: Tasks, loop_calls: LoopCalls) -> None:
        self._tasks = tasks
        self._loop_calls = loop_calls
        self._heap: list[tuple[float, int, Timer]] = []
        self._prune_at = PRUNE_AT
        self._order = count()
        self._wake: anyio.Event | None = None
        self._wakes_at = -math.inf
        """Until when the task sleeps."""
        self._is_looking = False
        self._running = False
        self._closed = False

    def after(self, delay_s: float, fire: Callable[[], None]) -> Timer:
        """Call *fire* after *delay_s* seconds, or never if closed by then. *fire* must not wait."""
        timer = Timer(self._loop_calls.now() + delay_s, fire)
        if self._closed:
            return timer
        heapq.heappush(self._heap, (timer.at, next(self._order), timer))
        if len(self._heap) >= self._prune_at:
            self._prune()
        if not self._running:
            self._running = True
            scope = self._loop_calls.new_scope()
            self._tasks.start(
                self._run, scope,
                cancel=scope.cancel, is_over=lambda: not self._running, name="llmsession timers",
            )  # fmt: skip
        elif timer.at < self._wakes_at and not self._is_looking:
            self._is_looking = True
            self._loop_calls.call_soon(self._wake_if_earlier)
        return timer

    def _wake_if_earlier(self) -> None:
        self._is_looking = False
        is_earlier = self._drop_cancelled() and self._heap[0][0] < self._wakes_at
        if is_earlier and self._wake is not None:
            self._wake.set()

    def close(self) -> None:
        """Drop every deadline. The task ends."""
        self._closed = True
        self._heap.clear()
        if self._wake is not None:
            self._wake.set()

    def _prune(self) -> None:
        # Most deadlines are cancelled long before their time, for example when a call is answered.
        self._heap = [entry for entry in self._heap if not entry[2].is_cancelled]
        heapq.heapify(self._heap)
        self._prune_at = max(PRUNE_AT, 2 * len(self._heap))

    async def _run(self, scope: anyio.CancelScope) -> None:
        self._tasks.adopt()
        starting_scope.set(scope)
        try:
            with scope:
                while self._drop_cancelled():
                    due = self._heap[0][0]
                    if due > anyio.current_time():
                        await self._sleep_until(due)
                    else:
                        heapq.heappop(self._heap)[2].fire()
        finally:
            self._running = False
            self._wake, self._wakes_at = None, -math.inf

    async def _sleep_until(self, due: float) -> None:
        wake = anyio.Event()
        self._wake, self._wakes_at = wake, due
        try:
            with anyio.move_on_after(due - anyio.current_time()):
                await wake.wait()
        except anyio.get_cancelled_exc_class() as error:
            # Foreign code may cancel this task alone, by asyncio's Task.cancel(). That must not
            # cost the deadlines of all sessions.
            contained_in_work(error)

    def _drop_cancelled(self) -> bool:
        while self._heap and self._heap[0][2].is_cancelled:
            heapq.heappop(self._heap)
        return bool(self._heap)
