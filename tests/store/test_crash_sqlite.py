"""Processes that write into a SQLite file and are killed, at every write and at any moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.store.crash.life import read_told
from tests.store.crash.nursery import Nursery, Order
from tests.store.crash.verdict import judge
from tests.store.crash.write_points import How

pytestmark = pytest.mark.real_time
SIGKILL = 9


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # the children are what is tested here, and theirs is asyncio


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


class Ward:
    """Lives on SQLite files, each on its own, and what became of each."""

    def __init__(self, nursery: Nursery, folder: Path) -> None:
        self.nursery = nursery
        self.folder = folder
        self.met: Counter[str] = Counter()
        self.lives = 0

    async def live(self, **order: object) -> int:
        """One life and its verdict. Returns the signal that ended it."""
        self.lives += 1
        path = self.folder / f"{self.lives}.db"
        told = self.folder / f"{self.lives}.told"
        ended_by = self.nursery.live(
            Order(address=f"sqlite:{path}", told=str(told), **order)  # type: ignore[arg-type]  # as named
        )
        self.told = read_told(str(told))
        self.met.update(await judge(f"sqlite:{path}", self.told))
        self.met[f"ended by {ended_by}"] += 1
        for file in self.folder.glob(f"{self.lives}.*"):
            file.unlink()
        return ended_by

    async def points_of(self, seed: int, rounds: int) -> int:
        """How many write points a life has that nobody ends."""
        assert await self.live(seed=seed, rounds=rounds) == 0
        (points,) = (each.count for each in self.told if each.what == "points")
        return points


@pytest.fixture
def ward(nursery: Nursery, tmp_path: Path) -> Ward:
    return Ward(nursery, tmp_path)


@pytest.mark.parametrize("how", ["kill", "tear"])
async def test_what_was_shown_is_there_after_a_kill_at_a_write_point(ward: Ward, how: How) -> None:
    points = await ward.points_of(seed=1, rounds=3)
    assert points > 60
    for at in sorted(Random(how).sample(range(1, points + 1), 20)):
        assert await ward.live(seed=1, rounds=3, at=at, how=how) == SIGKILL
    assert ward.met["shown"] > 200
    assert ward.met["went on from an open turn"] > 3


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("how", ["kill", "tear"])
@pytest.mark.parametrize("seed", [1, 2])
async def test_what_was_shown_is_there_after_a_kill_at_every_write_point(
    ward: Ward, how: How, seed: int
) -> None:
    points = await ward.points_of(seed=seed, rounds=4)
    for at in range(1, points + 1):
        await ward.live(seed=seed, rounds=4, at=at, how=how)
    print(f"{points} write points, {how}: {dict(ward.met)}")
    assert ward.met["ended by 9"] >= 0.9 * points  # timing moves the last ones a little


async def test_what_was_shown_is_there_after_a_kill_at_any_moment(ward: Ward) -> None:
    await _kill_at_random(ward, 25, seed=7)
    assert ward.met["ended by 9"] == 25
    assert ward.met["shown"] > 200


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_what_was_shown_is_there_after_a_thousand_kills_at_any_moment(ward: Ward) -> None:
    await _kill_at_random(ward, 1000, seed=8)
    print(f"1,000 kills: {dict(ward.met)}")
    assert ward.met["ended by 9"] == 1000


async def _kill_at_random(ward: Ward, kills: int, *, seed: int) -> None:
    random = Random(seed)
    for at in range(kills):
        await ward.live(seed=at, rounds=100_000, killed_after_s=random.uniform(0.02, 0.4))


@pytest.mark.parametrize("how", ["full", "broken"])
async def test_a_disk_that_fails_loses_nothing_that_was_shown(ward: Ward, how: How) -> None:
    points = await ward.points_of(seed=3, rounds=3)
    for at in sorted(Random(how).sample(range(1, points + 1), 10)):
        assert await ward.live(seed=3, rounds=3, at=at, how=how) == 0
    assert ward.met["failed"] > 5
