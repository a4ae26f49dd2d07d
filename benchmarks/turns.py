"""CPU of one turn from ``send`` to its outcome: a trivial one, and one with four tool calls.

The provider answers at once; the store is in memory. Bare: a loop that is written by hand and
leaves the same durable records (``by_hand.py``). Beside the trivial turn there is also the least
that two tasks can do with each other: an item goes through one asyncio queue to a task and comes
back through another. That ratio is for comparing two versions of the session with each other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import TypeAlias

import anyio
import msgspec

from benchmarks.by_hand import HandWritten
from benchmarks.report import Row
from llmsession import MemoryStore, SessionConfig, SessionManager, Tool
from llmsession.turns.request import Profile, Request, StepTag
from llmsession.turns.stream import BlockDelta, BlockStarted, BlockStopped, ReplyEnded, StreamEvent

__all__ = ["run"]

SESSIONS = 40
TURNS = 10
ROUNDS = 7
EVENTS: tuple[StreamEvent, ...] = (
    BlockStarted(0, msgspec.Raw(b'{"type":"text","text":""}')),
    BlockDelta(0, "text", "a short answer"),
    BlockStopped(0),
    ReplyEnded("end_turn", None),
)


CALLS = 4
CALL_ENDS: tuple[StreamEvent, ...] = (
    BlockDelta(0, "input", '{"path":"a.txt"}'),
    BlockStopped(0),
    ReplyEnded("tool_use", None),
)
MAX_TRIVIAL, MAX_CALLS = 5.5, 5.0
Measured: TypeAlias = Callable[[], Awaitable[float]]


class _AtOnce:
    """Asks for *calls* tools, one each step, then answers."""

    name = "at once"
    _profile = Profile()

    def __init__(self, calls: int = 0) -> None:
        self._calls = calls

    def profile(self, model: str) -> Profile:
        return self._profile

    async def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        if tag.step > self._calls:
            for event in EVENTS:
                yield event
            return
        # No provider gives two calls of a session the same id.
        call = f'{{"type":"tool_use","id":"c{tag.turn}_{tag.step}","name":"read","input":{{}}}}'
        yield BlockStarted(0, msgspec.Raw(call.encode()))
        for event in CALL_ENDS:
            yield event


async def _read(path: str = "") -> str:
    return "a short result"


async def _ours(calls: int) -> float:
    """CPU seconds of one turn with so many calls."""
    spent = 0.0
    tools = (Tool(name="read", run=_read),) if calls else ()
    async with SessionManager(provider=_AtOnce(calls), store=MemoryStore()) as manager:
        for _ in range(SESSIONS):
            session = await manager.create(SessionConfig(model="m", tools=tools))
            started = time.process_time()
            for _ in range(TURNS):
                outcome = await (await session.send("a short question")).outcome()
            spent += time.process_time() - started
            assert outcome.status == "committed"
            assert len(session.conversation()) == TURNS * (2 + 2 * calls)
    return spent / (SESSIONS * TURNS)


async def _by_hand(calls: int) -> float:
    """CPU seconds of one turn of the loop that is written by hand."""
    spent = 0.0
    store = MemoryStore()
    async with anyio.create_task_group() as group:
        for at in range(SESSIONS):
            written = HandWritten(_AtOnce(calls), store, group)
            await written.begin(f"s{at}")
            started = time.process_time()
            for _ in range(TURNS):
                await written.turn("a short question", _read)
            spent += time.process_time() - started
            assert len(await store.read(f"s{at}")) == TURNS * (2 + 3 * calls)
    return spent / (SESSIONS * TURNS)


async def _bare() -> float:
    """CPU seconds of one item there and back."""
    there: asyncio.Queue[int] = asyncio.Queue()
    back: asyncio.Queue[int] = asyncio.Queue()

    async def echo() -> None:
        while True:
            await back.put(await there.get())

    task = asyncio.create_task(echo())
    started = time.process_time()
    for at in range(SESSIONS * TURNS):
        await there.put(at)
        assert await back.get() == at
    spent = time.process_time() - started
    task.cancel()
    return spent / (SESSIONS * TURNS)


def run() -> list[Row]:
    sides: tuple[Measured, ...] = (
        partial(_ours, 0), _bare, partial(_by_hand, 0), partial(_ours, CALLS),
        partial(_by_hand, CALLS),
    )  # fmt: skip
    rounds = [[anyio.run(side) for side in sides] for _ in range(ROUNDS)]
    told = "information only: the bare side promises nothing"
    by_hand = "beside the same records by hand"
    return [
        _row("a trivial turn, from send to outcome", [(r[0], r[1]) for r in rounds], None, told),
        _row(f"a trivial turn, {by_hand}", [(r[0], r[2]) for r in rounds], MAX_TRIVIAL),
        _row(f"a turn with {CALLS} calls, {by_hand}", [(r[3], r[4]) for r in rounds], MAX_CALLS),
    ]


def _row(name: str, pairs: list[tuple[float, float]], bound: float | None, note: str = "") -> Row:
    ours, bare = sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]
    ratios = tuple(a / b for a, b in pairs)
    return Row(name=name, ours=ours * 1e6, bare=bare * 1e6, unit="us", ratios=ratios,
               bound=bound, note=note)  # fmt: skip
