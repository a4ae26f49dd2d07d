"""The compaction machine: it decides what a session's compaction does next.

A compaction is a frozen value with a phase. ``step`` looks up (phase, event type) in one table and
returns the next compaction and the effects to perform. Rules of this file:

1. Everything that changes the phase is in TRANSITIONS. Each cell has one answer. If the outcome
   depends on data, the event says which outcome it was.
2. A pair without a cell is a bug of ours and raises CompactionStateError. A cell that changes
   nothing is written down, too: it says that this event may come in this phase.
3. Each phase has a number of its own. A report of the actor's own work carries the number of the
   phase that started the work. A report with an older number is late, not wrong, and changes
   nothing.
4. Entering a phase starts that phase's single piece of work:

   - PLANNING: let the policy make a plan.
   - AWAITED: the same, while the build of a request waits.
   - FORCING: look for the hardest plan.
   - PREPARING: build the context that comes after the plan.
   - WRITING: write ``compaction.applied``.

   If a plan is already being made when a build begins to wait for it, it is not started again. So
   at most one job runs, and one order stops it.
5. A plan leaves READY and POSTPONED by MomentCame, and a plan that a build waits for leaves AWAITED
   by PlanMade. The compactor sends both only while no reply is pending and the plan's snapshot is
   current. The snapshot is compared once more after PREPARING. From WRITING on, nothing stops the
   plan.
6. An effect that may call back into the machine comes last, so that the effects before it are done.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

from llmsession.compaction.view.plan import Plan
from llmsession.errors import CompactionStateError
from llmsession.turns.transition_table import transitions_markdown

from ..values.config import SessionConfig
from ..values.outcome import CompactionOutcome
from . import events as e
from .snapshot import PlanRequest

__all__ = [
    "APPLYING",
    "RESTING",
    "TRANSITIONS",
    "Compaction",
    "Phase",
    "Stall",
    "is_late",
    "is_stalled",
    "step",
    "table_markdown",
]


class Phase(StrEnum):
    """The phase of a session's compaction."""

    IDLE = "idle"
    PLANNING = "planning"
    READY = "ready"
    POSTPONED = "postponed"
    AWAITED = "awaited"
    FORCING = "forcing"
    PREPARING = "preparing"
    WRITING = "writing"
    CLOSING = "closing"
    CLOSED = "closed"


P = Phase
APPLYING = frozenset({P.AWAITED, P.FORCING, P.PREPARING, P.WRITING, P.CLOSING})
"""``compaction.applied`` is being written, or may be as soon as there is a plan. No request is
built.
"""
RESTING = frozenset({P.IDLE, P.POSTPONED, P.CLOSED})
"""Nothing runs and nothing is about to be written, so the session may be evicted."""
_WORKING = frozenset({P.PLANNING, P.AWAITED, P.FORCING, P.PREPARING})
"""A work is running that can be stopped."""


class Stall(msgspec.Struct, frozen=True):
    """A plan that gained too little: no other one is made until something has changed.

    It holds the size of the context, the configuration, and the share by which the context must
    grow.
    """

    tokens: int
    config: SessionConfig
    growth: float = 0.05


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """One session's compaction as the machine sees it."""

    phase: Phase = P.IDLE
    number: int = 0
    """The number of the present phase. It grows with each change of the phase."""
    plan: Plan | None = None
    """The plan, from READY until its record is written."""
    request: PlanRequest | None = None
    """The input that ``plan`` was made for, while it is READY or POSTPONED."""
    stall: Stall | None = None
    """The last plan that gained too little, if no better one came since."""


Table: TypeAlias = dict[Phase, dict[type[e.Event], Phase]]


def _stay(phase: Phase, *types: type[e.Event]) -> dict[type[e.Event], Phase]:
    return dict.fromkeys(types, phase)


_STOPPABLE: dict[type[e.Event], Phase] = {
    e.Cancelled: P.IDLE,
    e.Reconfigured: P.IDLE,
    e.Closed: P.CLOSED,
    e.Ended: P.CLOSED,
}

