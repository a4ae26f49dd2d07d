"""What happens to turns: the order in which they start, the notes on dropped turns that they carry,
their steers, what they cost, and how long they take; and what a new owner does with those that it
finds open. By the log alone, without the counters of its fold.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from llmsession.session.log.redaction import NOTHING_SAID
from llmsession.session.log.state import SessionState
from llmsession.turns import records as r
from llmsession.turns.receipts import receipt_text

from ..recording.entries import Invoked, OutcomeSeen, SessionRecording
from ..recording.violation import Violations, of_record
from .callers import token_of
from .log import Rules

__all__ = ["CourseRules", "OwnerRules", "TimeRules"]

_READ_ALL = "end_turn"
"""A turn that ends by itself has read its steers: while some wait it goes on."""


class CourseRules(Rules):
    """Invariants 2, 3 and 13 along a log, from the session's own first record on."""

    def __init__(self, violations: Violations, session: SessionRecording) -> None:
        super().__init__(violations)
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


_MAY_COME_FIRST = (
    r.TurnCommitted, r.TurnAborted, r.TurnFailed, r.SessionForked, r.RecordsRedacted,
)  # fmt: skip
"""What a new owner may write while a turn runs that it has not resumed: ends, a fork's own first
record, which drops what was open, and the erasing that the last owner left undone."""


class OwnerRules(Rules):
    """Invariants 2 and 13, where an epoch ends with a turn running."""

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


class _Tool(msgspec.Struct, frozen=True):
    name: str
    deadline_s: float | None = None


class _Limits(msgspec.Struct, frozen=True):
    max_steps: int | None = None
    max_seconds: float | None = None


class _Config(msgspec.Struct, frozen=True):
    """The limits in a logged configuration."""

    tools: tuple[_Tool, ...] = ()
    limits: _Limits = _Limits()
    tool_deadline_s: float | None = None

    def deadline_s(self, tool: str) -> float | None:
        own = next(
            (definition.deadline_s for definition in self.tools if definition.name == tool), None
        )
        return self.tool_deadline_s if own is None else own


class TimeRules(Rules):
    """Invariant 2, where a turn or a call has a limit: it ends then, in the life that it began in.
    ``late_s`` is how much later its record may be written."""

    def __init__(self, violations: Violations, session: SessionRecording, late_s: float) -> None:
        super().__init__(violations)
        self._written = {entry.seq: entry.at for entry in session.log if entry.at}
        self._late_s = late_s
        self._raw = b""
        self._config = _Config()
        self._began: dict[int, tuple[int, float]] = {}
        """By turn the epoch and the time in which its owner began with it."""
        self._due: dict[str, float] = {}

    def before(self, state: SessionState, record: r.Record) -> None:
        time_s = self._written.get(record.seq)
        if bytes(state.config) != self._raw:
            self._raw = bytes(state.config)
            self._config = msgspec.json.decode(self._raw, type=_Config)
        match record:
            case r.TurnAccepted(started=True) | r.TurnStarted() | r.TurnResumed() if time_s:
                self._began[record.turn] = record.epoch, time_s
                self._due.clear()
            case r.ToolsRequested():
                self._check_steps(record)
                for call in record.calls:
                    deadline_s = self._config.deadline_s(call.name)
                    if deadline_s is not None and time_s:
                        self._due[call.id] = time_s + deadline_s
            case r.ToolsAnswered() if time_s:
                for answer in record.answers:
                    self._check_call(record, answer.call_id, time_s)
            case r.TurnCommitted() | r.TurnAborted() | r.TurnFailed() if time_s:
                self._check_turn(record, time_s)
            case _:
                pass

    def _check_steps(self, record: r.ToolsRequested) -> None:
        limit = self._config.limits.max_steps
        if limit is not None and record.step > limit:
            text = f"turn {record.turn} is in step {record.step}, of at most {limit}"
            self._violations.add_of_turn(2, text, record.turn)

    def _check_call(self, record: r.Record, call: str, time_s: float) -> None:
        late_s = time_s - self._due.pop(call, time_s)
        if late_s > self._late_s:
            text = f"{of_record(record)}: the call {call!r} was open {late_s:.3f} s too long"
            self._violations.add(2, text, seqs=[record.seq])

    def _check_turn(self, record: r.Terminal, time_s: float) -> None:
        epoch, began = self._began.pop(record.turn, (0, time_s))
        if epoch != record.epoch:
            return  # it died with its owner, and was found later
        for call in tuple(self._due):
            self._check_call(record, call, time_s)
        max_s = self._config.limits.max_seconds
        if max_s is not None and time_s - began > max_s + self._late_s:
            text = f"turn {record.turn} took {time_s - began:.3f} s, of at most {max_s:.3f} s"
            self._violations.add_of_turn(2, text, record.turn)
