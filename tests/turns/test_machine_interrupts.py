"""Interrupts and limits: before the decision they win, after it they change nothing."""

from __future__ import annotations

import pytest

from llmsession.turns import events as e
from llmsession.turns.machine import Phase, is_late, step
from llmsession.turns.request import StepTag
from tests.turns.paths import (
    AFTER_THE_DECISION,
    BEFORE_THE_DECISION,
    DROP,
    KEEP,
    KEEP_TEXT,
    LIMIT,
    TO_STEP_2,
    TO_STREAMING,
    TO_TOOLS,
    after,
    at,
    orders,
)

TAG = StepTag(3, 1, 1)


@pytest.mark.parametrize("phase", BEFORE_THE_DECISION)
@pytest.mark.parametrize("event", [DROP, KEEP, KEEP_TEXT, LIMIT])
def test_an_interrupt_or_limit_before_the_decision_stops_the_work(
    phase: Phase, event: e.Event
) -> None:
    turn, effects = step(at(phase), event)
    assert turn.phase is Phase.STOPPING
    assert effects == (e.StopWork(tag=TAG),)


REPORTS_BEATEN_BY_AN_INTERRUPT: list[tuple[Phase, e.Event]] = [
    (Phase.BUILDING, e.ContextBuilt(tag=TAG)),
    (Phase.BUILDING, e.ContextOverflowed(tag=TAG, error="")),
    (Phase.BUILDING, e.GaveUpDropped(tag=TAG, cause="fatal", error="")),
    (Phase.STREAMING, e.ReplyFinished(tag=TAG, stop_reason="end_turn")),
    (Phase.STREAMING, e.ReplyRequestedTools(tag=TAG, calls=())),
    (Phase.STREAMING, e.ReplyContinued(tag=TAG, paused=True)),
    (Phase.STREAMING, e.ReplyRefused(tag=TAG, stop_reason="refusal")),
    (Phase.STREAMING, e.StreamBroke(tag=TAG)),
    (Phase.STREAMING, e.StreamOverflowed(tag=TAG)),
    (Phase.STREAMING, e.GaveUpKept(tag=TAG, error="")),
    (Phase.STREAMING, e.GaveUpDropped(tag=TAG, cause="fatal", error="")),
    (Phase.JOURNALING, e.CallsJournaled(tag=TAG)),
    (Phase.JOURNALING, e.StepJournaled(tag=TAG)),
]


@pytest.mark.parametrize("interrupt", [DROP, KEEP, LIMIT])
@pytest.mark.parametrize(("phase", "report"), REPORTS_BEATEN_BY_AN_INTERRUPT)
def test_an_interrupt_before_the_decision_wins_over_what_comes_after_it(
    phase: Phase, report: e.Event, interrupt: e.Event
) -> None:
    stopping = after(interrupt, turn=at(phase))
    assert step(stopping, report) == (stopping, ())


@pytest.mark.parametrize("first", [KEEP, KEEP_TEXT, LIMIT])
def test_a_drop_beats_a_keep_and_a_limit_while_stopping(first: e.Event) -> None:
    turn, effects = step(after(*TO_TOOLS, first), DROP)
    assert effects == ()
    assert turn.ending is not None
    assert (turn.ending.how, turn.ending.reason) == ("drop", "user")


@pytest.mark.parametrize("second", [KEEP, KEEP_TEXT, LIMIT, e.DropRequested(reason="again")])
def test_nothing_beats_a_drop_while_stopping(second: e.Event) -> None:
    stopping = after(*TO_TOOLS, DROP)
    assert step(stopping, second) == (stopping, ())


def test_a_limit_does_not_change_what_an_interrupt_asked_for() -> None:
    stopping = after(*TO_TOOLS, KEEP)
    assert step(stopping, LIMIT) == (stopping, ())


def test_an_interrupt_that_keeps_replaces_a_limit() -> None:
    turn = after(*TO_STREAMING, LIMIT, KEEP_TEXT)
    assert turn.ending is not None
    assert (turn.ending.how, turn.ending.reason) == ("keep_text", "cancelled")


def test_a_limit_keeps_completed_steps_under_its_own_stop_reason() -> None:
    (effect,) = orders(after(*TO_STEP_2, LIMIT), e.StoppedToKeep())
    assert isinstance(effect, e.JournalCommit)
    assert (effect.stop_reason, effect.keep) == ("max_seconds", "steps")


def test_a_limit_with_nothing_to_keep_fails() -> None:
    stopping = after(*TO_STREAMING, LIMIT)
    assert stopping.ending is not None
    assert stopping.ending.how == "fail"
    turn, (effect,) = step(stopping, e.StoppedToFail())
    assert turn.phase is Phase.FAILING
    assert isinstance(effect, e.JournalFailure)
    assert effect.cause == "max_seconds"
    assert "max_seconds before a step was complete" in effect.error


def test_there_is_nothing_to_keep_until_calls_or_a_step_are_journaled() -> None:
    assert not at(Phase.STREAMING).keepable
    assert at(Phase.JOURNALING).keepable
    assert after(*TO_STREAMING, e.ReplyContinued(paused=True)).keepable
    assert after(*TO_STEP_2).keepable


@pytest.mark.parametrize(
    "event", [e.CallsAnswered(calls=("c1",)), e.AllCallsAnswered(calls=("c1", "c2"))]
)
@pytest.mark.parametrize(("interrupt", "journals"), [(KEEP, True), (LIMIT, True), (DROP, False)])
def test_a_call_answered_in_the_grace_is_journaled_if_kept_and_not_if_dropped(
    event: e.CallsAnswered | e.AllCallsAnswered, interrupt: e.Event, journals: bool
) -> None:
    turn, effects = step(after(*TO_TOOLS, interrupt), event)
    assert turn.phase is Phase.STOPPING
    assert turn.open_calls == {"c1", "c2"} - set(event.calls)
    assert effects == ((e.JournalAnswers(tag=TAG),) if journals else ())


# After the decision


@pytest.mark.parametrize("phase", AFTER_THE_DECISION)
@pytest.mark.parametrize(
    "event", [DROP, KEEP, KEEP_TEXT, LIMIT, e.CallsJournaled(), e.StepJournaled()]
)
def test_after_the_decision_neither_an_interrupt_nor_an_older_record_changes_anything(
    phase: Phase, event: e.Event
) -> None:
    turn = at(phase)
    assert step(turn, event) == (turn, ())


@pytest.mark.parametrize(
    ("before", "decision"),
    [
        (TO_STREAMING, e.ReplyFinished(stop_reason="end_turn")),
        (TO_STREAMING, e.ReplyRefused(stop_reason="refusal")),
        ((*TO_TOOLS, DROP), e.StoppedToDrop()),
        ((*TO_TOOLS, KEEP), e.StoppedToKeep()),
        ((*TO_STREAMING, LIMIT), e.StoppedToFail()),
    ],
    ids=["finished", "refused", "dropped", "kept", "limited"],
)
def test_the_decision_makes_every_report_of_the_work_before_it_late(
    before: tuple[e.Event, ...], decision: e.Event
) -> None:
    decided = after(*before, decision)
    for report in (
        e.ReplyFinished(tag=TAG, stop_reason="end_turn"),
        e.AllCallsAnswered(tag=TAG, calls=("c1", "c2")),
    ):
        assert is_late(decided, report)
        assert step(decided, report) == (decided, ())
