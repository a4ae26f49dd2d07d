"""CPU of a paced delta from the provider to one subscriber, beside two bare anyio streams.

200 sessions, each streaming 20 deltas a second to one subscriber. Bare: the same provider stream,
its events sent through one anyio stream, made into the same structs, and sent through another.
CPU is of the whole process; the pacing, which both sides have, is measured alone and taken off.

Fan-out: one session says deltas to 1,000 subscribers, each of which reads every one by itself.
Bare: a queue of asyncio for each of 1,000 readers. The CPU is for each delta and subscriber.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

import anyio
import anyio.lowlevel
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from benchmarks.recorded import Replays, recorded_message
from benchmarks.report import Row
from llmsession import SessionConfig, SessionManager, TextDelta
from llmsession.session.handles.session import LLMSession
from llmsession.turns.records import TurnCommitted
from llmsession.turns.request import Request, StepTag
from llmsession.turns.stream import BlockDelta, StreamEvent

__all__ = ["pace_alone", "run"]

SESSIONS = 200
DELTAS = 60
DELAY_S = 0.05
ROUNDS = 5
REPLY = (recorded_message(1, "assistant", "12345" * DELTAS),)
REQUEST = Request(model="m", max_tokens=1, messages=())


PROVIDER = Replays(REPLY, delta_chars=5, delay_s=DELAY_S)
SUBSCRIBERS = 1000
FANNED_OUT = 300
AT_ONCE = Replays((recorded_message(1, "assistant", "12345" * FANNED_OUT),), delta_chars=5)


def _stream() -> AsyncGenerator[StreamEvent, None]:
    return PROVIDER.stream(REQUEST, StepTag(1, 1, 1))


async def pace_alone(spread_s: float = 0.0) -> int:
    """Run the provider's streams, read by nobody, each begun *spread_s* after the one before; how
    many deltas they said."""

    async def one(at: int) -> None:
        await anyio.sleep(at * spread_s)
        async for _ in _stream():
            pass

    async with anyio.create_task_group() as group:
        for at in range(SESSIONS):
            group.start_soon(one, at)
    return SESSIONS * DELTAS


async def _bare() -> int:
    seen = 0

    async def produce(into: MemoryObjectSendStream[StreamEvent]) -> None:
        async with into:
            async for event in _stream():
                await into.send(event)

    async def relay(
        source: MemoryObjectReceiveStream[StreamEvent], into: MemoryObjectSendStream[TextDelta]
    ) -> None:
        async with into:
            async for event in source:
                if isinstance(event, BlockDelta):
                    await into.send(TextDelta(1, 1, 1, event.index, event.text))

    async def consume(source: MemoryObjectReceiveStream[TextDelta]) -> None:
        nonlocal seen
        async for _ in source:
            seen += 1

    async with anyio.create_task_group() as group:
        for _ in range(SESSIONS):
            first = anyio.create_memory_object_stream[StreamEvent](100)
            second = anyio.create_memory_object_stream[TextDelta](100)
            group.start_soon(consume, second[1])
            group.start_soon(relay, first[1], second[0])
            group.start_soon(produce, first[0])
    assert seen == SESSIONS * DELTAS
    return seen


async def _ours() -> int:
    seen = 0

    async def watch(session: LLMSession) -> None:
        nonlocal seen
        async for event in session.subscribe():
            if isinstance(event, TextDelta):
                seen += len(event.text) // 5
            elif isinstance(event, TurnCommitted):
                return

    async with SessionManager(provider=PROVIDER) as manager:
        sessions = [await manager.create(SessionConfig(model="m")) for _ in range(SESSIONS)]
        async with anyio.create_task_group() as group:
            for session in sessions:
                group.start_soon(watch, session)
            await anyio.lowlevel.checkpoint()
            for session in sessions:
                await session.send("go")
    assert seen == SESSIONS * DELTAS, seen
    return seen


async def _fan_out() -> int:
    seen = 0

    async def watch(session: LLMSession) -> None:
        nonlocal seen
        async for event in session.subscribe():
            if isinstance(event, TextDelta):
                seen += 1
            elif isinstance(event, TurnCommitted):
                return

    async with SessionManager(provider=AT_ONCE) as manager:
        session = await manager.create(SessionConfig(model="m"))
        async with anyio.create_task_group() as group:
            for _ in range(SUBSCRIBERS):
                group.start_soon(watch, session)
            await anyio.lowlevel.checkpoint()
            await session.send("go")
    assert seen == SUBSCRIBERS * FANNED_OUT, seen
    return seen


async def _bare_fan_out() -> int:
    seen = 0
    queues = [asyncio.Queue[TextDelta | None]() for _ in range(SUBSCRIBERS)]

    async def watch(queue: asyncio.Queue[TextDelta | None]) -> None:
        nonlocal seen
        while await queue.get():
            seen += 1

    async with anyio.create_task_group() as group:
        for queue in queues:
            group.start_soon(watch, queue)
        await anyio.lowlevel.checkpoint()
        delta = TextDelta(1, 1, 1, 0, "12345")
        for each in (*(delta for _ in range(FANNED_OUT)), None):
            for queue in queues:
                queue.put_nowait(each)
            await anyio.lowlevel.checkpoint()
    assert seen == SUBSCRIBERS * FANNED_OUT, seen
    return seen


def _cpu_us(body: Callable[[], Awaitable[int]]) -> float:
    started = time.process_time()
    deltas = anyio.run(body)
    return (time.process_time() - started) / deltas * 1e6


def run() -> list[Row]:
    pairs: list[tuple[float, float]] = []
    whole: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        pace, bare, ours = _cpu_us(pace_alone), _cpu_us(_bare), _cpu_us(_ours)
        whole.append((ours, bare))
        pairs.append((ours - pace, bare - pace))
    fanned_out = [(_cpu_us(_fan_out), _cpu_us(_bare_fan_out)) for _ in range(ROUNDS)]
    return [
        _row("paced delta to one subscriber, CPU without the pacing", pairs, 2.0),
        _row("paced delta to one subscriber, CPU with the pacing", whole, 2.0),
        _row("delta to each of 1,000 subscribers of a session, CPU", fanned_out, 0.7),
    ]


def _row(name: str, pairs: list[tuple[float, float]], bound: float) -> Row:
    ours, bare = sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]
    ratios = tuple(a / b for a, b in pairs)
    return Row(name=name, ours=ours, bare=bare, unit="us", ratios=ratios, bound=bound)
