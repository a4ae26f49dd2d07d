"""What a stress run is asked to do, and what it came to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from llmsession.errors import InvalidInput
from llmsession.turns import records as r

from ..checker.callers import token_of
from ..recording.entries import (
    Invoked,
    LeftBehind,
    OutcomeSeen,
    Recording,
    Refused,
    Requested,
    Returned,
    Rewritten,
    SubscriptionLog,
)
from ..recording.violation import Violation

__all__ = ["StressPlan", "StressReport", "count", "latencies_ms", "percentile"]


class StressPlan(msgspec.Struct, frozen=True, kw_only=True):
    """*turns* sends and *interrupts* interrupts for each of *sessions*; after *seconds* nothing
    new is started. Everything that is chosen comes from *seed*; how the tasks interleave is up
    to the machine and differs from run to run."""

    sessions: int = 20
    turns: int = 50
    interrupts: int = 10
    seconds: float = 20.0
    seed: int = 0

    def checked(self) -> StressPlan:
        """This plan. Raises InvalidInput for one that nothing can be done with."""
        for name in ("sessions", "turns", "seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidInput(f"{name} is {getattr(self, name)}; it must be greater than 0")
        if self.interrupts < 0:
            raise InvalidInput(f"interrupts is {self.interrupts}; it cannot be negative")
        return self


class StressReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to. ``counts`` says how often each thing was reached: silence about a
    thing that never happened is no promise kept."""

    plan: StressPlan
    counts: dict[str, int]
    violations: tuple[Violation, ...]
    seconds: float
    interrupt_p50_ms: float
    interrupt_p99_ms: float
    recording: Recording

    @property
    def turns(self) -> int:
        """Accepted turns of all sessions."""
        return self.counts.get("turns", 0)

    @property
    def turns_per_second(self) -> float:
        """Accepted turns of all sessions, by the seconds that the work took."""
        return self.turns / self.seconds if self.seconds else 0.0


def latencies_ms(recording: Recording) -> list[float]:
    """How long each interrupt took from its call to its answer, shortest first."""
    return sorted(
        (answer.at - call.at) * 1000
        for session in recording.sessions.values()
        for call in session.invoked.values()
        if call.command == "interrupt"
        for answer in session.returned.get(call.call, ())
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which *share* of *ordered* lies; 0.0 of nothing."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def count(recording: Recording) -> dict[str, int]:
    """How often each thing happened, by name."""
    counted: Counter[str] = Counter(sessions=len(recording.sessions))
    for entry in recording.entries:
        match entry:
            case Invoked(command=command):
                counted[f"command {command}"] += 1
                counted["interrupts"] += command == "interrupt"
                if command == "interrupt":
                    named = "named" if entry.turn is not None else "all"
                    counted[f"interrupt {entry.policy or 'configured'} {named}"] += 1
            case Returned(result=str(result)):
                counted[f"answer {result}"] += 1
            case Refused(error=error):
                counted[f"refused {error}"] += 1
            case OutcomeSeen():
                counted["steers unread"] += entry.unread_steers
            case Requested():
                counted["requests"] += 1
                counted["retries"] += entry.attempt > 1
            case SubscriptionLog(ending=ending):
                counted[f"subscriber {ending}"] += 1
                counted["subscriber resumed"] += entry.turn is None and entry.after > 1
                counted["previews"] += sum(not seen.seq for seen in entry.seen)
            case Rewritten():
                counted["rewritten records"] += 1
            case LeftBehind(late_reports=late):
                counted["late reports"] += late
            case _:
                pass
    for session in recording.sessions.values():
        counted["named as still running"] += sum(
            len(ended.still_running) for ended in session.ended
        )
        modes = {call.token: call.when_busy for call in session.invoked.values()}
        for record in session.records:
            _count_record(counted, record, modes)
    return dict(sorted(counted.items()))


def _count_record(counted: Counter[str], record: r.Record, modes: dict[str, str | None]) -> None:
    match record:
        case r.TurnAccepted():
            counted["turns"] += 1
            counted[f"accepted {modes.get(token_of(record))}"] += 1
            counted["receipts"] += record.receipt is not None
        case r.TurnStarted():
            counted["receipts"] += record.receipt is not None
        case r.TurnCommitted(stop_reason=reason):
            counted[f"committed {reason}"] += 1
        case r.TurnAborted(reason=reason):
            counted[f"aborted {reason}"] += 1
        case r.TurnFailed(cause=cause):
            counted[f"failed {cause}"] += 1
        case r.ToolsRequested(calls=calls):
            counted["tool calls"] += len(calls)
        case r.ToolsAnswered(answers=answers):
            counted["expired calls"] += sum(a.settled == "deadline" for a in answers)
            counted["calls lost in crashes"] += sum(a.settled == "crash" for a in answers)
            counted["failed calls"] += sum(a.is_error for a in answers)
            counted["capped results"] += sum(a.capped is not None for a in answers)
        case r.TurnResumed():
            counted["turns resumed"] += 1
        case r.CompactionApplied():
            counted["compactions"] += 1
            counted[f"compacted {record.trigger}"] += 1
            counted["prefix_summaries"] += record.prefix_summary is not None
            counted["inputs shortened"] += len(record.inputs)
            counted["texts cut"] += len(record.texts)
        case r.ContextWarned():
            counted["warnings"] += 1
        case r.SteerAccepted():
            counted["steers"] += 1
        case r.ConversationCleared(purge=purge):
            counted["purges" if purge else "clears"] += 1
        case r.ConversationRewound():
            counted["rewinds"] += 1
        case r.ConversationForgotten():
            counted["forgets"] += 1
        case r.SessionForked():
            counted["forks"] += 1
        case r.SessionLabelled():
            counted["labels"] += 1
        case r.SessionConfigured():
            counted["configures"] += 1
        case r.SummariesStored():
            counted["summaries stored"] += 1
        case _:
            pass
