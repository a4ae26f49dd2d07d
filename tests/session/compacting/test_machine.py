"""The safety rules of a compaction, one test each, and random runs against an oracle.
Expectations are written by hand, never read from the table."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from llmsession import CompactionConfig
from llmsession.compaction.view.view import View
from llmsession.errors import CompactionStateError
from llmsession.session.compacting import events as e
from llmsession.session.compacting.machine import (
    APPLYING,
    Compaction,
    Phase,
    is_stalled,
    step,
    table_markdown,
)
from llmsession.session.compacting.snapshot import Snapshot
from llmsession.session.values.outcome import CompactionOutcome
from llmsession.turns.messages import Message
from tests.session.compacting.random_runs import CONFIG, EVENTS, REQUEST, SIZE, Run, plan_called

RUNS = 400
MAX_MOVES = 60

PLAN = plan_called("a plan", figures={"kept_before_tokens": 7})
DUE = e.PlanDue(size=SIZE, trigger="threshold")
REQUESTED = e.CompactionRequested(size=SIZE)
MADE = e.PlanMade(plan=PLAN, request=REQUEST)
REJECTED = e.PlanRejected(reason="nothing to gain", tokens=1_000, config=CONFIG)
MOMENT = e.MomentCame(trigger="cold_cache", figures={"idle_s": 400})
REQUEST_DUE = e.RequestDue(size=SIZE, trigger="threshold")
TOO_LARGE = e.RequestTooLarge(size=SIZE, ceiling=500, trigger="window")
CANCELLED = CompactionOutcome(False, "cancelled")
CHANGED = CompactionOutcome(False, "the conversation changed meanwhile")

TO: dict[Phase, tuple[e.Event, ...]] = {
    Phase.IDLE: (),
    Phase.PLANNING: (DUE,),
    Phase.READY: (DUE, MADE),
    Phase.POSTPONED: (DUE, MADE, e.MomentPostponed()),
    Phase.AWAITED: (REQUEST_DUE,),
    Phase.FORCING: (TOO_LARGE,),
    Phase.PREPARING: (DUE, MADE, MOMENT),
    Phase.WRITING: (DUE, MADE, MOMENT, e.ContextPrepared()),
    Phase.CLOSING: (DUE, MADE, MOMENT, e.ContextPrepared(), e.Closed()),
    Phase.CLOSED: (e.Closed(),),
}
"""Each phase as it is really reached."""
WORKING = (Phase.PLANNING, Phase.AWAITED, Phase.FORCING, Phase.PREPARING)
STOPPABLE = (*WORKING, Phase.READY, Phase.POSTPONED)


def after(*events: e.Event, compaction: Compaction | None = None) -> Compaction:
    compaction = compaction or Compaction()
    for event in events:
        compaction, _ = step(compaction, event)
    return compaction


def in_phase(phase: Phase) -> Compaction:
    compaction = after(*TO[phase])
    assert compaction.phase is phase
    return compaction


def orders(compaction: Compaction, event: e.Event) -> tuple[e.Effect, ...]:
    return step(compaction, event)[1]


def answer(outcome: CompactionOutcome) -> e.AnswerCallers:
    return e.AnswerCallers(outcome=outcome)


# From a plan to a record


def test_a_plan_that_is_made_waits_for_a_moment_and_orders_nothing() -> None:
    compaction, effects = step(in_phase(Phase.PLANNING), MADE)
    assert (compaction.phase, compaction.plan, effects) == (Phase.READY, PLAN, ())


def test_a_plan_that_is_postponed_waits_and_orders_nothing() -> None:
    compaction, effects = step(in_phase(Phase.READY), e.MomentPostponed())
    assert (compaction.phase, effects) == (Phase.POSTPONED, ())
    assert step(compaction, e.MomentPostponed()) == (compaction, ())


@pytest.mark.parametrize("phase", [Phase.READY, Phase.POSTPONED])
def test_the_record_tells_why_and_by_which_figures_the_moment_was_chosen(phase: Phase) -> None:
    compaction, (prepare,) = step(in_phase(phase), MOMENT)
    figures = {"kept_before_tokens": 7, "idle_s": 400}
    plan = replace(PLAN, trigger="cold_cache", figures=figures)
    assert prepare == e.PrepareContext(work=compaction.number, plan=plan)
    written, effects = step(compaction, e.ContextPrepared(work=compaction.number))
    assert effects == (e.WriteRecord(work=written.number, plan=plan),)


def test_a_record_is_logged_and_answered_when_it_is_durable_and_the_build_goes_on_last() -> None:
    compaction, effects = step(in_phase(Phase.WRITING), e.RecordWritten())
    assert (compaction.phase, compaction.plan) == (Phase.IDLE, None)
    outcome = CompactionOutcome(True, "a plan", 900, 100)
    plan = in_phase(Phase.WRITING).plan
    assert plan is not None
    assert effects == (e.LogApplied(plan=plan), answer(outcome), e.ResumeBuild())


# One job at a time


@pytest.mark.parametrize("phase", [Phase.PLANNING, Phase.READY, *sorted(APPLYING)])
def test_while_one_compaction_is_on_its_way_a_caller_starts_no_other(phase: Phase) -> None:
    if phase is not Phase.CLOSING:  # no command is performed then
        compaction = in_phase(phase)
        assert step(compaction, REQUESTED) == (compaction, ())


def test_a_caller_gets_a_plan_of_his_own_and_not_one_that_was_postponed() -> None:
    compaction, effects = step(in_phase(Phase.POSTPONED), REQUESTED)
    assert (compaction.phase, compaction.plan) == (Phase.PLANNING, None)
    assert effects == (e.MakePlan(work=compaction.number, size=SIZE, trigger="asked"),)


@pytest.mark.parametrize("phase", [Phase.IDLE, Phase.PLANNING, Phase.READY, Phase.POSTPONED])
def test_a_request_that_is_too_large_takes_the_place_of_any_plan(phase: Phase) -> None:
    compaction, effects = step(in_phase(phase), TOO_LARGE)
    assert (compaction.phase, compaction.plan) == (Phase.FORCING, None)
    find = e.FindHardestPlan(work=compaction.number, size=SIZE, ceiling=500, trigger="window")
    assert effects == ((e.StopWork(), find) if phase is Phase.PLANNING else (find,))


@pytest.mark.parametrize("phase", list(Phase))
def test_a_late_report_changes_nothing_in_any_phase(phase: Phase) -> None:
    compaction = in_phase(phase)
    late = compaction.number - 1
    events = (replace(MADE, work=late), e.ContextPrepared(work=late), e.RecordWritten(work=late))
    for event in events:
        assert step(compaction, event) == (compaction, ())


# What a request waits for


@pytest.mark.parametrize("phase", [Phase.IDLE, Phase.POSTPONED])
def test_a_request_that_is_due_waits_for_a_plan_that_is_made_for_it(phase: Phase) -> None:
    compaction, effects = step(in_phase(phase), REQUEST_DUE)
    assert (compaction.phase, compaction.plan) == (Phase.AWAITED, None)
    assert effects == (e.MakePlan(work=compaction.number, size=SIZE, trigger="threshold"),)
    assert Phase.AWAITED in APPLYING


def test_a_request_that_is_due_waits_for_the_plan_that_is_on_its_way() -> None:
    planning = in_phase(Phase.PLANNING)
    compaction, effects = step(planning, REQUEST_DUE)
    assert (compaction.phase, compaction.number, effects) == (Phase.AWAITED, planning.number, ())


def test_a_plan_that_a_request_waits_for_is_applied_as_soon_as_it_is_made() -> None:
    made = replace(MADE, plan=replace(PLAN, trigger="policy_limit"))
    compaction, effects = step(in_phase(Phase.AWAITED), made)
    assert compaction.phase is Phase.PREPARING
    assert effects == (e.PrepareContext(work=compaction.number, plan=made.plan),)


def test_a_request_that_waits_goes_on_where_there_is_no_plan_and_the_next_one_may_ask() -> None:
    rejected = replace(REJECTED, growth=0.0)
    compaction, effects = step(in_phase(Phase.AWAITED), rejected)
    assert compaction.phase is Phase.IDLE
    nothing = answer(CompactionOutcome(False, "nothing to gain"))
    assert effects == (nothing, e.ResumeBuild())
    assert not is_stalled(compaction, 1_000, CONFIG)
    lost, effects = step(in_phase(Phase.AWAITED), e.PlanLost())
    assert (lost.phase, effects) == (Phase.IDLE, (answer(CANCELLED), e.ResumeBuild()))


def test_what_is_injected_does_not_end_a_stall() -> None:
    stalled = after(DUE, REJECTED)
    injected = replace(MADE, plan=replace(PLAN, trigger="injection"))
    assert is_stalled(after(REQUEST_DUE, injected, compaction=stalled), 1_000, CONFIG)
    freed = replace(MADE, plan=replace(PLAN, trigger="policy_limit"))
    assert not is_stalled(after(REQUEST_DUE, freed, compaction=stalled), 1_000, CONFIG)


# What a plan was made for is compared


def message(turn: int) -> Message:
    return Message(id=f"s/u{turn}", session="s", turn=turn, role="user", body=Raw(b"[]"))


MESSAGES = tuple(message(turn) for turn in (1, 2, 3))


@pytest.mark.parametrize(
    ("now", "is_current"),
    [
        (Snapshot(1, View(), MESSAGES), True),
        (Snapshot(1, View(), (*MESSAGES, MESSAGES[0])), True),
        (Snapshot(2, View(), MESSAGES), False),
        (Snapshot(1, View(version=1), MESSAGES), False),
        (Snapshot(1, View(), MESSAGES[:2]), False),
        (Snapshot(1, View(), (*MESSAGES[:2], message(3))), False),
    ],
    ids=["equal", "longer", "generation", "view", "shorter", "equal but another message"],
)
def test_a_snapshot_is_compared_by_generation_view_version_and_identity(
    now: Snapshot, is_current: bool
) -> None:
    assert Snapshot(1, View(), MESSAGES).is_current(now) is is_current


def test_a_plan_for_another_limit_or_configuration_is_not_what_would_be_asked_for() -> None:
    config = CONFIG.compaction
    assert REQUEST.is_configured(2_000, config)
    assert not REQUEST.is_configured(1_999, config)
    assert not REQUEST.is_configured(2_000, CompactionConfig(keep_recent_turns=9))


@pytest.mark.parametrize(
    "phase", [Phase.READY, Phase.POSTPONED, Phase.AWAITED, Phase.FORCING, Phase.PREPARING]
)
def test_an_outdated_plan_is_dropped_and_a_build_that_waits_for_it_goes_on(phase: Phase) -> None:
    compaction, effects = step(in_phase(phase), e.PlanOutdated())
    assert (compaction.phase, compaction.plan) == (Phase.IDLE, None)
    resume = (e.ResumeBuild(),) if phase in APPLYING else ()
    assert effects == (e.LogDiscarded(), answer(CHANGED), *resume)


@pytest.mark.parametrize("phase", [Phase.AWAITED, Phase.FORCING, Phase.PREPARING])
def test_what_is_being_prepared_does_not_follow_a_change_into_the_log(phase: Phase) -> None:
    compaction, effects = step(in_phase(phase), e.ChangeBegan())
    assert compaction.phase is Phase.IDLE
    assert effects == (e.StopWork(), e.LogDiscarded(), answer(CHANGED))


# Plans that fail


@pytest.mark.parametrize(
    ("event", "outcome"),
    [(REJECTED, CompactionOutcome(False, "nothing to gain")), (e.PlanLost(), CANCELLED)],
)
def test_callers_are_told_when_there_is_no_plan(event: e.Event, outcome: CompactionOutcome) -> None:
    compaction, effects = step(in_phase(Phase.PLANNING), event)
    assert (compaction.phase, effects) == (Phase.IDLE, (answer(outcome),))


def test_after_a_plan_that_gained_too_little_only_a_change_is_worth_another() -> None:
    compaction = after(DUE, REJECTED)
    assert [is_stalled(compaction, tokens, CONFIG) for tokens in (999, 1_000, 1_049, 1_050)] == [
        False, True, True, False,
    ]  # fmt: skip
    assert not is_stalled(compaction, 1_000, replace(CONFIG))
    assert is_stalled(after(DUE, MADE, compaction=compaction), 1_000, CONFIG)
    assert not is_stalled(after(DUE, MADE, MOMENT, compaction=compaction), 1_000, CONFIG)


def test_where_the_hardest_plan_frees_nothing_callers_and_the_build_are_told() -> None:
    compaction, effects = step(in_phase(Phase.FORCING), e.NothingFreed())
    assert compaction.phase is Phase.IDLE
    nothing = answer(CompactionOutcome(False, "nothing to gain"))
    assert effects == (nothing, e.ReportExhausted())


# Ends


@pytest.mark.parametrize("phase", STOPPABLE)
def test_who_cancels_stops_the_work_and_a_build_that_waits_goes_on(phase: Phase) -> None:
    compaction, effects = step(in_phase(phase), e.Cancelled())
    assert (compaction.phase, compaction.plan) == (Phase.IDLE, None)
    stop = (e.StopWork(),) if phase in WORKING else ()
    resume = (e.ResumeBuild(),) if phase in APPLYING else ()
    assert effects == (*stop, answer(CANCELLED), *resume)
    # A configuration does the same where no caller waits.
    assert orders(in_phase(phase), e.Reconfigured()) == (*stop, *resume)


@pytest.mark.parametrize("phase", STOPPABLE)
def test_a_session_that_closes_stops_the_work_and_builds_nothing_more(phase: Phase) -> None:
    stop = (e.StopWork(),) if phase in WORKING else ()
    closed, effects = step(in_phase(phase), e.Closed())
    assert (closed.phase, effects) == (Phase.CLOSED, (*stop, answer(CANCELLED)))
    # With its actor gone, callers get the actor's error instead.
    ended, effects = step(in_phase(phase), e.Ended())
    assert (ended.phase, effects) == (Phase.CLOSED, stop)


@pytest.mark.parametrize("event", [e.Cancelled(), e.Reconfigured(), e.ChangeBegan()])
def test_a_record_on_its_way_into_the_log_is_not_stopped(event: e.Event) -> None:
    compaction, effects = step(in_phase(Phase.WRITING), event)
    assert compaction == in_phase(Phase.WRITING)
    assert effects == ((answer(CANCELLED),) if isinstance(event, e.Cancelled) else ())


def test_a_session_that_closes_still_takes_the_report_of_a_record_on_its_way() -> None:
    closing, effects = step(in_phase(Phase.WRITING), e.Closed())
    assert (closing.phase, effects) == (Phase.CLOSING, (answer(CANCELLED),))
    report = e.RecordWritten(work=in_phase(Phase.WRITING).number)
    closed, (logged, *_) = step(closing, report)
    assert closed.phase is Phase.CLOSED
    assert isinstance(logged, e.LogApplied)


@pytest.mark.parametrize("event", [DUE, REQUESTED, REQUEST_DUE, TOO_LARGE])
def test_a_closed_session_begins_no_compaction(event: e.Event) -> None:
    with pytest.raises(CompactionStateError, match=f"{type(event).__name__} while the compaction"):
        step(in_phase(Phase.CLOSED), event)


# Random runs


def seeded_run(seed: int) -> Run:
    run = Run(random.Random(seed).randrange)
    run.play(MAX_MOVES)
    return run


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return [seeded_run(seed) for seed in range(RUNS)]


@settings(derandomize=True, max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_machine_does_what_the_oracle_expects(choices: random.Random) -> None:
    Run(choices.randrange).play(MAX_MOVES)


def test_seeded_runs_reach_every_event_and_the_deep_states(runs: list[Run]) -> None:
    reached = Counter(state for run in runs for state in run.seen)
    for state, count in sorted(reached.items()):
        print(f"{count / RUNS:6.1%}  {state}")
    events = {type(event).__name__ for event in EVENTS}
    min_percent = dict.fromkeys(events, 8) | {
        "late report": 50,
        "writing -> idle": 50,
        "postponed -> preparing": 6,
        "postponed -> planning": 10,
        "postponed -> awaited": 5,
        "awaited -> preparing": 20,
        "awaited -> idle": 20,
        "planning -> awaited": 8,
        "planning -> forcing": 20,
        "preparing -> idle": 20,
        "writing -> closing": 3,
        "closing -> closed": 3,
    }
    short = {s: reached[s] for s, least in min_percent.items() if reached[s] * 100 < least * RUNS}
    assert short == {}


def test_an_effect_that_may_call_back_is_always_the_last_one(runs: list[Run]) -> None:
    may_call_back = (
        e.MakePlan, e.FindHardestPlan, e.PrepareContext, e.WriteRecord, e.ReportExhausted,
        e.ResumeBuild,
    )  # fmt: skip
    for run in runs:
        for _, effects in run.trace:
            assert not any(isinstance(effect, may_call_back) for effect in effects[:-1])


def test_no_record_is_ordered_but_behind_a_moment_or_for_a_request_that_waits(
    runs: list[Run],
) -> None:
    records = 0
    for run in runs:
        may_write = False
        for event, effects in run.trace:
            if isinstance(event, e.MomentCame | e.HardestPlanFound) or (
                isinstance(event, e.PlanMade) and effects
            ):
                may_write = True
            elif isinstance(event, e.PlanOutdated | e.ChangeBegan | e.Reconfigured | e.Closed):
                may_write = False
            if any(isinstance(effect, e.WriteRecord) for effect in effects):
                records += 1
                assert may_write
                may_write = False
    assert records > RUNS


# The table as a page


def test_the_events_tried_are_all_that_there_are() -> None:
    assert {type(event) for event in EVENTS} == set(e.Event.__subclasses__())


def test_the_page_lists_every_event_and_every_phase() -> None:
    head, _, *rows = (line.split("|") for line in table_markdown().splitlines())
    assert [cell.strip() for cell in head[2:-1]] == [phase.name for phase in Phase]
    names = [row[1].strip(" `") for row in rows]
    assert names == sorted(type(event).__name__ for event in EVENTS)
    (cells,) = [row[2:-1] for row in rows if row[1].strip() == "`RecordWritten`"]
    assert [cell.strip() for cell in cells] == ["", "", "", "", "", "", "", "IDLE", "CLOSED", ""]
