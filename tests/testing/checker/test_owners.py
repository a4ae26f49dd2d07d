"""The checker knows a resumed turn: what a new owner may do with one, and what breaks a promise."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from llmsession.testing import check
from llmsession.testing.recording.entries import (
    RESTARTED,
    ObservedEvent,
    Recording,
    SubscriptionLog,
)
from llmsession.turns import records as r
from llmsession.turns.receipts import settled_answer
from llmsession.turns.usage import Usage
from tests.testing.recordings import (
    SESSION,
    answers,
    asking,
    log_of,
    offers,
    reply,
    requested,
    said,
    script,
    seen,
)

OURS = (r.PendingCall("b", "ask", "session"),)
ASKED = r.ToolsRequested(
    turn=1, step=1, reply=asking("a", "b"), calls=(*offers("a"), *OURS)
)  # fmt: skip
LOST = r.ToolsAnswered(turn=1, step=1, answers=(settled_answer("b", "crash"),))
DONE = r.TurnCommitted(turn=1, stop_reason="end_turn", usage=Usage(), reply=reply("done"))
RESUMED = r.TurnResumed(turn=1, step=1)
REST: tuple[r.Record, ...] = (
    r.ToolsAnswered(turn=1, step=1, answers=answers("a")), r.StepCompleted(turn=1, step=1), DONE,
)  # fmt: skip


def log(*epochs: Sequence[r.Record]) -> list[r.Record]:
    """A session whose first owner accepted a turn and asked for two calls, and what came then,
    epoch by epoch: the first one is that owner's."""
    created = script()[0]
    begun = (created, r.TurnAccepted(turn=1, body=said("t1: hello"), started=True), ASKED)
    stamped = [
        (epoch, record)
        for epoch, records in enumerate([(*begun, *epochs[0]), *epochs[1:]], start=1)
        for record in records
    ]
    return [
        msgspec.structs.replace(record, seq=seq, epoch=epoch)
        for seq, (epoch, record) in enumerate(stamped, start=1)
    ]


def broken(records: list[r.Record]) -> list[int]:
    return [violation.invariant for violation in check(Recording(log_of(records)))]


CRASHED = r.TurnAborted(
    turn=1,
    reason="crash",
    usage=Usage(),
    calls=tuple(r.CallReceipt(call, "ask", "unknown", "") for call in ("a", "b")),
)


@pytest.mark.parametrize(
    "records",
    [
        log((), (RESUMED, LOST, *REST)),
        log((), (RESUMED,), (RESUMED, LOST, *REST)),
        log((), (RESUMED, LOST), (RESUMED, *REST)),
        log((LOST, *REST[:2]), (r.TurnResumed(turn=1, step=2), DONE)),
        log((), (CRASHED,)),
    ],
    ids=["once", "twice", "after its lost calls", "between steps", "dropped"],
)
def test_a_turn_that_a_new_owner_resumes_or_ends_breaks_nothing(records: list[r.Record]) -> None:
    assert check(Recording(log_of(records))) == ()


def test_a_turn_that_a_new_owner_goes_on_with_in_silence_breaks_2() -> None:
    assert broken(log((), (LOST, *REST))) == [2]


def test_a_turn_that_its_own_owner_resumes_breaks_2() -> None:
    assert broken(log((RESUMED, LOST, *REST))) == [2]


@pytest.mark.parametrize("step", [0, 2])
def test_a_turn_that_is_resumed_at_another_step_than_the_logs_breaks_2(step: int) -> None:
    assert broken(log((), (r.TurnResumed(turn=1, step=step), LOST, *REST))) == [2]


def test_a_turn_that_was_not_running_and_is_resumed_breaks_2() -> None:
    waiting = r.TurnAccepted(turn=2, body=said("t2: more"))
    resumed = r.TurnResumed(turn=2, step=1)
    records = log((waiting,), (RESUMED, LOST, *REST), (resumed, r.TurnAborted(
        turn=2, reason="crash", usage=Usage()
    )))  # fmt: skip
    assert broken(records) == [2]


def test_a_turn_that_waits_and_is_resumed_in_place_of_the_running_one_breaks_2() -> None:
    waiting = r.TurnAccepted(turn=2, body=said("t2: more"))
    ended = r.TurnAborted(turn=2, reason="crash", usage=Usage())
    resumed = r.TurnResumed(turn=2, step=1)
    assert broken(log((waiting,), (resumed, LOST, *REST, ended))) == [2]


def test_a_callers_call_that_a_crash_has_settled_breaks_13() -> None:
    lost = r.ToolsAnswered(
        turn=1, step=1, answers=tuple(settled_answer(call, "crash") for call in ("a", "b"))
    )
    assert broken(log((), (RESUMED, lost, *REST[1:]))) == [13]


def compaction(call: str) -> r.CompactionApplied:
    return r.CompactionApplied(
        policy="p", reason="r", compacted_before=3, shown_results={call: "short"},
        tokens_before=2000, tokens_after=1000,
    )  # fmt: skip


def test_the_requests_of_a_resumed_step_follow_those_of_its_first_owner() -> None:
    """Each sees one compaction more. Their attempts are 1, 2 and, of the new owner, 1."""
    both = (r.ToolsAnswered(turn=1, step=1, answers=answers("a", "b")), REST[1], compaction("a"))
    records = log(both, (r.TurnResumed(turn=1, step=2), compaction("b"), DONE))
    sent = [
        msgspec.structs.replace(
            requested(records, seq, turn=1, step=2, order=order), attempt=attempt
        )
        for order, (seq, attempt) in enumerate([(5, 1), (6, 2), (8, 1)])
    ]
    assert check(Recording([*sent, *log_of(records)])) == ()


@pytest.mark.parametrize(
    ("resumed", "told", "violations"),
    [(True, True, []), (True, False, [2]), (False, False, [2])],
    ids=["after a resume that says so", "after a resume that does not", "without one"],
)
def test_a_preview_of_an_attempt_that_was_over_breaks_2_unless_a_new_owner_shows_it(
    resumed: bool, told: bool, violations: list[int]
) -> None:
    records = log((), (RESUMED, LOST, *REST[:2]), (r.TurnResumed(turn=1, step=2), DONE))
    *before, again, end = [seen(record) for record in records]
    shown, anew = [*before, ObservedEvent(0, "", 1, 2, 2)], ObservedEvent(0, "", 1, 2, 1)
    shown += (
        [again, *([ObservedEvent(0, RESTARTED, 1, 2, 1)] if told else []), anew]
        if resumed
        else [anew, again]
    )
    watched = SubscriptionLog(
        session=SESSION, subscriber=1, after=0, cursor=end.seq, ending="closed",
        seen=(*shown, end),
    )  # fmt: skip
    found = [each.invariant for each in check(Recording([watched, *log_of(records)]))]
    assert found == violations
