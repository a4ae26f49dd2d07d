"""The cluster's benchmark in a small form, with real processes; and what its figures mean."""

from __future__ import annotations

import math

import pytest

from benchmarks.cluster.at_owner import AtOwner
from benchmarks.cluster.failures import Failures
from benchmarks.cluster.figures import Measured, absolute, in_turns, paired
from benchmarks.cluster.many import Placement, StartUp, joined, view_of
from benchmarks.cluster.moves import Moves
from benchmarks.cluster.processes import staged
from benchmarks.cluster.table import GROUPS, Plan
from benchmarks.cluster.throughput import Throughput
from llmsession.cluster import host_of
from tests.store.postgres.server import NoServer

SMALL = Plan(
    at_owner=AtOwner(rounds=1, sends=3, interrupts=2, streams=2, stream_rounds=1, window_s=0.5),
    failures=Failures(sessions=2, killed=1, lost=1),
    moves=Moves(single=2, live=30, senders=2),
    throughput=Throughput(hosts=(1, 2), senders=2, window_s=0.2, rounds=1),
    placement=Placement(hosts=20, sessions=2_000, cached=100),
    start_up=StartUp(sizes=(10, 100), rounds=1),
)


@pytest.mark.real_time
@pytest.mark.sockets
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", GROUPS)
def test_a_group_of_rows_is_measured_with_real_processes(name: str) -> None:
    try:
        with staged() as stage:
            rows = GROUPS[name](stage, SMALL)
    except NoServer as error:
        pytest.skip(f"no PostgreSQL can be run here: {error}")
    assert len({row.name for row in rows}) == len(rows)
    assert all(math.isfinite(row.ours) and row.ours >= 0 for row in rows)


def test_the_share_that_a_join_moves_is_counted_as_the_placement_decides_it() -> None:
    before, after = view_of(1, 7), view_of(2, 8)
    names = [f"session {at}" for at in range(500)]
    moved = sum(host_of(before, name) != host_of(after, name) for name in names)
    assert joined(7, range(500)) == moved


async def test_sides_take_turns_and_each_is_the_first_one_once() -> None:
    order: list[str] = []

    async def a() -> Measured:
        order.append("a")
        return {"p50": 2.0}

    async def b() -> Measured:
        order.append("b")
        return {"p50": 1.0}

    ours, bare = await in_turns([a, b], 2)
    assert order == ["a", "b", "b", "a"]
    assert paired("p50", "p50", ours, bare, unit="ms", bound=1.15).ratios == (2.0, 2.0)


def test_a_figure_that_is_not_reached_in_time_is_over_its_bound() -> None:
    assert absolute("answers", [0.9], 1.0, "s").holds
    assert not absolute("answers", [math.inf], 1.0, "s").holds
