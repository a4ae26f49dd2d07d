"""Hosts that are killed, stopped, drained, replaced and added, under load.

Each test ends with the check of the history of all clients: see ``World.load``. In all of them no
operation and no subscription fails, because clients wait for a session longer than the fault lasts.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.cluster.faults.world import World, a_world
from tests.store.postgres.server import PostgresServer

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]

STOPPED_S = 20.0


async def test_sessions_go_on_when_a_host_is_killed(
    cluster_server: PostgresServer, tmp_path: Path, seed: int
) -> None:
    async with a_world(cluster_server, tmp_path, on_machines=False) as world:
        await world.start("a", "b")
        async with world.load(seed) as load:
            world.hosts["a"].signal(signal.SIGKILL)
            await load.progressed(5)


@pytest.mark.long
async def test_sessions_go_on_when_one_host_after_the_other_is_killed_and_comes_back(
    cluster_server: PostgresServer, tmp_path: Path, seed: int
) -> None:
    async with a_world(cluster_server, tmp_path, on_machines=False) as world:
        await world.start("a", "b")
        async with world.load(seed) as load:
            for name in "abab":
                world.hosts[name].signal(signal.SIGKILL)
                await load.progressed(2)
                await world.start(name)


@pytest.mark.long
async def test_sessions_go_on_when_a_machine_is_lost(world: World, seed: int) -> None:
    await world.start("a", "b", "c")
    async with world.load(seed) as load:
        world.hosts["a"].signal(signal.SIGKILL)
        world.hosts["a"].to_clients.set("silent")
        await load.progressed(5)


@pytest.mark.long
async def test_sessions_go_on_when_a_host_is_stopped_and_wakes_up(world: World, seed: int) -> None:
    await world.start("a", "b")
    async with world.load(seed) as load:
        world.hosts["a"].signal(signal.SIGSTOP)
        await asyncio.sleep(STOPPED_S)
        world.hosts["a"].signal(signal.SIGCONT)
        await load.progressed(5)


@pytest.mark.long
async def test_sessions_of_a_frozen_node_go_on_elsewhere_and_its_hosts_find_out(
    world: World, seed: int
) -> None:
    await world.start("a1", "a2", "b1")
    async with world.load(seed, sessions=6) as load:
        for name in ("a1", "a2"):
            world.hosts[name].signal(signal.SIGSTOP)
        await load.progressed(3)
        for name in ("a1", "a2"):
            world.hosts[name].signal(signal.SIGCONT)
        await load.progressed(5)


@pytest.mark.long
async def test_a_host_drains_and_no_command_fails(world: World, seed: int) -> None:
    await world.start("a", "b")
    async with world.load(seed, sessions=8, pause_s=0.4) as load:
        await world.cli("drain", "a")
        await load.progressed(5)
        assert "a  draining" in await world.cli("status")


@pytest.mark.long
async def test_a_cluster_grows_from_two_hosts_to_five_and_shrinks_again(
    world: World, seed: int
) -> None:
    await world.start("a", "b")
    async with world.load(seed, sessions=8, pause_s=0.4) as load:
        await world.start("c", "d", "e")
        await load.progressed(5)
        leaving = [world.hosts.pop(name) for name in ("a", "c", "e")]
        for host in leaving:
            host.signal(signal.SIGTERM)
        assert [await host.ended() for host in leaving] == [0, 0, 0]
        await load.progressed(5)


@pytest.mark.long
async def test_hosts_are_replaced_one_after_the_other(world: World, seed: int) -> None:
    await world.start("a", "b", "c")
    async with world.load(seed, sessions=8, pause_s=0.4) as load:
        for name in "abc":
            world.hosts[name].signal(signal.SIGTERM)
            assert await world.hosts[name].ended() == 0
            await world.start(name)
            await load.progressed(2)
