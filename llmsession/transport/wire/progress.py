"""How far a peer has read what was sent to it.

A large frame may take longer than a keepalive. A ping and its answer wait behind it, so the bytes
that a peer takes count as a sign of life, too.
"""

from __future__ import annotations

import asyncio
import struct

try:
    from fcntl import ioctl
    from termios import TIOCOUTQ
except ImportError:  # on Windows
    IS_TOLD = False
else:
    IS_TOLD = True

__all__ = ["PROGRESS_BYTES", "Sent"]

PROGRESS_BYTES = 16 * 1024
"""Fewer bytes are no progress. A peer could stay connected by sending a byte now and then, and what
was written a moment ago is always on its way."""


class Sent:
    """What was written to *transport*. Whoever writes counts the bytes in ``written``."""

    __slots__ = ("_taken", "_transport", "written")

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self.written = 0
        self._taken = 0

    def taken(self) -> int:
        """A number that grows while the peer takes bytes and many still wait for it. What the
        system has accepted to send does not count: it accepts some for a peer that is dead."""
        waiting = self._transport.get_write_buffer_size() + self._unsent()
        if waiting >= PROGRESS_BYTES:
            self._taken = max(self._taken, self.written - waiting)
        return self._taken

    def _unsent(self) -> int:
        """The bytes that the system holds. 0 where it does not say so: then only a peer that lets
        them grow too many is known to be slow."""
        if not IS_TOLD:
            return 0
        try:
            socket = self._transport.get_extra_info("socket")
            return int(struct.unpack("i", ioctl(socket.fileno(), TIOCOUTQ, bytes(4)))[0])
        except (OSError, ValueError):
            return 0