TRANSITIONS: Table = {
    P.IDLE: {
        e.PlanDue: P.PLANNING,
        e.CompactionRequested: P.PLANNING,
        e.RequestDue: P.AWAITED,
        e.RequestTooLarge: P.FORCING,
        **_stay(P.IDLE, e.ChangeBegan),
        **_STOPPABLE,
    },
    P.PLANNING: {
        e.PlanMade: P.READY,
        e.PlanRejected: P.IDLE,
        e.PlanLost: P.IDLE,
        # The caller gets the outcome of the plan that is being made. Whether it still fits is
        # checked later.
        **_stay(P.PLANNING, e.CompactionRequested, e.ChangeBegan),
        # The build waits for the plan that is already being made.
        e.RequestDue: P.AWAITED,
        e.RequestTooLarge: P.FORCING,
        **_STOPPABLE,
    },
    P.READY: {
        e.MomentCame: P.PREPARING,
        e.MomentPostponed: P.POSTPONED,
        e.PlanOutdated: P.IDLE,
        **_stay(P.READY, e.CompactionRequested, e.ChangeBegan),
        e.RequestTooLarge: P.FORCING,
        **_STOPPABLE,
    },
    P.POSTPONED: {
        e.MomentCame: P.PREPARING,
        **_stay(P.POSTPONED, e.MomentPostponed, e.ChangeBegan),
        e.PlanOutdated: P.IDLE,
        # The postponed plan was made for another purpose, or for a context that has grown since.
        e.CompactionRequested: P.PLANNING,
        e.PlanDue: P.PLANNING,
        e.RequestDue: P.AWAITED,
        e.RequestTooLarge: P.FORCING,
        **_STOPPABLE,
    },
    P.AWAITED: {
        e.PlanMade: P.PREPARING,
        e.PlanRejected: P.IDLE,
        e.PlanLost: P.IDLE,
        e.PlanOutdated: P.IDLE,
        e.ChangeBegan: P.IDLE,
        **_stay(P.AWAITED, e.CompactionRequested),
        **_STOPPABLE,
    },
    P.FORCING: {
        e.HardestPlanFound: P.PREPARING,
        e.NothingFreed: P.IDLE,
        e.PlanOutdated: P.IDLE,
        e.ChangeBegan: P.IDLE,
        **_stay(P.FORCING, e.CompactionRequested),
        **_STOPPABLE,
    },
    P.PREPARING: {
        e.ContextPrepared: P.WRITING,
        e.PlanOutdated: P.IDLE,
        e.ChangeBegan: P.IDLE,
        **_stay(P.PREPARING, e.CompactionRequested),
        **_STOPPABLE,
    },
    # The record has its place in the log, and what comes now comes after it. So nothing stops it.
    P.WRITING: {
        e.RecordWritten: P.IDLE,
        **_stay(P.WRITING, e.CompactionRequested, e.ChangeBegan, e.Reconfigured, e.Cancelled),
        e.Closed: P.CLOSING,
        e.Ended: P.CLOSED,
    },
    P.CLOSING: {
        e.RecordWritten: P.CLOSED,
        **_stay(P.CLOSING, e.ChangeBegan, e.Reconfigured, e.Cancelled, e.Closed),
        e.Ended: P.CLOSED,
    },
    # Turns that were stopped still end after the close, and queued changes are still made.
    P.CLOSED: _stay(P.CLOSED, e.ChangeBegan, e.Reconfigured, e.Cancelled, e.Closed, e.Ended),
}


def is_late(compaction: Compaction, event: e.Event) -> bool:
    """Does the event report a work that nobody waits for any more?"""
    return event.work is not None and event.work != compaction.number


def is_stalled(compaction: Compaction, tokens: int, config: SessionConfig) -> bool:
    """Did the last plan gain too little, and has nothing changed that could make the next one
    better?

    Such a change is another configuration, a context that has grown enough, or a smaller context
    after a drop or a clear.
    """
    stall = compaction.stall
    if stall is None:
        return False
    enough = stall.tokens * (1 + stall.growth)
    return stall.config is config and stall.tokens <= tokens < enough


Moved: TypeAlias = tuple[Compaction, tuple[e.Effect, ...]]

_CANCELLED = e.AnswerCallers(outcome=CompactionOutcome(False, "cancelled"))
_CHANGED = e.AnswerCallers(outcome=CompactionOutcome(False, "the conversation changed meanwhile"))
_NOTHING = e.AnswerCallers(outcome=CompactionOutcome(False, "nothing to gain"))


def step(compaction: Compaction, event: e.Event) -> Moved:
    """The next compaction and the effects to perform. A late report changes nothing.

    Raises CompactionStateError for a pair that has no cell.
    """
    if is_late(compaction, event):
        return compaction, ()
    phase = TRANSITIONS[compaction.phase].get(type(event))
    if phase is None:
        message = f"{type(event).__name__} while the compaction is {compaction.phase}"
        raise CompactionStateError(message)
    if phase is compaction.phase:
        # The record cannot be stopped any more, but callers who cancel need not wait for it.
        return compaction, (_CANCELLED,) if isinstance(event, e.Cancelled) else ()
    return _MOVES[phase](compaction, event)


def _next(compaction: Compaction, phase: Phase, **changes: Any) -> Compaction:
    number = compaction.number + 1
    return msgspec.structs.replace(compaction, phase=phase, number=number, **changes)


def _to_planning(compaction: Compaction, event: e.Event) -> Moved:
    assert isinstance(event, e.PlanDue | e.CompactionRequested)
    trigger = event.trigger if isinstance(event, e.PlanDue) else "asked"
    compaction = _next(compaction, P.PLANNING, plan=None, request=None)
    return compaction, (e.MakePlan(work=compaction.number, size=event.size, trigger=trigger),)


def _to_awaited(compaction: Compaction, event: e.Event) -> Moved:
    assert isinstance(event, e.RequestDue)
    if compaction.phase is P.PLANNING:
        # The number stays: the report of the plan is still to come.
        return msgspec.structs.replace(compaction, phase=P.AWAITED), ()
    compaction = _next(compaction, P.AWAITED, plan=None, request=None)
    work = compaction.number
    return compaction, (e.MakePlan(work=work, size=event.size, trigger=event.trigger),)


