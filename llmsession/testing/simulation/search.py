"""Runs many schedules in virtual time and checks each one. A schedule that violates an invariant is
shrunk."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import msgspec

from llmsession.errors import InvalidInput

from ..recording.violation import Violation
from .coverage import unreached
from .run import SimRun, run_schedule
from .schedule import Freeze, Interrupt, Kill, Schedule, Send, Step, schedule_of
from .user_parts import UserParts

__all__ = ["Failure", "SimulationPlan", "SimulationReport", "shrink", "simulate"]

MAX_RUNS = 400
"""The most schedules that are run to shrink one."""


class SimulationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule for each of *seeds* seeds, beginning with *seed*, each with *sessions* sessions
    on two processes, or on *hosts* hosts of a cluster. The simulation stops after *max_failures*
    schedules that failed."""

    seeds: int = 200
    seed: int = 0
    sessions: int = 2
    max_failures: int = 1
    hosts: int = 0

    def checked(self) -> SimulationPlan:
        """Return this plan. Raises InvalidInput if it cannot be run."""
        for name in ("seeds", "sessions", "max_failures"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.hosts < 0 or self.hosts == 1:
            raise InvalidInput(f"hosts is {self.hosts}; it must be 2 or more, or 0 for no cluster")
        return self


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule that violates an invariant. ``run`` is of the shortest schedule that violates the
    same invariant."""

    schedule: Schedule
    run: SimRun
    tried: int
    """How many schedules were run to find the shortest one."""

    @property
    def violations(self) -> tuple[Violation, ...]:
        """The violations of the shortest schedule."""
        return self.run.violations


class SimulationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a simulation.

    ``reached`` counts the events of the turn machine by the phase in which they happened, and the
    faults by the phase of the turns that they affected. A case that was never reached was not
    tested. ``virtual_s`` is the sum of the virtual times. ``last`` is the run of the last schedule.
    """

    plan: SimulationPlan
    runs: int
    failures: tuple[Failure, ...]
    reached: Counter[str]
    turns: int
    seconds: float
    virtual_s: float
    last: SimRun

    @property
    def unreached(self) -> tuple[str, ...]:
        """The cells of the turn machine's table that no schedule reached."""
        return unreached(self.reached)


def simulate(
    plan: SimulationPlan,
    parts: UserParts | None = None,
    *,
    on_progress: Callable[[int], None] = lambda done: None,
) -> SimulationReport:
    """Run the schedules of *plan*, with *parts* instead of the built-in ones.

    *on_progress* is called with the number of finished schedules. This function runs its own event
    loop, so it cannot be called from a coroutine. A seed gives the same run each time, on every
    machine with the same versions.

    Raises InvalidInput for a plan or parts that cannot be used, if trio is not installed, and
    within an event loop. Raises InvalidConfig for a configuration that cannot be used.
    """
    plan = plan.checked()
    start = time.perf_counter()
    reached: Counter[str] = Counter()
    failures: list[Failure] = []
    turns, virtual_s, runs = 0, 0.0, 0
    for seed in range(plan.seed, plan.seed + plan.seeds):
        run = run_schedule(schedule_of(seed, sessions=plan.sessions, hosts=plan.hosts), parts)
        runs += 1
        reached.update(run.reached)
        turns += run.turns
        virtual_s += run.seconds
        if run.violations:
            failures.append(shrink(run, parts))
            if len(failures) >= plan.max_failures:
                break
        on_progress(runs)
    return SimulationReport(
        plan=plan,
        runs=runs,
        failures=tuple(failures),
        reached=reached,
        turns=turns,
        seconds=time.perf_counter() - start,
        virtual_s=virtual_s,
        last=run,
    )


def shrink(run: SimRun, parts: UserParts | None = None, *, max_runs: int = MAX_RUNS) -> Failure:
    """Find a shorter schedule that violates one of the invariants that *run* violates.

    Steps are removed, first many at once and then one by one. Then the remaining steps are
    simplified. At most *max_runs* schedules are run.
    """
    broken = {violation.invariant for violation in run.violations}
    best, tried = run, 0

    def fails(steps: tuple[Step, ...]) -> bool:
        nonlocal best, tried
        tried += 1
        candidate = run_schedule(msgspec.structs.replace(best.schedule, steps=steps), parts)
        if broken.isdisjoint(violation.invariant for violation in candidate.violations):
            return False
        best = candidate
        return True

    # Try to remove each run of ``size`` steps, then halve the size, as in delta debugging. Large
    # sizes come first, because one successful run then removes many steps.
    size = len(run.schedule.steps) // 2
    while size and tried < max_runs:
        index, removed = 0, False
        while index < len(best.schedule.steps) and tried < max_runs:
            steps = best.schedule.steps
            if fails((*steps[:index], *steps[index + size :])):
                removed = True
            else:
                index += size
        # Repeat single removals until none succeeds: a removed step may make another one needless.
        if not (removed and size == 1):
            size //= 2
    for index in range(len(best.schedule.steps)):
        for simpler in _simpler(best.schedule.steps[index]):
            steps = best.schedule.steps
            if tried < max_runs and fails((*steps[:index], simpler, *steps[index + 1 :])):
                break
    return Failure(schedule=run.schedule, run=best, tried=tried)


def _simpler(step: Step) -> list[Step]:
    """Simpler forms of *step*, the simplest first."""
    replace = msgspec.structs.replace
    match step:
        case Send():
            plain = replace(step, when_busy="queue", heard="once", chars=20)
            forms = (plain, replace(step, heard="once"))
            return [form for form in forms if form != step]
        case Interrupt() if step.heard != "once":
            return [replace(step, heard="once")]
        case Kill() if step.down_s:
            return [replace(step, down_s=0.0)]
        case Freeze() if step.taken:
            return [replace(step, taken=False)]
        case _:
            return []
