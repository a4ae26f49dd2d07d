"""Hand-overs: of one session that is asked to move, and of many when another host joins."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import asyncpg  # type: ignore[import-untyped]  # it has no types of its own
import msgspec

from benchmarks.cluster.figures import absolute
from benchmarks.cluster.processes import READY_S, Host, Stage, cpu_s, following, until_hosts
from benchmarks.report import Row, percentile
from llmsession import SessionConfig, records
from llmsession.cluster import connect_cluster, host_of
from llmsession.cluster.directory import Directory
from llmsession.errors import SessionError
from llmsession.transport import RemoteManager, RemoteSession

__all__ = ["Moves", "one_session", "scale_up"]

CONFIG = SessionConfig(model="short")
MOST_MS = 20.0
MOST = 1.0
"""Milliseconds for each of many: 1,000 a second."""
LOOK_S = 0.02
PAUSE_S = 0.05
AT_ONCE = 64


class Moves(msgspec.Struct, frozen=True):
    """How much is measured."""

    single: int = 60
    live: int = 6000
    """Sessions of two hosts. A third one joins, and is handed over a third of them."""
    senders: int = 8
    """Clients that go on sending meanwhile, to any of the sessions."""


async def one_session(stage: Stage, plan: Moves) -> list[Row]:
    """From the moment that a host is asked to hand a session over until the session's next send is
    accepted at the other host. The session has a subscriber, which follows it."""
    dsn = stage.database()
    hosts = stage.start(dsn, "a", "b")
    try:
        async with (
            following(stage, dsn, "up", "up") as directory,
            connect_cluster([host.address for host in hosts]) as sessions,
        ):
            session = await sessions.create(CONFIG)
            await (await session.send("hi")).outcome()
            took = await _moved_to_and_fro(session, directory, plan.single)
    finally:
        stage.stop(hosts)
    return [
        absolute(
            "hand-over of one session, p50",
            [percentile(took, 0.5)],
            MOST_MS,
            "ms",
            f"p90 {percentile(took, 0.9):.1f} ms; until its next send is accepted elsewhere",
        )
    ]


async def _moved_to_and_fro(
    session: RemoteSession, directory: Directory, count: int
) -> list[float]:
    took: list[float] = []
    events = session.subscribe(after=0)
    placed = host_of(directory.view, session.id)
    assert placed is not None
    names = ["a", "b"] if placed.name == "a" else ["b", "a"]
    for _ in range(count):
        source = directory.view.by_name(names[0])
        assert source is not None
        begun = time.perf_counter()
        await directory.ask_to_move(session.id, source, names[1])
        async for event in events:
            if isinstance(event, records.SessionHandedOver):
                break
        turn = await session.send("hi")
        took.append((time.perf_counter() - begun) * 1e3)
        await turn.outcome()
        names.reverse()
    events.close()
    return took


# A host joins.


class _Traffic:
    """Clients that send to any of the sessions, one turn after the other."""

    def __init__(self, sessions: Sequence[RemoteSession], senders: int) -> None:
        self._sessions = sessions
        self._tasks = [asyncio.create_task(self._send(number)) for number in range(senders)]
        self.took_ms: list[float] = []
        self.refused: list[SessionError] = []

    async def _send(self, number: int) -> None:
        choose = random.Random(number).choice
        while True:
            begun = time.perf_counter()
            try:
                turn = await choose(self._sessions).send("hi")
                self.took_ms.append((time.perf_counter() - begun) * 1e3)
                await turn.outcome()
            except SessionError as error:
                self.refused.append(error)
            await asyncio.sleep(PAUSE_S)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def scale_up(stage: Stage, plan: Moves) -> list[Row]:
    """A third host joins two that have live sessions, each with a subscriber, while clients send.

    The time begins when the third host is up in the list of hosts. It ends when each of the
    sessions that are its share has been given up by its host (released), and when each has been
    opened at the new one by the client that followed (reopened).
    """
    dsn = stage.database()
    hosts = stage.start(dsn, "a", "b")
    try:
        async with AsyncExitStack() as stack:
            directory = await stack.enter_async_context(following(stage, dsn, "up", "up"))
            sessions = await _live(stack, hosts, plan.live)
            hosts += await asyncio.to_thread(stage.start, dsn, "c")
            traffic = _Traffic(sessions, plan.senders)
            stack.push_async_callback(traffic.end)
            await until_hosts(directory, "up", "up", "up")
            begun = time.perf_counter()
            traffic.took_ms.clear()
            target = directory.view.by_name("c")
            assert target is not None
            looked = _Owners(stage, dsn, directory, [session.id for session in sessions])
            parts = {"the hosts": [host.pid for host in hosts], "the client": [os.getpid()]}
            cpu = {name: sum(map(cpu_s, pids)) for name, pids in parts.items()}
            postgres = stage.postgres_cpu()
            released_s, reopened_s = await looked.until_moved(begun)
            spent_s = {name: sum(map(cpu_s, pids)) - cpu[name] for name, pids in parts.items()}
            spent_s["PostgreSQL"] = stage.postgres_cpu_since(postgres)
            await traffic.end()
    finally:
        stage.stop(hosts)
    moved, sent, refused = looked.due, len(traffic.took_ms), traffic.refused
    released_ms, reopened_ms = released_s / moved * 1e3, reopened_s / moved * 1e3
    note = f"{moved} of {plan.live} live sessions moved; {sent} sends meanwhile"
    took_ms = traffic.took_ms or [0.0]  # on a busy machine none may be over
    slow = (
        f"the sends took {percentile(took_ms, 0.5):.0f} ms (p50),"
        f" {max(took_ms):.0f} ms at most; CPU for each session that moved, with the sends: "
        + ", ".join(f"{name} {each / moved * 1e3:.2f} ms" for name, each in spent_s.items())
    )
    return [
        absolute("a host joins: each session released", [released_ms], MOST, "ms", note),
        absolute("a host joins: each is open there", [reopened_ms], MOST, "ms", slow),
        Row(
            name="a host joins: commands refused",
            ours=len(refused),
            bare=1.0,
            unit="commands",
            bound=0.0,
            note=f"for example {refused[0]!r}" if refused else "",
        ),
    ]


async def _live(stack: AsyncExitStack, hosts: Sequence[Host], count: int) -> list[RemoteSession]:
    """Live sessions with a subscriber each, half of them made at each host. A few clients have
    them, as many as there are hosts."""
    sessions: list[RemoteSession] = []
    for host in hosts:
        addresses = [host.address, *(other.address for other in hosts if other is not host)]
        await _sees_all_up(host, len(hosts))
        manager = await stack.enter_async_context(connect_cluster(addresses))
        sessions += await _created(manager, count // len(hosts))
    for session in sessions:
        stack.push_async_callback(_closed, session.subscribe())
    await asyncio.gather(*(session.read_status() for session in sessions))
    return sessions


async def _sees_all_up(host: Host, hosts: int) -> None:
    """Wait until *host* sees that so many hosts are up. A client gets the view that its first host
    has then, and makes sessions where they are placed in it."""
    async with connect_cluster([host.address]) as manager, asyncio.timeout(READY_S):
        while True:
            cluster = (await manager.statistics(limit=1)).cluster
            if cluster is not None and [each.state for each in cluster.hosts].count("up") == hosts:
                return
            await asyncio.sleep(LOOK_S)


async def _created(manager: RemoteManager, count: int) -> list[RemoteSession]:
    room = asyncio.Semaphore(AT_ONCE)

    async def create() -> RemoteSession:
        async with room:
            return await manager.create(CONFIG)

    return list(await asyncio.gather(*(create() for _ in range(count))))


async def _closed(events: object) -> None:
    events.close()  # type: ignore[attr-defined]


class _Owners:
    """Who owns the sessions that are the share of the newest host, by the store."""

    def __init__(
        self, stage: Stage, dsn: str, directory: Directory, sessions: Sequence[str]
    ) -> None:
        self._dsn = dsn
        self._view = directory.view
        self._due = [session for session in sessions if _placed(directory, session) == "c"]
        self.due = len(self._due)

    async def until_moved(self, begun: float) -> tuple[float, float]:
        """The seconds since *begun* until all were released, and until the new host had all."""
        target = self._view.by_name("c")
        assert target is not None
        old = [host.incarnation for host in self._view.hosts if host is not target]
        connection = await asyncpg.connect(self._dsn)
        statement = """
            SELECT count(*) FILTER (WHERE owner = ANY($2)) AS held,
                   count(*) FILTER (WHERE owner = $3) AS taken
              FROM llmsession.session WHERE id = ANY($1)"""
        released_s = 0.0
        try:
            async with asyncio.timeout(READY_S):
                while True:
                    row = await connection.fetchrow(statement, self._due, old, target.incarnation)
                    now_s = time.perf_counter() - begun
                    if not released_s and row["held"] == 0:
                        released_s = now_s
                    if row["taken"] == self.due:
                        return released_s, now_s
                    await asyncio.sleep(LOOK_S)
        finally:
            await connection.close()


def _placed(directory: Directory, session: str) -> str:
    host = host_of(directory.view, session)
    return "" if host is None else host.name