def _to_ready(compaction: Compaction, event: e.Event) -> Moved:
    assert isinstance(event, e.PlanMade)
    return _next(compaction, P.READY, plan=event.plan, request=event.request), ()


def _to_postponed(compaction: Compaction, event: e.Event) -> Moved:
    return _next(compaction, P.POSTPONED), ()


def _to_forcing(compaction: Compaction, event: e.Event) -> Moved:
    assert isinstance(event, e.RequestTooLarge)
    stop = _stop(compaction)
    compaction = _next(compaction, P.FORCING, plan=None, request=None)
    find = e.FindHardestPlan(
        work=compaction.number, size=event.size, ceiling=event.ceiling, trigger=event.trigger
    )
    return compaction, (*stop, find)


def _to_preparing(compaction: Compaction, event: e.Event) -> Moved:
    plan = event.plan if isinstance(event, e.HardestPlanFound | e.PlanMade) else compaction.plan
    assert plan is not None  # it is there from READY on
    if isinstance(event, e.MomentCame):
        figures = {**plan.figures, **event.figures}
        plan = msgspec.structs.replace(plan, trigger=event.trigger, figures=figures)
    # A plan that only injects does not change what another plan could gain.
    stall = compaction.stall if plan.trigger == "injection" else None
    compaction = _next(compaction, P.PREPARING, plan=plan, request=None, stall=stall)
    return compaction, (e.PrepareContext(work=compaction.number, plan=plan),)


def _to_writing(compaction: Compaction, event: e.Event) -> Moved:
    compaction = _next(compaction, P.WRITING)
    assert compaction.plan is not None  # it is there from READY on
    return compaction, (e.WriteRecord(work=compaction.number, plan=compaction.plan),)


def _to_idle(compaction: Compaction, event: e.Event) -> Moved:
    stall = compaction.stall
    if isinstance(event, e.PlanRejected) and event.growth > 0:
        stall = Stall(event.tokens, event.config, event.growth)
    effects = _effects_of_end(compaction, event)
    return _next(compaction, P.IDLE, plan=None, request=None, stall=stall), effects


def _effects_of_end(compaction: Compaction, event: e.Event) -> tuple[e.Effect, ...]:
    """The effects that remain when a compaction ends with *event*."""
    stop = _stop(compaction)
    resume = (e.ResumeBuild(),) if compaction.phase in APPLYING else ()
    match event:
        case e.RecordWritten():
            return _applied(compaction)
        case e.PlanRejected(reason=reason):
            return (e.AnswerCallers(outcome=CompactionOutcome(False, reason)), *resume)
        case e.PlanLost():
            return (_CANCELLED, *resume)
        case e.PlanOutdated():
            return (e.LogDiscarded(), _CHANGED, *resume)
        case e.ChangeBegan():
            # The waiting build belongs to the turn that is being dropped, so it is not resumed.
            return (*stop, e.LogDiscarded(), _CHANGED)
        case e.NothingFreed():
            return (_NOTHING, e.ReportExhausted())
        case e.Reconfigured():
            return (*stop, *resume)
        case _:
            return (*stop, _CANCELLED, *resume)


def _applied(compaction: Compaction) -> tuple[e.Effect, ...]:
    plan = compaction.plan
    assert plan is not None  # it is there from READY on
    outcome = CompactionOutcome(True, plan.reason, plan.tokens_before, plan.tokens_after)
    return (e.LogApplied(plan=plan), e.AnswerCallers(outcome=outcome), e.ResumeBuild())


def _to_closing(compaction: Compaction, event: e.Event) -> Moved:
    # The number stays: the report of the record is still to come.
    return msgspec.structs.replace(compaction, phase=P.CLOSING), (_CANCELLED,)


def _to_closed(compaction: Compaction, event: e.Event) -> Moved:
    effects: tuple[e.Effect, ...] = _stop(compaction)
    if isinstance(event, e.RecordWritten):
        effects = _applied(compaction)
    elif isinstance(event, e.Closed):
        effects = (*effects, _CANCELLED)
    return _next(compaction, P.CLOSED, plan=None, request=None), effects


def _stop(compaction: Compaction) -> tuple[e.StopWork, ...]:
    return (e.StopWork(),) if compaction.phase in _WORKING else ()


_MOVES: dict[Phase, Callable[[Compaction, e.Event], Moved]] = {
    P.IDLE: _to_idle,
    P.PLANNING: _to_planning,
    P.READY: _to_ready,
    P.POSTPONED: _to_postponed,
    P.AWAITED: _to_awaited,
    P.FORCING: _to_forcing,
    P.PREPARING: _to_preparing,
    P.WRITING: _to_writing,
    P.CLOSING: _to_closing,
    P.CLOSED: _to_closed,
}


def table_markdown() -> str:
    """The whole table for ARCHITECTURE.md: one row per event, one column per phase."""
    return transitions_markdown(TRANSITIONS)
