"""A way to a service that is cut again and again, after a number of bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

from llmsession.transport.wire.addresses import Address, parse_address

BACKLOG = 1024


class CuttingProxy:
    """Takes connections at *address* and carries bytes to and from *behind*, both of one scheme;
    each connection is cut after as many bytes, in both directions together, as *cuts* says next,
    and mid-frame. For gRPC they are those of HTTP/2."""

    def __init__(self, address: str, behind: str, cuts: Iterator[int]) -> None:
        self._address = parse_address(address)
        self._behind = parse_address(behind)
        self._cuts = cuts
        self.cut = 0
        self.carried = 0

    @property
    def address(self) -> str:
        """Where it listens, with the port that it got."""
        return str(self._address)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[CuttingProxy]:
        asked = self._address
        if asked.scheme == "unix":
            server = await asyncio.start_unix_server(self._carry, asked.path, backlog=BACKLOG)
        else:
            server = await asyncio.start_server(
                self._carry, asked.host, asked.port, backlog=BACKLOG
            )
            port = server.sockets[0].getsockname()[1]
            self._address = Address(asked.scheme, host=asked.host, port=port)
        try:
            yield self
        finally:
            server.close()

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._behind.scheme == "unix":
            return await asyncio.open_unix_connection(self._behind.path)
        return await asyncio.open_connection(self._behind.host, self._behind.port)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = next(self._cuts, None)
        try:
            there, back = await self._reach()
        except OSError:
            writer.transport.abort()
            return

        async def pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            nonlocal left
            with suppress(OSError):
                while received := await source.read(65536):
                    if left is not None:
                        received, left = received[:left], left - len(received)
                    self.carried += len(received)
                    sink.write(received)
                    await sink.drain()
                    if left is not None and left <= 0:
                        self.cut += 1
                        return

        pipes = [
            asyncio.ensure_future(pipe(reader, back)),
            asyncio.ensure_future(pipe(there, writer)),
        ]
        try:
            await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in pipes:
                each.cancel()
            await asyncio.gather(*pipes, return_exceptions=True)
            for side in (writer, back):
                side.close()
                with suppress(OSError):
                    await side.wait_closed()
