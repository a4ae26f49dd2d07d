"""Backends whose clock jumps: a test that waits for an hour is over at once.

Time moves when every task waits: straight to the next deadline. A loop that never rests, as one
that delivers a cancellation again and again to work that ignores it, would stop such a clock for
ever; so after 1,000 turns without a rest each further turn takes 200 µs, ten times what it takes:
nobody looks at what such a loop does meanwhile, and every turn of it costs the tests real time.
The suites of random lives do look, and say how long a turn takes.

A thread is not seen: while one works and a deadline is set, time jumps to that deadline, and
``fail_after`` fails at once. Tests that use threads (``to_thread``, stores with a writer thread)
are marked ``real_time`` and get a backend with the real clock.

Bytes between two sockets of one loop are seen, but the kernel may need a moment for them: with
none of them ready the clock could jump over an answer that is on its way (seen with bodies larger
than a socket's buffer). Tests that use sockets are marked ``sockets``: the clock then jumps only
when nothing has come for ``SETTLE_S`` of real time.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any, TypeVarTuple

import trio
import trio.testing
from trio._core import _run as trio_run

__all__ = ["SETTLE_S", "VirtualTimeLoop", "loop_turns", "virtual_backend"]

Ts = TypeVarTuple("Ts")

BUSY_TURNS = 1000
TURN_S = 200e-6
SETTLE_S = 20e-3


class _JumpingSelector(selectors.DefaultSelector):
    """Where an event loop waits; here it does not wait, the clock moves instead."""

    def __init__(self, settle_s: float, turn_s: float) -> None:
        super().__init__()
        self._settle_s = settle_s
        self._turn_s = turn_s
        self.now = 0.0
        self.turns = 0
        self._busy = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.turns += 1
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:  # no deadline: only a thread or a socket can go on
            self._busy = 0
            return super().select(None)
        if timeout > 0:
            self._busy = 0
            if self._settle_s and (ready := super().select(self._settle_s)):
                return ready
            self.now += timeout
        else:
            self._busy += 1
            if self._busy > BUSY_TURNS:
                self.now += self._turn_s
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop in virtual time. It starts at 0."""

    def __init__(self, settle_s: float = 0.0, turn_s: float = TURN_S) -> None:
        self._jumping = _JumpingSelector(settle_s, turn_s)
        super().__init__(self._jumping)

    @property
    def turns(self) -> int:
        """How often the loop has gone round."""
        return self._jumping.turns

    def time(self) -> float:
        return self._jumping.now

    async def shutdown_default_executor(
        self,
        timeout: float | None = None,  # noqa: ASYNC109  # asyncio calls it so
    ) -> None:
        """Waits for the threads in real time: its limit would pass before a thread can end."""
        await super().shutdown_default_executor()

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if when == math.inf:  # sleep_forever: never made, so the clock does not run towards it
            return asyncio.TimerHandle(when, callback, args, self, context)
        return super().call_at(when, callback, *args, context=context)


class _BusyTime(trio.abc.Instrument):
    """Moves trio's mock clock while the loop never rests."""

    def __init__(self, clock: trio.testing.MockClock, turn_s: float) -> None:
        self._clock = clock
        self._turn_s = turn_s
        self._seen = 0.0
        self._busy = 0
        self.turns = 0

    def before_io_wait(self, timeout: float) -> None:
        self.turns += 1
        if self._clock.current_time() != self._seen:
            self._busy = 0
        self._busy += 1
        if self._busy > BUSY_TURNS:
            self._clock.jump(self._turn_s)
        self._seen = self._clock.current_time()


def virtual_backend(
    name: str, settle_s: float = 0.0, turn_s: float = TURN_S
) -> tuple[str, dict[str, Any]]:
    """What anyio's pytest plugin takes as ``anyio_backend``. Good for one test. Before each jump
    *settle_s* pass for real; a turn of a loop that never rests takes *turn_s*."""
    if name == "asyncio":
        return name, {"loop_factory": partial(VirtualTimeLoop, settle_s, turn_s)}
    # Trio's own switch for such suites: a run is like the one before, here and elsewhere.
    vars(trio_run)["_ALLOW_DETERMINISTIC_SCHEDULING"] = True
    trio_run._r.seed(0)
    clock = trio.testing.MockClock(autojump_threshold=settle_s)
    return name, {"clock": clock, "instruments": [_BusyTime(clock, turn_s)]}


def loop_turns(backend: tuple[str, dict[str, Any]]) -> int:
    """How often the event loop of the running test has gone round."""
    name, options = backend
    if name == "trio":
        turns: int = options["instruments"][0].turns
        return turns
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return loop.turns
