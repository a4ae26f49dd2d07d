"""Faults of all kinds at random, one after the other and two at a time, under load."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from tests.cluster.faults.world import World

pytestmark = [pytest.mark.real_time, pytest.mark.sockets, pytest.mark.long]

ROUNDS = 8


async def killed(world: World, name: str, random: Random) -> None:
    world.hosts[name].signal(signal.SIGKILL)
    await world.hosts[name].ended()
    await world.start(name)


async def stopped(world: World, name: str, random: Random) -> None:
    world.hosts[name].signal(signal.SIGSTOP)
    await asyncio.sleep(random.uniform(0.5, 5))
    world.hosts[name].signal(signal.SIGCONT)


async def without_database(world: World, name: str, random: Random) -> None:
    wire = world.hosts[name].to_postgres
    wire.set(random.choice(("cut", "silent")))
    await asyncio.sleep(random.uniform(0.5, 5))
    wire.set("whole")


async def without_clients(world: World, name: str, random: Random) -> None:
    wire = world.hosts[name].to_clients
    wire.set(random.choice(("cut", "silent")))
    await asyncio.sleep(random.uniform(0.5, 5))
    wire.set("whole")


async def ended_connections(world: World, name: str, random: Random) -> None:
    await asyncio.to_thread(world.end_connections)


async def replaced(world: World, name: str, random: Random) -> None:
    world.hosts[name].signal(signal.SIGTERM)
    assert await world.hosts[name].ended() == 0
    await world.start(name)


FAULTS: tuple[Callable[[World, str, Random], Awaitable[None]], ...] = (
    killed, stopped, without_database, without_clients, ended_connections, replaced,
)  # fmt: skip


async def test_sessions_go_on_after_faults_at_random(world: World, seed: int) -> None:
    random = Random(seed)
    await world.start("a", "b", "c")
    async with world.load(seed, allows=("StoreError",), sessions=6) as load:
        for _ in range(ROUNDS):
            names = random.sample("abc", random.choice((1, 1, 2)))
            await asyncio.gather(*(random.choice(FAULTS)(world, name, random) for name in names))
        await load.progressed(3)
