"""Interrupt latency with 1,000 sessions streaming, beside cancelling bare anyio scopes.

Ours: ``session.interrupt()`` from the call to its durable answer. Bare: ``scope.cancel()`` until
the task, which iterates the same provider stream, has ended. The load is the same on both sides:
every stream says a delta each 50 ms, and the interrupts come one after the other.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence

import anyio
from anyio.abc import TaskGroup

from benchmarks.recorded import recorded_message
from benchmarks.report import Row, percentile
from llmsession import (
    MemoryStore,
    Message,
    Profile,
    ReplayProvider,
    SessionConfig,
    SessionManager,
    Tool,
)
from llmsession.session.handles.session import LLMSession
from llmsession.turns import Request, StepTag, StreamEvent

__all__ = ["embedded_latencies", "run"]

SESSIONS = 1000
DELAY_S = 0.05
ROUNDS = 5
STUBBORN = 100


LONG = (recorded_message(1, "assistant", "word " * 2000),)
USE = {"type": "tool_use", "id": "c", "name": "stubborn", "input": {}}
CALL = (recorded_message(1, "assistant", [USE]),)


def _provider(messages: tuple[Message, ...] = LONG) -> ReplayProvider:
    return ReplayProvider(messages, delta_chars=5, delay_s=DELAY_S)


class _Streams:
    """A ReplayProvider per session: one plays one conversation."""

    name = "replay"

    def __init__(self) -> None:
        self._inner = _provider()

    def profile(self, model: str) -> Profile:
        return self._inner.profile(model)

    def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        calls = b"stubborn" in bytes(request.messages[-1].body)
        return _provider(CALL if calls and tag.step == 1 else LONG).stream(request, tag)


async def _bare(seed: int) -> list[float]:
    """Latencies in seconds of cancelling 1,000 bare scopes, one after the other."""
    latencies: list[float] = []
    request = Request(model="m", max_tokens=1, messages=())

    class Task:
        def __init__(self) -> None:
            self.scope = anyio.CancelScope()
            self.ended = anyio.Event()

        async def run(self) -> None:
            try:
                with self.scope:
                    async for _ in _provider().stream(request, StepTag(1, 1, 1)):
                        pass
            finally:
                self.ended.set()

    async with anyio.create_task_group() as group:
        tasks = [Task() for _ in range(SESSIONS)]
        await _spread(group, [task.run for task in tasks])
        for task in random.Random(seed).sample(tasks, len(tasks)):
            started = time.perf_counter()
            task.scope.cancel()
            await task.ended.wait()
            latencies.append(time.perf_counter() - started)
    return latencies


async def _spread(
    group: TaskGroup, bodies: Sequence[Callable[[], Coroutine[object, object, None]]]
) -> None:
    """Start the bodies over one delay, so that their deltas do not come in one burst."""
    for at, body in enumerate(bodies):
        group.start_soon(body)
        if at % 20 == 19:
            await anyio.sleep(DELAY_S / 50)
    await anyio.sleep(4 * DELAY_S)


class Stubborn:
    """A tool that ignores cancellation until it is let go."""

    def __init__(self) -> None:
        self.let_go = anyio.Event()
        self.running = 0

    async def __call__(self) -> str:
        self.running += 1
        with anyio.CancelScope(shield=True):
            await self.let_go.wait()
        return "done"


async def _ours(seed: int, stubborn_sessions: int) -> tuple[list[float], list[float]]:
    """Latencies in seconds of the cooperative sessions, and of those with a stubborn tool."""
    stubborn = Stubborn()
    tools = (Tool(name="stubborn", run=stubborn),)
    config = SessionConfig(model="m", tools=tools)
    cooperative: list[float] = []
    others: list[float] = []
    async with SessionManager(provider=_Streams(), store=MemoryStore()) as manager:
        sessions: list[tuple[LLMSession, bool]] = []
        for at in range(SESSIONS):
            is_stubborn = at < stubborn_sessions
            session = await manager.create(config)
            await session.send("stubborn" if is_stubborn else "go")
            sessions.append((session, is_stubborn))
            if at % 20 == 19:
                await anyio.sleep(DELAY_S / 50)
        await anyio.sleep(4 * DELAY_S)
        assert stubborn.running == stubborn_sessions

        async def one(session: LLMSession, into: list[float]) -> None:
            started = time.perf_counter()
            await session.interrupt()
            into.append(time.perf_counter() - started)

        async with anyio.create_task_group() as group:
            for session, is_stubborn in random.Random(seed).sample(sessions, len(sessions)):
                if is_stubborn:
                    # Not waited for here: the grace would stretch the run, not the latencies.
                    group.start_soon(one, session, others)
                else:
                    await one(session, cooperative)
        stubborn.let_go.set()
    return cooperative, others


async def embedded_latencies(seed: int) -> list[float]:
    """Latencies in seconds of interrupting 1,000 embedded sessions, one after the other."""
    return (await _ours(seed, 0))[0]


def run() -> list[Row]:
    plain: list[tuple[float, float]] = []
    mixed: list[tuple[float, float]] = []
    stubborn_ms: list[float] = []
    medians: list[tuple[float, float]] = []
    for round_ in range(ROUNDS):
        bare = anyio.run(_bare, round_)
        ours, _ = anyio.run(_ours, round_, 0)
        among, others = anyio.run(_ours, round_, STUBBORN)
        bare_p99 = percentile(bare, 0.99)
        medians.append((percentile(ours, 0.5), percentile(bare, 0.5)))
        plain.append((percentile(ours, 0.99), bare_p99))
        mixed.append((percentile(among, 0.99), bare_p99))
        stubborn_ms.append(percentile(others, 0.99) * 1000)
    worst_stubborn = sorted(stubborn_ms)[len(stubborn_ms) // 2]
    allowed = 100 + 3 * sorted(bare for _, bare in plain)[ROUNDS // 2] * 1000
    return [
        _row("interrupt p50, 1,000 streaming", medians, None),
        _row("interrupt p99, 1,000 streaming", plain, 3.0),
        _row("interrupt p99, 900 of them beside 100 stubborn tools", mixed, 3.0),
        Row(
            name="interrupt p99 of the 100 with stubborn tools",
            ours=worst_stubborn,
            bare=allowed,
            unit="ms",
            bound=1.0,
            note="bare here: the grace of 100 ms plus three times the bare p99",
        ),
    ]


def _row(name: str, pairs: list[tuple[float, float]], bound: float | None) -> Row:
    ratios = tuple(ours / bare for ours, bare in pairs)
    middle = sorted(pairs)[len(pairs) // 2]
    return Row(
        name=name,
        ours=middle[0] * 1000,
        bare=middle[1] * 1000,
        unit="ms",
        ratios=ratios,
        bound=bound,
    )
