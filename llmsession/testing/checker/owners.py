"""Turns that a new owner found open: each was ended or resumed first, and resumed rightly."""

from __future__ import annotations

from llmsession.session.log.state import SessionState
from llmsession.turns import records as r

from ..recording.violation import Violations, of_record
from .rules import Rules

__all__ = ["OwnerRules"]

_MAY_COME_FIRST = (
    r.TurnCommitted, r.TurnAborted, r.TurnFailed, r.SessionForked, r.RecordsRedacted,
)  # fmt: skip
"""What a new owner may write while a turn runs that it has not resumed: ends, a fork's own first
record, which drops what was open, and the erasing that the last owner left undone."""


class OwnerRules(Rules):
    """Invariants 2 and 13, where an epoch ends with a turn running."""

    def __init__(self, violations: Violations) -> None:
        self._violations = violations

    def before(self, state: SessionState, record: r.Record) -> None:
        running = state.running()
        takeover = record.epoch > state.epoch and state.head > 0
        if isinstance(record, r.TurnResumed):
            self._check_resumed(state, record, takeover=takeover)
        elif running and takeover and not isinstance(record, _MAY_COME_FIRST):
            text = f"{of_record(record)} in a new epoch, and turn {running.number} runs on unasked"
            self._violations.add_of_turn(2, text, running.number)
        elif isinstance(record, r.ToolsAnswered):
            self._check_settled(state, record)

    def _check_resumed(self, state: SessionState, record: r.TurnResumed, *, takeover: bool) -> None:
        running = state.running()
        if not takeover:
            text = f"turn {record.turn} was resumed by the owner that it had"
            self._violations.add_of_turn(2, text, record.turn)
        if running is None or running.number != record.turn:
            text = f"turn {record.turn} was resumed and was not running"
            self._violations.add(2, text, seqs=[record.seq])
            return
        step = running.step if running.calls else running.step + 1
        if record.step != step:
            text = f"turn {record.turn} was resumed at step {record.step}; the log is at {step}"
            self._violations.add_of_turn(2, text, record.turn)

    def _check_settled(self, state: SessionState, record: r.ToolsAnswered) -> None:
        """A crash loses what the session ran; a caller's call waits for its caller."""
        turn = state.open.get(record.turn)
        callers = {call.id for call in turn.calls if call.runner == "caller"} if turn else set()
        for answer in record.answers:
            if answer.settled == "crash" and answer.call_id in callers:
                text = f"the caller's call {answer.call_id!r} was settled as lost in a crash"
                self._violations.add_of_turn(13, text, record.turn)
