"""The attacks: what one hostile client sends. Each is bounded in bytes and in connections.

Each load takes the address of the service and its budget, which counts the bytes that were sent. It
never fails because of what the service does to it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from llmsession.transport.wire.addresses import parse_address

__all__ = ["ADMITTED", "ATTACKS", "WITHIN_THE_RATE", "Attack", "Budget"]

HELLO = b'{"type":"hello","versions":[2]}\n'
PING = b'{"type":"ping"}\n'
SUBSCRIBE = b'{"type":"subscribe","id":%d,"session":"s"}\n'
UNFINISHED = b'{"type":"send","id":1,"session":"s","content":"'
CHUNK_BYTES = 64 * 1024


class Budget:
    """How much one attack may do: until when, how many bytes a second, and over how many
    connections."""

    def __init__(self, seconds: float, *, bytes_per_s: float = 3e6, connections: int = 120) -> None:
        self.until = time.monotonic() + seconds
        self.bytes_per_s = bytes_per_s
        self.connections = connections
        self.sent = 0

    @property
    def is_left(self) -> bool:
        """Is there time?"""
        return time.monotonic() < self.until

    async def send(self, writer: asyncio.StreamWriter, sent: bytes) -> None:
        """Send *sent*, as fast as the rate and the peer allow, within the time."""
        async with asyncio.timeout(max(0.0, self.until - time.monotonic())):
            writer.write(sent)
            await writer.drain()
            self.sent += len(sent)
            await asyncio.sleep(len(sent) / self.bytes_per_s)


Attack: TypeAlias = Callable[[str, Budget], Coroutine[Any, Any, None]]


Body: TypeAlias = Callable[[asyncio.StreamWriter], Awaitable[None]]


async def _connect(address: str, body: Body) -> None:
    """Perform *body* on a connection whose answers are read and dropped. The end of the connection,
    or of the time, is no error."""
    parsed = parse_address(address)
    with suppress(OSError, TimeoutError):
        if parsed.scheme == "unix":
            reader, writer = await asyncio.open_unix_connection(parsed.path)
        else:
            reader, writer = await asyncio.open_connection(parsed.host, parsed.port)
        dropping = asyncio.ensure_future(_drop(reader, writer))
        try:
            await body(writer)
        finally:
            dropping.cancel()
            writer.transport.abort()


async def _drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while await reader.read(1 << 16):
            pass
    writer.close()


def _flood(line: bytes, before: bytes = HELLO) -> Attack:
    """*line* again and again, after *before*; a connection that ends is made again."""
    chunk = line * (CHUNK_BYTES // len(line))

    async def flood(address: str, budget: Budget) -> None:
        async def send(writer: asyncio.StreamWriter) -> None:
            await budget.send(writer, before)
            while budget.is_left and not writer.is_closing():
                await budget.send(writer, chunk)

        while budget.is_left:
            await _connect(address, send)
            await asyncio.sleep(0.01)

    return flood


async def _subscriptions(address: str, budget: Budget) -> None:
    """6,000 subscriptions of one client to one session, each a record behind."""

    async def send(writer: asyncio.StreamWriter) -> None:
        await budget.send(writer, HELLO)
        for first in range(0, 6000, 500):
            frames = [SUBSCRIBE % number for number in range(first, first + 500)]
            await budget.send(writer, b"".join(frames))
        while budget.is_left and not writer.is_closing():
            await budget.send(writer, PING)
            await asyncio.sleep(0.05)

    await _connect(address, send)


async def _unfinished(address: str, budget: Budget) -> None:
    """Frames that do not end, of 36 MiB, on many connections."""
    each = 36 * 1024 * 1024

    async def fill(writer: asyncio.StreamWriter) -> None:
        await budget.send(writer, HELLO + UNFINISHED)
        for _ in range(each // CHUNK_BYTES):
            if writer.is_closing():
                return
            await budget.send(writer, b"x" * CHUNK_BYTES)
        await asyncio.sleep(max(0.0, budget.until - time.monotonic()))

    # As fast as it can: the sum is what counts.
    budget.bytes_per_s = 1e9
    await asyncio.gather(*(_connect(address, fill) for _ in range(budget.connections)))


async def _creations(address: str, budget: Budget) -> None:
    """Sessions that are made and never used, one after the other."""
    create = b'{"type":"create","id":%d,"config":{"model":"m"}}\n'

    async def send(writer: asyncio.StreamWriter) -> None:
        await budget.send(writer, HELLO)
        number = 0
        while budget.is_left and not writer.is_closing():
            number += 20
            frames = [create % id for id in range(number, number + 20)]
            await budget.send(writer, b"".join(frames))
            await asyncio.sleep(0.01)

    await _connect(address, send)


async def _silent(address: str, budget: Budget) -> None:
    """Connections that say nothing, more than a peer may have."""

    async def wait(writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(max(0.0, budget.until - time.monotonic())):
            await writer.wait_closed()

    async def stay() -> None:
        while budget.is_left:
            await _connect(address, wait)
            await asyncio.sleep(0.05)

    await asyncio.gather(*(stay() for _ in range(5 * budget.connections)))


async def _grpc_messages(address: str, budget: Budget, raw: bytes, path: str) -> None:
    import grpc

    target = address.removeprefix("grpc://")
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(target, options) as channel:
        hello = b"\n" + bytes((len(HELLO) - 1,)) + HELLO[:-1]
        while budget.is_left:
            call: Any = channel.stream_stream(path)()
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
                async with asyncio.timeout(max(0.1, budget.until - time.monotonic())):
                    if path.endswith("/Connect"):
                        await call.write(hello)
                    await call.write(raw)
                    budget.sent += len(raw)
                    await call.done_writing()
                    while await call.read() is not grpc.aio.EOF:
                        pass
            call.cancel()
            await asyncio.sleep(len(raw) / budget.bytes_per_s)


SERVICE = "/llmsession.v1.SessionService/"


async def _grpc_pongs(address: str, budget: Budget) -> None:
    """Messages of two million frames."""
    pongs = b'\n\x0f{"type":"pong"}' * 2_000_000
    await _grpc_messages(address, budget, pongs, SERVICE + "Connect")


async def _grpc_garbage(address: str, budget: Budget) -> None:
    """Bytes that are no protobuf, to single calls."""
    await _grpc_messages(address, budget, b"\xff" * 2000, SERVICE + "Status")


ATTACKS: Mapping[str, tuple[str, Attack]] = {
    "pings": ("unix", _flood(PING)),
    "pings before the hello": ("unix", _flood(PING, before=b"\n")),
    "empty lines": ("unix", _flood(b"\n")),
    "wrong commands": ("unix", _flood(b'{"type":"status","id":1,"color":1}\n')),
    "commands": ("unix", _flood(b'{"type":"status","id":1,"session":"s"}\n')),
    "subscriptions": ("unix", _subscriptions),
    "frames without an end": ("unix", _unfinished),
    "creations": ("unix", _creations),
    "silent connections": ("unix", _silent),
    "millions of frames in a message": ("grpc", _grpc_pongs),
    "no protobuf": ("grpc", _grpc_garbage),
}
"""By name: over which transport, and the load."""

WITHIN_THE_RATE = {"commands": 80e3}
"""Attacks of which a part is work that the rate allows, and the bytes a second at which all of it
is: what that costs is measured, and is no cost of the attack."""
ADMITTED = frozenset({"creations"})
"""Attacks that stay within the rate: all that they cost is work that a client may ask for."""
