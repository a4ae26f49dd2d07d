"""A send, a delta and an interrupt: at the host that owns the session, beside a single service.

Both stand on the same PostgreSQL. The cluster's client is ``connect_cluster`` and the other one
``connect``, in this process. They take turns in short blocks, so that both meet the same machine.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import TypeAlias

import msgspec

from benchmarks.cluster.figures import Cpu, Measured, in_turns, paired
from benchmarks.cluster.processes import DELTA, Host, Stage, following
from benchmarks.report import Row, percentile
from llmsession import SessionConfig, TextDelta, connect, records
from llmsession.cluster import View, connect_cluster, host_of
from llmsession.transport import RemoteManager, RemoteSession

__all__ = ["AtOwner", "rows"]

BOUND = 1.15
WARM_S = 0.3


class AtOwner(msgspec.Struct, frozen=True):
    """How much is measured."""

    rounds: int = 15
    sends: int = 60
    interrupts: int = 40
    streams: int = 100
    stream_rounds: int = 7
    window_s: float = 1.0


class _Side(msgspec.Struct, frozen=True):
    """A client, and the service that its sessions are at."""

    manager: RemoteManager
    host: Host
    names: Iterator[str]
    """Ids of sessions that are placed there."""

    async def create(self, model: str) -> RemoteSession:
        """A new session of *model*."""
        return await self.manager.create(SessionConfig(model=model), session_id=next(self.names))


Block: TypeAlias = Callable[[_Side, AtOwner], Awaitable[Measured]]


async def _sends(side: _Side, plan: AtOwner) -> Measured:
    """Short turns, one after the other, over a few sessions."""
    sessions = [await side.create("short") for _ in range(4)]
    took: list[float] = []
    host, client = Cpu(side.host.cpu_s), Cpu()
    for at in range(plan.sends):
        begun = time.perf_counter()
        turn = await sessions[at % len(sessions)].send("hi")
        took.append(time.perf_counter() - begun)
        await turn.outcome()
    return _figures(took, host.us_each(plan.sends), client.us_each(plan.sends))


async def _first_deltas(side: _Side, plan: AtOwner) -> Measured:
    """From a send to the first delta of its reply, of a model that answers at once."""
    session = await side.create("short")
    took: list[float] = []
    host, client = Cpu(side.host.cpu_s), Cpu()
    events = session.subscribe()
    for _ in range(plan.sends):
        begun = time.perf_counter()
        await session.send("hi")
        async for event in events:
            if isinstance(event, TextDelta):
                took.append(time.perf_counter() - begun)
            elif isinstance(event, records.TurnCommitted):
                break
    figures = _figures(took, host.us_each(plan.sends), client.us_each(plan.sends))
    events.close()
    return figures


async def _paced(side: _Side, plan: AtOwner) -> Measured:
    """CPU of a delta while many streams run: 20 deltas a second each."""
    seen = 0
    async with AsyncExitStack() as stack:

        async def follow(session: RemoteSession) -> None:
            nonlocal seen
            async for event in session.subscribe(after=0):
                if isinstance(event, TextDelta):
                    seen += len(event.text) // len(DELTA)

        sessions = await _streaming(side, plan.streams, "paced")
        group = await stack.enter_async_context(asyncio.TaskGroup())
        tasks = [group.create_task(follow(session)) for session in sessions]
        await asyncio.sleep(WARM_S)
        before, host, client = seen, Cpu(side.host.cpu_s), Cpu()
        await asyncio.sleep(plan.window_s)
        count = seen - before
        figures = {"host": host.us_each(count), "client": client.us_each(count)}
        for task in tasks:
            task.cancel()
    await _interrupted(sessions)
    return figures


async def _interrupts(side: _Side, plan: AtOwner) -> Measured:
    """One after the other, of sessions that wait for the next word of their model."""
    sessions = await _streaming(side, plan.interrupts, "slow")
    took: list[float] = []
    host, client = Cpu(side.host.cpu_s), Cpu()
    for session in sessions:
        begun = time.perf_counter()
        await session.interrupt()
        took.append(time.perf_counter() - begun)
    return _figures(took, host.us_each(plan.interrupts), client.us_each(plan.interrupts))


async def _streaming(side: _Side, count: int, model: str) -> list[RemoteSession]:
    sessions = [await side.create(model) for _ in range(count)]
    for session in sessions:
        await session.send("go")
    return sessions


async def _interrupted(sessions: list[RemoteSession]) -> None:
    await asyncio.gather(*(session.interrupt() for session in sessions))


def _figures(took: list[float], host_us: float, client_us: float) -> Measured:
    return {"p50": percentile(took, 0.5) * 1e3, "host": host_us, "client": client_us}


async def rows(stage: Stage, plan: AtOwner) -> list[Row]:
    """The rows. The second host of the cluster serves nothing: it is there to be asked."""
    dsn = stage.database()
    [single] = stage.start(stage.database())
    hosts = stage.start(dsn, "a", "b")
    try:
        async with (
            following(stage, dsn, "up", "up") as directory,
            connect_cluster([host.address for host in hosts]) as sessions,
            connect(single.address) as bare_sessions,
        ):
            names = (f"session {at}" for at in itertools.count())
            here = (name for name in names if _is_at(directory.view, name, hosts[0]))
            ours = _Side(sessions, hosts[0], here)
            bare = _Side(bare_sessions, single, (f"session {at}" for at in itertools.count()))
            return [
                *await _compared((ours, bare), plan, _sends, "a short turn", "a send to accepted"),
                *await _compared((ours, bare), plan, _first_deltas, "its turn", "first delta"),
                *await _compared((ours, bare), plan, _paced, "a paced delta"),
                *await _compared((ours, bare), plan, _interrupts, "an interrupt", "an interrupt"),
            ]
    finally:
        stage.stop((single, *hosts))


def _is_at(view: View, session: str, host: Host) -> bool:
    placed = host_of(view, session)
    return placed is not None and placed.name == host.name


async def _compared(
    pair: tuple[_Side, _Side], plan: AtOwner, block: Block, spent: str, timed: str = ""
) -> list[Row]:
    """The rows of *block*: the CPU of what it has *spent*, and the time of what it has *timed*."""
    rounds = plan.stream_rounds if block is _paced else plan.rounds
    sides = [partial(block, side, plan) for side in pair]
    await in_turns(sides, 1)  # what is done once is not measured
    a, b = await in_turns(sides, rounds)
    found = [
        paired(f"CPU of the host, {spent}", "host", a, b, unit="us", bound=BOUND),
        paired(f"CPU of the client, {spent}", "client", a, b, unit="us", bound=None),
    ]
    if timed:
        found.insert(0, paired(f"{timed}, p50", "p50", a, b, unit="ms", bound=BOUND))
    return found
