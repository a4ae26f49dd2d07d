"""Events and effects of the compaction machine: facts in the past tense, orders in the imperative.

An event that reports the actor's own work carries the number of that work. If the outcome depends
on data, there are several events for it. The compactor knows the data and says which of them
happened.
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
    """Something that happened to a compaction.

    ``work`` is the number of the work that reports it. It is None for an event that comes from a
    caller, a turn or the actor: such an event is never late.
    """

    work: int | None = None


class PlanDue(Event, frozen=True):
    """The context has come near its threshold, and nothing forbids a compaction."""

    size: Size
    trigger: Trigger


class CompactionRequested(Event, frozen=True):
    """A caller asked for a compaction now and waits for its outcome."""

    size: Size


class PlanMade(Event, frozen=True):
    """The policy has a plan that gains enough."""

    plan: Plan
    request: PlanRequest


class PlanRejected(Event, frozen=True):
    """The policy failed, has no plan, or has a plan that gains too little.

    *tokens* is the size of the context, and *config* the configuration at that time. No other plan
    is made before the context has grown by the share *growth*; 0 means that plans may be made at
    once.
    """

    reason: str
    tokens: int
    config: SessionConfig
    growth: float = 0.05


class PlanLost(Event, frozen=True):
    """The planning ended without a report, because its work was cancelled from outside."""


class MomentCame(Event, frozen=True):
    """No reply is pending, the plan fits the conversation, and the prompt may be rewritten now.

    *trigger* says why.
    """

    trigger: Trigger
    figures: dict[str, int] = {}


class MomentPostponed(Event, frozen=True):
    """No reply is pending and the plan fits the conversation, but a later rewrite costs less."""


class PlanOutdated(Event, frozen=True):
    """The plan was made for another conversation, view or configuration than the present one."""


class ChangeBegan(Event, frozen=True):
    """A record that drops a turn or changes the configuration is being written to the log.

    A compaction that is being prepared must not follow it there.
    """


class Reconfigured(Event, frozen=True):
    """The configuration has changed, and no caller waits for a compaction."""


class RequestDue(Event, frozen=True):
    """A policy that keeps a limit of its own, or that injects something, is due.

    The build of the request waits for its plan.
    """

    size: Size
    trigger: Trigger


class RequestTooLarge(Event, frozen=True):
    """A request must fit into *ceiling* tokens and does not. Its build waits."""

    size: Size
    ceiling: int
    trigger: Trigger


class HardestPlanFound(Event, frozen=True):
    """There is a plan that makes the request fit, or that comes as near as possible."""

    plan: Plan


class NothingFreed(Event, frozen=True):
    """No plan frees anything, so the request stays too large."""


class ContextPrepared(Event, frozen=True):
    """The context after the plan has been built, and the plan still fits the conversation."""


class RecordWritten(Event, frozen=True):
    """``compaction.applied`` is durable, and the new view is in force."""


class Cancelled(Event, frozen=True):
    """A caller cancelled the compaction, or the history is being changed."""


class Closed(Event, frozen=True):
    """The session is closing. A record that is being written is still written."""


class Ended(Event, frozen=True):
    """The actor has ended. Nothing is reported any more, and callers get the actor's error."""


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the compactor must do."""


class WorkEffect(Effect, frozen=True, kw_only=True):
    """Something whose end is reported by an event with the number ``work``."""

    work: int


class MakePlan(WorkEffect, frozen=True):
    """Let the policy make a plan, in the background, for a context of *size*."""

    size: Size
    trigger: Trigger


class FindHardestPlan(WorkEffect, frozen=True):
    """Find a plan that makes a context of *size* fit into *ceiling* tokens, by the hardest
    means.
    """

    size: Size
    ceiling: int
    trigger: Trigger


class PrepareContext(WorkEffect, frozen=True):
    """Build the context as it will be after *plan*, in a thread if it is long."""

    plan: Plan


class WriteRecord(WorkEffect, frozen=True):
    """Write ``compaction.applied`` for *plan*."""

    plan: Plan


class StopWork(Effect, frozen=True):
    """Cancel the work that runs. It may end later; then its report is late and is dropped."""


class LogApplied(Effect, frozen=True):
    """Log that *plan* was applied."""

    plan: Plan


class LogDiscarded(Effect, frozen=True):
    """Log that a plan was discarded."""


class AnswerCallers(Effect, frozen=True):
    """Give *outcome* to every caller who waits for a compaction."""

    outcome: CompactionOutcome


class ReportExhausted(Effect, frozen=True):
    """Report to the waiting build that its request cannot be made to fit."""


class ResumeBuild(Effect, frozen=True):
    """Let the waiting build, if there is one, continue."""
