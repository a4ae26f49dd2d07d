"""The turn machine: it decides what a turn does next.

A turn is a frozen value with a phase. ``step`` looks up (phase, event type) in one table and
returns the next turn and the effects to perform. Rules of this file:

1. Everything that changes a turn's phase is in TRANSITIONS. Each cell has one answer. If the
   outcome depends on data, the event says which outcome it was (see ``event_choice``).
2. A pair without a cell is a bug of ours and raises TurnStateError; it is never ignored "to be
   safe". A cell that changes nothing is written down, too: it says that this event may come in this
   phase.
3. A report of the actor's own work carries the tag (turn, step, attempt) that the work was started
   with. A report with an old tag is late, not wrong: the turn does not change.
4. Entering a phase starts that phase's single piece of work:

   - BUILDING: build the request.
   - STREAMING: send it and read the reply.
   - JOURNALING: make a step durable.
   - TOOLS: get the calls answered.
   - STOPPING: cancel the work, with a grace period.
   - COMMITTING: write ``turn.committed``.
   - ABORTING: write ``turn.aborted``.
   - FAILING: write ``turn.failed``.
5. The decision point is the step into COMMITTING, ABORTING or FAILING. Before it an interrupt wins.
   After it an interrupt changes nothing and is answered TOO_LATE. There is no third outcome.

A turn holds no messages: those are in the log and its fold. So an abort has nothing to undo. And a
resumed turn starts as ACCEPTED, and one event takes it to the point where the log ends.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Literal, TypeAlias

import msgspec

from llmsession.errors import TurnStateError

from . import events as e
from .request import StepTag
from .transition_table import transitions_markdown

__all__ = [
    "DECIDED",
    "ENDED",
    "TRANSITIONS",
    "Ending",
    "Phase",
    "Turn",
    "TurnLimits",
    "is_late",
    "step",
    "table_markdown",
    "tag_of",
]


class Phase(StrEnum):
    """The phase of a turn. The last five are final."""

    ACCEPTED = "accepted"
    BUILDING = "building"
    STREAMING = "streaming"
    JOURNALING = "journaling"
    TOOLS = "tools"
    STOPPING = "stopping"
    COMMITTING = "committing"
    ABORTING = "aborting"
    FAILING = "failing"
    COMMITTED = "committed"
    ABORTED = "aborted"
    FAILED = "failed"
    FENCED = "fenced"
    LOST = "lost"


ENDED = frozenset({Phase.COMMITTED, Phase.ABORTED, Phase.FAILED, Phase.FENCED, Phase.LOST})
"""The final phases: nothing leads out of them."""
DECIDED = frozenset({Phase.COMMITTING, Phase.ABORTING, Phase.FAILING})
"""The phases in which the turn's end is decided and its record is being written."""


class TurnLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one turn; None means no limit. Reaching one is an outcome, not an error."""

    max_steps: int | None = 500
    """The number of model requests of the turn, 1 or more. The stop reason is ``max_steps``."""
    max_seconds: float | None = None
    """The duration of the turn in seconds, above 0. The stop reason is ``max_seconds``."""
    max_tokens: int | None = None
    """Input and output tokens of all its requests together, cached ones included. The stop reason
    is ``max_turn_tokens``.
    """
    max_retries: int = 4
    """How often one step is started again after its stream broke."""
    max_overflows: int = 2
    """How often one step is built smaller after the provider found it too large."""
    max_pauses: int = 16
    """How often a turn continues after ``pause_turn``."""
    silence_s: float | None = 300.0
    """If a stream brings nothing for this many seconds, it is regarded as broken and the step is
    tried again. It is noticed up to a quarter of this time later. Above 0.
    """


class Ending(msgspec.Struct, frozen=True):
    """How a turn that is stopping will end."""

    how: Literal["drop", "keep_steps", "keep_text", "fail"]
    reason: str


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One turn as the machine sees it."""

    number: int
    phase: Phase = Phase.ACCEPTED
    step: int = 0
    attempt: int = 0
    retries: int = 0
    overflows: int = 0
    pauses: int = 0
    keepable: bool = False
    """Is there something to keep: a complete step, or one whose calls are in the journal?"""
    open_calls: frozenset[str] = frozenset()
    ending: Ending | None = None
    is_decided: bool = False
    """Is its end decided? Then ``attempt`` was increased, so that older reports are late."""

    @property
    def tried(self) -> int:
        """The last attempt at the step, for display: 1 if one request was enough."""
        return self.attempt - self.is_decided


