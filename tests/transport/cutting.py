"""A way to a service that is cut again and again, after a number of bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress


class CuttingProxy:
    """Takes connections at *path* and carries bytes to and from *behind*; each connection is cut
    after as many bytes, in both directions together, as *cuts* says next, and mid-frame."""

    def __init__(self, path: str, behind: str, cuts: Iterator[int]) -> None:
        self.path = path
        self._behind = behind
        self._cuts = cuts
        self.cut = 0
        self.carried = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[CuttingProxy]:
        server = await asyncio.start_unix_server(self._carry, self.path, backlog=1024)
        try:
            yield self
        finally:
            server.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = next(self._cuts, None)
        try:
            there, back = await asyncio.open_unix_connection(self._behind)
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
