"""How long things took that have a limit: calls, and whole turns. By when their records were
written, where the record of the run says so."""

from __future__ import annotations

import msgspec

from llmsession.session.log.state import SessionState
from llmsession.turns import records as r

from ..recording.entries import SessionRecording
from ..recording.violation import Violations, of_record
from .rules import Rules

__all__ = ["TimeRules"]


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
        self._violations = violations
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