P = Phase
Table: TypeAlias = dict[Phase, dict[type[e.Event], Phase]]

_INTERRUPTIBLE: dict[type[e.Event], Phase] = {
    e.DropRequested: P.STOPPING,
    e.KeepRequested: P.STOPPING,
    e.LimitReached: P.STOPPING,
}
_JOURNALED: tuple[type[e.Event], ...] = (e.CallsJournaled, e.StepJournaled)
_LOSABLE: dict[type[e.Event], Phase] = {e.Fenced: P.FENCED, e.StoreLost: P.LOST}


def _stay(phase: Phase, *types: type[e.Event]) -> dict[type[e.Event], Phase]:
    return dict.fromkeys(types, phase)


TRANSITIONS: Table = {
    P.ACCEPTED: {
        e.Started: P.BUILDING,
        # An earlier owner started the turn. It continues at the point where the log ends.
        e.ResumedToRequest: P.BUILDING,
        e.ResumedToCalls: P.TOOLS,
        e.ResumedToStep: P.JOURNALING,
        e.ResumedToLimit: P.STOPPING,
        # Nothing has started, so there is nothing to stop and nothing to keep.
        e.DropRequested: P.ABORTING,
        **_LOSABLE,
    },
    P.BUILDING: {
        e.ContextBuilt: P.STREAMING,
        e.ContextOverflowed: P.FAILING,
        e.GaveUpKept: P.COMMITTING,
        e.GaveUpDropped: P.FAILING,
        **_INTERRUPTIBLE,
        **_LOSABLE,
    },
    P.STREAMING: {
        e.ReplyFinished: P.COMMITTING,
        e.ReplyRequestedTools: P.JOURNALING,
        e.ReplyContinued: P.JOURNALING,
        e.ReplyRefused: P.FAILING,
        e.StreamBroke: P.BUILDING,
        e.StreamOverflowed: P.BUILDING,
        e.GaveUpKept: P.COMMITTING,
        e.GaveUpDropped: P.FAILING,
        **_INTERRUPTIBLE,
        **_LOSABLE,
    },
    P.JOURNALING: {
        e.CallsJournaled: P.TOOLS,
        e.StepJournaled: P.BUILDING,
        **_INTERRUPTIBLE,
        **_LOSABLE,
    },
    P.TOOLS: {
        e.CallsAnswered: P.TOOLS,
        e.AllCallsAnswered: P.JOURNALING,
        **_INTERRUPTIBLE,
        **_LOSABLE,
    },
    P.STOPPING: {
        e.StoppedToDrop: P.ABORTING,
        e.StoppedToKeep: P.COMMITTING,
        e.StoppedToFail: P.FAILING,
        # The end is not decided yet, so a drop still wins over a keep or a limit.
        **_stay(P.STOPPING, e.DropRequested, e.KeepRequested, e.LimitReached),
        # A tool that ends within its grace period is recorded with its real result.
        **_stay(P.STOPPING, e.CallsAnswered, e.AllCallsAnswered),
        # The interrupt came before these, so they change nothing.
        **_stay(P.STOPPING, e.ReplyFinished, e.ReplyRequestedTools, e.ReplyContinued),
        **_stay(P.STOPPING, e.ReplyRefused, e.StreamBroke, e.StreamOverflowed),
        **_stay(P.STOPPING, e.GaveUpKept, e.GaveUpDropped, e.ContextBuilt, e.ContextOverflowed),
        **_stay(P.STOPPING, *_JOURNALED),
        **_LOSABLE,
    },
    # After the decision point an interrupt is too late and changes nothing.
    P.COMMITTING: {
        e.Committed: P.COMMITTED,
        **_stay(P.COMMITTING, e.DropRequested, e.KeepRequested, e.LimitReached, *_JOURNALED),
        **_LOSABLE,
    },
    P.ABORTING: {
        e.Aborted: P.ABORTED,
        **_stay(P.ABORTING, e.DropRequested, e.KeepRequested, e.LimitReached, *_JOURNALED),
        # The record of the turn's start was being written when the drop came.
        **_stay(P.ABORTING, e.Started),
        **_LOSABLE,
    },
    P.FAILING: {
        e.Failed: P.FAILED,
        **_stay(P.FAILING, e.DropRequested, e.KeepRequested, e.LimitReached, *_JOURNALED),
        **_LOSABLE,
    },
    P.COMMITTED: {},
    P.ABORTED: {},
    P.FAILED: {},
    P.FENCED: {},
    P.LOST: {},
}


