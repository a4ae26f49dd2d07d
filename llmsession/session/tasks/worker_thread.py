"""Long pure functions in a thread, without slowing the event loop down.

A thread keeps the interpreter lock for five milliseconds before another thread gets it, so each
wake-up of the event loop would wait that long. While such a function runs, that interval is
shortened for the whole interpreter. It is restored afterwards.

A simulation uses no threads: ``in_virtual_threads`` says what replaces them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar, TypeVarTuple

import anyio.to_thread

from llmsession.errors import contained

__all__ = ["in_virtual_threads", "off_loop"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

BRISK_S = 0.0005
"""The interval after which a thread releases the interpreter lock, in seconds."""


class _Switching:
    """The interpreter's switch interval, shortened while any such function runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 0.0

    @contextmanager
    def brisk(self) -> Iterator[None]:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, BRISK_S))
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    sys.setswitchinterval(self._before)


_switching = _Switching()
_virtual: ContextVar[Callable[[], Awaitable[None]] | None] = ContextVar("virtual", default=None)


@contextmanager
def in_virtual_threads(takes: Callable[[], Awaitable[None]]) -> Iterator[None]:
    """In the body, and in the tasks that it starts, ``off_loop`` runs functions in the event loop,
    after *takes* has waited for as long as the thread would have taken."""
    token = _virtual.set(takes)
    try:
        yield
    finally:
        _virtual.reset(token)


async def off_loop(work: Callable[[*Ts], T], *args: *Ts) -> T:
    """Run ``work(*args)`` in a thread. A cancelled wait does not wait for the thread: *work* is
    pure, so its result is not needed."""
    takes = _virtual.get()
    if takes is not None:
        await takes()
        return work(*args)

    def run() -> T:
        with _switching.brisk():
            try:
                return work(*args)
            except BaseException as error:
                # A GeneratorExit that is thrown into a task closes each of its coroutines.
                raise contained(error) from error

    return await anyio.to_thread.run_sync(run, abandon_on_cancel=True)
