"""What was shown is on the disk after the power was lost, whatever else the disk has kept."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from random import Random
from unittest import mock

import pytest

from llmsession.store import Owner, SqliteStore
from llmsession.store.liveness import this_host
from llmsession.store.sqlite import checkpoints as sqlite_checkpoints
from llmsession.store.sqlite.file import PAGE_BYTES
from tests.store.crash.life import Plan, Told, live
from tests.store.crash.power import Image, PowerDisk, power_disk
from tests.store.crash.verdict import judge

# What is tested here lies in files.
pytestmark = [pytest.mark.real_time, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


class Outages:
    """A life, and what the disk may hold where the power went: a share of all the moments at which
    something was done to it. With each, what had been told then."""

    def __init__(self, seed: int, share: float) -> None:
        self._random = Random(seed)
        self._share = share
        self._seed = seed
        self.told: list[Told] = []
        self.moments = 0
        self.images: list[tuple[Image, int]] = []
        self._disk: PowerDisk

    def _after(self) -> None:
        self.moments += 1
        if self._random.random() < self._share:
            told = len(self.told)
            self.images.append((self._disk.without_power(self._random), told))

    async def live(self, path: Path, rounds: int) -> None:
        # Nobody lives through the loss of power; the verdict is given in this process, too.
        lost = mock.patch("llmsession.session.registry.runtime.this_process", _process_before)
        with power_disk(self._after) as self._disk, lost:
            for number in (1, 2):  # the second one opens what the first one left
                store = SqliteStore(path, vfs=self._disk.vfs)
                plan = Plan(f"{self._seed}/{number}", rounds)
                await live(store, lambda **fields: self.told.append(Told(**fields)), plan)
                store = SqliteStore(path, vfs=self._disk.vfs)
                await store.vacuum()
                await store.aclose()

    async def judge(self, folder: Path) -> Counter[str]:
        """Have every image used by somebody else, on a machine that has its power back."""
        met: Counter[str] = Counter()
        for at, (image, told) in enumerate(self.images):
            here = folder / str(at)
            here.mkdir()
            for name, content in image.items():
                (here / name).write_bytes(content)
            met.update(await judge(f"sqlite:{here / 's.db'}", self.told[:told]))
        return met


def _process_before(name: str) -> Owner:
    return Owner(name, os.getpid(), "0", this_host())


@pytest.fixture
def often_checkpointed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_checkpoints, "CHECKPOINT_PAGES", 30)
    monkeypatch.setattr(sqlite_checkpoints, "PASS_BYTES", 10 * PAGE_BYTES)
    monkeypatch.setattr(sqlite_checkpoints, "SMALL_PASS_BYTES", 10 * PAGE_BYTES)


@pytest.mark.usefixtures("often_checkpointed")
async def test_what_was_shown_is_there_after_the_power_was_lost(tmp_path: Path) -> None:
    outages = Outages(seed=4, share=0.02)
    await outages.live(tmp_path / "s.db", rounds=2)
    met = await outages.judge(tmp_path)
    print(outages.moments, len(outages.images), dict(met))
    # How the writer's batches fall together is up to the machine: about 25 outages, give or take 5.
    assert len(outages.images) > 10
    assert met["shown"] > 100
    assert met["went on from an open turn"] > 0


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("often_checkpointed")
@pytest.mark.parametrize("seed", range(6))
async def test_what_was_shown_is_there_after_the_power_was_lost_at_any_moment(
    tmp_path: Path, seed: int
) -> None:
    outages = Outages(seed, share=0.5)
    await outages.live(tmp_path / "s.db", rounds=3)
    met = await outages.judge(tmp_path)
    print(f"{outages.moments} moments, {len(outages.images)} outages: {dict(met)}")
    assert len(outages.images) > 100
