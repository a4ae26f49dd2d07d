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
when nothing has come for some looks of a millisecond each. Looks are counted, and not the time,
because a machine that stands still would use up any time with a single look. While bytes that were
sent have not arrived, there are many more looks: they arrive, unless nobody reads them.
"""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import selectors
import socket
import stat
import struct
import termios
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any, TypeVarTuple

import trio
import trio.testing
from trio._core import _run as trio_run

__all__ = ["BACKENDS", "VirtualTimeLoop", "loop_turns", "virtual_backend"]

Ts = TypeVarTuple("Ts")

BACKENDS = ("asyncio", "trio")

BUSY_TURNS = 1000
TURN_S = 200e-6
LOOK_S = 1e-3
LOOKS = 20
LOOKS_FOR_BYTES = 400


def _bytes_are_on_their_way() -> bool:
    """Has a TCP socket of this process sent what has not arrived at its peer? False where the
    system does not tell."""
    with suppress(OSError):
        return any(_unacknowledged(int(name)) for name in os.listdir("/proc/self/fd"))
    return False


def _unacknowledged(descriptor: int) -> int:
    """How many bytes were sent by the TCP socket *descriptor* and not acknowledged; 0 if it is
    something else."""
    with suppress(OSError):
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return 0
        with socket.socket(fileno=os.dup(descriptor)) as found:
            if found.family in (socket.AF_INET, socket.AF_INET6):
                told = fcntl.ioctl(found, termios.TIOCOUTQ, bytes(4))
                return int(struct.unpack("i", told)[0])
    return 0


class _Looks:
    """Counts the looks at sockets that found nothing."""

    def __init__(self) -> None:
        self._count = 0

    def found_nothing(self) -> bool:
        """Is it time to jump?"""
        self._count += 1
        is_over = self._count >= LOOKS_FOR_BYTES or (
            self._count >= LOOKS and self._count % LOOKS == 0 and not _bytes_are_on_their_way()
        )
        if is_over:
            self._count = 0
        return is_over

    def found_something(self) -> None:
        self._count = 0


class _JumpingSelector(selectors.DefaultSelector):
    """Where an event loop waits; here it does not wait, the clock moves instead."""

    def __init__(self, sockets: bool, turn_s: float) -> None:
        super().__init__()
        self._looks = _Looks() if sockets else None
        self._turn_s = turn_s
        self.now = 0.0
        self.turns = 0
        self._busy = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.turns += 1
        ready = super().select(0)
        if ready:
            if self._looks is not None:
                self._looks.found_something()
            return ready
        if timeout is None:  # no deadline: only a thread or a socket can go on
            self._busy = 0
            return super().select(None)
        if timeout > 0:
            self._busy = 0
            if self._looks is not None:
                ready = super().select(LOOK_S)
                if ready or not self._looks.found_nothing():
                    return ready
            self.now += timeout
        else:
            self._busy += 1
            if self._busy > BUSY_TURNS:
                self.now += self._turn_s
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop in virtual time. It starts at 0."""

    def __init__(self, sockets: bool = False, turn_s: float = TURN_S) -> None:
        self._jumping = _JumpingSelector(sockets, turn_s)
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


class _LookingClock(trio.abc.Clock, trio.abc.Instrument):
    """What ``MockClock`` is to trio, where sockets are used: its threshold is a time."""

    def __init__(self) -> None:
        self._looks = _Looks()
        self._now = 0.0
        self._next = math.inf
        """The next deadline, while trio waits for nothing else."""

    def start_clock(self) -> None: ...

    def current_time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        self._now += seconds

    def deadline_to_sleep_time(self, deadline: float) -> float:
        self._next = deadline
        return min(LOOK_S, deadline - self._now) if deadline < math.inf else deadline

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        self._looks.found_something()
        self._next = math.inf

    def after_io_wait(self, timeout: float) -> None:
        if self._now < self._next < math.inf and self._looks.found_nothing():
            self._now = self._next


class _BusyTime(trio.abc.Instrument):
    """Moves the clock of a trio run while its loop never rests."""

    def __init__(self, clock: trio.testing.MockClock | _LookingClock, turn_s: float) -> None:
        self._clock = clock
        self._turn_s = turn_s
        self._seen = 0.0
        self._busy = 0
        self.turns = 0

    def before_io_wait(self, timeout: float) -> None:
        self.turns += 1
        if timeout > 0 or self._clock.current_time() != self._seen:
            self._busy = 0
        self._busy += 1
        if self._busy > BUSY_TURNS:
            self._clock.jump(self._turn_s)
        self._seen = self._clock.current_time()


def virtual_backend(
    name: str, *, sockets: bool = False, turn_s: float = TURN_S
) -> tuple[str, dict[str, Any]]:
    """What anyio's pytest plugin takes as ``anyio_backend``. Good for one test. With *sockets* the
    clock waits for bytes; a turn of a loop that never rests takes *turn_s*."""
    if name == "asyncio":
        return name, {"loop_factory": partial(VirtualTimeLoop, sockets, turn_s)}
    # Trio's own switch for such suites: a run is like the one before, here and elsewhere.
    vars(trio_run)["_ALLOW_DETERMINISTIC_SCHEDULING"] = True
    trio_run._r.seed(0)
    if sockets:
        looking = _LookingClock()
        return name, {"clock": looking, "instruments": [_BusyTime(looking, turn_s), looking]}
    clock = trio.testing.MockClock(autojump_threshold=0)
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
