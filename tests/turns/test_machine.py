"""The safety rules of a turn, one test each. Expectations are written by hand, never read from
the table."""

from __future__ import annotations

import pytest

from llmsession.errors import TurnStateError
from llmsession.turns import events as e
from llmsession.turns.machine import (
    DECIDED,
    ENDED,
    Phase,
    is_late,
    step,
    table_markdown,
    tag_of,
)
from llmsession.turns.request import StepTag
from tests.turns.lives import UNTAGGED_EVENTS
from tests.turns.paths import (
    AFTER_THE_DECISION,
    AT_AN_END,
    DROP,
    KEEP,
    NOT_ENDED,
    TO_STEP_2,
    after,
    at,
)

TAG = StepTag(3, 1, 1)

# Late reports and missing cells


@pytest.mark.parametrize("phase", [*NOT_ENDED, *AT_AN_END])
@pytest.mark.parametrize("tag", [StepTag(3, 9, 1), StepTag(3, 1, 9), StepTag(2, 1, 1)])
def test_a_late_report_changes_nothing_in_any_phase(phase: Phase, tag: StepTag) -> None:
    turn = at(phase)
    assert step(turn, e.ReplyFinished(tag=tag, stop_reason="end_turn")) == (turn, ())


def test_a_report_of_the_present_attempt_is_not_late() -> None:
    turn = at(Phase.STREAMING)
    assert not is_late(turn, e.StreamBroke(tag=TAG))
    assert not is_late(turn, e.StreamBroke())


@pytest.mark.parametrize(
    ("phase", "event"),
    [
        (Phase.ACCEPTED, e.ContextBuilt()),
        (Phase.ACCEPTED, KEEP),
        (Phase.BUILDING, e.ReplyFinished(stop_reason="end_turn")),
        (Phase.BUILDING, e.Started()),
        (Phase.STREAMING, e.CallsJournaled()),
        (Phase.STREAMING, e.Committed()),
        (Phase.JOURNALING, e.CallsAnswered(calls=())),
        (Phase.JOURNALING, e.ContextBuilt()),
        (Phase.TOOLS, e.StepJournaled()),
        (Phase.TOOLS, e.StoppedToDrop()),
        (Phase.STOPPING, e.Aborted()),
        (Phase.COMMITTING, e.Aborted()),
        (Phase.COMMITTING, e.ReplyFinished(stop_reason="end_turn")),
        (Phase.ABORTING, e.Committed()),
        (Phase.FAILING, e.Committed()),
    ],
)
def test_an_event_without_a_cell_raises_and_names_event_turn_and_phase(
    phase: Phase, event: e.Event
) -> None:
    with pytest.raises(TurnStateError, match=f"{type(event).__name__} while turn 3 is {phase}"):
        step(at(phase), event)


@pytest.mark.parametrize("phase", AT_AN_END)
def test_nothing_may_come_after_an_end(phase: Phase) -> None:
    turn = at(phase)
    for event in UNTAGGED_EVENTS:
        with pytest.raises(TurnStateError):
            step(turn, event)


def test_the_events_tried_are_all_that_there_are() -> None:
    assert {type(event) for event in UNTAGGED_EVENTS} == set(e.Event.__subclasses__())


def test_phases_are_open_decided_or_ended() -> None:
    assert frozenset(AFTER_THE_DECISION) == DECIDED
    assert frozenset(AT_AN_END) == ENDED
    assert {*NOT_ENDED, *AT_AN_END} == set(Phase)


# Ends


@pytest.mark.parametrize("phase", NOT_ENDED)
def test_every_phase_that_has_not_ended_can_be_fenced_and_lost(phase: Phase) -> None:
    fenced, lost = step(at(phase), e.Fenced()), step(at(phase), e.StoreLost())
    assert (fenced[0].phase, fenced[1]) == (Phase.FENCED, ())
    assert (lost[0].phase, lost[1]) == (Phase.LOST, ())


@pytest.mark.parametrize("event", [(), (e.ContextBuilt(),)], ids=["building", "streaming"])
def test_a_provider_given_up_is_kept_as_an_error_or_dropped_with_its_cause(
    event: tuple[e.Event, ...],
) -> None:
    turn = after(*TO_STEP_2, *event)
    kept, (commit,) = step(turn, e.GaveUpKept(error="529"))
    assert kept.phase is Phase.COMMITTING
    assert commit == e.JournalCommit(
        tag=tag_of(kept), stop_reason="error", keep="steps", error="529"
    )
    _, (commit,) = step(turn, e.GaveUpKept(error="used up", stop_reason="budget"))
    assert isinstance(commit, e.JournalCommit)
    assert (commit.stop_reason, commit.keep, commit.error) == ("budget", "steps", "used up")
    dropped, (failure,) = step(turn, e.GaveUpDropped(cause="fatal", error="401"))
    assert dropped.phase is Phase.FAILING
    assert failure == e.JournalFailure(tag=tag_of(dropped), cause="fatal", error="401")


def test_a_turn_is_a_value_that_a_step_does_not_change() -> None:
    turn = at(Phase.TOOLS)
    step(turn, DROP)
    assert turn == at(Phase.TOOLS)


# The table as a page


def test_the_page_lists_every_event_once_by_name_and_every_phase_that_has_not_ended() -> None:
    head, rule, *rows = table_markdown().splitlines()
    assert [cell.strip() for cell in head.split("|")[2:-1]] == [phase.name for phase in NOT_ENDED]
    assert rule.count("---") == 1 + len(NOT_ENDED)
    names = [row.split("|")[1].strip(" `") for row in rows]
    assert names == sorted(kind.__name__ for kind in e.Event.__subclasses__())
    assert all(row.count("|") == len(NOT_ENDED) + 2 for row in rows)


@pytest.mark.parametrize(
    ("event", "phase", "cell"),
    [
        ("ReplyFinished", "STREAMING", "COMMITTING"),
        ("ReplyFinished", "STOPPING", "stays"),
        ("ReplyFinished", "TOOLS", ""),
        ("DropRequested", "ACCEPTED", "ABORTING"),
        ("StoreLost", "FAILING", "LOST"),
    ],
)
def test_a_cell_of_the_page_says_where_the_event_leads(event: str, phase: str, cell: str) -> None:
    head, _, *rows = (line.split("|") for line in table_markdown().splitlines())
    column = [name.strip() for name in head].index(phase)
    (row,) = [row for row in rows if row[1].strip() == f"`{event}`"]
    assert row[column].strip() == cell
