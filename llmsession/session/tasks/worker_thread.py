"""Long pure work, off the event loop: in a thread that hands over often.

A thread that runs Python keeps the interpreter for five milliseconds before it hands over, so
each wake-up of the event loop would wait that long. While such work runs the interval is
shortened, for the whole interpreter, and put back after it.

In a simulation nothing runs in a thread: ``in_virtual_threads`` says what stands for one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar, TypeVarTuple

import anyio.to_thread

__all__ = ["in_virtual_threads", "off_loop"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

BRISK_S = 0.0005
"""After so long a thread hands over while somebody waits for it."""


class _Switching:
    """The interpreter's interval, shortened while anybody wants it so."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = 0
        self._before = 0.0

    @contextmanager
    def brisk(self) -> Iterator[None]:
        with self._lock:
            self._wanted += 1
            if self._wanted == 1:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, BRISK_S))
        try:
            yield
        finally:
            with self._lock:
                self._wanted -= 1
                if not self._wanted:
                    sys.setswitchinterval(self._before)


_switching = _Switching()
_virtual: ContextVar[Callable[[], Awaitable[None]] | None] = ContextVar("virtual", default=None)


@contextmanager
def in_virtual_threads(takes: Callable[[], Awaitable[None]]) -> Iterator[None]:
    """In the body, and in the tasks that it starts, work is done where it is asked for, after
    *takes* has waited as long as the thread would have taken."""
    token = _virtual.set(takes)
    try:
        yield
    finally:
        _virtual.reset(token)


async def off_loop(work: Callable[[*Ts], T], *args: *Ts) -> T:
    """What ``work(*args)`` returns or raises, in a thread. A cancelled wait leaves the thread to
    finish alone: *work* is pure, so nobody misses it."""
    takes = _virtual.get()
    if takes is not None:
        await takes()
        return work(*args)

    def run() -> T:
        with _switching.brisk():
            return work(*args)

    return await anyio.to_thread.run_sync(run, abandon_on_cancel=True)
