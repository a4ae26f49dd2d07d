"""Where a turn goes on whose owner died: named from what the log has, a cell for each place."""

from __future__ import annotations

import pytest

from llmsession.errors import TurnStateError
from llmsession.turns import events as e
from llmsession.turns.event_choice import event_for_interrupt, event_for_resume
from llmsession.turns.machine import Phase, TurnLimits, step
from llmsession.turns.records import PendingCall
from llmsession.turns.request import StepTag
from tests.turns.paths import NOT_ENDED, after, at

CALLS = (PendingCall("c1", "bash", "session"), PendingCall("c2", "read", "caller"))
RESUMED: tuple[e.Event, ...] = (
    e.ResumedToRequest(step=3),
    e.ResumedToCalls(step=3, calls=("c1", "c2")),
    e.ResumedToStep(step=3),
    e.ResumedToLimit(step=3, stop_reason="max_steps"),
)
TAG = StepTag(3, 3, 1)


def name(
    step: int, offers: int = 0, unanswered: int = 0, tokens: int = 0, pauses: int = 0
) -> e.Event:
    limits = TurnLimits(max_steps=9, max_tokens=900)
    return event_for_resume(
        step, CALLS[:offers], CALLS[:unanswered], pauses=pauses, tokens=tokens, limits=limits
    )


@pytest.mark.parametrize(
    ("found", "event"),
    [
        (name(0), e.ResumedToRequest(step=1)),
        (name(4), e.ResumedToRequest(step=5)),
        (name(4, offers=2, unanswered=2), e.ResumedToCalls(step=4, calls=("c1", "c2"))),
        (name(4, offers=2, unanswered=1), e.ResumedToCalls(step=4, calls=("c1",))),
        (name(4, offers=2), e.ResumedToStep(step=4)),
        (name(9), e.ResumedToLimit(step=9, stop_reason="max_steps")),
        (name(4, tokens=900), e.ResumedToLimit(step=4, stop_reason="max_turn_tokens")),
        (name(4, tokens=899), e.ResumedToRequest(step=5)),
        # A limit is reached where a step is complete, not before.
        (name(9, offers=2, tokens=900), e.ResumedToStep(step=9)),
        (name(9, offers=2, unanswered=2), e.ResumedToCalls(step=9, calls=("c1", "c2"))),
        (name(0, tokens=900), e.ResumedToRequest(step=1)),
    ],
)
def test_what_the_log_has_of_a_turn_names_where_it_goes_on(found: e.Event, event: e.Event) -> None:
    assert found == event


@pytest.mark.parametrize(
    ("event", "keeps"),
    [(e.ResumedToRequest(step=1), False), *((event, True) for event in RESUMED)],
)
def test_a_resumed_turn_has_its_complete_and_journaled_steps_to_keep(
    event: e.Event, keeps: bool
) -> None:
    turn = after(event)
    assert turn.keepable == keeps
    asked = event_for_interrupt(turn, "keep_steps", reason="user", has_text=False)
    assert isinstance(asked, e.KeepRequested) == keeps


@pytest.mark.parametrize("event", RESUMED)
@pytest.mark.parametrize("phase", [phase for phase in NOT_ENDED if phase is not Phase.ACCEPTED])
def test_a_turn_is_resumed_before_anything_else_or_not_at_all(phase: Phase, event: e.Event) -> None:
    with pytest.raises(TurnStateError):
        step(at(phase), event)
