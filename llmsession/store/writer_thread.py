"""A thread that does what is put before it, all that waits at once, and answers into event loops.

A store writes in one: batches that come while it writes wait together, and are written together.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

import anyio

from .caller import Caller

__all__ = ["BatchingThread", "CallbackBatch", "QueuedCall"]

T = TypeVar("T")

_Call: TypeAlias = tuple[Callable[[Any], None], Any]

MOST = 4096
"""Items taken at once: what comes in faster must not make one group that never ends."""


class CallbackBatch:
    """Answers that are on their way into event loops: one call into each loop for all of them."""

    def __init__(self) -> None:
        self._calls: dict[Any, tuple[Caller, list[_Call]]] = {}  # by loop

    def add(self, caller: Caller, done: Callable[[Any], None], result: object) -> None:
        """*done(result)* is to be called in *caller*'s loop."""
        found = self._calls.get(caller.loop)
        if found is None:
            found = self._calls[caller.loop] = (caller, [])
        found[1].append((done, result))

    def deliver(self) -> None:
        """Have every call made that was added, in order, and forget them."""
        calls, self._calls = self._calls, {}
        for caller, answers in calls.values():
            caller.call(partial(_answer, answers))


def _answer(answers: Sequence[_Call]) -> None:
    failed: Exception | None = None
    for done, result in answers:
        try:
            done(result)
        except Exception as error:  # of one caller's own; the others get their answers
            failed = failed or error
    if failed is not None:
        raise failed


class QueuedCall(Generic[T]):
    """What one task waits for while a thread works for it."""

    def __init__(self) -> None:
        self.caller = Caller()
        self.is_dropped = False
        """The task waits no more: what was not begun need not be done."""
        self._event = anyio.Event()
        self._value: T | None = None
        self._error: BaseException | None = None

    def set(self, value: T) -> None:
        """The answer. Called in the task's event loop, by ``CallbackBatch``."""
        self._value = value
        self._event.set()

    def fail(self, error: BaseException) -> None:
        """The answer is to raise *error*. Called in the task's event loop."""
        self._error = error
        self._event.set()

    async def wait(self) -> T:
        """The answer, once it is there."""
        try:
            await self._event.wait()
        except BaseException:
            self.is_dropped = True
            raise
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._value  # type: ignore[return-value]  # None only where T allows it


class BatchingThread(Generic[T]):
    """Hands what was ``put``, in order, to *perform*, in a thread that the first ``put`` starts.

    While nothing comes, *rest* is called after as many seconds as *rest_s* says, if any. Once
    stopped, *end* is called in the thread, and what is put later goes to *refuse*, with the
    reason, in the thread that puts it. *perform* and *rest* raise nothing.
    """

    def __init__(
        self,
        name: str,
        *,
        perform: Callable[[list[T]], None],
        rest: Callable[[], None],
        rest_s: Callable[[], float | None],
        end: Callable[[], None],
        refuse: Callable[[T, str], None],
    ) -> None:
        self._name = name
        self._perform = perform
        self._rest = rest
        self._rest_s = rest_s
        self._end = end
        self._refuse = refuse
        self._queue: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._ended = False

    def put(self, item: T) -> None:
        """Have *item* performed. Returns at once."""
        if self._thread is not None and self._pid != os.getpid():
            self._refuse(item, "was opened before this process was forked; make one here")
            return
        self._queue.put(item)
        if self._thread is None and not self._ended:
            self._start()
        if self._ended:
            self._refuse_rest()

    def _start(self) -> None:
        self._pid = os.getpid()
        # A daemon: a program that forgets to close its store must be able to end.
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Perform what was put, then end. Returns at once."""
        self._queue.put(None)
        if self._thread is None:
            self._ended = True
            self._refuse_rest()
            self._end()

    def _refuse_rest(self) -> None:
        # The thread sets ``_ended`` before it looks for the last time, and ``put`` looks at it
        # after it has put: one of the two finds every item.
        while True:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return
            if item is not None:
                self._refuse(item, "was closed")

    def _run(self) -> None:
        stopped = False
        while not stopped:
            group, stopped = self._next()
            if group:
                self._perform(group)
            elif not stopped:
                self._rest()
        self._ended = True
        self._refuse_rest()
        self._end()

    def _next(self) -> tuple[list[T], bool]:
        """All that waits, as soon as something does, and whether that was the last."""
        group: list[T] = []
        try:
            item = self._queue.get(timeout=self._rest_s())
            while item is not None:
                group.append(item)
                if len(group) == MOST:
                    break
                item = self._queue.get_nowait()
            else:
                return group, True
        except queue.Empty:
            pass
        return group, False
