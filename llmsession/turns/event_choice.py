"""Which event happened: pure functions that choose between the outcomes in the turn table."""

from __future__ import annotations

from typing import Literal, TypeAlias

from llmsession.errors import ProviderError

from . import events as e
from .machine import DECIDED, ENDED, Phase, Turn, TurnLimits
from .records import InterruptPolicy, PendingCall
from .reply import Reply
from .request import StepTag
from .stop import Follow, stop_rule

__all__ = [
    "OnFailure",
    "event_for_answers",
    "event_for_budget",
    "event_for_interrupt",
    "event_for_limit",
    "event_for_reply",
    "event_for_resume",
    "event_for_step",
    "event_for_stopped",
    "event_for_stream_failure",
    "progress",
]

OnFailure: TypeAlias = Literal["keep_steps", "drop"]
"""What is kept of a turn that fails: its complete steps, or nothing."""


def progress(turn: Turn) -> Literal["open", "decided", "ended"]:
    """Can the turn still be interrupted (``open``), is its end decided, or has it ended?"""
    if turn.phase in ENDED:
        return "ended"
    return "decided" if turn.phase in DECIDED else "open"


def event_for_interrupt(
    turn: Turn, policy: InterruptPolicy, *, reason: str, has_text: bool
) -> e.DropRequested | e.KeepRequested:
    """The event of an interrupt under *policy*. If there is nothing to keep, it is a drop."""
    text = policy == "keep_text" and has_text and turn.phase in (Phase.STREAMING, Phase.STOPPING)
    if policy == "drop_turn" or not (turn.keepable or text) or turn.phase is Phase.ACCEPTED:
        return e.DropRequested(reason=reason)
    return e.KeepRequested(reason="cancelled", text=text)


def event_for_limit(stop_reason: str) -> e.LimitReached:
    """The event of a limit of the turn. *stop_reason* is one of ``TURN_STOP_REASONS``."""
    return e.LimitReached(stop_reason=stop_reason)


def event_for_reply(
    turn: Turn,
    reply: Reply,
    pending_calls: tuple[PendingCall, ...],
    *,
    steers: int,
    limits: TurnLimits,
    tag: StepTag,
    goes_on: bool = True,
) -> e.Event:
    """The event of a complete reply.

    *goes_on*: may a request end with this reply (see ``can_go_on``)? If a reply pauses and no
    request may end with it, the turn ends and keeps the reply.
    """
    follow = stop_rule(reply.stop_reason).follow
    stop_reason = reply.stop_reason or "unknown"
    if follow is Follow.DROP:
        return e.ReplyRefused(tag=tag, stop_reason=stop_reason)
    # Some servers report "stop" or a pause for a reply with complete calls. The calls count and not
    # the stop reason, because the very next message must answer them.
    if pending_calls and follow is not Follow.COMMIT_CUT:
        return e.ReplyRequestedTools(tag=tag, calls=pending_calls)
    if follow is Follow.CONTINUE and goes_on and turn.pauses < limits.max_pauses:
        return e.ReplyContinued(tag=tag, paused=True)
    if steers:
        return e.ReplyContinued(tag=tag, paused=False)
    if follow is Follow.RUN_TOOLS:
        stop_reason = "end_turn"
    return e.ReplyFinished(tag=tag, stop_reason=stop_reason)


def event_for_stream_failure(
    turn: Turn, error: ProviderError, *, limits: TurnLimits, on_failure: OnFailure, tag: StepTag
) -> e.Event:
    """The event of a failed stream: retry, retry with a smaller request, or give up.

    The provider classifies its error, and the limits bound the retries.
    """
    if error.kind == "retryable" and not error.retried and turn.retries < limits.max_retries:
        delay_s = error.delay_s or _backoff_s(turn.retries)
        return e.StreamBroke(tag=tag, delay_s=delay_s)
    if error.kind == "overflow" and turn.overflows < limits.max_overflows:
        return e.StreamOverflowed(tag=tag)
    if on_failure == "keep_steps" and turn.keepable and error.kind != "overflow":
        return e.GaveUpKept(tag=tag, error=str(error))
    return e.GaveUpDropped(tag=tag, cause=error.kind, error=str(error))


def event_for_budget(turn: Turn, error: str, *, on_failure: OnFailure, tag: StepTag) -> e.Event:
    """The event of a budget that is used up before a request.

    It keeps the same as a failure of the provider would.
    """
    if on_failure == "keep_steps" and turn.keepable:
        return e.GaveUpKept(tag=tag, error=error, stop_reason="budget")
    return e.GaveUpDropped(tag=tag, cause="budget", error=error)


def _backoff_s(retries: int) -> float:
    """0.5 s, doubled each time, at most 8 s: the delays of the SDKs before a first event."""
    return float(0.5 * 2 ** min(retries, 4))


def event_for_answers(turn: Turn, calls: tuple[str, ...], tag: StepTag | None = None) -> e.Event:
    """The event of results for *calls*: all open calls are answered, or only some."""
    if turn.open_calls <= set(calls):
        return e.AllCallsAnswered(tag=tag, calls=calls)
    return e.CallsAnswered(tag=tag, calls=calls)


def event_for_step(turn: Turn, *, tokens: int, limits: TurnLimits, tag: StepTag) -> e.Event:
    """The event of a durable step: the next step, or a limit."""
    stop_reason = _limit_after(turn.step, tokens, limits)
    if stop_reason is not None:
        return e.LimitReached(tag=tag, stop_reason=stop_reason)
    return e.StepJournaled(tag=tag)


def _limit_after(step: int, tokens: int, limits: TurnLimits) -> str | None:
    """The limit that a turn with *step* complete steps and *tokens* has reached; None if none."""
    if limits.max_steps is not None and step >= limits.max_steps:
        return "max_steps"
    if limits.max_tokens is not None and tokens >= limits.max_tokens:
        return "max_turn_tokens"
    return None


def event_for_resume(
    step: int,
    pending_calls: tuple[PendingCall, ...],
    unanswered: tuple[PendingCall, ...],
    *,
    pauses: int,
    tokens: int,
    limits: TurnLimits,
    final_stop: str | None = None,
) -> e.Event:
    """The event with which a new owner continues a turn.

    *step* is the turn's last step in the log, 0 if there is none. *pending_calls* are that step's
    calls if it is not complete, and *unanswered* those of them without a result. *final_stop* is
    the stop reason of the turn's last reply if no request may follow that reply (``can_go_on``).
    The turn ends there, as it would have without the resume.
    """
    if unanswered:
        calls = tuple(call.id for call in unanswered)
        return e.ResumedToCalls(step=step, calls=calls, pauses=pauses)
    if pending_calls:
        return e.ResumedToStep(step=step, pauses=pauses)
    stop_reason = (_limit_after(step, tokens, limits) or final_stop) if step else None
    if stop_reason is not None:
        return e.ResumedToLimit(step=step, stop_reason=stop_reason, pauses=pauses)
    return e.ResumedToRequest(step=step + 1, pauses=pauses)


def event_for_stopped(turn: Turn) -> e.Event:
    """The event of a stopping turn whose works have ended. How the turn ends was decided before."""
    how = turn.ending.how if turn.ending else "drop"
    if how == "drop":
        return e.StoppedToDrop()
    return e.StoppedToFail() if how == "fail" else e.StoppedToKeep()
