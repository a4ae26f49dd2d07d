"""What a client needs of a transport: frames out, frames in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

__all__ = ["Channel", "Dial"]


class Channel(Protocol):
    """One connection to a service, as a client sees it."""

    def send(self, frame: bytes) -> None:
        """Send *frame*, after all before it. Neither waits nor raises: ``receive`` notices a lost
        connection."""

    async def receive(self) -> list[bytes]:
        """The next frames, at least one; none when the connection has ended. Raises OSError, and
        ProtocolError for invalid frames. Cancellable."""

    async def aclose(self) -> None:
        """Close the connection, after a moment to send what waits."""


Dial: TypeAlias = Callable[[], Awaitable[Channel]]
"""Makes a new connection. Raises OSError or Unreachable if that is not possible now."""
