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
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # not asyncio
            self.loop = current_token().native_token
            return
        if asyncio.current_task(loop) is None:
            # Outside every task of asyncio's: trio may run as its guest here. Where it does not,
            # this is a callback of asyncio's own, which anyio does not recognise.
            with suppress(NoEventLoopError):
                self.loop = current_token().native_token
                return
        self.loop = loop  # as anyio would say; asking anyio takes ten times as long

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
