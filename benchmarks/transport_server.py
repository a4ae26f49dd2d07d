"""What the transports' benchmarks talk to, as a process of its own, so that its CPU is its alone.

``python -m benchmarks.transport_server KIND ADDRESS [DATABASE]``: *service* is a service whose
model says a delta of five characters each 50 ms, *busy* one whose model never pauses; *echo* sends
back each line, or each gRPC message, as it came; *json* reads each as JSON and writes it again. It
says its address in one line, answers each line of its input with the CPU seconds that it has used,
and stops when that closes.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any

import msgspec

from benchmarks.recorded import Replays, recorded_message
from llmsession import MemoryStore, Provider, SessionManager, SqliteStore
from llmsession.transport import Limits, Service, SocketServer
from llmsession.transport.server.socket_server import BACKLOG

__all__ = [
    "BUSY_DELTAS",
    "DELAY_S",
    "DELTA",
    "MODELS",
    "BenchServer",
    "bench_server",
    "grpc_echo",
    "line_echo",
]

DELAY_S = 0.05
DELTA = "12345"
BUSY_DELTAS = 2000
"""Deltas of a reply of a model that does not pause."""
LONG = (recorded_message(1, "assistant", DELTA * 4000),)
"""Longer than anybody listens."""
BUSY = (recorded_message(1, "assistant", DELTA * BUSY_DELTAS),)
MODELS = {
    "service": Replays(LONG, delta_chars=len(DELTA), delay_s=DELAY_S),
    "busy": Replays(BUSY, delta_chars=len(DELTA)),
}
"""By the kind of the service."""


@asynccontextmanager
async def _service(address: str, database: str | None, model: Provider) -> AsyncIterator[str]:
    store = SqliteStore(database) if database else MemoryStore()
    # The client asks as fast as it can: that is what is measured.
    limits = Limits(commands_per_s=None, max_lag_s=60.0)
    async with AsyncExitStack() as stack:
        manager = SessionManager(provider=model, store=store)
        await stack.enter_async_context(manager)
        service = await stack.enter_async_context(Service(manager, limits=limits))
        server: Any
        if address.startswith("grpc:"):
            from llmsession.transport.grpc.server import GrpcServer

            server = GrpcServer(service, address)
        else:
            server = SocketServer(service, address)
        yield (await stack.enter_async_context(server)).address


async def _line_or_piece(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError:  # a line that does not end
        return await reader.read(64 * 1024)


@asynccontextmanager
async def line_echo(address: str, through_json: bool = False) -> AsyncIterator[str]:
    """Sends back each line as it came, or as JSON that was read and written again."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while line := await _line_or_piece(reader):
                if through_json:
                    line = msgspec.json.encode(msgspec.json.decode(line)) + b"\n"
                writer.write(line)
        writer.close()

    path = address.removeprefix("unix:")
    async with await asyncio.start_unix_server(answer, path, backlog=BACKLOG):
        yield address


@asynccontextmanager
async def grpc_echo(address: str, through_json: bool = False) -> AsyncIterator[str]:
    """The same over gRPC, of each message of ``Connect``."""
    import grpc

    from llmsession.transport.v1.session_pb2 import Frames
    from llmsession.transport.v1.session_pb2_grpc import (
        SessionServiceServicer,
        add_SessionServiceServicer_to_server,
    )

    class Echo(SessionServiceServicer):
        async def Connect(
            self, request_iterator: AsyncIterator[Frames], context: Any
        ) -> AsyncGenerator[Frames, None]:
            async for message in request_iterator:
                if through_json:
                    frames = [msgspec.json.encode(msgspec.json.decode(f)) for f in message.frames]
                    message = Frames(frames=frames)
                yield message

    server = grpc.aio.server()
    add_SessionServiceServicer_to_server(Echo(), server)
    port = server.add_insecure_port(address.removeprefix("grpc://"))
    await server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def _serve(kind: str, address: str, database: str | None) -> None:
    if kind in MODELS:
        serving = _service(address, database, MODELS[kind])
    elif address.startswith("grpc:"):
        serving = grpc_echo(address, kind == "json")
    else:
        serving = line_echo(address, kind == "json")
    async with serving as where:
        os.write(1, f"{where}\n".encode())
        while await asyncio.to_thread(sys.stdin.readline):
            os.write(1, f"{time.process_time()}\n".encode())


class BenchServer:
    """One that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        assert process.stdin is not None
        self._process, self._out, self._in = process, process.stdout, process.stdin
        self.address = self._out.readline().strip()

    def cpu_s(self) -> float:
        """The CPU seconds that it has used."""
        self._in.write("\n")
        self._in.flush()
        return float(self._out.readline())

    def kill(self) -> None:
        """End it, as a power failure does."""
        self._process.kill()
        self._process.wait()


@contextmanager
def bench_server(kind: str, address: str, *, database: str = "") -> Iterator[BenchServer]:
    """A server that runs as long as the block."""
    module = "benchmarks.transport_server"
    command = [sys.executable, "-m", module, kind, address, database]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        server = BenchServer(process)
        try:
            yield server
        finally:
            server.kill()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], sys.argv[2], sys.argv[3] or None))
