"""What happens to turns between their acceptance and their end: the order in which they start, the
notes on dropped turns that they carry, their steers, and what they cost. By the log alone, without
the counters of its fold."""

from __future__ import annotations

from collections import Counter

from llmsession.session.log.redaction import NOTHING_SAID
from llmsession.session.log.state import SessionState
from llmsession.turns import records as r
from llmsession.turns.receipts import receipt_text

from ..recording.entries import Invoked, OutcomeSeen, SessionRecording
from ..recording.violation import Violations, of_record
from .callers import token_of
from .rules import Rules

__all__ = ["CourseRules"]

_READ_ALL = "end_turn"
"""A turn that ends by itself has read its steers: while some wait it goes on."""


class CourseRules(Rules):
    """Invariants 2, 3 and 13 along a log, from the session's own first record on."""

    def __init__(self, violations: Violations, session: SessionRecording) -> None:
        self._violations = violations
        self._sends = {call.token: call for call in session.invoked.values() if call.token}
        self._outcomes: dict[int, list[OutcomeSeen]] = {}
        for seen in session.outcomes:
            if seen.status != "error":
                self._outcomes.setdefault(seen.turn, []).append(seen)
        self._waiting: list[int] = []
        self._modes: dict[int, str | None] = {}
        self._steers: Counter[int] = Counter()
        self._asked: dict[int, dict[str, int]] = {}
        """By turn the calls that the log has of it, each with its step."""
        self._answered: set[str] = set()
        self._forgotten: set[int] = set()
        """Turns that were taken out of the log before it was written down."""

    def before(self, state: SessionState, record: r.Record) -> None:
        match record:
            case r.SessionForked():
                self._waiting.clear()
            case r.TurnAccepted():
                self._accepted(state, record)
            case r.TurnStarted():
                self._check_next(record)
                self._check_note(state, record)
            case r.SteerAccepted(turn=turn):
                self._steers[turn] += 1
            case r.StepCompleted(turn=turn, steers=steers):
                self._steers[turn] -= steers
            case r.ToolsRequested(turn=turn, step=step, calls=calls):
                self._asked.setdefault(turn, {}).update((call.id, step) for call in calls)
            case r.ToolsAnswered(answers=answers):
                self._answered.update(entry.call_id for entry in answers if entry.settled is None)
            case r.TurnCommitted() | r.TurnAborted() | r.TurnFailed():
                self._ended(state, record)
            case _:
                pass

    def _accepted(self, state: SessionState, record: r.TurnAccepted) -> None:
        if record.body == NOTHING_SAID:
            self._forgotten.add(record.turn)
        send = self._sends.get(token_of(record))
        self._modes[record.turn] = mode = send.when_busy if send else None
        if send is not None and send.head is not None:
            self._check_head(state, record, send)
        if record.started:
            self._check_note(state, record)
        elif mode == "interrupt":
            self._waiting.insert(0, record.turn)
        else:
            self._waiting.append(record.turn)

    def _check_head(self, state: SessionState, record: r.TurnAccepted, send: Invoked) -> None:
        if state.open or state.head_turn != send.head:
            text = f"turn {record.turn} was to follow turn {send.head}; the head is"
            text = f"{text} {state.head_turn}, and {len(state.open)} turns are open"
            self._violations.add(13, text, send, seqs=[record.seq])

    def _check_next(self, record: r.TurnStarted) -> None:
        """The queue is taken from its front; who replaces a turn comes first."""
        waiting, known = self._waiting, all(self._modes.get(turn) for turn in self._waiting)
        if waiting and known and waiting[0] != record.turn:
            text = f"turn {record.turn} was started, and turn {waiting[0]} is next"
            self._violations.add_of_turn(13, text, record.turn)
        if record.turn in waiting:
            waiting.remove(record.turn)

    def _check_note(self, state: SessionState, record: r.TurnAccepted | r.TurnStarted) -> None:
        pending_redaction = receipt_text(state.receipts)
        if record.receipt != pending_redaction and not self._forgotten:
            text = (
                "a note of what their tools did"
                if pending_redaction
                else "no note, for nothing is owed"
            )
            text = f"turn {record.turn} follows dropped turns and has to carry {text}"
            seqs = [state.accepted_at[entry.turn] for entry in state.receipts]
            self._violations.add(3, text, seqs=[*seqs[:3], record.seq])

    def _ended(self, state: SessionState, record: r.Terminal) -> None:
        if record.turn in self._waiting:
            self._waiting.remove(record.turn)
        if isinstance(record, r.TurnCommitted):
            if record.stop_reason == _READ_ALL and self._steers[record.turn]:
                text = f"turn {record.turn} ended by itself, and a steer of it was not read"
                self._violations.add_of_turn(2, text, record.turn)
        else:
            self._check_receipt(record)
        self._check_usage(state, record)
        for seen in self._outcomes.get(record.turn, ()):
            if seen.unread_steers != self._steers[record.turn]:
                text = f"who waited for turn {record.turn} was told of {seen.unread_steers} unread"
                text = f"{text} steers, of {self._steers[record.turn]}"
                self._violations.add_of_turn(13, text, record.turn, seen)

    def _check_receipt(self, record: r.TurnAborted | r.TurnFailed) -> None:
        """A call that was answered, or of a step that is over, had started. Of the last step's
        others only who ran them knows; after a crash nobody does, so each may have."""
        if record.turn in self._forgotten:
            return
        steps, receipt_ids = self._asked.get(record.turn, {}), {call.id for call in record.calls}
        last = max(steps.values(), default=0)
        crashed = isinstance(record, r.TurnAborted) and record.reason == "crash"
        missing = [
            call
            for call, step in steps.items()
            if call not in receipt_ids and (crashed or step < last or call in self._answered)
        ]
        if missing:
            text = f"{of_record(record)} of turn {record.turn} says nothing of {missing}"
            self._violations.add_of_turn(3, text, record.turn)

    def _check_usage(self, state: SessionState, record: r.Terminal) -> None:
        turn = state.open.get(record.turn)
        if turn is None:
            return
        spent = turn.usage
        for entry in record.unrecorded_usage:
            spent += entry.usage
        last = getattr(record, "reply", None)
        if last is not None and last.usage is not None:
            spent += last.usage
        if spent != record.usage:
            text = f"turn {record.turn} says that it used {record.usage}, its requests {spent}"
            self._violations.add_of_turn(12, text, record.turn)
