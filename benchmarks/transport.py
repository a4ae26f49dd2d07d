"""What it costs to be another process: the service beside bare echoes on the same transport.

* **Paced deltas.** 200 clients, each with a stream of 20 deltas a second; CPU of the server's
  process alone, while all of them run. Bare: an echo server is sent the same messages at the same
  pace by 200 clients. Our server also paces its models, which is measured alone and taken off.
* **Under load.** 20 streams of models that never pause, to one client; CPU of the server for each
  delta. Bare: the echo, which is sent the same frames as fast as it takes them. Another client
  measures how long a ping takes meanwhile: a frame waits for at most one pass of the loop.
* **Status.** One connection with 64 commands on their way; the same client talks to a server that
  reads each one as JSON and writes it again.
* **Interrupts.** One after the other, 1,000 streams running, from the call to the durable answer;
  embedded is ``benchmarks/interrupt.py``.
* **Resume.** The server is killed and started again; all subscriptions of one client are back.

CPU is that of the server's process, by its own clock: what else the machine does is not in it. The
other figures are times. Each is measured right beside its bare one, round by round.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import anyio

from benchmarks.deltas import REQUEST, pace_alone
from benchmarks.interrupt import embedded_latencies
from benchmarks.report import Row, percentile
from benchmarks.transport_server import (
    BUSY_DELTAS,
    DELAY_S,
    DELTA,
    MODELS,
    BenchServer,
    bench_server,
)
from llmsession import SessionConfig, TextDelta, connect
from llmsession.transport import RemoteManager, RemoteSession
from llmsession.transport.wire.messages import VERSION
from llmsession.turns.request import StepTag

__all__ = ["run"]

STREAMS = 200
SPREAD_S = DELAY_S / STREAMS
"""Streams that begin together would say their deltas together, and share a pass of the loop."""
WARM_S = 1.0
WINDOW_S = 4.0
ROUNDS = 5
CONFIG = SessionConfig(model="m")
FRAME = (
    b'{"type":"event","subscription":4,"session":"5a2b7f6c0d1e4f3a8b9c0d1e2f3a4b5c","kind":'
    b'"preview.text","body":{"kind":"preview.text","turn":1,"step":1,"attempt":1,"index":0,'
    b'"text":"12345"},"turn":1,"offset":120}'
)
BUSY_STREAMS = 20
PING_S = 0.002
STATUS = 6000
IN_FLIGHT = 64
INTERRUPTS = 1000
FEW, MANY = 250, 1000
PATIENCE_S = 60.0


# Paced deltas.


class _Window:
    """CPU of the server for each delta in a while in which all streams run."""

    def __init__(self, server: BenchServer) -> None:
        self._server = server
        self.deltas = 0.0
        self.messages = 0
        self.joined = 1.0

    async def cpu_us(self) -> float:
        await asyncio.sleep(WARM_S)
        before, seen, self.messages = await self._cpu_s(), self.deltas, 0
        await asyncio.sleep(WINDOW_S)
        spent_s, deltas = await self._cpu_s() - before, self.deltas - seen
        self.joined = self.messages / deltas
        return spent_s / deltas * 1e6

    async def _cpu_s(self) -> float:
        return await asyncio.to_thread(self._server.cpu_s)


async def _paced_ours(server: BenchServer) -> tuple[float, float]:
    """Microseconds of CPU of the server for a delta, and messages a delta: what waits for a client
    is joined."""
    window = _Window(server)

    async def follow(session: RemoteSession) -> None:
        async for event in session.subscribe(after=0):
            if isinstance(event, TextDelta):
                window.deltas += len(event.text) / len(DELTA)
                window.messages += 1

    async with AsyncExitStack() as stack:
        sessions = []
        for _ in range(STREAMS):
            client = await stack.enter_async_context(connect(server.address))
            sessions.append(await client.create(CONFIG))
        async with anyio.create_task_group() as group:
            for session in sessions:
                group.start_soon(follow, session)
                await session.send("go")
                await asyncio.sleep(SPREAD_S)
            spent_us = await window.cpu_us()
            group.cancel_scope.cancel()
    return spent_us, window.joined


async def _paced_echo(server: BenchServer) -> tuple[float, float]:
    path = server.address.removeprefix("unix:")
    wires = [await asyncio.open_unix_connection(path) for _ in range(STREAMS)]

    window = _Window(server)

    async def send(at: int, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(at * SPREAD_S)
        while True:
            writer.write(FRAME + b"\n")
            await asyncio.sleep(DELAY_S)

    async def receive(reader: asyncio.StreamReader) -> None:
        while True:
            await reader.readline()
            window.deltas += 1

    async with anyio.create_task_group() as group:
        for at, (reader, writer) in enumerate(wires):
            group.start_soon(send, at, writer)
            group.start_soon(receive, reader)
        spent_us = await window.cpu_us()
        group.cancel_scope.cancel()
    for _, writer in wires:
        writer.close()
        await writer.wait_closed()
    return spent_us, 1.0


async def _paced_grpc_echo(server: BenchServer) -> tuple[float, float]:
    import grpc

    from llmsession.transport.grpc.client import channel_options
    from llmsession.transport.v1.session_pb2 import Frames
    from llmsession.transport.v1.session_pb2_grpc import SessionServiceStub

    target = server.address.removeprefix("grpc://")
    channels = [grpc.aio.insecure_channel(target, channel_options()) for _ in range(STREAMS)]
    calls = [SessionServiceStub(channel).Connect() for channel in channels]
    for call in calls:
        await call.wait_for_connection()

    window = _Window(server)

    async def send(at: int, call: Any) -> None:
        await asyncio.sleep(at * SPREAD_S)
        while True:
            await call.write(Frames(frames=[FRAME]))
            await asyncio.sleep(DELAY_S)

    async def receive(call: Any) -> None:
        while True:
            await call.read()
            window.deltas += 1

    async with anyio.create_task_group() as group:
        for at, call in enumerate(calls):
            group.start_soon(send, at, call)
            group.start_soon(receive, call)
        spent_us = await window.cpu_us()
        group.cancel_scope.cancel()
    for call, channel in zip(calls, channels, strict=True):
        call.cancel()
        await channel.close()
    return spent_us, 1.0


async def _pacing() -> float:
    """Microseconds of CPU for a delta of models that nobody reads."""
    before = time.process_time()
    deltas = await pace_alone(SPREAD_S)
    return (time.process_time() - before) / deltas * 1e6


def _paced(runner: asyncio.Runner, way: str, bound: float, rounds: int) -> list[Row]:
    echo = _paced_echo if way == "socket" else _paced_grpc_echo
    pairs, whole, joined = list[tuple[float, float]](), list[tuple[float, float]](), 0.0
    for _ in range(rounds):
        pace = anyio.run(_pacing)
        with _served("service", way) as server:
            ours, joined = runner.run(_paced_ours(server))
        with _served("echo", way) as server:
            bare, _ = runner.run(echo(server))
        pairs.append((ours - pace, bare))
        whole.append((ours, bare))
    note = f"{joined:.2f} messages a delta: what a client has not taken yet is joined"
    return [
        _row(f"paced delta over {way}, CPU of the server without the models'", pairs, "us", bound,
             note),
        _row(f"paced delta over {way}, CPU of the server with the models'", whole, "us", None),
    ]  # fmt: skip


# Under load.


class _Load:
    """What a client reads of streams that never pause: CPU of the server and frames, for each
    delta, and how long a ping of another client took meanwhile."""

    def __init__(self, server: BenchServer, deltas: int) -> None:
        self._server, self._deltas = server, deltas
        self.frames = 0
        self.pings_s: list[float] = []

    async def run(
        self, begin: Callable[[], Awaitable[None]], reader: asyncio.StreamReader
    ) -> float:
        """Microseconds of CPU for a delta, of those that come after *begin*."""
        before_s, left = await asyncio.to_thread(self._server.cpu_s), self._deltas
        beginning = asyncio.ensure_future(begin())
        while left > 0:
            line = await reader.readline()
            if b'"preview.text"' in line:  # the record at a reply's end has its text, too
                left -= line.count(DELTA.encode())
                self.frames += 1
        await beginning
        return (await asyncio.to_thread(self._server.cpu_s) - before_s) / self._deltas * 1e6

    async def ping(self, line: bytes, greeting: bytes) -> None:
        """Ask with *line*, again and again, until it is cancelled."""
        reader, writer = await asyncio.open_unix_connection(_path(self._server))
        writer.write(greeting)
        if greeting:
            await reader.readline()
        try:
            while True:
                started = time.perf_counter()
                writer.write(line)
                await reader.readline()
                self.pings_s.append(time.perf_counter() - started)
                await asyncio.sleep(PING_S)
        finally:
            writer.close()


async def _loaded(load: _Load, server: BenchServer, *, is_echo: bool) -> float:
    greeting = b"" if is_echo else b'{"type":"hello","versions":[%d]}\n' % VERSION
    reader, writer = await asyncio.open_unix_connection(_path(server), limit=2**24)
    writer.write(greeting)
    async with AsyncExitStack() as stack:
        sessions = []
        if not is_echo:
            client = await stack.enter_async_context(connect(server.address))
            for at in range(BUSY_STREAMS):
                sessions.append(await client.create(CONFIG, session_id=f"s{at}"))
                writer.write(b'{"type":"subscribe","id":%d,"session":"s%d"}\n' % (at, at))
            for _ in range(BUSY_STREAMS + 1):
                await reader.readline()

        async def begin() -> None:
            for session in sessions:
                await session.send("go")
            for _ in range(BUSY_STREAMS * BUSY_DELTAS // 50 if is_echo else 0):
                writer.write((FRAME + b"\n") * 50)
                await writer.drain()

        async with anyio.create_task_group() as group:
            group.start_soon(load.ping, b'{"type":"ping"}\n', greeting)
            spent_us = await load.run(begin, reader)
            group.cancel_scope.cancel()
    writer.close()
    return spent_us


async def _unpaced() -> float:
    """Microseconds of CPU for a delta of models that do not pause, and that nobody reads."""

    async def one() -> None:
        async for _ in MODELS["busy"].stream(REQUEST, StepTag(1, 1, 1)):
            pass

    before = time.process_time()
    async with anyio.create_task_group() as group:
        for _ in range(BUSY_STREAMS):
            group.start_soon(one)
    return (time.process_time() - before) / (BUSY_STREAMS * BUSY_DELTAS) * 1e6


def _under_load(runner: asyncio.Runner, bound: float, rounds: int) -> list[Row]:
    pairs, delays, frames = list[tuple[float, float]](), list[tuple[float, float]](), 0.0
    deltas = BUSY_STREAMS * BUSY_DELTAS
    for _ in range(rounds):
        unpaced = anyio.run(_unpaced)
        with _served("busy", "socket") as server:
            ours = _Load(server, deltas)
            spent_us = runner.run(_loaded(ours, server, is_echo=False))
        with _served("echo", "socket") as server:
            bare = _Load(server, deltas)
            pairs.append((spent_us - unpaced, runner.run(_loaded(bare, server, is_echo=True))))
        delays.append((percentile(ours.pings_s, 0.99) * 1e3, percentile(bare.pings_s, 0.99) * 1e3))
        frames = ours.frames / deltas
    return [
        _row(f"delta of {BUSY_STREAMS} unpaced streams on one socket, CPU without the models'",
             pairs, "us", bound, f"{frames:.2f} frames a delta, all of a pass in one write"),
        _row("a ping of another client meanwhile, p99", delays, "ms", 5.0,
             "one pass of the loop, which is as long as a frame may wait to be written"),
    ]  # fmt: skip


def _path(server: BenchServer) -> str:
    return server.address.removeprefix("unix:")


# Status.


async def _asked(path: str, lines: list[bytes], greeting: bytes) -> float:
    """Seconds for all *lines*, at most 64 on their way; each is answered by one line."""
    reader, writer = await asyncio.open_unix_connection(path)
    for line in greeting.splitlines(keepends=True):
        writer.write(line)
        await reader.readline()
    room = asyncio.Semaphore(IN_FLIGHT)

    async def read() -> None:
        for _ in lines:
            await reader.readline()
            room.release()

    started = time.perf_counter()
    reading = asyncio.ensure_future(read())
    for line in lines:
        await room.acquire()
        writer.write(line)
    await reading
    took_s = time.perf_counter() - started
    writer.close()
    await writer.wait_closed()
    return took_s


async def _asked_over_grpc(address: str, lines: list[bytes], greeting: bytes) -> float:
    """The same on one gRPC stream, whose messages have several frames."""
    from llmsession.transport.grpc.client import grpc_dial
    from llmsession.transport.wire.addresses import parse_address

    channel = await grpc_dial(parse_address(address), None, None)()
    for line in greeting.splitlines():
        channel.send(line)
        await channel.receive()
    room = asyncio.Semaphore(IN_FLIGHT)

    async def read() -> None:
        left = len(lines)
        while left:
            frames = await channel.receive()
            left -= len(frames)
            for _ in frames:
                room.release()

    started = time.perf_counter()
    reading = asyncio.ensure_future(read())
    for line in lines:
        await room.acquire()
        channel.send(line.rstrip())
    await reading
    took_s = time.perf_counter() - started
    await channel.aclose()
    return took_s


def _status(runner: asyncio.Runner, way: str, bound: float, rounds: int) -> list[Row]:
    lines = [b'{"type":"status","id":%d,"session":"s"}\n' % number for number in range(2, STATUS)]
    hello = (
        b'{"type":"hello","versions":[%d]}\n'
        b'{"type":"create","id":1,"session":"s","config":{"model":"m"}}\n'
    ) % VERSION
    asked = _asked if way == "socket" else _asked_over_grpc
    pairs: list[tuple[float, float]] = []
    for _ in range(rounds):
        with _served("service", way) as server:
            ours = runner.run(asked(server.address.removeprefix("unix:"), lines, hello))
        with _served("json", way) as server:
            bare = runner.run(asked(server.address.removeprefix("unix:"), lines, b""))
        pairs.append((ours / len(lines) * 1e6, bare / len(lines) * 1e6))
    ours, bare = sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]
    note = f"{1e6 / ours:,.0f} a second, bare {1e6 / bare:,.0f}"
    return [_row(f"status command on one {way} connection", pairs, "us", bound, note)]


# Interrupts.


async def _interrupts(server: BenchServer, seed: int) -> list[float]:
    latencies: list[float] = []
    async with connect(server.address) as client:
        sessions = []
        for at in range(INTERRUPTS):
            session = await client.create(CONFIG)
            await session.send("go")
            sessions.append(session)
            if at % 20 == 19:
                await asyncio.sleep(DELAY_S / 50)
        await asyncio.sleep(4 * DELAY_S)
        for session in random.Random(seed).sample(sessions, len(sessions)):
            started = time.perf_counter()
            await session.interrupt()
            latencies.append(time.perf_counter() - started)
    return latencies


def _interrupt(runner: asyncio.Runner, way: str, rounds: int) -> list[Row]:
    pairs: list[tuple[float, float]] = []
    medians: list[tuple[float, float]] = []
    for round_ in range(rounds):
        embedded = anyio.run(embedded_latencies, round_)
        with _served("service", way) as server:
            ours = runner.run(_interrupts(server, round_))
        pairs.append((percentile(ours, 0.99) * 1e3, percentile(embedded, 0.99) * 1e3))
        medians.append((percentile(ours, 0.5) * 1e3, percentile(embedded, 0.5) * 1e3))
    note = "bare here: embedded"
    return [
        _row(f"interrupt over {way} p99, 1,000 streaming", pairs, "ms", 5.0, note),
        _row(f"interrupt over {way} p50, 1,000 streaming", medians, "ms", None, note),
    ]


# Resume.


async def _resume(folder: str, way: str, subscribers: int) -> tuple[float, float]:
    """Seconds from the client's new connection until every subscription is back, and from the
    moment that the service was there."""
    database, address = f"{folder}/{way}{subscribers}.db", _address(folder, way)
    async with AsyncExitStack() as stack:
        server = _started(stack, address, database)
        client = await stack.enter_async_context(connect(server.address, patience_s=PATIENCE_S))
        sessions = [await client.create(CONFIG) for _ in range(subscribers)]
        events = [session.subscribe() for session in sessions]
        await _subscribed(client, subscribers)
        await asyncio.to_thread(server.kill)
        server = await asyncio.to_thread(_started, stack, server.address, database)
        there = time.perf_counter()
        await client.statistics(limit=0)
        connected = time.perf_counter()
        await _subscribed(client, subscribers)
        now = time.perf_counter()
        for subscription in events:
            subscription.close()
    return now - connected, now - there


def _started(stack: AsyncExitStack, address: str, database: str) -> BenchServer:
    return stack.enter_context(bench_server("service", address, database=database))


async def _subscribed(client: RemoteManager, subscribers: int) -> None:
    while True:
        service = (await client.statistics(limit=0)).service
        if service is not None and service.subscriptions >= subscribers:
            return
        await asyncio.sleep(0.01)


def _resumed(runner: asyncio.Runner, rounds: int) -> list[Row]:
    pairs: list[tuple[float, float]] = []
    there_s = 0.0
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            few_s, _ = runner.run(_resume(folder, "socket", FEW))
            many_s, there_s = runner.run(_resume(folder, "socket", MANY))
        pairs.append((many_s / MANY * 1e6, few_s / FEW * 1e6))
    note = (
        f"bare here: each of {FEW}, in the same way; all of {MANY} were back {there_s:.2f} s after"
        " the service was"
    )
    return [_row(f"resume after a restart, each of {MANY} subscribers", pairs, "us", 1.5, note)]


# The frame.


def _address(folder: str, way: str) -> str:
    return f"unix:{folder}/b.sock" if way == "socket" else "grpc://127.0.0.1:0"


@contextmanager
def _served(kind: str, way: str) -> Iterator[BenchServer]:
    with (
        tempfile.TemporaryDirectory() as folder,
        bench_server(kind, _address(folder, way)) as server,
    ):
        yield server


def _row(
    name: str, pairs: list[tuple[float, float]], unit: str, bound: float | None, note: str = ""
) -> Row:
    ours, bare = sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]
    ratios = tuple(a / b for a, b in pairs)
    return Row(name=name, ours=ours, bare=bare, unit=unit, ratios=ratios, bound=bound, note=note)


def run(rounds: int = ROUNDS) -> list[Row]:
    # One event loop for all: what gRPC has left to do after a channel was closed is done in it.
    with asyncio.Runner() as runner:
        return [
            *_paced(runner, "socket", 2.0, rounds),
            *_paced(runner, "gRPC", 1.5, rounds),
            *_under_load(runner, 6.0, rounds),
            *_status(runner, "socket", 4.0, rounds),
            *_status(runner, "gRPC", 4.0, rounds),
            *_interrupt(runner, "socket", rounds),
            *_interrupt(runner, "gRPC", rounds),
            *_resumed(runner, rounds),
        ]
