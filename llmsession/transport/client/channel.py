"""What a client needs from a transport: sending and receiving frames."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

__all__ = ["Channel", "Dial"]


class Channel(Protocol):
    """One connection to a service, as a client sees it."""

    def send(self, frame: bytes) -> None:
        """Queue *frame* behind those before it. Does not wait and raises nothing: ``receive``
        reports a lost connection."""

    async def receive(self) -> list[bytes]:
        """The next frames, at least one, or an empty list when the connection has ended. Raises
        OSError, and ProtocolError for invalid frames. Can be cancelled."""

    def progress(self) -> tuple[int, int]:
        """Two numbers. The first grows while bytes of frames come, the second while the service
        takes what waits for it: see ``Sent``. They need not grow where that cannot be seen."""

    async def aclose(self) -> None:
        """Close the connection, after a moment to send what is queued."""


Dial: TypeAlias = Callable[[], Awaitable[Channel]]
"""Makes a new connection. Raises OSError or Unreachable if it cannot."""
