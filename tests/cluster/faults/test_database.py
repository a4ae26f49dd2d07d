"""PostgreSQL fails under load: restarted, slow, out of reach, or its connections end."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.cluster.faults.network import State
from tests.cluster.faults.world import World

pytestmark = [pytest.mark.real_time, pytest.mark.sockets, pytest.mark.long]

CUT_S = 20.0


async def test_sessions_go_on_after_the_database_was_restarted(world: World, seed: int) -> None:
    await world.start("a", "b")
    async with world.load(seed, allows=("StoreError",)) as load:
        for _ in range(3):
            await asyncio.to_thread(world.server.restart)
            await load.progressed(2)


async def test_sessions_go_on_after_connections_to_the_database_were_ended(
    world: World, seed: int
) -> None:
    await world.start("a", "b")
    async with world.load(seed, allows=("StoreError",)) as load:
        for _ in range(10):
            await asyncio.to_thread(world.end_connections)
            await load.progressed(1)


async def test_a_slow_database_makes_everything_slow_and_nothing_wrong(
    world: World, seed: int
) -> None:
    await world.start("a", "b")
    async with world.load(seed) as load:
        for host in world.hosts.values():
            host.to_postgres.delay_s = 0.3
        await load.progressed(3)


@pytest.mark.parametrize("state", ["cut", "silent"])
async def test_the_sessions_of_a_host_that_cannot_reach_the_database_go_on_elsewhere(
    world: World, seed: int, state: State
) -> None:
    await world.start("a", "b")
    async with world.load(seed, allows=("StoreError",)) as load:
        world.hosts["a"].to_postgres.set(state)
        await asyncio.sleep(CUT_S)
        world.hosts["a"].to_postgres.set("whole")
        await load.progressed(5)


async def test_a_host_that_is_ended_while_it_cannot_reach_the_database_ends(
    world: World, seed: int
) -> None:
    await world.start("a", "b")
    async with world.load(seed, allows=("StoreError",)) as load:
        world.hosts["a"].to_postgres.set("cut")
        await asyncio.sleep(3)
        world.hosts["a"].signal(signal.SIGTERM)
        assert await world.hosts["a"].ended() == 0
        await load.progressed(3)
