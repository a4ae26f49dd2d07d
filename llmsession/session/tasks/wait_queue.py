"""Tasks that wait for the same thing, and are woken together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextvars import Context
from typing import Any, TypeAlias

import anyio

from llmsession.errors import InvalidInput

from .task_host import asyncio_loop

__all__ = ["WaitQueue"]

_Resume: TypeAlias = Callable[[asyncio.Future[None]], object]
"""Resumes a task of asyncio. It is called with the finished future that the task awaited."""


class WaitQueue:
    """The tasks that wait for one thing. ``wake_all`` wakes them all.

    On asyncio, one callback of the event loop resumes all of them, and what a task awaits is made
    once. With a future for each wait, the loop would make a callback for each, and to wake a task
    that waits again would cost twice as much.
    """

    __slots__ = ("_loop", "event", "finished", "waiters")

    def __init__(self) -> None:
        self.waiters: list[_TaskWaiter] = []
        """Those that tasks of asyncio await."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self.finished: asyncio.Future[None]
        """A finished future of that loop."""
        self.event: anyio.Event | None = None
        """What tasks of another event loop await, if any do."""

    def waiter(self) -> Awaitable[None]:
        """What a task awaits until the next ``wake_all``. It can be awaited again, by one task at a
        time.

        Raises InvalidInput if the earlier ones were made in another event loop.
        """
        loop = asyncio_loop()
        if loop is None:
            return _EventWaiter(self)
        if self._loop is None:
            self._loop, self.finished = loop, loop.create_future()
            self.finished.set_result(None)
        elif loop is not self._loop:
            raise InvalidInput("the events of a session can only be read in one event loop")
        return _TaskWaiter(self)

    def wake_all(self) -> None:
        """Let all tasks that wait now go on, in the next pass of the event loop."""
        waiters = self.waiters
        if waiters:
            assert self._loop is not None
            if len(waiters) == 1:  # as with most sessions; it saves a callback
                waiter = waiters.pop()
                self._loop.call_soon(waiter.resume, self.finished, context=waiter.context)
            else:
                self.waiters = []
                self._loop.call_soon(self._resume, iter(waiters))
        if self.event is not None:
            self.event.set()
            self.event = None

    def _resume(self, woken: Iterator[_TaskWaiter]) -> None:
        try:
            for waiter in woken:
                waiter.context.run(waiter.resume, self.finished)
        except BaseException:  # KeyboardInterrupt or SystemExit in a task; it leaves the event loop
            assert self._loop is not None
            self._loop.call_soon(self._resume, woken)
            raise


class _TaskWaiter:
    """What a task of asyncio awaits. asyncio takes it for a future, because it has these methods
    and ``_asyncio_future_blocking``.
    """

    __slots__ = ("_asyncio_future_blocking", "_queue", "context", "get_loop", "index", "resume")

    context: Context
    """The context in which the task runs."""
    resume: _Resume
    index: int
    """Its position in the queue, while it is there."""

    def __init__(self, queue: WaitQueue) -> None:
        self._queue = queue
        # A built-in function: a method of this class would cost a twentieth of a wait.
        self.get_loop = queue.finished.get_loop

    def __await__(self) -> Generator[Any, None, None]:
        self._asyncio_future_blocking = True
        yield self

    def add_done_callback(self, resume: _Resume, *, context: Context) -> None:
        waiters = self._queue.waiters
        self.index = len(waiters)
        self.resume = resume
        self.context = context
        waiters.append(self)

    def done(self) -> bool:
        waiters = self._queue.waiters
        return self.index >= len(waiters) or waiters[self.index] is not self

    def cancel(self, msg: object = None) -> bool:
        """Resume the task with a cancellation. False if it is woken already; then asyncio does."""
        if self.done():
            return False
        last = self._queue.waiters.pop()
        if last is not self:
            self._queue.waiters[self.index] = last
            last.index = self.index
        loop = self.get_loop()
        cancelled = loop.create_future()
        cancelled.cancel(msg)
        loop.call_soon(self.resume, cancelled, context=self.context)
        return True


class _EventWaiter:
    """What a task of another event loop awaits."""

    __slots__ = ("_queue",)

    def __init__(self, queue: WaitQueue) -> None:
        self._queue = queue

    def __await__(self) -> Generator[Any, None, None]:
        if self._queue.event is None:
            self._queue.event = anyio.Event()
        return self._queue.event.wait().__await__()
