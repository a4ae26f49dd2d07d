"""Events and effects of the compaction machine: facts in the past tense, orders in the imperative.

An event that reports our own work carries the number of that work. Where the outcome depends on
data there are two events, and the compactor, which knows the data, says which of them happened.
"""

from __future__ import annotations

import msgspec

from llmsession.compaction.view.plan import Plan
from llmsession.turns.records import Trigger

from ..core.request_builder import Size
from ..values.config import SessionConfig
from ..values.outcome import CompactionOutcome
from .snapshot import PlanRequest

__all__ = [
    "AnswerCallers",
    "Cancelled",
    "ChangeBegan",
    "Closed",
    "CompactionRequested",
    "ContextPrepared",
    "Effect",
    "Ended",
    "Event",
    "FindHardestPlan",
    "HardestPlanFound",
    "LogApplied",
    "LogDiscarded",
    "MakePlan",
    "MomentCame",
    "MomentPostponed",
    "NothingFreed",
    "PlanDue",
    "PlanLost",
    "PlanMade",
    "PlanOutdated",
    "PlanRejected",
    "PrepareContext",
    "Reconfigured",
    "RecordWritten",
    "ReportExhausted",
    "RequestDue",
    "RequestTooLarge",
    "ResumeBuild",
    "StopWork",
    "WriteRecord",
]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a compaction. ``work`` is the number of the work that reports
    it; None for what comes from a caller, a turn or the actor, which is never late."""

    work: int | None = None


class PlanDue(Event, frozen=True):
    """The context has come near its mark, and nothing forbids a compaction."""

    size: Size
    trigger: Trigger


class CompactionRequested(Event, frozen=True):
    """A caller asked for a compaction now, and waits for its outcome."""

    size: Size


class PlanMade(Event, frozen=True):
    """The policy has a plan that gains enough."""

    plan: Plan
    request: PlanRequest


class PlanRejected(Event, frozen=True):
    """The policy failed, has no plan, or has one that gains too little for a context of *tokens*
    under *config*. Before the context has grown by the share *growth*, no other one is asked for;
    0: that was no reason to stop asking."""

    reason: str
    tokens: int
    config: SessionConfig
    growth: float = 0.05


class PlanLost(Event, frozen=True):
    """The planning ended without a report: its work was cancelled from outside."""


class MomentCame(Event, frozen=True):
    """No reply is on its way, the plan fits the conversation, and *trigger* says why the prompt
    may be rewritten now."""

    trigger: Trigger
    figures: dict[str, int] = {}


class MomentPostponed(Event, frozen=True):
    """No reply is on its way, the plan fits the conversation, but a later rewrite costs less."""


class PlanOutdated(Event, frozen=True):
    """The conversation, its view or its configuration is not what the plan was made for."""


class ChangeBegan(Event, frozen=True):
    """A record that drops a turn or changes the configuration is on its way into the log. What is
    being prepared must not follow it there."""


class Reconfigured(Event, frozen=True):
    """The configuration is another, and no caller waits for a compaction."""


class RequestDue(Event, frozen=True):
    """A policy that keeps a limit of its own, or that injects, is due. The build of the request
    waits for its plan."""

    size: Size
    trigger: Trigger


class RequestTooLarge(Event, frozen=True):
    """A request has to fit *ceiling* tokens and does not. Its build waits."""

    size: Size
    ceiling: int
    trigger: Trigger


class HardestPlanFound(Event, frozen=True):
    """There is a plan that makes the request fit, or comes as near as can be."""

    plan: Plan


class NothingFreed(Event, frozen=True):
    """No plan frees anything: the request stays too large."""


class ContextPrepared(Event, frozen=True):
    """The context after the plan is known, and the plan still fits the conversation."""


class RecordWritten(Event, frozen=True):
    """``compaction.applied`` is durable, and the view is the new one."""


class Cancelled(Event, frozen=True):
    """A caller cancelled the compaction, or the history is being changed."""


class Closed(Event, frozen=True):
    """The session is closing. What is on its way into the log is still written."""


class Ended(Event, frozen=True):
    """The actor has ended. Nothing is reported any more, and callers get the actor's error."""


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """Something for the compactor to do."""


class WorkEffect(Effect, frozen=True, kw_only=True):
    """Something whose end is reported by an event with the number ``work``."""

    work: int


class MakePlan(WorkEffect, frozen=True):
    """Let the policy plan, in the background, for a context of *size*."""

    size: Size
    trigger: Trigger


class FindHardestPlan(WorkEffect, frozen=True):
    """Look for a plan that makes a context of *size* fit *ceiling*, by the hardest means."""

    size: Size
    ceiling: int
    trigger: Trigger


class PrepareContext(WorkEffect, frozen=True):
    """Build the context as it will be after *plan*; in a thread where it is long."""

    plan: Plan


class WriteRecord(WorkEffect, frozen=True):
    """Write ``compaction.applied`` for *plan*."""

    plan: Plan


class StopWork(Effect, frozen=True):
    """Cancel the work that runs. It may end later; its report is late then."""


class LogApplied(Effect, frozen=True):
    """Log that *plan* was applied."""

    plan: Plan


class LogDiscarded(Effect, frozen=True):
    """Log that a plan was discarded."""


class AnswerCallers(Effect, frozen=True):
    """Give *outcome* to every caller who waits for a compaction, if there is one."""

    outcome: CompactionOutcome


class ReportExhausted(Effect, frozen=True):
    """Tell the build that waits that its request cannot be made to fit."""


class ResumeBuild(Effect, frozen=True):
    """Let the build that waits, if there is one, go on."""
