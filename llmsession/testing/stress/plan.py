"""What a stress run is to do, and its result."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import anyio
import msgspec

from llmsession.errors import InvalidInput
from llmsession.turns import records as r

from ..checker.callers import token_of
from ..checker.checker import check
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

__all__ = ["LagMeter", "StressPlan", "StressReport", "report_of"]

_SHORT_S = 0.005


class StressPlan(msgspec.Struct, frozen=True, kw_only=True):
    """*turns* sends and *interrupts* interrupts to each of *sessions* sessions. After *seconds*
    nothing new is started. All random choices come from *seed*. How the tasks interleave depends on
    the machine, and differs from run to run.

    Now and then the event loop is blocked for up to *block* seconds, as it is by a callback that
    computes: timers come late and all at once, and what came in meanwhile is found together.
    """

    sessions: int = 20
    turns: int = 50
    interrupts: int = 10
    seconds: float = 20.0
    seed: int = 0
    block: float = 0.0

    def checked(self) -> StressPlan:
        """Return this plan. Raises InvalidInput if it cannot be run."""
        for name in ("sessions", "turns", "seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidInput(f"{name} is {getattr(self, name)}; it must be greater than 0")
        for name in ("interrupts", "block"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InvalidInput(f"{name} is {getattr(self, name)}; it must be 0 or more")
        return self


class StressReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run. ``counts`` says how often each kind of event happened. An event that
    never happened was not tested."""

    plan: StressPlan
    counts: dict[str, int]
    violations: tuple[Violation, ...]
    seconds: float
    interrupt_p50_ms: float
    interrupt_p99_ms: float
    recording: Recording

    @property
    def turns(self) -> int:
        """The number of accepted turns of all sessions."""
        return self.counts.get("turns", 0)

    @property
    def turns_per_second(self) -> float:
        """The number of accepted turns of all sessions for each second of the run."""
        return self.turns / self.seconds if self.seconds else 0.0


def report_of(
    plan: StressPlan,
    recording: Recording,
    *,
    seconds: float,
    margin_s: float,
    more: Sequence[Violation] = (),
) -> StressReport:
    """Check *recording* and report; *more* are violations that were found in another way."""
    latencies = _latencies_ms(recording)
    return StressReport(
        plan=plan,
        counts=_count(recording),
        violations=(*check(recording, margin_s=margin_s), *more),
        seconds=seconds,
        interrupt_p50_ms=round(_percentile(latencies, 0.5), 3),
        interrupt_p99_ms=round(_percentile(latencies, 0.99), 3),
        recording=recording,
    )


class LagMeter:
    """Measures how late a short sleep ends at worst. It runs until its scope is cancelled."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.worst_s = 0.0

    async def run(self) -> None:
        """Measure."""
        with self.scope:
            while True:
                before = anyio.current_time()
                await anyio.sleep(_SHORT_S)
                self.worst_s = max(self.worst_s, anyio.current_time() - before - _SHORT_S)


def _latencies_ms(recording: Recording) -> list[float]:
    """How long each interrupt took from its call to its answer, shortest first."""
    return sorted(
        (answer.at - call.at) * 1000
        for session in recording.sessions.values()
        for call in session.invoked.values()
        if call.command == "interrupt"
        for answer in session.returned.get(call.call, ())
    )


def _percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which *share* of *ordered* lies; 0.0 of nothing."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _count(recording: Recording) -> dict[str, int]:
    """How often each thing happened, by name."""
    counts: Counter[str] = Counter(sessions=len(recording.sessions))
    for entry in recording.entries:
        match entry:
            case Invoked(command=command):
                counts[f"command {command}"] += 1
                counts["interrupts"] += command == "interrupt"
                if command == "interrupt":
                    named = "named" if entry.turn is not None else "all"
                    counts[f"interrupt {entry.policy or 'configured'} {named}"] += 1
            case Returned(result=str(result)):
                counts[f"answer {result}"] += 1
            case Refused(error=error):
                counts[f"refused {error}"] += 1
            case OutcomeSeen():
                counts["steers unread"] += entry.unread_steers
            case Requested():
                counts["requests"] += 1
                counts["retries"] += entry.attempt > 1
            case SubscriptionLog(ending=ending):
                counts[f"subscriber {ending}"] += 1
                counts["subscriber resumed"] += entry.turn is None and entry.after > 1
                counts["previews"] += sum(not seen.seq for seen in entry.seen)
            case Rewritten():
                counts["rewritten records"] += 1
            case LeftBehind(late_reports=late):
                counts["late reports"] += late
            case _:
                pass
    for session in recording.sessions.values():
        counts["named as still running"] += sum(len(ended.still_running) for ended in session.ended)
        modes = {call.token: call.when_busy for call in session.invoked.values()}
        for record in session.records:
            _count_record(counts, record, modes)
    return dict(sorted(counts.items()))


_COUNTED: dict[type, str] = {
    r.TurnResumed: "turns resumed",
    r.ContextWarned: "warnings",
    r.SteerAccepted: "steers",
    r.ConversationRewound: "rewinds",
    r.ConversationForgotten: "forgets",
    r.SessionForked: "forks",
    r.SessionLabelled: "labels",
    r.SessionConfigured: "configures",
    r.SummariesStored: "summaries stored",
}
"""Records that are only counted, with the name of their count."""


def _count_record(counts: Counter[str], record: r.Record, modes: dict[str, str | None]) -> None:
    match record:
        case r.TurnAccepted():
            counts["turns"] += 1
            counts[f"accepted {modes.get(token_of(record))}"] += 1
            counts["receipts"] += record.receipt is not None
        case r.TurnStarted():
            counts["receipts"] += record.receipt is not None
        case r.TurnCommitted(stop_reason=reason):
            counts[f"committed {reason}"] += 1
        case r.TurnAborted(reason=reason):
            counts[f"aborted {reason}"] += 1
        case r.TurnFailed(cause=cause):
            counts[f"failed {cause}"] += 1
        case r.ToolsRequested(calls=calls):
            counts["tool calls"] += len(calls)
        case r.ToolsAnswered(answers=answers):
            counts["expired calls"] += sum(a.settled == "deadline" for a in answers)
            counts["calls lost in crashes"] += sum(a.settled == "crash" for a in answers)
            counts["failed calls"] += sum(a.is_error for a in answers)
            counts["capped results"] += sum(a.capped is not None for a in answers)
        case r.CompactionApplied():
            counts["compactions"] += 1
            counts[f"compacted {record.trigger}"] += 1
            counts["prefix_summaries"] += record.prefix_summary is not None
            counts["inputs shortened"] += len(record.inputs)
            counts["texts cut"] += len(record.texts)
        case r.ConversationCleared(purge=purge):
            counts["purges" if purge else "clears"] += 1
        case _ if type(record) in _COUNTED:
            counts[_COUNTED[type(record)]] += 1
        case _:
            pass
