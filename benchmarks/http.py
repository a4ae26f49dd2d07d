"""CPU of a delta over HTTP, and interrupts of a thousand streams, beside the bare SDK.

The server is another process. Bare: ``messages.create(stream=True)`` of the same SDK with the
same aiohttp transport, iterated by a task that does nothing with the events. Ours: provider,
session and one subscriber that reads the deltas. Both sides run once before they are measured.

A delta is measured twice: by itself, while all streams run, and as a part of whole replies, with
what their requests, turns and records cost. What the HTTP client takes of it, which both sides
have, is measured apart.
"""

from __future__ import annotations

import random
import resource
import time
from functools import partial

import anthropic
import anyio
import anyio.lowlevel

from benchmarks.delta_server import delta_server
from benchmarks.report import Row, percentile
from llmsession import AnthropicProvider, LLMSession, SessionConfig, SessionManager, TextDelta
from llmsession.turns.records import TurnCommitted

__all__ = ["run"]

STREAMS = 100
DELTAS = 120
ENDLESS = 2000
"""More deltas than anybody waits for."""
WARM_S = 1.0
WINDOW_S = 3.0
DELAY_S = 0.05
ROUNDS = 5
INTERRUPTED = 1000
PATIENCE_S = 300.0
"""On a busy machine a thousand connections take their time."""
MODEL = "claude-opus-5-5"


async def _spread(at: int) -> None:
    """Streams that begin together say their deltas together, and share a turn of the loop."""
    if at % 20 == 19:
        await anyio.sleep(DELAY_S / 10)


def _client(url: str) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(
        api_key="unused",
        base_url=url,
        timeout=PATIENCE_S,
        http_client=anthropic.DefaultAioHttpClient(timeout=PATIENCE_S),
    )


def _provider(url: str) -> AnthropicProvider:
    return AnthropicProvider(api_key="unused", base_url=url, connect_timeout_s=PATIENCE_S)


class _Seen:
    """The deltas that the readers of all streams have seen, and the CPU of those in between."""

    def __init__(self) -> None:
        self.deltas = 0

    async def window_us(self) -> float:
        """Microseconds of CPU for a delta, while all streams run."""
        await anyio.sleep(WARM_S)
        started, seen = time.process_time(), self.deltas
        await anyio.sleep(WINDOW_S)
        return (time.process_time() - started) / (self.deltas - seen) * 1e6


async def _bare_stream(
    client: anthropic.AsyncAnthropic, seen: _Seen, ready: anyio.Event | None = None
) -> None:
    stream = await client.messages.create(
        model=MODEL, max_tokens=1000, messages=[{"role": "user", "content": "go"}], stream=True
    )
    try:
        async for event in stream:
            if event.type == "content_block_delta":
                seen.deltas += 1
                if ready is not None:
                    ready.set()
    finally:
        with anyio.CancelScope(shield=True):
            await stream.close()


async def _bare(url: str, *, whole: bool = True) -> float:
    """Microseconds of CPU for a delta of the SDK's stream, of *whole* replies or by itself."""
    started, seen, spent_us = time.process_time(), _Seen(), 0.0
    async with _client(url) as client, anyio.create_task_group() as group:
        for at in range(STREAMS):
            group.start_soon(_bare_stream, client, seen)
            await _spread(at)
        if not whole:
            spent_us = await seen.window_us()
            group.cancel_scope.cancel()
    return _whole_us(started, seen) if whole else spent_us


async def _bytes_alone(url: str) -> float:
    """The same of the bytes of the SDK's response, which are read and dropped."""
    spent_us, seen = 0.0, _Seen()

    async def read(client: anthropic.AsyncAnthropic) -> None:
        stream = await client.messages.create(
            model=MODEL, max_tokens=1000, messages=[{"role": "user", "content": "go"}], stream=True
        )
        async for received in stream.response.aiter_bytes():
            seen.deltas += received.count(b"text_delta")

    async with _client(url) as client, anyio.create_task_group() as group:
        for at in range(STREAMS):
            group.start_soon(read, client)
            await _spread(at)
        spent_us = await seen.window_us()
        group.cancel_scope.cancel()
    return spent_us


