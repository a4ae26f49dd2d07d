"""What one task waits for until another one wakes it, as cheaply as the event loop can."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol

import anyio

from .task_host import asyncio_loop

__all__ = ["Waiter", "new_waiter"]


class Waiter(Protocol):
    """Awaited by one task, and set by another one in the same event loop. Of no use afterwards."""

    def done(self) -> bool:
        """Was it set, or was the task cancelled that waited?"""
        ...

    def set_result(self, result: None) -> None:
        """Wake the task. Must not be called once it is ``done``."""
        ...

    def __await__(self) -> Generator[Any, None, None]: ...


def new_waiter() -> Waiter:
    """A waiter for the running event loop.

    On asyncio it is the loop's own future: with an ``anyio.Event`` instead, waking a task and
    waiting again costs four times as much.
    """
    loop = asyncio_loop()
    return _EventWaiter() if loop is None else loop.create_future()


class _EventWaiter:
    """A waiter in other event loops than asyncio's."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = anyio.Event()

    def done(self) -> bool:
        return self._event.is_set()

    def set_result(self, _: None) -> None:
        self._event.set()

    def __await__(self) -> Generator[Any, None, None]:
        return self._event.wait().__await__()
