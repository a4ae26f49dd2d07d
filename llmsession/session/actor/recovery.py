"""How a new owner recovers the turns that an earlier owner left open: it ends them or resumes them.

The new owner knows only the log. A tool call that is in the log may have been started. What is not
in the log is a reply that was streaming, a retry, or an end that was decided but not written. Such
a thing happens again, or it never happens.
"""

from __future__ import annotations

from llmsession.turns import events as e
from llmsession.turns import records as r
from llmsession.turns.blocks import ToolResultBlock
from llmsession.turns.event_choice import event_for_resume
from llmsession.turns.machine import TurnLimits
from llmsession.turns.receipts import settled_answer
from llmsession.turns.reply import can_go_on
from llmsession.turns.stop import Follow, stop_rule

from ..core.turn_run import CallTrack, Run
from ..log.state import OpenTurn, SessionState
from ..values.config import Recovery
from .tool_calls import is_pure

__all__ = ["recovery_records", "resume_event", "resumed_run"]


def recovery_records(state: SessionState, recovery: Recovery = "drop") -> tuple[r.Record, ...]:
    """The records to write before a session with *state* may be used.

    They depend on the log only, so writing them twice gives the same result. With ``drop``, the
    running turn ends as after an interrupt, with a receipt for the calls that may have started.
    With ``resume``, it continues. Its open calls of the session's own tools may already have had
    effects, so they are not run again: their result says that the outcome is unknown. Queued turns
    are aborted in both cases.

    If the session was handed over, all its open turns continue, the queued ones included.
    """
    if state.is_handed_over:
        turn = state.running()
        return () if turn is None else _resumption(turn)
    running = state.running() if recovery == "resume" else None
    ended = (
        r.TurnAborted(turn=turn.number, reason="crash", usage=turn.usage, calls=_receipts(turn))
        for turn in state.open.values()
        if turn is not running
    )
    return (*(_resumption(running) if running else ()), *ended)


def _resumption(turn: OpenTurn) -> tuple[r.Record, ...]:
    step = turn.step if turn.calls else turn.step + 1
    lost = tuple(
        settled_answer(call.id, "crash")
        for call in turn.unanswered
        if call.runner == "session" and not is_pure(call)
    )
    resumed = r.TurnResumed(turn=turn.number, step=step)
    if not lost:
        return (resumed,)
    return resumed, r.ToolsAnswered(turn=turn.number, step=step, answers=lost)


def resumed_run(turn: OpenTurn) -> Run:
    """The in-memory state of a resumed turn, as far as the log holds it."""
    # Ingress 0 precedes every command, so the next interrupt without a turn covers this turn.
    run = Run(turn.number, ingress=0)
    run.usage = turn.usage
    run.requests = list(turn.requests)
    run.recorded = set(range(len(turn.requests)))
    run.steers = len(turn.steers)
    known = _statuses(turn)
    for call in turn.all_calls:
        track = run.calls[call.id] = CallTrack(call)
        status = known.get(call.id, "unknown")
        track.status = "started" if status == "unknown" else status
    return run


def resume_event(turn: OpenTurn, limits: TurnLimits) -> e.Event:
    """The event that tells the turn machine at which point the turn continues."""
    tokens = turn.usage.prompt_tokens + turn.usage.output_tokens
    return event_for_resume(
        turn.step,
        turn.calls,
        turn.unanswered,
        pauses=_pauses(turn),
        tokens=tokens,
        limits=limits,
        final_stop=_final_stop(turn),
    )


def _final_stop(turn: OpenTurn) -> str | None:
    """The stop reason of the turn's last reply, if a request would end with that reply and may
    not. The session itself ends a turn there, but an earlier version of it did not."""
    replies = turn.replies_at_end
    if turn.steers or not replies or can_go_on(replies):
        return None
    return turn.staged[-1].stop_reason or "unknown"


def _pauses(turn: OpenTurn) -> int:
    """How often the turn was continued after ``pause_turn``. A pause in a reply with calls does not
    count.
    """
    return sum(
        message.is_assistant
        and not message.tool_calls
        and stop_rule(message.stop_reason).follow is Follow.CONTINUE
        for message in turn.staged
    )


def _receipts(turn: OpenTurn) -> tuple[r.CallReceipt, ...]:
    """A receipt for every call in the log: known for complete steps, unknown for the rest."""
    known = _statuses(turn)
    return tuple(
        r.CallReceipt(call.id, call.name, known.get(call.id, "unknown"), call.brief)
        for call in turn.all_calls
    )


def _statuses(turn: OpenTurn) -> dict[str, r.CallStatus]:
    """How the calls that have a result in the log ended.

    If the session itself made the result (a deadline, an interrupt), the status is unknown, because
    the result does not come from the tool.
    """
    known: dict[str, r.CallStatus] = {}
    for message in turn.staged:
        for index, block in enumerate(message.content):
            if isinstance(block, ToolResultBlock):
                known[block.tool_use_id] = _status(bool(block.is_error), index in message.synthetic)
    for answer in turn.answers.values():
        known[answer.call_id] = _status(answer.is_error, answer.settled is not None)
    return known


def _status(is_error: bool, settled: bool) -> r.CallStatus:
    if settled:
        return "unknown"
    return "failed" if is_error else "finished"