async def _ours(url: str, *, whole: bool = True) -> float:
    """The same of our provider, session and subscriber."""
    started, seen, spent_us = time.process_time(), _Seen(), 0.0

    async def watch(session: LLMSession) -> None:
        async for event in session.subscribe():
            if isinstance(event, TextDelta):
                seen.deltas += len(event.text) // 5
            elif isinstance(event, TurnCommitted):
                return

    provider = _provider(url)
    async with provider, SessionManager(provider=provider) as manager:
        sessions = [await manager.create(SessionConfig(model=MODEL)) for _ in range(STREAMS)]
        async with anyio.create_task_group() as group:
            for session in sessions:
                group.start_soon(watch, session)
            await anyio.lowlevel.checkpoint()
            for at, session in enumerate(sessions):
                await session.send("go")
                await _spread(at)
            if not whole:
                spent_us = await seen.window_us()
                group.cancel_scope.cancel()
    return _whole_us(started, seen) if whole else spent_us


def _whole_us(started: float, seen: _Seen) -> float:
    assert seen.deltas == STREAMS * DELTAS, seen.deltas
    return (time.process_time() - started) / seen.deltas * 1e6


async def _bare_interrupts(url: str, seed: int) -> list[float]:
    """Seconds from a scope's cancellation to the end of its stream, connection closed."""
    latencies: list[float] = []

    class Task:
        def __init__(self) -> None:
            self.scope = anyio.CancelScope()
            self.ready = anyio.Event()
            self.ended = anyio.Event()

        async def run(self, client: anthropic.AsyncAnthropic) -> None:
            try:
                with self.scope:
                    await _bare_stream(client, _Seen(), self.ready)
            finally:
                self.ended.set()

    async with _client(url) as client, anyio.create_task_group() as group:
        tasks = [Task() for _ in range(INTERRUPTED)]
        for at, task in enumerate(tasks):
            group.start_soon(task.run, client)
            if at % 20 == 19:
                await anyio.sleep(DELAY_S)
        for task in tasks:
            await task.ready.wait()
        for task in random.Random(seed).sample(tasks, len(tasks)):
            started = time.perf_counter()
            task.scope.cancel()
            await task.ended.wait()
            latencies.append(time.perf_counter() - started)
    return latencies


async def _our_interrupts(url: str, seed: int) -> list[float]:
    """Seconds from ``interrupt()`` to its durable answer."""
    latencies: list[float] = []
    provider = _provider(url)
    async with provider, SessionManager(provider=provider) as manager:
        sessions: list[LLMSession] = []
        for at in range(INTERRUPTED):
            session = await manager.create(SessionConfig(model=MODEL))
            sessions.append(session)
            await session.send("go")
            if at % 20 == 19:
                await anyio.sleep(DELAY_S)
        await anyio.sleep(10 * DELAY_S)
        for session in random.Random(seed).sample(sessions, len(sessions)):
            started = time.perf_counter()
            await session.interrupt()
            latencies.append(time.perf_counter() - started)
    return latencies


def _pairs(url: str, *, whole: bool) -> list[tuple[float, float]]:
    bare, ours = partial(_bare, url, whole=whole), partial(_ours, url, whole=whole)
    anyio.run(bare)
    anyio.run(ours)
    return [(anyio.run(ours), anyio.run(bare)) for _ in range(ROUNDS)]


def run() -> list[Row]:
    _room_for_sockets()
    with delta_server(ENDLESS, DELAY_S) as url:
        alone = _pairs(url, whole=False)
        http = [(anyio.run(_bytes_alone, url), bare) for _, bare in alone]
    with delta_server(DELTAS, DELAY_S) as url:
        in_replies = _pairs(url, whole=True)
    medians: list[tuple[float, float]] = []
    tails: list[tuple[float, float]] = []
    with delta_server(ENDLESS, DELAY_S) as url:
        for seed in range(3):
            theirs = anyio.run(_bare_interrupts, url, seed)
            mine = anyio.run(_our_interrupts, url, seed)
            medians.append((percentile(mine, 0.5), percentile(theirs, 0.5)))
            tails.append((percentile(mine, 0.99), percentile(theirs, 0.99)))
    return [
        _row("delta over HTTP to one subscriber, CPU", alone, "us", 1.0, 0.75),
        _row("the bytes of the SDK's response alone, read and dropped", http, "us", 1.0, None),
        _row("the same, with its share of a turn of 120 deltas", in_replies, "us", 1.0, 1.5),
        _row("interrupt p50, 1,000 streams over HTTP", medians, "ms", 1000.0, None),
        _row("interrupt p99, 1,000 streams over HTTP", tails, "ms", 1000.0, 3.0),
    ]


def _room_for_sockets() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = INTERRUPTED * 2
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))


def _row(
    name: str, pairs: list[tuple[float, float]], unit: str, scale: float, bound: float | None
) -> Row:
    ours, bare = sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]
    ratios = tuple(a / b for a, b in pairs)
    return Row(
        name=name, ours=ours * scale, bare=bare * scale, unit=unit, ratios=ratios, bound=bound
    )
