"""What a new owner does with the turns that an earlier one left open: ends them, or goes on.

The log is all that it knows. A call in it may have been started; a reply that was streaming, a
retry, an end that was decided and not written are not in it, and come again or never.
"""

from __future__ import annotations

from llmsession.turns import events as e
from llmsession.turns import records as r
from llmsession.turns.blocks import ToolResultBlock
from llmsession.turns.event_choice import event_for_resume
from llmsession.turns.machine import TurnLimits
from llmsession.turns.receipts import settled_answer
from llmsession.turns.stop import Follow, stop_rule

from ..core.turn_run import CallTrack, Run
from ..log.state import OpenTurn, SessionState
from ..values.config import Recovery
from .tool_calls import is_pure

__all__ = ["recovery_records", "resume_event", "resumed_run"]


def recovery_records(state: SessionState, recovery: Recovery = "drop") -> tuple[r.Record, ...]:
    """What is written before anybody may use a session whose log is *state*. Same log, same
    records.

    With ``drop`` the running turn ends as after an interrupt, with a receipt for the calls that
    may have started. With ``resume`` it goes on, and those of its open calls that the session
    runs itself get a result that says so: they may have had effects, and are not run again.
    Queued sends end aborted either way.
    """
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
    """The volatile side of a turn that goes on, as far as the log knows it."""
    # Numbered before every command: the next interrupt without a turn covers it.
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
    """Where the turn goes on."""
    tokens = turn.usage.prompt_tokens + turn.usage.output_tokens
    return event_for_resume(
        turn.step, turn.calls, turn.unanswered, pauses=_pauses(turn), tokens=tokens, limits=limits
    )


def _pauses(turn: OpenTurn) -> int:
    """How often the turn was sent on after a pause: a pause beside calls is none."""
    return sum(
        message.is_assistant
        and not message.tool_calls
        and stop_rule(message.stop_reason).follow is Follow.CONTINUE
        for message in turn.staged
    )


def _receipts(turn: OpenTurn) -> tuple[r.CallReceipt, ...]:
    """Every call that was journaled: the complete steps' are known, the rest is not."""
    known = _statuses(turn)
    return tuple(
        r.CallReceipt(call.id, call.name, known.get(call.id, "unknown"), call.brief)
        for call in turn.all_calls
    )


def _statuses(turn: OpenTurn) -> dict[str, r.CallStatus]:
    """How the calls ended whose results are in the log. One that the session settled itself has
    no result of its own: it is as unknown as one without."""
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
