"""Runs long pure functions in a thread without slowing down the event loop.

A thread keeps the interpreter lock for five milliseconds before another thread gets it, so each
wake-up of the event loop would wait that long. While such a function runs, that interval is
shortened for the whole interpreter. Afterwards it is restored.

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
"""The interval in seconds after which a thread releases the interpreter lock."""


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
    """In the body and in tasks that it starts, ``off_loop`` runs functions in the event loop.

    *takes* is awaited first, for as long as the thread would have taken.
    """
    token = _virtual.set(takes)
    try:
        yield
    finally:
        _virtual.reset(token)


async def off_loop(work: Callable[[*Ts], T], *args: *Ts) -> T:
    """Run ``work(*args)`` in a thread, and return its result.

    *work* must be pure. A cancelled wait does not wait for the thread, because the result is no
    longer needed.
    """
    takes = _virtual.get()
    if takes is not None:
        await takes()
        return work(*args)

    def run() -> T:
        with _switching.brisk():
            try:
                return work(*args)
            except BaseException as error:
                # ``contained`` wraps a GeneratorExit: thrown into a task as it is, it would close
                # each of its coroutines.
                raise contained(error) from error

    return await anyio.to_thread.run_sync(run, abandon_on_cancel=True)
