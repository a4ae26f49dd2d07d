"""Processes that write into PostgreSQL and are killed, or lose their connections, at every message
that they send and at any moment."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from tests.store.crash.nursery import Nursery
from tests.store.crash.ward import Ward, spread
from tests.store.crash.write_points import How
from tests.store.postgres.server import PostgresServer

# The children are what is tested here, and theirs is asyncio.
pytestmark = [pytest.mark.real_time, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
SIGKILL = 9


@pytest.fixture
def ward(nursery: Nursery, tmp_path: Path, postgres_server: PostgresServer) -> Ward:
    return Ward(nursery, tmp_path, postgres_server.dsn)


@pytest.mark.parametrize("how", ["kill", "tear"])
async def test_what_was_shown_is_there_after_a_kill_at_a_message(ward: Ward, how: How) -> None:
    points = ward.points_of(seed=4, rounds=2)
    for at in spread(3, points):
        await ward.killed_at(at, seed=4, rounds=2, how=how)
    assert ward.met["ended by 9"] == 3
    assert ward.met["shown"] > 7
    assert ward.met["sessions"] > 3
    assert ward.met["snapshots"] > 0


@pytest.mark.parametrize("how", ["cut", "unanswered"])
async def test_a_connection_that_is_lost_at_a_message_loses_nothing_and_fails_nobody(
    ward: Ward, how: How
) -> None:
    points = ward.points_of(seed=4, rounds=2)
    for at in spread(3, points):
        assert await ward.one_life(seed=4, rounds=2, at=at, how=how) == 0
    assert ward.met["shown"] > 50
    assert ward.met["failed"] == 0  # it is back at once, and whatever was doubtful is found out


async def test_a_server_that_crashes_under_a_life_loses_nothing_that_was_shown(
    ward: Ward, postgres_server: PostgresServer
) -> None:
    patient = ward.admit()
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, partial(patient.live, seed=2, rounds=6))
        with anyio.fail_after(120):
            while len(patient.told) < 10:  # noqa: ASYNC110  # another process tells it
                await anyio.sleep(0.002)
        await anyio.to_thread.run_sync(postgres_server.restart)
    assert ward.met["ended by 0"] == 1
    await patient.judge()
    assert ward.met["shown"] > 20


async def test_what_was_shown_is_there_after_a_kill_at_any_moment(ward: Ward) -> None:
    await ward.kill_at_random(6, seed=9)
    assert ward.met["ended by 9"] == 6
    assert ward.met["shown"] > 40
    assert ward.met["asked again"] > 0


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("how", ["kill", "tear", "cut", "unanswered"])
async def test_what_was_shown_is_there_after_a_fault_at_every_message(ward: Ward, how: How) -> None:
    points = ward.points_of(seed=4, rounds=4)
    for at in range(1, points + 1):
        await ward.one_life(seed=4, rounds=4, at=at, how=how)
    print(f"{points} messages, {how}: {dict(ward.met)}")
    ended_by = f"ended by {SIGKILL if how in ('kill', 'tear') else 0}"
    assert ward.met[ended_by] >= 0.8 * points  # timing moves the last ones a little


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_what_was_shown_is_there_after_a_thousand_kills_at_any_moment(ward: Ward) -> None:
    await ward.kill_at_random(1000, seed=10)
    print(f"1,000 kills: {dict(ward.met)}")
    assert ward.met["ended by 9"] == 1000
