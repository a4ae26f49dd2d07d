"""A thread with a queue: it performs all waiting items at once, and answers into event loops.

Stores write in such a thread. Batches that arrive while it writes form the next group and are
written together (group commit). So under load the groups grow and the cost of a commit is shared.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

import anyio

from .caller import Caller

__all__ = ["Answer", "BatchingThread", "QueuedCall", "deliver"]

T = TypeVar("T")

MAX_GROUP = 4096
"""The largest number of items that are considered for one group. Without a limit, a group to which
items are added fast would never end.
"""


Answer: TypeAlias = tuple[Caller, Callable[[Any], None], Any]
"""A call that is due in the event loop of a caller, and what it is to be called with."""


def deliver(answers: Iterable[Answer]) -> None:
    """Make every call in its caller's loop, in order. Each loop is called once with all of its
    answers.
    """
    by_loop: dict[Any, list[Answer]] = {}
    last: Caller | None = None
    for answer in answers:
        caller = answer[0]
        if caller is not last:  # mostly all have the same
            last = caller
            in_loop = by_loop.setdefault(caller.loop, [])
        in_loop.append(answer)
    for in_loop in by_loop.values():
        in_loop[0][0].call(partial(_call_all, in_loop))


def _call_all(answers: Sequence[Answer]) -> None:
    failed: Exception | None = None
    for _, done, result in answers:
        try:
            done(result)
        except Exception as error:  # the fault of one caller; the others still get their answers
            failed = failed or error
    if failed is not None:
        raise failed


class QueuedCall(Generic[T]):
    """A call that one task waits for while a thread performs it."""

    def __init__(self) -> None:
        self.caller = Caller()
        self.is_dropped = False
        """The task waits no more. A call that has not begun need not be performed."""
        self._event = anyio.Event()
        self._value: T | None = None
        self._error: BaseException | None = None

    def set(self, value: T) -> None:
        """Set the answer. Called in the task's event loop by ``deliver``."""
        self._value = value
        self._event.set()

    def fail(self, error: BaseException) -> None:
        """Let ``wait`` raise *error*. Called in the task's event loop."""
        self._error = error
        self._event.set()

    async def wait(self) -> T:
        """Wait for the answer. Returns it, or raises the error that ``fail`` was given."""
        try:
            await self._event.wait()
        except BaseException:
            self.is_dropped = True
            raise
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._value  # type: ignore[return-value]  # None only where T allows it


class BatchingThread(Generic[T]):
    """Passes items that were ``put`` to *perform*, in a thread that the first ``put`` starts.

    *choose* takes the next group from the items that wait, which are in the order in which they
    were put, and leaves the others. It must take at least one; by default it takes all. While
    nothing waits, *on_idle* is called every *idle_s()* seconds, or never if that is None. After
    ``stop``, *on_end* is called in the thread. Items that are put later go to *reject* with the
    reason, in the thread that puts them. *perform*, *choose* and *on_idle* must raise nothing.
    """

    def __init__(
        self,
        name: str,
        *,
        perform: Callable[[list[T]], None],
        on_idle: Callable[[], None],
        idle_s: Callable[[], float | None],
        on_end: Callable[[], None],
        reject: Callable[[T, str], None],
        choose: Callable[[deque[T]], list[T]] | None = None,
    ) -> None:
        self._name = name
        self._perform = perform
        self._choose = choose or _take_all
        self._on_idle = on_idle
        self._idle_s = idle_s
        self._on_end = on_end
        self._reject = reject
        self._queue: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._waiting: deque[T] = deque()
        """Items from the queue that are in no group yet. Used by the thread only."""
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._ended = False

    def put(self, item: T) -> None:
        """Queue *item*. Returns at once."""
        if self._thread is not None and self._pid != os.getpid():
            self._reject(item, "was opened before this process was forked; create another one here")
            return
        self._queue.put(item)
        if self._thread is None and not self._ended:
            self._start()
        if self._ended:
            self._reject_queued()

    def _start(self) -> None:
        self._pid = os.getpid()
        # A daemon thread, so that a program that forgets to close its store can still end.
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Perform what was put, then end the thread. Returns at once."""
        self._queue.put(None)
        if self._thread is None:
            self._ended = True
            self._reject_queued()
            self._on_end()

    def _reject_queued(self) -> None:
        # The thread sets ``_ended`` before it empties the queue for the last time. ``put`` reads
        # ``_ended`` after it has added its item. So one of the two always finds the item.
        while True:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return
            if item is not None:
                self._reject(item, "was closed")

    def _run(self) -> None:
        stopped = False
        while self._waiting or not stopped:
            if not stopped:
                stopped = self._receive()
            if self._waiting:
                self._perform(self._choose(self._waiting))
            elif not stopped:
                self._on_idle()
        self._ended = True
        self._reject_queued()
        self._on_end()

    def _receive(self) -> bool:
        """Let the items in the queue wait for their group. If nothing waits, wait for an item.
        Returns whether to stop.
        """
        try:
            item = self._queue.get(not self._waiting, self._idle_s())
            while item is not None:
                self._waiting.append(item)
                if len(self._waiting) >= MAX_GROUP:
                    return False
                item = self._queue.get_nowait()
        except queue.Empty:
            return False
        return True


def _take_all(waiting: deque[T]) -> list[T]:
    group = list(waiting)
    waiting.clear()
    return group
