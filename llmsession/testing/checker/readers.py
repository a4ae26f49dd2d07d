"""What readers saw: histories, states, outcomes and subscriptions, held against the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec

from llmsession.session.log.state import SessionState
from llmsession.turns import records as r

from ..recording.entries import (
    RESTARTED,
    HistoryRead,
    ObservedEvent,
    SessionRecording,
    StateRead,
    SubscriptionLog,
)
from ..recording.fingerprints import digest, state_parts
from ..recording.violation import Violations
from .callers import status_of
from .log import Rules

__all__ = ["StateRules", "check_histories", "check_outcomes", "check_subscribers"]


class StateRules(Rules):
    """Invariant 12: the live state at a place in the log is the fold up to there."""

    def __init__(self, violations: Violations, reads: Sequence[StateRead]) -> None:
        super().__init__(violations)
        self._by_seq: dict[int, list[StateRead]] = {}
        for read in reads:
            self._by_seq.setdefault(read.seq, []).append(read)

    def after(self, state: SessionState, record: r.Record) -> None:
        reads = self._by_seq.pop(state.head, ())
        folded = state_parts(state) if reads else {}
        for read in reads:
            differ = sorted(part for part in folded if read.parts.get(part) != folded[part])
            if differ:
                text = f"at record {state.head} the live state differs in {', '.join(differ)}"
                self._violations.add(12, text, read, seqs=[state.head])

    def end(self, state: SessionState) -> None:
        for reads in self._by_seq.values():
            for read in reads:
                text = f"the live state stood at record {read.seq}, the log ends at {state.head}"
                self._violations.add(12, text, read, seqs=[state.head])


def check_histories(
    session: SessionRecording, records: Sequence[r.Record], violations: Violations
) -> None:
    """Invariants 1 and 3, between each two readings that follow each other."""
    reads = sorted(session.histories, key=lambda read: (read.incarnation, read.seq, read.order))
    for earlier, later in pairwise(reads):
        if (earlier.incarnation, earlier.generation) != (later.incarnation, later.generation):
            continue
        between = records[earlier.seq : later.seq]
        if not any(isinstance(record, r.TurnCommitted) for record in between):
            _check_unchanged(earlier, later, between, violations)
        elif later.messages[: len(earlier.messages)] != earlier.messages:
            text = f"the history of {len(earlier.messages)} messages did not only grow"
            violations.add(1, text, earlier, later)


def _check_unchanged(
    earlier: HistoryRead, later: HistoryRead, between: Sequence[r.Record], violations: Violations
) -> None:
    if earlier.history == later.history:
        return
    dropped = [record.seq for record in between if isinstance(record, r.TurnAborted | r.TurnFailed)]
    text = "the history is another object, and no turn was committed"
    violations.add(3 if dropped else 1, text, earlier, later, seqs=dropped)


def check_outcomes(
    session: SessionRecording, records: Sequence[r.Record], violations: Violations
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
            text = f"the outcome of turn {outcome.turn} was told as {outcome.status}"
            violations.add(2, f"{text}; the log says otherwise", outcome, seqs=[seq])


def check_subscribers(
    session: SessionRecording, records: Sequence[r.Record], violations: Violations
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
    for subscription in session.subscriptions:
        durable = [event for event in subscription.seen if event.seq]
        for event in durable:
            if event.digest not in logged.get(event.seq, ()):
                text = f"a subscriber read record {event.seq}, which the log has not"
                violations.add(5, text, _around(subscription, event), seqs=[event.seq])
        expected = list(_expected(subscription, records))
        seqs = [event.seq for event in durable]
        if seqs != expected[: len(seqs)]:
            position = next(i for i, seq in enumerate(seqs) if expected[i : i + 1] != [seq])
            next_seq = expected[position] if position < len(expected) else "none"
            text = f"a subscriber read record {seqs[position]} where {next_seq} is next"
            violations.add(
                13, text, _around(subscription, durable[position]), seqs=[seqs[position]]
            )
        elif subscription.ending in ("closed", "terminal") and len(seqs) < len(expected):
            text = f"a subscriber was not told of record {expected[len(seqs)]}"
            violations.add(13, text, _around(subscription, None), seqs=[expected[len(seqs)]])
        if subscription.ending == "stuck":
            text = "the session was closed, and a subscriber was never told"
            violations.add(13, text, _around(subscription, None))
        _check_previews(subscription, ends, resumed, violations)


def _expected(subscription: SubscriptionLog, records: Sequence[r.Record]) -> Iterator[int]:
    for record in records[subscription.after :]:
        if subscription.turn is None or r.turn_of(record) == subscription.turn:
            yield record.seq
            if subscription.turn is not None and r.is_terminal(record):
                return


def _check_previews(
    subscription: SubscriptionLog,
    ends: Mapping[int, int],
    resumed: Mapping[int, int],
    violations: Violations,
) -> None:
    ended: dict[int, int] = {}
    newest: dict[int, ObservedEvent] = {}
    for event in subscription.seen:
        if event.seq:
            if event.seq in ends:
                ended[ends[event.seq]] = event.seq
            before = newest.get(resumed.get(event.seq, 0))
            if before is not None:  # a new owner counts the attempts from 1 again
                newest[before.turn] = msgspec.structs.replace(before, attempt=0)
            continue
        turn = event.turn
        if turn in ended:
            text = f"a preview of turn {turn} came after its end"
            violations.add(2, text, _around(subscription, event), seqs=[ended[turn]])
            return
        before = newest.get(turn, event)
        if (event.step, event.attempt) < (before.step, before.attempt):
            text = f"a preview of turn {turn} is of an attempt that was over"
            violations.add(2, text, _around(subscription, event))
            return
        is_anew = (event.step, event.attempt) != (before.step, before.attempt)
        is_told = RESTARTED in (event.digest, before.digest)
        if event.step == before.step and is_anew and not is_told:
            text = f"a step of turn {turn} began anew, and nothing said so"
            violations.add(2, text, _around(subscription, event))
            return
        newest[turn] = event


def _around(subscription: SubscriptionLog, event: ObservedEvent | None) -> SubscriptionLog:
    """*watched* with only what stands around *sighting*; its last two without one."""
    seen = subscription.seen
    position = next((i for i, other in enumerate(seen) if other is event), len(seen))
    return msgspec.structs.replace(subscription, seen=seen[max(0, position - 2) : position + 1])
