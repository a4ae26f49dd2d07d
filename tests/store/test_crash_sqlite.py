"""Processes that write into a SQLite file and are killed, at every write and at any moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.crash.nursery import Nursery
from tests.store.crash.ward import Ward, spread
from tests.store.crash.write_points import How

# The children are what is tested here, and theirs is asyncio.
pytestmark = [pytest.mark.real_time, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


@pytest.fixture
def ward(nursery: Nursery, tmp_path: Path) -> Ward:
    return Ward(nursery, tmp_path)


@pytest.mark.parametrize("how", ["kill", "tear"])
async def test_what_was_shown_is_there_after_a_kill_at_a_write_point(ward: Ward, how: How) -> None:
    points = ward.points_of(seed=4, rounds=2, vacuum=True)
    for at in spread(3, points):
        await ward.killed_at(at, seed=4, rounds=2, vacuum=True, how=how)
    assert ward.met["ended by 9"] == 3
    assert ward.met["shown"] > 7
    assert ward.met["sessions"] > 3
    assert ward.met["snapshots"] > 0


@pytest.mark.parametrize("how", ["kill", "tear"])
async def test_a_recovery_may_be_killed_at_a_write_point_too(ward: Ward, how: How) -> None:
    before = ward.crashed(2)
    points = ward.points_of(before, seed=2, rounds=1)
    for at in spread(3, points):
        await ward.killed_at(at, before, seed=2, rounds=1, how=how)
    assert ward.met["ended by 9"] == 3 + 1  # and one before
    assert ward.met["went on from an open turn"] > 0


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("how", ["kill", "tear"])
@pytest.mark.parametrize("seed", [4, 6])
async def test_what_was_shown_is_there_after_a_kill_at_every_write_point(
    ward: Ward, how: How, seed: int
) -> None:
    points = ward.points_of(seed=seed, rounds=4, vacuum=True)
    for at in range(1, points + 1):
        await ward.one_life(seed=seed, rounds=4, vacuum=True, at=at, how=how)
    print(f"{points} write points, {how}: {dict(ward.met)}")
    assert ward.met["ended by 9"] >= 0.8 * points  # timing moves the last ones a little


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("how", ["kill", "tear"])
@pytest.mark.parametrize("seed", [2, 11])
async def test_a_recovery_may_be_killed_at_every_write_point(
    ward: Ward, how: How, seed: int
) -> None:
    before = ward.crashed(seed)
    points = ward.points_of(before, seed=seed, rounds=2, vacuum=True)
    for at in range(1, points + 1):
        await ward.one_life(before, seed=seed, rounds=2, vacuum=True, at=at, how=how)
    print(f"{points} write points of a recovery, {how}: {dict(ward.met)}")
    assert ward.met["ended by 9"] >= 0.8 * points


async def test_what_was_shown_is_there_after_a_kill_at_any_moment(ward: Ward) -> None:
    await ward.kill_at_random(8, seed=7)
    assert ward.met["ended by 9"] == 8
    assert ward.met["shown"] > 80
    assert ward.met["asked again"] > 2


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_what_was_shown_is_there_after_a_thousand_kills_at_any_moment(ward: Ward) -> None:
    await ward.kill_at_random(1000, seed=8)
    print(f"1,000 kills: {dict(ward.met)}")
    assert ward.met["ended by 9"] == 1000


@pytest.mark.parametrize("how", ["full", "broken"])
async def test_a_disk_that_fails_loses_nothing_that_was_shown(ward: Ward, how: How) -> None:
    points = ward.points_of(seed=8, rounds=2)
    for at in spread(3, points):
        assert await ward.one_life(seed=8, rounds=2, at=at, how=how) == 0
    assert ward.met["failed"] > 3
