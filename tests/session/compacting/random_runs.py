"""Plays one session's compactions on the machine and on the oracle together, and compares them.

``Run`` stands in for the compactor: it performs nothing, but reports the work that was ordered,
with the number that it was ordered with, and work that was stopped, late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from llmsession import SessionConfig
from llmsession.compaction.planning.policy import Budget
from llmsession.compaction.tokens.request_size import Sized
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.view import View
from llmsession.errors import CompactionStateError
from llmsession.session.compacting import events as e
from llmsession.session.compacting.machine import APPLYING, RESTING, Compaction, Phase, step
from llmsession.session.compacting.snapshot import PlanRequest
from llmsession.session.core.request_builder import Size
from llmsession.turns.request import Profile
from tests.session.compacting.oracle import Oracle, Order

Choose: TypeAlias = Callable[[int], int]
"""A number from 0 up to, not including, the given one."""
Move: TypeAlias = Callable[[], None]

CONFIG = SessionConfig(model="m")
SIZE = Size(1_000, "estimate", 1_000, Sized(1_000, 0, 1_000, 0, None))
BUDGET = Budget(used_tokens=1_000, limit_tokens=2_000, profile=Profile(), committed=0)
REQUEST = PlanRequest(1, View(), (), budget=BUDGET, config=CONFIG.compaction)


def plan_called(name: str, **fields: Any) -> Plan:
    """A plan whose reason is its name."""
    values = {"policy": "p", "compacted_before": 1, "tokens_before": 900, "tokens_after": 100}
    return Plan(**{**values, "reason": name, **fields})


EVENTS: tuple[e.Event, ...] = (
    e.PlanDue(size=SIZE, trigger="threshold"), e.CompactionRequested(size=SIZE),
    e.PlanMade(plan=plan_called("a plan"), request=REQUEST),
    e.PlanRejected(reason="nothing to gain", tokens=1_000, config=CONFIG), e.PlanLost(),
    e.MomentCame(trigger="idle"), e.MomentPostponed(), e.PlanOutdated(), e.ChangeBegan(),
    e.Reconfigured(), e.RequestTooLarge(size=SIZE, ceiling=500, trigger="window"),
    e.HardestPlanFound(plan=plan_called("the hardest")), e.NothingFreed(), e.ContextPrepared(),
    e.RecordWritten(), e.Cancelled(), e.Closed(), e.Ended(),
    e.RequestDue(size=SIZE, trigger="threshold"),
)  # fmt: skip
"""One of each type, without a number."""


class Run:
    """One session's compactions, until the actor ends."""

    def __init__(self, choose: Choose) -> None:
        self.choose = choose
        self.compaction = Compaction()
        self.oracle = Oracle()
        self.late: list[e.Event] = []
        """Reports of work that is over for the machine."""
        self.plans = 0
        self.trace: list[tuple[e.Event, tuple[e.Effect, ...]]] = []
        self.seen: set[str] = set()

    def play(self, moves: int) -> None:
        """Make so many random moves, then let the session end."""
        for _ in range(moves):
            if self.oracle.is_gone:
                return
            choices = self._moves()
            choices[self.choose(len(choices))]()
        self._closed()
        self._ended()

    def tell(self, event: e.Event, expected: list[Order]) -> None:
        """Give the machine *event*; its orders must be what the oracle *expected*."""
        before, self.seen = self.compaction, self.seen | {type(event).__name__}
        answers_somebody = any(order[0] == "AnswerCallers" for order in expected)
        self.compaction, effects = step(before, event)
        self.trace.append((event, effects))
        orders = [_order(effect) for effect in effects]
        if not answers_somebody:  # then it answers nobody
            orders = [order for order in orders if order[0] != "AnswerCallers"]
        assert orders == expected, [type(past).__name__ for past, _ in self.trace]
        for effect in effects:
            assert not isinstance(effect, e.WorkEffect) or effect.work == self.compaction.number
        if before.phase is not self.compaction.phase:
            self.seen.add(f"{before.phase} -> {self.compaction.phase}")
        if before.number != self.compaction.number:
            self.late.append(e.PlanLost(work=before.number))
        self._compare()

    def _compare(self) -> None:
        oracle, phase = self.oracle, self.compaction.phase
        assert (phase in APPLYING) == oracle.is_applying
        assert (phase in (Phase.CLOSED, Phase.CLOSING)) == (oracle.is_closed or oracle.is_gone)
        assert (self.compaction.plan is not None) == (oracle.plan is not None)
        is_ready = oracle.has_spare_plan and not oracle.is_postponed
        assert (phase in RESTING) == (not (oracle.is_planning or is_ready or oracle.is_applying))
        # Every caller is answered, and every build goes on: none waits while nothing is done.
        assert not (oracle.callers and phase in RESTING)
        assert not (oracle.builds and phase not in APPLYING)

    def probe(self) -> None:
        """Try every kind of event: those that may not come raise, the others do not."""
        for event in EVENTS:
            if self.oracle.may_come(type(event).__name__):
                step(self.compaction, event)
            else:
                with pytest.raises(CompactionStateError, match=type(event).__name__):
                    step(self.compaction, event)

    # The moves. Each is legal when it is offered.

    def _moves(self) -> list[Move]:
        oracle, moves = self.oracle, [self._requested, self._changing]
        if oracle.is_closed:
            moves = [self._changing, self._closed, self._ended]
        elif self.choose(40) == 0:
            moves = [self._closed, self._ended]
        elif oracle.may_come("RequestTooLarge"):
            moves.append(self._too_large)
        else:
            moves.append(self._build)
        if oracle.may_come("RequestDue"):
            moves.append(self._request_due)
        if oracle.may_come("PlanDue"):
            moves += [self._due] * (1 if oracle.plan else 6)
        if self.late:
            moves.append(self._late)
        reports: dict[str, Move] = {
            "PlanMade": self._planned,
            "MomentCame": self._moment,
            "HardestPlanFound": self._searched,
            "ContextPrepared": self._prepared,
            "RecordWritten": self._written,
        }
        return moves + [reports[name] for name in reports if oracle.may_come(name)] * 4

    def _due(self) -> None:
        self.tell(EVENTS[0], self.oracle.plan_due("threshold"))

    def _request_due(self) -> None:
        event = e.RequestDue(size=SIZE, trigger="threshold")
        self.tell(event, self.oracle.request_due("threshold"))

    def _requested(self) -> None:
        self.tell(e.CompactionRequested(size=SIZE), self.oracle.requested())

    def _changing(self) -> None:
        match self.choose(4):
            case 0:
                self.tell(e.Cancelled(), self.oracle.cancelled())
            case 1:
                self.tell(e.ChangeBegan(), self.oracle.change_began())
            case 2 if not self.oracle.callers:
                self.tell(e.Reconfigured(), self.oracle.reconfigured())
            case _:
                self.probe()

    def _too_large(self) -> None:
        event = e.RequestTooLarge(size=SIZE, ceiling=500, trigger="window")
        self.tell(event, self.oracle.too_large(500, "window"))

    def _build(self) -> None:
        self.oracle.builds = 1  # it finds a compaction on its way, and waits

    def _planned(self) -> None:
        work = self.compaction.number
        match self.choose(6):
            case 5 if self.oracle.is_awaited:
                self.tell(e.PlanOutdated(work=work), self.oracle.outdated())
            case 0:
                rejected = e.PlanRejected(work=work, reason="failed", tokens=1_000, config=CONFIG)
                self.tell(rejected, self.oracle.plan_rejected("failed"))
            case 1:
                self.tell(e.PlanLost(work=work), self.oracle.plan_rejected("cancelled"))
            case _:
                plan = self._plan()
                made = e.PlanMade(work=work, plan=plan, request=REQUEST)
                self.tell(made, self.oracle.plan_made(plan.reason, plan.trigger))
                self.late.append(made)

    def _plan(self) -> Plan:
        self.plans += 1
        return plan_called(f"plan {self.plans}", trigger="window")

    def _moment(self) -> None:
        choice = self.choose(6)
        if choice == 0:
            self.tell(e.PlanOutdated(), self.oracle.outdated())
        elif choice < 4 and not self.oracle.callers:
            self.tell(e.MomentPostponed(), self.oracle.moment_postponed())
        else:
            self.tell(e.MomentCame(trigger="cold_cache"), self.oracle.moment_came("cold_cache"))

    def _searched(self) -> None:
        work = self.compaction.number
        match self.choose(4):
            case 0:
                self.tell(e.NothingFreed(work=work), self.oracle.nothing_freed())
            case 1:
                self.tell(e.PlanOutdated(work=work), self.oracle.outdated())
            case _:
                plan = self._plan()
                event = e.HardestPlanFound(work=work, plan=plan)
                self.tell(event, self.oracle.hardest_plan_found(plan.reason))

    def _prepared(self) -> None:
        work = self.compaction.number
        if self.choose(4) == 0:
            self.tell(e.PlanOutdated(work=work), self.oracle.outdated())
        else:
            self.tell(e.ContextPrepared(work=work), self.oracle.prepared())

    def _written(self) -> None:
        self.tell(e.RecordWritten(work=self.compaction.number), self.oracle.written())

    def _late(self) -> None:
        self.tell(self.late.pop(self.choose(len(self.late))), [])
        self.seen.add("late report")

    def _closed(self) -> None:
        self.tell(e.Closed(), self.oracle.closed())

    def _ended(self) -> None:
        self.tell(e.Ended(), self.oracle.ended())


def _order(effect: e.Effect) -> Order:
    name = type(effect).__name__
    match effect:
        case e.MakePlan(trigger=trigger):
            return (name, trigger)
        case e.FindHardestPlan(ceiling=ceiling, trigger=trigger):
            return (name, ceiling, trigger)
        case e.PrepareContext(plan=plan) | e.WriteRecord(plan=plan):
            return (name, plan.reason, plan.trigger)
        case e.LogApplied(plan=plan):
            return (name, plan.reason)
        case e.AnswerCallers(outcome=outcome):
            return (name, outcome.applied, outcome.reason)
        case _:
            return (name,)
