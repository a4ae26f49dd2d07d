"""Short turns on one, two and four hosts: what a turn costs the hosts, and PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from functools import partial

import msgspec

from benchmarks.cluster.figures import Measured, in_turns, paired
from benchmarks.cluster.processes import Host, Stage, following
from benchmarks.report import Row
from llmsession import SessionConfig
from llmsession.cluster import connect_cluster
from llmsession.transport import RemoteSession

__all__ = ["Throughput", "rows"]

BOUND = 1.1
CONFIG = SessionConfig(model="short")


class Throughput(msgspec.Struct, frozen=True):
    """How much is measured. Each host has as many *senders*, each with a session of its own."""

    hosts: tuple[int, ...] = (1, 2, 4)
    senders: int = 16
    window_s: float = 1.5
    rounds: int = 15


class _Cluster(msgspec.Struct, frozen=True):
    stage: Stage
    hosts: list[Host]
    sessions: list[RemoteSession]

    async def turns(self, window_s: float) -> Measured:
        """What short turns cost while every session has one after the other for *window_s*."""
        count = 0

        async def send(session: RemoteSession) -> None:
            nonlocal count
            while time.perf_counter() < until:
                await (await session.send("hi")).outcome()
                count += 1

        begun = time.perf_counter()
        until = begun + window_s
        postgres = self.stage.postgres_cpu()
        before = {host.pid: host.cpu_s() for host in self.hosts}
        await asyncio.gather(*map(send, self.sessions))
        took_s = time.perf_counter() - begun
        spent_s = sum(host.cpu_s() - before[host.pid] for host in self.hosts)
        return {
            "host": spent_s / count * 1e6,
            "postgres": self.stage.postgres_cpu_since(postgres) / count * 1e6,
            "rate": count / took_s,
        }


async def rows(stage: Stage, plan: Throughput) -> list[Row]:
    """The rows: the CPU of the hosts for a turn, beside one host."""
    async with AsyncExitStack() as stack:
        clusters = [await _cluster(stack, stage, count, plan.senders) for count in plan.hosts]
        sides = [partial(cluster.turns, plan.window_s) for cluster in clusters]
        await in_turns(sides, 1)  # what is done once is not measured
        found = await in_turns(sides, plan.rounds)
    rows = []
    for count, ours in zip(plan.hosts[1:], found[1:], strict=True):
        name = f"CPU of the hosts, a short turn on {count} hosts"
        note = f"{_share(found[0])} with one host, {_share(ours)} with {count}"
        rows.append(paired(name, "host", ours, found[0], unit="us", bound=BOUND, note=note))
    return rows


def _share(found: list[Measured]) -> str:
    """How fast the turns were, and what PostgreSQL had of the CPU."""
    middle = sorted(found, key=lambda figures: figures["postgres"])[len(found) // 2]
    share = middle["postgres"] / (middle["postgres"] + middle["host"])
    return f"{middle['rate']:,.0f} turns/s, PostgreSQL {middle['postgres']:.0f} us ({share:.0%})"


async def _cluster(stack: AsyncExitStack, stage: Stage, hosts: int, senders: int) -> _Cluster:
    """A cluster of *hosts*, with sessions that are spread over them as they are placed."""
    dsn = stage.database()
    started = await asyncio.to_thread(stage.start, dsn, *"abcdefgh"[:hosts])
    stack.callback(stage.stop, started)
    await stack.enter_async_context(following(stage, dsn, *["up"] * hosts))
    addresses = [host.address for host in started]
    manager = await stack.enter_async_context(connect_cluster(addresses))
    sessions = [await manager.create(CONFIG) for _ in range(hosts * senders)]
    return _Cluster(stage, started, sessions)
