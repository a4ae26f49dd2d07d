"""What readers saw: histories, states, outcomes and subscriptions, held against the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec

from llmsession.session.log.state import SessionState
from llmsession.turns import records as r

from ..recording.entries import (
    HistoryRead,
    ObservedEvent,
    SessionRecording,
    StateRead,
    SubscriptionLog,
)
from ..recording.fingerprints import digest, state_parts
from ..recording.violation import Violations
from .interrupts import status_of

__all__ = ["StateRules", "check_histories", "check_outcomes", "check_subscribers"]


class StateRules:
    """Invariant 12: the live state at a place in the log is the fold up to there."""

    def __init__(self, findings: Violations, reads: Sequence[StateRead]) -> None:
        self._findings = findings
        self._by_seq: dict[int, list[StateRead]] = {}
        for read in reads:
            self._by_seq.setdefault(read.seq, []).append(read)

    def before(self, state: SessionState, record: r.Record) -> None:
        pass

    def after(self, state: SessionState, record: r.Record) -> None:
        reads = self._by_seq.pop(state.head, ())
        folded = state_parts(state) if reads else {}
        for read in reads:
            differ = sorted(part for part in folded if read.parts.get(part) != folded[part])
            if differ:
                told = f"at record {state.head} the live state differs in {', '.join(differ)}"
                self._findings.add(12, told, read, seqs=[state.head])

    def end(self, state: SessionState) -> None:
        for reads in self._by_seq.values():
            for read in reads:
                told = f"the live state stood at record {read.seq}, the log ends at {state.head}"
                self._findings.add(12, told, read, seqs=[state.head])


def check_histories(
    session: SessionRecording, records: Sequence[r.Record], findings: Violations
) -> None:
    """Invariants 1 and 3, between each two readings that follow each other."""
    reads = sorted(session.histories, key=lambda read: (read.life, read.seq, read.order))
    for earlier, later in pairwise(reads):
        if (earlier.life, earlier.generation) != (later.life, later.generation):
            continue
        between = records[earlier.seq : later.seq]
        if not any(isinstance(record, r.TurnCommitted) for record in between):
            _check_unchanged(earlier, later, between, findings)
        elif later.messages[: len(earlier.messages)] != earlier.messages:
            told = f"the history of {len(earlier.messages)} messages did not only grow"
            findings.add(1, told, earlier, later)


def _check_unchanged(
    earlier: HistoryRead, later: HistoryRead, between: Sequence[r.Record], findings: Violations
) -> None:
    if earlier.history == later.history:
        return
    dropped = [record.seq for record in between if isinstance(record, r.TurnAborted | r.TurnFailed)]
    told = "the history is another object, and no turn was committed"
    findings.add(3 if dropped else 1, told, earlier, later, seqs=dropped)


def check_outcomes(
    session: SessionRecording, records: Sequence[r.Record], findings: Violations
) -> None:
    """Invariant 2: who awaited a turn was told the one end that the log has."""
    ends = {
        end.turn: (record.seq, end)
        for record in records
        if r.is_terminal(record)
        for end in [status_of(record)]
    }
    for outcome in session.outcomes:
        if outcome.status == "error":
            continue
        seq, end = ends.get(outcome.turn, (0, None))
        if end is None or (end.status, end.stop_reason) != (outcome.status, outcome.stop_reason):
            told = f"the outcome of turn {outcome.turn} was told as {outcome.status}"
            findings.add(2, f"{told}; the log says otherwise", outcome, seqs=[seq])


def check_subscribers(
    session: SessionRecording, records: Sequence[r.Record], findings: Violations
) -> None:
    """Invariants 2, 5 and 13: records as in the log, each once, in order, without a gap; and no
    preview of a turn that has ended, nor of an attempt that is over."""
    logged = {entry.seq: {digest(entry.body)} for entry in session.log}
    for rewrite in session.rewrites:  # who reads it again gets it so
        logged.setdefault(rewrite.seq, set()).add(digest(rewrite.body))
    ends = {
        record.seq: turn
        for record in records
        if r.is_terminal(record) and (turn := r.turn_of(record)) is not None
    }
    resumed = {record.seq: record.turn for record in records if isinstance(record, r.TurnResumed)}
    for watched in session.watched:
        durable = [sighting for sighting in watched.seen if sighting.seq]
        for sighting in durable:
            if sighting.digest not in logged.get(sighting.seq, ()):
                told = f"a subscriber read record {sighting.seq}, which the log has not"
                findings.add(5, told, _around(watched, sighting), seqs=[sighting.seq])
        expected = list(_expected(watched, records))
        seqs = [sighting.seq for sighting in durable]
        if seqs != expected[: len(seqs)]:
            at = next(i for i, seq in enumerate(seqs) if expected[i : i + 1] != [seq])
            wanted = expected[at] if at < len(expected) else "none"
            told = f"a subscriber read record {seqs[at]} where {wanted} is next"
            findings.add(13, told, _around(watched, durable[at]), seqs=[seqs[at]])
        elif watched.ending in ("closed", "terminal") and len(seqs) < len(expected):
            told = f"a subscriber was not told of record {expected[len(seqs)]}"
            findings.add(13, told, _around(watched, None), seqs=[expected[len(seqs)]])
        if watched.ending == "stuck":
            told = "the session was closed, and a subscriber was never told"
            findings.add(13, told, _around(watched, None))
        _check_previews(watched, ends, resumed, findings)


def _expected(watched: SubscriptionLog, records: Sequence[r.Record]) -> Iterator[int]:
    for record in records[watched.after :]:
        if watched.turn is None or r.turn_of(record) == watched.turn:
            yield record.seq
            if watched.turn is not None and r.is_terminal(record):
                return


def _check_previews(
    watched: SubscriptionLog,
    ends: Mapping[int, int],
    resumed: Mapping[int, int],
    findings: Violations,
) -> None:
    ended: dict[int, int] = {}
    newest: dict[int, ObservedEvent] = {}
    for sighting in watched.seen:
        if sighting.seq:
            if sighting.seq in ends:
                ended[ends[sighting.seq]] = sighting.seq
            # A new owner counts the attempts from 1 again.
            newest.pop(resumed.get(sighting.seq, 0), None)
            continue
        turn = sighting.turn
        if turn in ended:
            told = f"a preview of turn {turn} came after its end"
            findings.add(2, told, _around(watched, sighting), seqs=[ended[turn]])
            return
        before = newest.get(turn, sighting)
        if (sighting.step, sighting.attempt) < (before.step, before.attempt):
            told = f"a preview of turn {turn} is of an attempt that was over"
            findings.add(2, told, _around(watched, sighting))
            return
        newest[turn] = sighting


def _around(watched: SubscriptionLog, sighting: ObservedEvent | None) -> SubscriptionLog:
    """*watched* with only what stands around *sighting*; its last two without one."""
    seen = watched.seen
    at = next((i for i, other in enumerate(seen) if other is sighting), len(seen))
    return msgspec.structs.replace(watched, seen=seen[max(0, at - 2) : at + 1])
