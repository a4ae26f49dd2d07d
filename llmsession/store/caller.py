"""Calls from a store's thread back into the event loop of the caller, on either backend."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import Any

from anyio import NoEventLoopError
from anyio.lowlevel import current_token

__all__ = ["Caller", "caller_now", "tell_asyncio", "tell_nothing"]


def tell_asyncio() -> None:
    """Let anyio know that what runs in this context, or in a copy of it, runs on asyncio.

    Where sniffio is installed, as it is with some SDKs, anyio asks it for each event and each
    scope. It looks for the running task, which takes as long as making the event, and does not know
    asyncio in a callback: that could then start no task in a task group.
    """
    sniffio: Any = sys.modules.get("sniffio")  # anyio has imported it if it is there
    if sniffio is not None:
        sniffio.current_async_library_cvar.set("asyncio")


def tell_nothing() -> None:
    """Undo ``tell_asyncio`` in this context, for somebody else's code.

    A thread gets a copy of the context of the task that starts it, for example by
    ``asyncio.to_thread``. It runs no event loop, but anyio would refuse to start one there.
    """
    sniffio: Any = sys.modules.get("sniffio")
    if sniffio is not None:
        sniffio.current_async_library_cvar.set(None)


def _asyncio_context() -> Context:
    context = Context()
    context.run(tell_asyncio)
    return context


_IN_ASYNCIO = _asyncio_context()


class Caller:
    """The event loop of the thread in which this object is made. Equal for the same loop."""

    __slots__ = ("loop",)

    loop: Any
    """The loop object of the backend; one object per loop."""

    def __init__(self) -> None:
        self.loop = _loop_now()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Caller) and self.loop is other.loop

    def __hash__(self) -> int:
        return hash(id(self.loop))

    def after_this(self, body: Callable[[], None]) -> None:
        """Run *body* after what is ready to run in the loop now. Called in the loop's thread.

        In a loop that is not asyncio's it is run at once.
        """
        if isinstance(self.loop, asyncio.AbstractEventLoop):
            self.loop.call_soon(body)
        else:
            body()

    def call(self, body: Callable[[], None]) -> None:
        """Run *body* in the loop soon, without waiting for it. May be called in any thread.

        If the loop has ended, nothing is run: the caller has ended with it.
        """
        # anyio's own function waits until the call was made, and the writer has more to write.
        with suppress(RuntimeError):  # asyncio: closed; trio's RunFinishedError is one, too
            if isinstance(self.loop, asyncio.AbstractEventLoop):
                # A copy, because a context can be entered by one thread at a time.
                self.loop.call_soon_threadsafe(body, context=_IN_ASYNCIO.copy())
            else:
                self.loop.run_sync_soon(body)


def caller_now(last: Caller | None) -> Caller:
    """A ``Caller`` for the present event loop: *last* itself if that is the one for it.

    Thousands of calls may wait for their answers, and the garbage collector visits each object.
    """
    return last if last is not None and last.loop is _loop_now() else Caller()


def _loop_now() -> Any:
    """The loop object of the event loop that runs in this thread."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # not asyncio
        return current_token().native_token
    # Outside of every asyncio task, either trio runs here as asyncio's guest, or this is a callback
    # of asyncio itself, which anyio does not recognise. To find out takes ten times as long.
    if "trio" in sys.modules and asyncio.current_task(loop) is None:
        with suppress(NoEventLoopError):
            return current_token().native_token
    return loop
