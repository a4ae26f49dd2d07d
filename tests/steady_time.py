"""Backends whose clock stands still while the machine does.

A machine that runs other things, too, may hold up a test for seconds. To a real clock every timer
that is due within them comes late, all at once, and what was to happen before them has not: a peer
that answers its ping is dropped, and a service that is idle says that it is late. Here each turn of
the event loop takes at most ``STALL_S``, and each wait at most that more than was asked for. So
timers come in their order, and what is ready between two of them is done between them.

It is real time otherwise: threads, processes and sockets may be waited for. Real deadlines hold
where something else keeps them: another process, a thread of its own, gRPC's own code.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import time
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any, TypeVarTuple

import trio

__all__ = ["STALL_S", "SteadyLoop", "steady_backend"]

Ts = TypeVarTuple("Ts")

STALL_S = 0.05


class _Steady:
    """Seconds, of which a turn or a wait has only so many."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = self._most_s = stall_s
        self._now = 0.0
        self._since = time.monotonic()

    def time(self) -> float:
        return self._now + min(time.monotonic() - self._since, self._most_s)

    def begin(self, asked_s: float) -> None:
        """From now on there is a turn, or a wait of *asked_s*."""
        self._now = self.time()
        self._since = time.monotonic()
        self._most_s = asked_s + self._stall_s


class _SteadySelector(selectors.DefaultSelector):
    def __init__(self, clock: _Steady) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._clock.begin(math.inf if timeout is None else max(0.0, timeout))
        try:
            return super().select(timeout)
        finally:
            self._clock.begin(0.0)


class SteadyLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop whose clock is steady."""

    def __init__(self, stall_s: float = STALL_S) -> None:
        self._steady = _Steady(stall_s)
        super().__init__(_SteadySelector(self._steady))

    def time(self) -> float:
        return self._steady.time()

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As any loop does it, but for what gRPC still has for a loop that is closed.

        gRPC has one poller for all loops of a process. What the core says of a call that ended with
        an earlier loop is brought to that one by whichever loop runs then, and its error would fail
        a test that has nothing to do with it.
        """
        if self.is_closed() and str(callback.__module__).startswith("grpc."):
            return asyncio.Handle(callback, args, self)  # which nobody runs
        return super().call_soon_threadsafe(callback, *args, context=context)


class _SteadyClock(trio.abc.Clock, trio.abc.Instrument):
    """The same for trio, which tells when it waits."""

    def __init__(self, stall_s: float) -> None:
        self._steady = _Steady(stall_s)

    def start_clock(self) -> None:
        self._steady.begin(0.0)

    def current_time(self) -> float:
        return self._steady.time()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self.current_time()

    def before_io_wait(self, timeout: float) -> None:
        self._steady.begin(timeout)

    def after_io_wait(self, timeout: float) -> None:
        self._steady.begin(0.0)


def steady_backend(name: str, stall_s: float = STALL_S) -> tuple[str, dict[str, Any]]:
    """What anyio's pytest plugin takes as ``anyio_backend``. Good for one test."""
    if name == "asyncio":
        return name, {"loop_factory": partial(SteadyLoop, stall_s)}
    clock = _SteadyClock(stall_s)
    return name, {"clock": clock, "instruments": [clock]}
