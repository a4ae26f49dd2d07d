"""The client side of JSON lines over Unix domain and TCP sockets."""

from __future__ import annotations

import asyncio
import ssl

from ..wire.addresses import Address
from ..wire.framing import LineReader, lines_of
from ..wire.progress import PROGRESS_BYTES, Sent

__all__ = ["SocketChannel", "dial_socket"]

READ_BYTES = 256 * 1024
MAX_FRAME_BYTES = 1024 * 1024 * 1024
"""A reply may contain a whole context. The service limits the size of what it sends."""
CLOSE_S = 1.0


class SocketChannel:
    """Sends and receives frames as lines on one socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._lines = LineReader()
        self._sent = Sent(writer.transport)
        self._received = 0

    def send(self, frame: bytes) -> None:
        """Send one line."""
        line = lines_of((frame,))
        self._sent.written += len(line)
        self._writer.write(line)

    async def receive(self) -> list[bytes]:
        """Wait for data, and return at least one line. Returns no lines at the end of the
        stream."""
        while received := await self._reader.read(READ_BYTES):
            self._received += len(received)
            lines = self._lines.feed(received, MAX_FRAME_BYTES)
            if frames := [line for line in lines if line and not line.isspace()]:
                return frames
        return []

    def progress(self) -> tuple[int, int]:
        """See ``Channel``."""
        return self._received // PROGRESS_BYTES, self._sent.taken()

    async def aclose(self) -> None:
        """Close the socket. If the peer does not read, abort it after ``CLOSE_S``."""
        self._writer.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self._writer.transport.abort()


async def dial_socket(address: Address, tls: ssl.SSLContext | None = None) -> SocketChannel:
    """Connect to *address*. Raises OSError."""
    if address.scheme == "unix":
        reader, writer = await asyncio.open_unix_connection(address.path)
    else:
        reader, writer = await asyncio.open_connection(address.host, address.port, ssl=tls)
    return SocketChannel(reader, writer)
