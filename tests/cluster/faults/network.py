"""A network that breaks: proxies that pass bytes on until a test tells them otherwise."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

__all__ = ["State", "Wire", "running_wire"]

State = Literal["whole", "silent", "cut"]
PIECE = 1 << 16


class Wire:
    """Passes bytes between clients of ``port``, on the loopback, and *target*: the path of a Unix
    socket, or a port.

    ``silent``: nothing arrives any more, as if packets were lost; connections stay. ``cut``: open
    connections are reset, and new ones are refused. *delay_s* delays every piece that passes.
    """

    def __init__(self, target: str | int) -> None:
        self.target = target
        self.port = 0
        self.delay_s = 0.0
        self._state: State = "whole"
        self._passes = asyncio.Event()
        self._passes.set()
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def state(self) -> State:
        """What happens to bytes."""
        return self._state

    def set(self, state: State) -> None:
        """From now on the wire is *state*. Bytes that were held back arrive if it is whole again,
        as those of a network that resends."""
        self._state = state
        if state == "silent":
            self._passes.clear()
        else:
            self._passes.set()
        if state == "cut":
            for writer in tuple(self._open):
                writer.transport.abort()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        if self._state == "cut":
            writer.transport.abort()
            return
        self._open.add(writer)
        try:
            await self._passes.wait()  # and if it was cut meanwhile, this one goes on
            if isinstance(self.target, str):
                there = await asyncio.open_unix_connection(self.target)
            else:
                there = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            self._open.discard(writer)
            writer.transport.abort()
            return
        self._open.add(there[1])
        await asyncio.gather(self._pass(reader, there[1]), self._pass(there[0], writer))
        self._open -= {writer, there[1]}

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._passes.wait()
                writer.write(piece)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def running_wire(target: str | int) -> AsyncIterator[Wire]:
    """A wire to *target*, on a free port."""
    wire = Wire(target)
    server = await asyncio.start_server(wire.accept, "127.0.0.1", 0)
    wire.port = server.sockets[0].getsockname()[1]
    try:
        yield wire
    finally:
        server.close()
        wire.set("cut")
