"""A host is killed under load: its sessions go on elsewhere, and nothing of them is lost."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cluster.faults.world import a_world
from tests.store.postgres.server import PostgresServer

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]


async def test_clients_go_on_when_a_host_of_their_machine_is_killed(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    async with a_world(postgres_server, tmp_path, on_machines=False) as world:
        await world.start("a", "b")
        async with world.load(seed=1) as load:
            world.hosts["a"].signal(signal.SIGKILL)
            await world.hosts["a"].ended()
            await load.progressed(5)
        assert load.errors == ()
        assert load.troubles == []
