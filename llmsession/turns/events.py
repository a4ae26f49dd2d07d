"""Events and effects of the turn machine: facts in the past tense, orders in the imperative.

An event that reports the actor's own work carries the StepTag of that work. If the outcome depends
on data, there are several events for it, and the functions in ``event_choice`` choose between them.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from .records import PendingCall
from .request import StepTag

__all__ = [
    "Aborted",
    "AllCallsAnswered",
    "AnyEffect",
    "BuildContext",
    "CallsAnswered",
    "CallsJournaled",
    "Committed",
    "ContextBuilt",
    "ContextOverflowed",
    "DropRequested",
    "Effect",
    "Event",
    "Failed",
    "Fenced",
    "GaveUpDropped",
    "GaveUpKept",
    "JournalAbort",
    "JournalAnswers",
    "JournalCalls",
    "JournalCommit",
    "JournalFailure",
    "JournalStep",
    "KeepRequested",
    "LimitReached",
    "OpenStream",
    "ReplyContinued",
    "ReplyFinished",
    "ReplyRefused",
    "ReplyRequestedTools",
    "ResumedToCalls",
    "ResumedToLimit",
    "ResumedToRequest",
    "ResumedToStep",
    "StartTools",
    "Started",
    "StepJournaled",
    "StopWork",
    "StoppedToDrop",
    "StoppedToFail",
    "StoppedToKeep",
    "StoreLost",
    "StreamBroke",
    "StreamOverflowed",
]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a turn.

    ``tag`` names the work that reports it. It is None for an event that comes from a caller, a
    limit or the store: such an event is never late.
    """

    tag: StepTag | None = None


class Started(Event, frozen=True):
    """The turn is the next to run, and its user message is durable."""


class ResumedToRequest(Event, frozen=True):
    """A new owner continues with the request of *step*: nothing of that step is in the log.

    *pauses* was counted from the log, as in the three events that follow.
    """

    step: int
    pauses: int = 0


class ResumedToCalls(Event, frozen=True):
    """A new owner continues with the calls of *step*; *calls* have no result in the log."""

    step: int
    calls: tuple[str, ...]
    pauses: int = 0


class ResumedToStep(Event, frozen=True):
    """A new owner continues with *step*: all its results are in the log, but its end is not."""

    step: int
    pauses: int = 0


class ResumedToLimit(Event, frozen=True):
    """A new owner finds *step* complete, and the turn has reached a limit with it."""

    step: int
    stop_reason: str
    pauses: int = 0


class ContextBuilt(Event, frozen=True):
    """The request for this step is ready and valid."""


class ContextOverflowed(Event, frozen=True):
    """The context does not fit, whatever compaction does."""

    error: str


class ReplyFinished(Event, frozen=True):
    """A reply came that ends the turn."""

    stop_reason: str


class ReplyRequestedTools(Event, frozen=True):
    """A reply came with calls that need results."""

    calls: tuple[PendingCall, ...]


class ReplyContinued(Event, frozen=True):
    """A reply without calls came, and the turn continues: a pause, or a pending steer."""

    paused: bool


class ReplyRefused(Event, frozen=True):
    """The provider refused to answer. Neither the reply nor its turn is kept."""

    stop_reason: str


class StreamBroke(Event, frozen=True):
    """The stream failed. The step is tried again after *delay_s* seconds."""

    delay_s: float = 0.0


class StreamOverflowed(Event, frozen=True):
    """The provider found the request too large. The context is compacted harder."""


class GaveUpKept(Event, frozen=True):
    """No more requests are sent, because the provider failed or a budget is used up.

    The complete steps are kept. *stop_reason* is one of ``TURN_STOP_REASONS``.
    """

    error: str
    stop_reason: str = "error"


class GaveUpDropped(Event, frozen=True):
    """As GaveUpKept, but there is nothing to keep, or the configuration keeps nothing."""

    cause: str
    error: str


class CallsJournaled(Event, frozen=True):
    """``tools.requested`` is durable."""


class StepJournaled(Event, frozen=True):
    """``step.completed`` is durable."""


class CallsAnswered(Event, frozen=True):
    """Some calls of this step have their results, others do not have them yet."""

    calls: tuple[str, ...]


class AllCallsAnswered(Event, frozen=True):
    """The last open calls of this step have their results."""

    calls: tuple[str, ...]


class DropRequested(Event, frozen=True):
    """The turn was interrupted, and nothing of it is to be kept."""

    reason: str


class KeepRequested(Event, frozen=True):
    """The turn was interrupted, and its complete steps are to be kept.

    With *text*, the text of the streaming reply is kept, too (``keep_text``).
    """

    reason: str
    text: bool = False


class LimitReached(Event, frozen=True):
    """The turn reached one of its limits. Its complete steps are kept."""

    stop_reason: str


class StoppedToDrop(Event, frozen=True):
    """All work has stopped, or its grace period is over. The turn is dropped."""


class StoppedToKeep(Event, frozen=True):
    """As StoppedToDrop, but the turn's complete steps are kept."""


class StoppedToFail(Event, frozen=True):
    """As StoppedToDrop, for a turn that reached a limit with nothing to keep."""


class Committed(Event, frozen=True):
    """``turn.committed`` is durable."""


class Aborted(Event, frozen=True):
    """``turn.aborted`` is durable."""


class Failed(Event, frozen=True):
    """``turn.failed`` is durable."""


class Fenced(Event, frozen=True):
    """Another owner has the session, so this one must not write."""


class StoreLost(Event, frozen=True):
    """The store failed. Recovery will write this turn's end."""


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the turn runner must do. Its report is an event with the same tag."""

    tag: StepTag


class BuildContext(Effect, frozen=True):
    """Build this step's request after *delay_s* seconds.

    *overflows* is how often the provider has refused it as too large.
    """

    delay_s: float = 0.0
    overflows: int = 0


class OpenStream(Effect, frozen=True):
    """Send the request that was built, and read the reply."""


class JournalCalls(Effect, frozen=True):
    """Write ``tools.requested``."""


class StartTools(Effect, frozen=True):
    """Start the tools that have a function, leave the other calls to the caller, start the
    deadlines.
    """


class JournalAnswers(Effect, frozen=True):
    """Write ``tools.answered``."""


class JournalStep(Effect, frozen=True):
    """Write ``step.completed``. If *paused*, its reply is sent back unchanged, to be continued."""

    paused: bool = False


class StopWork(Effect, frozen=True):
    """Cancel this turn's work. Report when it has stopped or its grace period is over."""


class JournalCommit(Effect, frozen=True):
    """Write ``turn.committed``.

    *keep* says what is kept: a finished reply, only the steps, or the steps and the text so far.
    """

    stop_reason: str
    keep: Literal["reply", "steps", "text"] = "reply"
    error: str | None = None


class JournalAbort(Effect, frozen=True):
    """Write ``turn.aborted``."""

    reason: str


class JournalFailure(Effect, frozen=True):
    """Write ``turn.failed``."""

    cause: str
    error: str


AnyEffect: TypeAlias = (
    BuildContext
    | OpenStream
    | JournalCalls
    | StartTools
    | JournalAnswers
    | JournalStep
    | StopWork
    | JournalCommit
    | JournalAbort
    | JournalFailure
)
