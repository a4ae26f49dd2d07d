"""An asyncio event loop in a thread of its own.

The driver of PostgreSQL needs asyncio, but sessions may run on trio. And encoding and encrypting
must not block the sessions' loop. So a store has a loop beside theirs. This is the only place where
the two meet.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar, cast

import anyio

from llmsession.errors import StoreError

from ..caller import Caller

__all__ = ["CLOSED", "LoopThread"]

T = TypeVar("T")

CLOSED = "the store is closed"


class LoopThread:
    """Runs coroutines for callers in other threads. The first call starts it.

    A thread that nobody ends does not keep its process alive.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()
        self._ended: list[tuple[Caller, anyio.Event]] = []

    @property
    def has_begun(self) -> bool:
        """Has anything been run?"""
        return self._loop is not None

    def soon(self, call: Callable[[], object]) -> None:
        """Call *call* in the loop soon. May be called in any thread."""
        loop = self._loop
        if loop is None:
            loop = self._begin()
        loop.call_soon_threadsafe(call)

    def _begin(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                loop = _new_loop()
                threading.Thread(
                    target=self._run, args=(loop,), name=self._name, daemon=True
                ).start()
                self._loop = loop
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        # The runner cancels remaining tasks and ends the loop's own threads.
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            self._stop = asyncio.Event()
            runner.run(self._until_stopped())
        for caller, ended in self._ended:
            caller.call(ended.set)

    async def _until_stopped(self) -> None:
        await self._stop.wait()

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]], *, ends: bool = False) -> T:
        """Run ``work()`` in the loop for a caller in any other loop, and return its result.

        Cancelling the wait cancels the work if *ends* is True; otherwise the work continues. Raises
        StoreError if the thread ends first.
        """
        caller, finished = Caller(), anyio.Event()
        running: list[asyncio.Task[T]] = []

        def done(task: asyncio.Task[T]) -> None:
            if not task.cancelled():
                task.exception()  # marks it as retrieved, because perhaps nobody waits any more
            caller.call(finished.set)

        def begin() -> None:
            task = asyncio.get_running_loop().create_task(work())
            task.add_done_callback(done)
            running.append(task)

        self.soon(begin)
        try:
            await finished.wait()
        except BaseException:
            if ends:
                self.soon(lambda: [task.cancel() for task in running])
            raise
        if running[0].cancelled():
            raise StoreError(CLOSED, committed=None)
        return running[0].result()

    async def end(self) -> None:
        """End the thread, its loop, and everything that still runs there. Nothing may be run after
        it.
        """
        if self._loop is None:
            return
        caller, ended = Caller(), anyio.Event()

        def stop() -> None:
            self._ended.append((caller, ended))
            self._stop.set()

        self.soon(stop)
        with anyio.CancelScope(shield=True):
            await ended.wait()


def _new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's for a caller that runs on uvloop, else asyncio's own."""
    uvloop: Any = sys.modules.get("uvloop")  # imported by whoever runs on it
    with suppress(RuntimeError):  # the caller runs on trio, or on no loop
        if uvloop is not None and isinstance(asyncio.get_running_loop(), uvloop.Loop):
            return cast(asyncio.AbstractEventLoop, uvloop.new_event_loop())
    return asyncio.new_event_loop()
