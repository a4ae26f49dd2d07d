"""Each fault is tried with the seeds of LLMSESSION_FAULT_SEEDS ("1 2 3"); by default once."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.cluster.faults.world import World, a_world
from tests.store.postgres.server import NoServer, PostgresServer, running_server

SEEDS = [int(seed) for seed in os.environ.get("LLMSESSION_FAULT_SEEDS", "1").split()]


@pytest.fixture(params=SEEDS)
def seed(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="session")
def cluster_server() -> Iterator[PostgresServer]:
    """A PostgreSQL that a test may restart."""
    try:
        with running_server() as server:
            yield server
    except NoServer as error:
        pytest.skip(f"no PostgreSQL can be run here: {error}")


@pytest.fixture
async def world(cluster_server: PostgresServer, tmp_path: Path) -> AsyncIterator[World]:
    """A cluster whose hosts have a machine each."""
    async with a_world(cluster_server, tmp_path) as world:
        yield world
