"""Simulation: many stories, each played to its end in virtual time, each checked; one that breaks a
promise is made as short as it can be."""

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

__all__ = ["Failure", "SimulationPlan", "SimulationReport", "shrunk", "simulate"]

MAX_RUNS = 400
"""So many stories are tried to make one shorter."""


class SimulationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """*seeds* stories, of the seeds from *seed* on, each with so many *sessions* on two processes.
    After *most_failures* that broke a promise no further story is played."""

    seeds: int = 200
    seed: int = 0
    sessions: int = 2
    max_failures: int = 1

    def checked(self) -> SimulationPlan:
        """This plan. Raises InvalidInput for one that nothing can be done with."""
        for name in ("seeds", "sessions", "max_failures"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} is {getattr(self, name)}; it must be 1 or more")
        return self


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A story that broke a promise; ``run`` is the shortest one that does so in the same way."""

    story: Schedule
    run: SimRun
    tried: int
    """How many stories were played to find the shortest one."""

    @property
    def breaches(self) -> tuple[Violation, ...]:
        """Of the shortest story."""
        return self.run.breaches


class SimulationReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulation came to. ``reached`` says how often each event of the turn machine met
    each phase, and what each fault struck: silence about what never happened is no promise kept.
    ``virtual_s`` is how long it all would have taken, ``last`` the last story's run."""

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
        """What of the turn machine's table no story came to."""
        return unreached(self.reached)


def simulate(
    plan: SimulationPlan,
    cast: UserParts | None = None,
    *,
    told: Callable[[int], None] = lambda done: None,
) -> SimulationReport:
    """Play the stories of *plan*, with the parts of *cast* in place of ours; *told* is called with
    the number of stories that are done. It runs an event loop of its own, and is not to be called
    from within one. A seed gives the same run each time, on every machine with the same versions.

    Raises InvalidInput for a plan or a cast that cannot be played, where trio is not installed, and
    within an event loop; InvalidConfig for a configuration that cannot be used.
    """
    plan = plan.checked()
    began = time.perf_counter()
    reached: Counter[str] = Counter()
    failures: list[Failure] = []
    turns, virtual_s, runs = 0, 0.0, 0
    for seed in range(plan.seed, plan.seed + plan.seeds):
        run = run_schedule(schedule_of(seed, sessions=plan.sessions), cast)
        runs += 1
        reached.update(run.reached)
        turns += run.turns
        virtual_s += run.seconds
        if run.breaches:
            failures.append(shrunk(run, cast))
            if len(failures) >= plan.max_failures:
                break
        told(runs)
    return SimulationReport(
        plan=plan,
        runs=runs,
        failures=tuple(failures),
        reached=reached,
        turns=turns,
        seconds=time.perf_counter() - began,
        virtual_s=virtual_s,
        last=run,
    )


def shrunk(run: SimRun, cast: UserParts | None = None, *, max_runs: int = MAX_RUNS) -> Failure:
    """The shortest story found that breaks one of the promises that *run* broke, after playing at
    most *most_runs*: acts are left out, many at once and then one by one, and what is left is made
    simpler."""
    broken = {breach.invariant for breach in run.breaches}
    best, tried = run, 0

    def is_shorter(story: Schedule) -> bool:
        nonlocal best, tried
        tried += 1
        candidate = run_schedule(story, cast)
        if broken.isdisjoint(breach.invariant for breach in candidate.breaches):
            return False
        best = candidate
        return True

    size = len(run.story.acts) // 2
    while size and tried < max_runs:
        at, left_out = 0, False
        while at < len(best.story.acts) and tried < max_runs:
            acts = best.story.acts
            if is_shorter(_with(best.story, (*acts[:at], *acts[at + size :]))):
                left_out = True
            else:
                at += size
        if not (left_out and size == 1):
            size //= 2
    for at in range(len(best.story.acts)):
        for simpler in _simpler(best.story.acts[at]):
            acts = best.story.acts
            if tried < max_runs and is_shorter(
                _with(best.story, (*acts[:at], simpler, *acts[at + 1 :]))
            ):
                break
    return Failure(story=run.story, run=best, tried=tried)


def _with(story: Schedule, acts: tuple[Step, ...]) -> Schedule:
    return msgspec.structs.replace(story, acts=acts)


def _simpler(act: Step) -> list[Step]:
    """Plainer forms of *act*, the plainest first."""
    replace = msgspec.structs.replace
    match act:
        case Send():
            plain = replace(act, when_busy="queue", heard="once", chars=20)
            return [each for each in (plain, replace(act, heard="once")) if each != act]
        case Interrupt() if act.heard != "once":
            return [replace(act, heard="once")]
        case Kill() if act.down_s:
            return [replace(act, down_s=0.0)]
        case Freeze() if act.taken:
            return [replace(act, taken=False)]
        case _:
            return []
