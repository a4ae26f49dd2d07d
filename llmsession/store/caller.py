"""Back from a store's thread into the event loop that asked, whichever backend runs it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from anyio.lowlevel import current_token

__all__ = ["Caller"]


class Caller:
    """The event loop of the thread in which this is made. Equal for the same loop."""

    __slots__ = ("_native",)

    def __init__(self) -> None:
        self._native: Any = current_token().native_token

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Caller) and self._native is other._native

    def __hash__(self) -> int:
        return hash(id(self._native))

    def call(self, body: Callable[[], None]) -> None:
        """Run *body* in the loop, soon; does not wait for it. A loop that is gone runs nothing:
        whoever asked is gone with it. May be called in any thread."""
        # anyio's own way waits until the call was made, and a writer has more to write.
        soon = getattr(self._native, "call_soon_threadsafe", None) or self._native.run_sync_soon
        with suppress(RuntimeError):  # asyncio: closed; trio's RunFinishedError is one, too
            soon(body)
