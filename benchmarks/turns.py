"""CPU of one trivial turn from ``send`` to its outcome, beside a ping-pong over two queues.

The provider answers at once in one delta; the store is in memory. Bare: an item goes through one
asyncio queue to a task and comes back through another, which is two task switches. A turn is
more than that by what it promises: two durable records, a checked request, a task for the stream
and its cancel scope. The ratio is for comparing two versions of the session with each other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

import anyio
import msgspec

from benchmarks.report import Row
from llmsession import MemoryStore, SessionConfig, SessionManager
from llmsession.turns.request import Profile, Request, StepTag
from llmsession.turns.stream import BlockDelta, BlockStarted, BlockStopped, ReplyEnded, StreamEvent

__all__ = ["run"]

SESSIONS = 100
TURNS = 10
ROUNDS = 9
EVENTS: tuple[StreamEvent, ...] = (
    BlockStarted(0, msgspec.Raw(b'{"type":"text","text":""}')),
    BlockDelta(0, "text", "a short answer"),
    BlockStopped(0),
    ReplyEnded("end_turn", None),
)


class _AtOnce:
    name = "at once"
    _profile = Profile()

    def profile(self, model: str) -> Profile:
        return self._profile

    async def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        for event in EVENTS:
            yield event


async def _ours() -> float:
    """CPU seconds of one turn."""
    spent = 0.0
    async with SessionManager(provider=_AtOnce(), store=MemoryStore()) as manager:
        for _ in range(SESSIONS):
            session = await manager.create(SessionConfig(model="m"))
            started = time.process_time()
            for _ in range(TURNS):
                outcome = await (await session.send("a short question")).outcome()
            spent += time.process_time() - started
            assert outcome.status == "committed"
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
    pairs = sorted(
        ((anyio.run(_ours), anyio.run(_bare)) for _ in range(ROUNDS)),
        key=lambda pair: pair[0] / pair[1],
    )
    ours, bare = pairs[len(pairs) // 2]
    return [
        Row(
            name="a trivial turn, from send to outcome",
            ours=ours * 1e6,
            bare=bare * 1e6,
            unit="us",
            ratios=tuple(a / b for a, b in pairs),
            note="information only: the bare side promises nothing",
        )
    ]
