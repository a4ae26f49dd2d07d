"""Calls from a store's thread back into the event loop of the caller, on either backend."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from anyio import NoEventLoopError
from anyio.lowlevel import current_token

__all__ = ["Caller"]


class Caller:
    """The event loop of the thread in which this object is made. Equal for the same loop."""

    __slots__ = ("loop",)

    loop: Any
    """The loop object of the backend; one object per loop."""

    def __init__(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # not asyncio
            self.loop = current_token().native_token
            return
        if asyncio.current_task(loop) is None:
            # Outside of every asyncio task. Either trio runs here as asyncio's guest, or this is a
            # callback of asyncio itself, which anyio does not recognise.
            with suppress(NoEventLoopError):
                self.loop = current_token().native_token
                return
        self.loop = loop  # the same answer as anyio's, in a tenth of the time

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Caller) and self.loop is other.loop

    def __hash__(self) -> int:
        return hash(id(self.loop))

    def call(self, body: Callable[[], None]) -> None:
        """Run *body* in the loop soon, without waiting for it. May be called in any thread.

        If the loop has ended, nothing is run: the caller has ended with it.
        """
        # anyio's own function waits until the call was made, and the writer has more to write.
        soon = getattr(self.loop, "call_soon_threadsafe", None) or self.loop.run_sync_soon
        with suppress(RuntimeError):  # asyncio: closed; trio's RunFinishedError is one, too
            soon(body)

    def call_in_task(self, body: Callable[[], None]) -> None:
        """As ``call``, for a *body* that begins tasks: of asyncio anyio recognises no callbacks."""
        loop = self.loop
        if not isinstance(loop, asyncio.AbstractEventLoop):
            self.call(body)
            return

        async def run() -> None:
            body()

        def begin() -> None:
            task = loop.create_task(run())
            _begun.add(task)
            task.add_done_callback(_begun.discard)

        self.call(begin)


_begun: set[asyncio.Task[None]] = set()
"""asyncio itself holds a task weakly only."""