def tag_of(turn: Turn) -> StepTag:
    """The tag of the work that the turn is doing now."""
    return StepTag(turn.number, turn.step, turn.attempt)


def is_late(turn: Turn, event: e.Event) -> bool:
    """Does the event report work that the turn is no longer doing?"""
    tag = event.tag
    if tag is None:
        return False
    return tag.attempt != turn.attempt or tag.step != turn.step or tag.turn != turn.number


def step(turn: Turn, event: e.Event) -> tuple[Turn, tuple[e.AnyEffect, ...]]:
    """The next turn and the effects to perform. A late report changes nothing.

    Raises TurnStateError for a pair that has no cell.
    """
    if is_late(turn, event):
        return turn, ()
    phase = TRANSITIONS[turn.phase].get(type(event))
    if phase is None:
        raise TurnStateError(f"{type(event).__name__} while turn {turn.number} is {turn.phase}")
    if phase is turn.phase and phase in DECIDED:
        return turn, ()
    return _MOVES[phase](turn, event)


Moved: TypeAlias = tuple[Turn, tuple[e.AnyEffect, ...]]


def _next(turn: Turn, phase: Phase, **changes: Any) -> Turn:
    return msgspec.structs.replace(turn, phase=phase, **changes)


def _to_building(turn: Turn, event: e.Event) -> Moved:
    """Start a new step, or a new attempt at the same one."""
    delay_s = 0.0
    if isinstance(event, e.ResumedToRequest):
        turn = _next(_resumed(turn, event), P.BUILDING)
    elif isinstance(event, e.StreamBroke):
        delay_s = event.delay_s
        turn = _next(turn, P.BUILDING, attempt=turn.attempt + 1, retries=turn.retries + 1)
    elif isinstance(event, e.StreamOverflowed):
        turn = _next(turn, P.BUILDING, attempt=turn.attempt + 1, overflows=turn.overflows + 1)
    else:
        turn = _next(
            turn, P.BUILDING, step=turn.step + 1, attempt=1, retries=0, overflows=0,
            keepable=turn.step > 0,
        )  # fmt: skip
    build = e.BuildContext(tag=tag_of(turn), delay_s=delay_s, overflows=turn.overflows)
    return turn, (build,)


def _resumed(
    turn: Turn, event: e.ResumedToRequest | e.ResumedToCalls | e.ResumedToStep | e.ResumedToLimit
) -> Turn:
    """The turn as the log has it. Whatever was being tried is not in the log and begins anew."""
    complete = event.step - 1 if isinstance(event, e.ResumedToRequest) else event.step
    return msgspec.structs.replace(
        turn, step=event.step, attempt=1, pauses=event.pauses, keepable=complete > 0
    )


def _to_streaming(turn: Turn, event: e.Event) -> Moved:
    turn = _next(turn, P.STREAMING)
    return turn, (e.OpenStream(tag=tag_of(turn)),)


def _to_journaling(turn: Turn, event: e.Event) -> Moved:
    if isinstance(event, e.ResumedToStep):
        turn = _resumed(turn, event)
        return _next(turn, P.JOURNALING), (e.JournalStep(tag=tag_of(turn)),)
    tag = tag_of(turn)
    if isinstance(event, e.ReplyRequestedTools):
        calls = frozenset(call.id for call in event.calls)
        return _next(turn, P.JOURNALING, open_calls=calls, keepable=True), (
            e.JournalCalls(tag=tag),
        )
    if isinstance(event, e.AllCallsAnswered):
        turn = _next(turn, P.JOURNALING, open_calls=frozenset())
        return turn, (e.JournalAnswers(tag=tag), e.JournalStep(tag=tag))
    paused = isinstance(event, e.ReplyContinued) and event.paused
    turn = _next(turn, P.JOURNALING, pauses=turn.pauses + paused, keepable=True)
    return turn, (e.JournalStep(tag=tag, paused=paused),)


def _to_tools(turn: Turn, event: e.Event) -> Moved:
    if isinstance(event, e.ResumedToCalls):
        turn = msgspec.structs.replace(_resumed(turn, event), open_calls=frozenset(event.calls))
    tag = tag_of(turn)
    if isinstance(event, e.CallsAnswered):
        turn = _next(turn, P.TOOLS, open_calls=turn.open_calls - set(event.calls))
        return turn, (e.JournalAnswers(tag=tag),)
    return _next(turn, P.TOOLS), (e.StartTools(tag=tag),)


