"""A host that dies or stands still: until its sessions answer elsewhere, and its turns go on."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Awaitable, Sequence

import asyncpg  # type: ignore[import-untyped]  # it has no types of its own
import msgspec

from benchmarks.cluster.figures import absolute
from benchmarks.cluster.processes import (
    Host,
    Stage,
    following,
    is_unseen_possible,
    until_hosts,
)
from benchmarks.report import Row
from llmsession import SessionConfig, records
from llmsession.cluster import connect_cluster, host_of
from llmsession.cluster.directory import Directory
from llmsession.transport import RemoteManager, RemoteSession

__all__ = ["Failures", "killed", "lost"]

MOST_KILLED_S = 1.0
MOST_LOST_S = 3.0
LOOK_S = 0.01
SILENCE_S = 0.5
"""How clients are tuned for a network that is good: see ``connect_cluster``."""
WAIT_S = 20.0
"""Longer than a lease."""
IDLE = SessionConfig(model="short")
OPEN = SessionConfig(model="slow", recovery="resume")


class Failures(msgspec.Struct, frozen=True):
    """How much is measured. Each host has as many sessions that are idle, sessions with an open
    turn that a client follows, and sessions with an open turn that nobody follows."""

    sessions: int = 20
    killed: int = 3
    lost: int = 2


async def killed(stage: Stage, plan: Failures) -> list[Row]:
    """``kill -9`` of one of three hosts, on one machine."""
    found = await _failed(stage, plan, plan.killed, is_lost=False)
    return _rows("a host is killed", found, MOST_KILLED_S)


async def lost(stage: Stage, plan: Failures) -> list[Row]:
    """One of three hosts stands still for ever. The others cannot see its process, as if it ran on
    another machine."""
    if not is_unseen_possible():
        return []
    found = await _failed(stage, plan, plan.lost, is_lost=True)
    return _rows("a node is frozen", found, MOST_LOST_S)


class _Found(msgspec.Struct):
    """Seconds since the failure."""

    answered: float
    resumed: float
    resumed_alone: float


def _rows(what: str, found: Sequence[_Found], most_s: float) -> list[Row]:
    return [
        absolute(f"{what}: {until}", [getattr(each, name) for each in found], most_s, "s")
        for until, name in (
            ("all its idle sessions have accepted a send", "answered"),
            ("all its open turns go on, as their subscribers see", "resumed"),
            ("all its open turns that nobody follows go on", "resumed_alone"),
        )
    ]


async def _failed(stage: Stage, plan: Failures, rounds: int, *, is_lost: bool) -> list[_Found]:
    dsn = stage.database()
    hosts = await asyncio.to_thread(stage.start, dsn, "a", "b", "c", unseen=is_lost)
    found = []
    try:
        async with following(stage, dsn, "up", "up", "up") as directory:
            for round_ in range(rounds):
                if round_:
                    hosts += await asyncio.to_thread(stage.start, dsn, f"d{round_}", unseen=is_lost)
                    await until_hosts(directory, "up", "up", "up")
                victim, *others = hosts
                found.append(await _one(stage, plan, dsn, victim, others, is_lost=is_lost))
                stage.stop([victim])
                hosts = others
    finally:
        stage.stop(hosts)
    return found


async def _one(
    stage: Stage, plan: Failures, dsn: str, victim: Host, others: list[Host], *, is_lost: bool
) -> _Found:
    addresses = [victim.address, *(host.address for host in others)]
    watched, joined = stage.watch(dsn), connect_cluster(addresses, silence_s=SILENCE_S)
    async with watched as directory, joined as sessions:
        own = directory.view.by_name(victim.name)
        assert own is not None
        idle = await _made(sessions, directory, victim, plan.sessions, IDLE)
        followed = await _made(sessions, directory, victim, plan.sessions, OPEN)
        alone = await _made(sessions, directory, victim, plan.sessions, OPEN)
        for session in (*followed, *alone):
            await session.send("go")
        events = [session.subscribe() for session in followed]
        await asyncio.gather(*(session.read_status() for session in followed))
        looking = await _Alone.begun(dsn, [session.id for session in alone])
        begun = time.perf_counter()
        victim.signal(signal.SIGSTOP if is_lost else signal.SIGKILL)

        async def answered() -> float:
            await asyncio.gather(*(session.send("hi") for session in idle))
            return time.perf_counter() - begun

        async def resumed() -> float:
            await asyncio.gather(*map(_until_resumed, events))
            return time.perf_counter() - begun

        async def resumed_alone() -> float:
            await looking.until_resumed()
            return time.perf_counter() - begun

        found = await asyncio.gather(*map(_in_time, (answered(), resumed(), resumed_alone())))
        for each in events:
            each.close()
        async with asyncio.timeout(WAIT_S):  # or they go on when the next host fails
            await asyncio.gather(*(session.interrupt() for session in (*followed, *alone)))
        return _Found(*found)


async def _in_time(measured: Awaitable[float]) -> float:
    """What *measured* returns, and infinity where it does not in time."""
    try:
        async with asyncio.timeout(WAIT_S):
            return await measured
    except TimeoutError:
        return math.inf


async def _made(
    sessions: RemoteManager, directory: Directory, host: Host, count: int, config: SessionConfig
) -> list[RemoteSession]:
    """Sessions that are placed on *host*."""
    made: list[RemoteSession] = []
    names = (f"{config.model} {time.perf_counter_ns()}" for _ in range(10_000))
    for name in names:
        placed = host_of(directory.view, name)
        if placed is not None and placed.name == host.name:
            made.append(await sessions.create(config, session_id=name))
        if len(made) == count:
            break
    return made


async def _until_resumed(events: object) -> None:
    async for event in events:  # type: ignore[attr-defined]
        if isinstance(event, records.TurnResumed):
            return


class _Alone:
    """Looks in the store whether turns go on: a turn that is resumed has one record more."""

    def __init__(self, connection: asyncpg.Connection, heads: dict[str, int]) -> None:
        self._connection = connection
        self._heads = heads

    @classmethod
    async def begun(cls, dsn: str, sessions: Sequence[str]) -> _Alone:
        connection = await asyncpg.connect(dsn)
        return cls(connection, await _heads(connection, sessions))

    async def until_resumed(self) -> None:
        try:
            while True:
                now = await _heads(self._connection, list(self._heads))
                if all(now[session] > head for session, head in self._heads.items()):
                    return
                await asyncio.sleep(LOOK_S)
        finally:
            await self._connection.close()


async def _heads(connection: asyncpg.Connection, sessions: Sequence[str]) -> dict[str, int]:
    statement = "SELECT id, head FROM llmsession.session WHERE id = ANY($1)"
    return {row["id"]: row["head"] for row in await connection.fetch(statement, sessions)}
