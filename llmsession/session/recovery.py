"""What a new owner has to write before it goes on: the ends that an earlier one did not."""

from __future__ import annotations

from llmsession.turns import records as r

from .state import OpenTurn, SessionState

__all__ = ["recovery_records"]


def recovery_records(state: SessionState) -> tuple[r.Record, ...]:
    """The terminal records of the turns that *state* has open: each was lost in a crash.

    The running turn ends as after an interrupt that drops it, with a receipt for the calls that
    had started; queued sends end aborted. Same log, same records.
    """
    return tuple(
        r.TurnAborted(turn=turn.number, reason="crash", usage=turn.usage, calls=_receipts(turn))
        for turn in state.open.values()
    )


def _receipts(turn: OpenTurn) -> tuple[r.CallReceipt, ...]:
    """Every call that was journaled: the complete steps' are known, the rest is not."""
    known: dict[str, r.CallStatus] = {
        result.tool_use_id: "failed" if result.is_error else "finished"
        for message in turn.staged
        for result in message.tool_results
    }
    known.update(
        (answer.call_id, "failed" if answer.is_error else "finished")
        for answer in turn.answers.values()
    )
    return tuple(
        r.CallReceipt(call.id, call.name, known.get(call.id, "unknown"), call.brief)
        for call in turn.all_calls
    )