def _to_stopping(turn: Turn, event: e.Event) -> Moved:
    if isinstance(event, e.ResumedToLimit):
        turn = _resumed(turn, event)
    tag = tag_of(turn)
    if isinstance(event, e.CallsAnswered | e.AllCallsAnswered):
        turn = _next(turn, P.STOPPING, open_calls=turn.open_calls - set(event.calls))
        is_kept = turn.ending is not None and turn.ending.how != "drop"
        return turn, (e.JournalAnswers(tag=tag),) if is_kept else ()
    ending = _ending(turn, event)
    if turn.phase is P.STOPPING:
        return _next(turn, P.STOPPING, ending=ending), ()
    return _next(turn, P.STOPPING, ending=ending), (e.StopWork(tag=tag),)


def _ending(turn: Turn, event: e.Event) -> Ending | None:
    """The end that *event* asks for, unless a drop was asked for before: a drop is stronger."""
    if turn.ending is not None and turn.ending.how == "drop":
        return turn.ending
    if isinstance(event, e.DropRequested):
        return Ending("drop", event.reason)
    if isinstance(event, e.KeepRequested):
        return Ending("keep_text" if event.text else "keep_steps", event.reason)
    if isinstance(event, e.LimitReached | e.ResumedToLimit) and turn.ending is None:
        return Ending("keep_steps" if turn.keepable else "fail", event.stop_reason)
    return turn.ending


def _to_committing(turn: Turn, event: e.Event) -> Moved:
    turn = _decided(turn, P.COMMITTING)
    tag = tag_of(turn)
    if isinstance(event, e.ReplyFinished):
        return turn, (e.JournalCommit(tag=tag, stop_reason=event.stop_reason),)
    if isinstance(event, e.GaveUpKept):
        commit = e.JournalCommit(
            tag=tag, stop_reason=event.stop_reason, keep="steps", error=event.error
        )
        return turn, (commit,)
    how = turn.ending.how if turn.ending else "keep_steps"
    keep: Literal["steps", "text"] = "text" if how == "keep_text" else "steps"
    reason = turn.ending.reason if turn.ending else "cancelled"
    return turn, (e.JournalCommit(tag=tag, stop_reason=reason, keep=keep),)


def _to_aborting(turn: Turn, event: e.Event) -> Moved:
    reason = turn.ending.reason if turn.ending else getattr(event, "reason", "interrupt")
    turn = _decided(turn, P.ABORTING)
    return turn, (e.JournalAbort(tag=tag_of(turn), reason=reason),)


def _to_failing(turn: Turn, event: e.Event) -> Moved:
    cause, error = _failure(turn, event)
    turn = _decided(turn, P.FAILING)
    return turn, (e.JournalFailure(tag=tag_of(turn), cause=cause, error=error),)


def _failure(turn: Turn, event: e.Event) -> tuple[str, str]:
    match event:
        case e.GaveUpDropped(cause=cause, error=error):
            return cause, error
        case e.ContextOverflowed(error=error):
            return "context_too_large", error
        case e.ReplyRefused(stop_reason=reason):
            return reason, "the provider refused to answer"
        case _:
            reason = turn.ending.reason if turn.ending else "limit"
            return reason, f"the turn reached its limit {reason} before a step was complete"


def _decided(turn: Turn, phase: Phase) -> Turn:
    # A new attempt number makes every report late that is still on its way.
    return _next(turn, phase, attempt=turn.attempt + 1, is_decided=True)


def _to_end(phase: Phase) -> Callable[[Turn, e.Event], Moved]:
    def move(turn: Turn, event: e.Event) -> Moved:
        return _next(turn, phase), ()

    return move


_MOVES: dict[Phase, Callable[[Turn, e.Event], Moved]] = {
    P.BUILDING: _to_building,
    P.STREAMING: _to_streaming,
    P.JOURNALING: _to_journaling,
    P.TOOLS: _to_tools,
    P.STOPPING: _to_stopping,
    P.COMMITTING: _to_committing,
    P.ABORTING: _to_aborting,
    P.FAILING: _to_failing,
    **{phase: _to_end(phase) for phase in ENDED},
}


def table_markdown() -> str:
    """The whole table for ARCHITECTURE.md: one row per event, one column per phase."""
    return transitions_markdown(TRANSITIONS)
