"""Back from a store's thread into the event loop that asked, whichever backend runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from anyio import NoEventLoopError
from anyio.lowlevel import current_token

__all__ = ["Caller"]


class Caller:
    """The event loop of the thread in which this is made. Equal for the same loop."""

    __slots__ = ("loop",)

    loop: Any
    """The loop itself, as its library knows it; one object for one loop."""

    def __init__(self) -> None:
        loop = asyncio._get_running_loop()
        if loop is not None and asyncio.current_task(loop) is not None:
            self.loop = loop  # what anyio would say, too, and takes ten times as long for
            return
        try:
            self.loop = current_token().native_token
        except NoEventLoopError:  # a callback of asyncio's, outside every task: nobody can tell
            self.loop = asyncio.get_running_loop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Caller) and self.loop is other.loop

    def __hash__(self) -> int:
        return hash(id(self.loop))

    def call(self, body: Callable[[], None]) -> None:
        """Run *body* in the loop, soon; does not wait for it. A loop that is gone runs nothing:
        whoever asked is gone with it. May be called in any thread."""
        # anyio's own way waits until the call was made, and a writer has more to write.
        soon = getattr(self.loop, "call_soon_threadsafe", None) or self.loop.run_sync_soon
        with suppress(RuntimeError):  # asyncio: closed; trio's RunFinishedError is one, too
            soon(body)
