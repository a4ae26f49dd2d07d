"""Simulation: no seed violates an invariant, a seed is one run, and a broken rule is found and
shrunk to a few steps."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from random import Random
from typing import Any

import anyio
import msgspec
import pytest

from llmsession.errors import InvalidInput
from llmsession.session.core.subscriptions import Subscriptions
from llmsession.session.registry import reactivation
from llmsession.session.values.config import CompactionConfig, SessionConfig, Tool
from llmsession.store.memory import MemoryStore
from llmsession.store.protocol import Appended
from llmsession.testing import SimulationPlan, UserParts, run_schedule, schedule_of, simulate
from llmsession.testing.recording.entries import encode_lines
from llmsession.testing.simulation.run import SimRun
from llmsession.testing.simulation.schedule import (
    Change,
    Disk,
    Interrupt,
    Kill,
    Schedule,
    Send,
    Step,
)
from llmsession.testing.simulation.search import SimulationReport, shrink
from llmsession.testing.simulation.virtual_time import run_seeded

CHUNKS, SEEDS = 2, 6


def told(run: SimRun) -> str:
    return "\n".join([str(run.schedule), *map(str, run.violations)])


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_seed_violates_an_invariant(chunk: int) -> None:
    report = simulate(SimulationPlan(seed=chunk * SEEDS, seeds=SEEDS))
    assert not report.failures, told(report.failures[0].run)
    assert report.runs == SEEDS


@pytest.fixture(scope="module")
def some() -> SimulationReport:
    return simulate(SimulationPlan(seed=100_000, seeds=16))


REACHED = (
    "machine: ReplyFinished in STREAMING",
    "machine: ReplyRequestedTools in STREAMING",
    "machine: StreamBroke in STREAMING",
    "machine: AllCallsAnswered in TOOLS",
    "machine: LimitReached in",
    "machine: StoppedToDrop in STOPPING",
    "machine: StoppedToKeep in STOPPING",
    "machine: StoreLost in",
    "interrupt",
    "kill in",
    "disk",
    "send steer in",
    "logged: compaction.applied",
    "snapshots written",
    "snapshots read",
    "logged: snapshot.ignored",
)


def test_schedules_reach_the_deep_states(some: SimulationReport) -> None:
    assert not some.failures, told(some.failures[0].run)
    times = {
        what: sum(times for name, times in some.reached.items() if name.startswith(what))
        for what in REACHED
    }
    # In these sixteen schedules the rarest came 3 times.
    assert min(times.values()) >= 2, times


def test_what_was_never_reached_is_named(some: SimulationReport) -> None:
    assert "machine: Started in ACCEPTED" not in some.unreached
    # A schedule without steps reaches next to nothing, and says so.
    nothing = msgspec.structs.replace(some, reached=run_schedule(Schedule(seed=1)).reached)
    assert "machine: StreamBroke in STREAMING" in nothing.unreached
    assert len(some.unreached) < len(nothing.unreached)


def recording_of(seed: int) -> str:
    entries = run_schedule(schedule_of(seed)).recording.entries
    return hashlib.sha256(b"".join(encode_lines(entries))).hexdigest()


def test_a_seed_is_one_run_in_every_process() -> None:
    here = [recording_of(seed) for seed in (3, 4)]
    assert here == [recording_of(seed) for seed in (3, 4)]
    assert here[0] != here[1]
    code = (
        "from tests.testing.simulation.test_simulation import recording_of;"
        "print(*[recording_of(seed) for seed in (3, 4)])"
    )
    there = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert there.stdout.split() == here


# A rule that is broken is found


def first_failure(*steps: Step, seed: int = 0) -> SimRun:
    """The run of the first schedule from *seed* on that fails; it also has *steps*."""
    for number in range(seed, seed + 12):
        schedule = schedule_of(number)
        schedule = msgspec.structs.replace(
            schedule, steps=tuple(sorted((*schedule.steps, *steps), key=_at))
        )
        run = run_schedule(schedule)
        if run.violations:
            return run
    raise AssertionError("no schedule found it")


def _at(step: Step) -> float:
    return step.at


def test_a_store_without_a_fence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # An append is written wherever the log ends, whoever owns it.
    append = MemoryStore.append

    def unfenced(self: MemoryStore, batch: Any, done: Any) -> None:
        row = self._logs[batch.session].row
        append(self, msgspec.structs.replace(batch, epoch=row.epoch, head=row.head), done)

    monkeypatch.setattr(MemoryStore, "append", unfenced)
    run = shrink(first_failure(Disk(at=0.2, kind="echo")), max_runs=30).run
    assert len(run.schedule.steps) <= 3, told(run)


def test_a_lost_answer_that_is_taken_for_a_written_one_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from llmsession.testing.simulation import disk

    written = disk.DiskLink._written

    def careless(self: Any, batch: Any) -> Any:
        result = written(self, batch)
        return result if isinstance(result, Appended) else Appended(batch.head + len(batch.bodies))

    monkeypatch.setattr(disk.DiskLink, "_written", careless)
    run = shrink(first_failure(Disk(at=0.1, kind="void"), seed=4), max_runs=30).run
    assert len(run.schedule.steps) <= 4, told(run)
    assert {violation.invariant for violation in run.violations} & {2, 5, 12, 13}


def test_a_gap_that_subscribers_are_not_told_of_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def publish(self: Subscriptions, session: str, record: Any) -> None:
        for _, listener in self._listeners(session):
            listener.offer_record(record)

    monkeypatch.setattr(Subscriptions, "reached", lambda self, session, head: None)
    monkeypatch.setattr(Subscriptions, "publish", publish)
    # The label is written and its answer lost; who subscribes then does not know of it.
    schedule = Schedule(
        seed=3,
        steps=(
            Disk(at=0.2, kind="lose"),
            Change(at=0.21, session=0, kind="label"),
            Change(at=0.22, session=1, kind="compact"),
            Send(at=0.6, session=0, number=0),
            Interrupt(at=0.9, session=1),
        ),
    )
    run = shrink(run_schedule(schedule)).run
    assert any("a subscriber read" in violation.text for violation in run.violations)
    assert len(run.schedule.steps) <= 3, told(run)


def test_commands_that_overtake_each_other_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Body:
        async def __aenter__(self) -> None:
            return None

        async def __aexit__(self, *_: object) -> None:
            return None

    monkeypatch.setattr(reactivation.ReactivationQueue, "in_turn", lambda self: Body())
    sends = [Send(at=0.2, session=0, number=100 + at) for at in range(6)]
    run = first_failure(Disk(at=0.1, kind="fail"), *sends, seed=14)
    assert any("was asked for before" in violation.text for violation in run.violations)


# Users' own parts


def test_a_users_tools_and_policy_are_used() -> None:
    paths: list[str] = []

    async def look(path: str) -> str:
        await anyio.sleep(0.01)
        paths.append(path)
        return f"{path}: " + "all is well " * 80

    def config(random: Random) -> SessionConfig:
        return SessionConfig(
            model="sim-1",
            tools=[Tool(name="look", run=look)],
            window_tokens=6000,
            max_tokens=500,
            compaction=CompactionConfig(policy="swap_tool_results", threshold=0.3),
        )

    parts = UserParts(
        config=config,
        tools=(Tool(name="look", run=look),),
        calls={"look": lambda random: {"path": f"src/{random.randrange(9)}.py"}},
    )
    report = simulate(SimulationPlan(seeds=6, seed=40), parts)
    assert not report.failures, told(report.failures[0].run)
    assert paths
    assert all(path.startswith("src/") for path in paths)


# Plans and times


@pytest.mark.parametrize("wrong", [{"seeds": 0}, {"sessions": 0}, {"max_failures": -1}])
def test_a_plan_that_cannot_be_run_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        simulate(SimulationPlan(**wrong))


def test_virtual_time_takes_no_time_and_a_seed_orders_tasks() -> None:
    async def order() -> list[int]:
        seen: list[int] = []

        async def one(at: int) -> None:
            await anyio.sleep(3600)
            seen.append(at)

        async with anyio.create_task_group() as group:
            for at in range(8):
                group.start_soon(one, at)
        return seen

    orders = [run_seeded(seed, order) for seed in (1, 2, 1)]
    assert orders[0] == orders[2]
    assert orders[0] != orders[1]


def test_a_schedule_can_be_saved_and_printed() -> None:
    schedule = schedule_of(7)
    assert msgspec.json.decode(msgspec.json.encode(schedule), type=Schedule) == schedule
    lines = str(schedule).splitlines()
    assert lines[0] == "seed 7, 2 sessions, 2 processes"
    assert len(lines) == 1 + len(schedule.steps)
    plain = Schedule(
        seed=1,
        steps=(
            Send(at=0.0, session=0, number=0),
            Interrupt(at=0.1, session=0, phase="TOOLS"),
            Kill(at=0.2, process=1),
        ),
    )
    assert str(plain).splitlines()[1:] == [
        " 0.000 s  s0: send number 0 (queue)",
        " 0.100 s  once TOOLS, s0: interrupt all (as configured)",
        " 0.200 s  process 1: killed, and back after 0.050 s",
    ]


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("chunk", range(8))
def test_no_seed_of_many_violates_an_invariant(chunk: int) -> None:
    report = simulate(SimulationPlan(seed=1_000_000 + chunk * 1000, seeds=1000))
    print(f"{report.runs} schedules, {report.turns} turns; never reached: {report.unreached}")
    assert not report.failures, told(report.failures[0].run)
