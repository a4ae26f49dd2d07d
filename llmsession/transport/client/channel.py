"""What a client needs of a transport: frames out, frames in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

__all__ = ["Channel", "Dial"]


class Channel(Protocol):
    """One connection to a service, as a client sees it."""

    def send(self, frame: bytes) -> None:
        """Send *frame*, after all before it. Waits for nothing, raises nothing: a connection that
        is lost is noticed by ``receive``."""
        ...

    async def receive(self) -> list[bytes]:
        """The next frames, at least one; none when the connection has ended. Raises OSError, and
        ProtocolError for what are no frames. Cancellable."""
        ...

    async def aclose(self) -> None:
        """Let go of the connection. What was sent before is still sent, for a moment."""
        ...


Dial: TypeAlias = Callable[[], Awaitable[Channel]]
"""Connects anew. Raises OSError, or Unreachable, where that is not possible now."""
