"""Several processes that live on one store at the same time: none is told of the others' locks, and
one that is killed takes nothing from the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from tests.store.crash.nursery import Nursery
from tests.store.crash.verdict import judge
from tests.store.crash.ward import Patient, Ward

# The children are what is tested here, and theirs is asyncio.
pytestmark = [pytest.mark.real_time, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
LIVES = 3
SIGKILL = 9


@pytest.fixture(scope="module")
def nurseries() -> Iterator[list[Nursery]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Nursery()) for _ in range(LIVES)]


@pytest.fixture(params=["sqlite", "postgres"])
def wards(request: pytest.FixtureRequest, nurseries: list[Nursery], tmp_path: Path) -> list[Ward]:
    """A ward for each life."""
    dsn = request.getfixturevalue("postgres_server").dsn if request.param == "postgres" else ""
    return [Ward(nursery, tmp_path, dsn) for nursery in nurseries]


async def live_together(wards: list[Ward], kills: dict[int, float]) -> list[Patient]:
    """A life in each ward at once, each with sessions of its own, all on one place. Those of
    *kills* are killed so many seconds after their first word."""
    place = wards[0].admit().place
    patients = [
        Patient(ward, place, ward.folder / f"{at}.told of it") for at, ward in enumerate(wards)
    ]

    def live(at: int) -> None:
        after_s = kills.get(at)
        ended_by = patients[at].live(
            seed=at,
            rounds=4 if after_s is None else 100_000,
            sessions=(f"{at}a", f"{at}b"),
            killed_after_s=after_s,
        )
        assert ended_by == (0 if after_s is None else SIGKILL)

    async with anyio.create_task_group() as group:
        for at in range(LIVES):
            group.start_soon(anyio.to_thread.run_sync, live, at)
    return patients


@pytest.mark.parametrize("kills", [{}, {0: 0.05, 1: 0.15}], ids=["all live", "two are killed"])
async def test_lives_on_one_store_are_told_of_no_lock_and_lose_nothing(
    wards: list[Ward], kills: dict[int, float]
) -> None:
    patients = await live_together(wards, kills)
    told = [each for patient in patients for each in patient.told]
    assert [each for each in told if each.what == "failed"] == []
    assert {each.session[0] for each in told if each.what == "answered"} == {"0", "1", "2"}
    met = await judge(patients[0].place, told)
    assert met["shown"] > 20
    assert met["sessions"] >= 4
