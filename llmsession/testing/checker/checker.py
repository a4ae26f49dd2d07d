"""Finds violated invariants in a recording. Pure: no clock, no sessions.

The log of each session is folded once, record by record. Commands, answers, requests and observed
events are compared with the states on the way.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from llmsession.session.log.state import SessionState
from llmsession.turns.request import Profile

from ..recording.entries import Found, Recording, SessionRecording
from ..recording.violation import INVARIANTS, Violation, Violations
from .callers import check_callers, check_interrupts
from .history import ForgottenRules, HistoryRules
from .log import CompactionRules, IdRules, Rules, TurnRules
from .readers import StateRules, check_histories, check_outcomes, check_subscribers
from .requests import RequestRules
from .turns import CourseRules, OwnerRules, TimeRules

__all__ = ["INVARIANTS", "MARGIN_S", "Violation", "check"]

MARGIN_S = 1.0
"""How much longer than the grace period an interrupt may take."""
TURNS_OF_THE_LOOP = 5
"""An interrupt takes some iterations of the event loop, and each can be late by the measured lag.
With this allowance a busy machine does not count as a violation, but a hang does."""


def check(recording: Recording, *, margin_s: float = MARGIN_S) -> tuple[Violation, ...]:
    """All violations in *recording*, session by session. Empty if all invariants hold.

    A recording that was cut off violates "every caller is answered". Its missing part violates no
    other invariant.
    """
    begun, left = recording.begun, recording.left
    margin_s += TURNS_OF_THE_LOOP * (left.lag_s if left else 0.0)
    violations: list[Violation] = []
    for session in recording.sessions.values():
        violations += _check_session(session, begun.profile, begun.grace_s + margin_s)
    violations += _check_left(recording)
    for entry in recording.entries:
        if isinstance(entry, Found):
            violations.append(Violation(entry.invariant, entry.session, entry.text, (entry,)))
    return tuple(violations)


def _check_session(
    session: SessionRecording, profile: Profile, answered_within_s: float
) -> list[Violation]:
    violations = Violations(session)
    try:
        records, rewritten = session.records, session.rewritten
    except msgspec.MsgspecError as error:
        violations.add(12, f"the log cannot be read: {error}", *session.log[:1])
        return violations.items
    rules: tuple[Rules, ...] = (
        IdRules(violations),
        TurnRules(violations),
        CourseRules(violations, session),
        TimeRules(violations, session, answered_within_s),
        HistoryRules(violations, rewritten),
        ForgottenRules(violations, session),
        OwnerRules(violations),
        CompactionRules(violations, profile),
        RequestRules(violations, session.requests, profile),
        StateRules(violations, session.states),
    )
    state = SessionState(session.session)
    for record in records:
        for rule in rules:
            rule.before(state, record)
        try:
            state.apply(record)
        except (KeyError, ValueError) as error:
            if not any(violation.invariant in (2, 6, 13) for violation in violations.items):
                violations.add(12, f"the log cannot be folded: {error!r}", seqs=[record.seq])
            return violations.items
        for rule in rules:
            rule.after(state, record)
    for rule in rules:
        rule.end(state)
    check_callers(session, records, violations)
    check_interrupts(session, records, violations, answered_within_s)
    check_histories(session, records, violations)
    check_outcomes(session, records, violations)
    check_subscribers(session, records, violations)
    return violations.items


def _check_left(recording: Recording) -> Iterator[Violation]:
    """Check that a session named the tasks that it left running, and that no task ran after the
    manager's end."""
    for session in recording.sessions.values():
        for ended in session.ended:
            for name in sorted(set(ended.running) - set(ended.still_running)):
                text = f"{name!r} still ran when the session was closed, and was not named"
                yield Violation(11, session.session, text, (ended,))
    left = recording.left
    if left is None:
        return
    for name in left.after_exit:
        yield Violation(11, _session_of(recording, name), f"{name!r} was left behind", (left,))
    if left.open_streams:
        text = f"{left.open_streams} streams of the provider were never closed"
        yield Violation(11, "", text, (left,))


def _session_of(recording: Recording, work: str) -> str:
    name = work.rpartition(" ")[2]
    return name if name in recording.sessions else ""
