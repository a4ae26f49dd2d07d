"""Clients and hosts lose each other under load, and hosts take sessions from each other."""

from __future__ import annotations

import asyncio

import pytest

from tests.cluster.faults.network import State
from tests.cluster.faults.world import World

pytestmark = [pytest.mark.real_time, pytest.mark.sockets, pytest.mark.long]


@pytest.mark.parametrize("state", ["cut", "silent"])
async def test_clients_go_on_when_they_cannot_reach_a_host_for_a_while(
    world: World, seed: int, state: State
) -> None:
    """The host goes on, and nobody else takes its sessions: clients wait for it."""
    await world.start("a", "b")
    async with world.load(seed) as load:
        for name in "ab":
            world.hosts[name].to_clients.set(state)
            await asyncio.sleep(6)
            world.hosts[name].to_clients.set("whole")
            await load.progressed(2)


async def test_clients_go_on_while_connections_break_again_and_again(
    world: World, seed: int
) -> None:
    await world.start("a", "b")
    async with world.load(seed) as load:
        for _ in range(20):
            for host in world.hosts.values():
                host.to_clients.set("cut")
                host.to_clients.set("whole")
            await load.progressed(1)


async def test_hosts_do_not_need_each_other(world: World, seed: int) -> None:
    """No host connects to another one: what is cut between hosts is the way of the clients that one
    of them sends to the other, so this cuts a host off from everybody but PostgreSQL."""
    await world.start("a", "b", "c")
    async with world.load(seed) as load:
        world.hosts["c"].to_clients.set("cut")
        await asyncio.sleep(3)
        await world.cli("drain", "c")
        await load.progressed(3)
