"""The whole table, in one run, with what else the machine did meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import msgspec

from benchmarks.cluster import at_owner, failures, many, moves, throughput
from benchmarks.cluster.processes import Stage, staged
from benchmarks.report import Row, settled
from tests.store.postgres.server import NoServer

__all__ = ["GROUPS", "Plan", "run"]


class Plan(msgspec.Struct, frozen=True):
    """How much is measured."""

    at_owner: at_owner.AtOwner = at_owner.AtOwner()
    failures: failures.Failures = failures.Failures()
    moves: moves.Moves = moves.Moves()
    throughput: throughput.Throughput = throughput.Throughput()
    placement: many.Placement = many.Placement()
    start_up: many.StartUp = many.StartUp()


Group: TypeAlias = Callable[[Stage, Plan], Sequence[Row]]

GROUPS: dict[str, Group] = {
    "at_owner": lambda stage, plan: asyncio.run(at_owner.rows(stage, plan.at_owner)),
    "killed": lambda stage, plan: asyncio.run(failures.killed(stage, plan.failures)),
    "lost": lambda stage, plan: asyncio.run(failures.lost(stage, plan.failures)),
    "one_session": lambda stage, plan: asyncio.run(moves.one_session(stage, plan.moves)),
    "scale_up": lambda stage, plan: asyncio.run(moves.scale_up(stage, plan.moves)),
    "throughput": lambda stage, plan: asyncio.run(throughput.rows(stage, plan.throughput)),
    "placement": lambda stage, plan: many.placement(plan.placement),
    "start_up": lambda stage, plan: asyncio.run(many.start_up(stage, plan.start_up)),
}


def run(plan: Plan | None = None) -> list[Row]:
    """All rows. A group is measured once more where one of its rows is over its bound."""
    plan = plan or Plan()
    try:
        with staged() as stage:
            return [
                row for group in GROUPS.values() for row in settled(partial(group, stage, plan))
            ]
    except NoServer as error:
        raise SystemExit(f"no PostgreSQL can be run here: {error}") from error
