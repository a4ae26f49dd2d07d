"""Random lives of a turn, on the machine and on an oracle that does not read its table."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from llmsession.turns import events as e
from llmsession.turns.event_choice import OnFailure
from tests.turns.lives import Life

LIVES = 500
MAX_MOVES = 120


def seeded_life(seed: int) -> Life:
    choices = random.Random(seed)
    on_failure: OnFailure = "drop" if seed % 5 == 0 else "keep_steps"
    life = Life(choices.randrange, on_failure)
    life.play(MAX_MOVES)
    return life


@pytest.fixture(scope="module")
def lives() -> list[Life]:
    return [seeded_life(seed) for seed in range(LIVES)]


def effects(life: Life) -> list[e.Effect]:
    return [what for _, what in life.trace if isinstance(what, e.Effect)]


class Chosen:
    """Choices that hypothesis made beforehand, so that it can shrink them; then the first."""

    def __init__(self, choices: Sequence[int]) -> None:
        self.left = list(reversed(choices))

    def __call__(self, below: int) -> int:
        return self.left.pop() % below if self.left else 0


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 999), max_size=150),
    st.sampled_from(["keep_steps", "drop"]),
    st.booleans(),
)
def test_the_machine_does_what_the_oracle_expects(
    choices: list[int], on_failure: OnFailure, crashes: bool
) -> None:
    life = Life(Chosen(choices), on_failure, crashes=crashes)
    life.play(MAX_MOVES)
    for state in sorted(life.seen):
        event(state)


def test_seeded_lives_end_and_reach_the_deep_states(lives: list[Life]) -> None:
    reached = Counter(state for life in lives for state in life.seen)
    reached["interrupted in tools, then aborted"] = sum(
        {"interrupted in tools", "aborted"} <= life.seen for life in lives
    )
    reached["retried, then committed"] = sum(
        {"retried", "committed"} <= life.seen for life in lives
    )
    for state, count in sorted(reached.items()):
        print(f"{count / LIVES:6.1%}  {state}")
    assert all(life.oracle.ended for life in lives)
    min_percent = {
        "committed": 20,
        "aborted": 10,
        "failed": 5,
        "fenced": 1,
        "lost": 1,
        "third step": 8,
        "interrupted, open": 20,
        "interrupted, too late": 10,
        "interrupted in tools, then aborted": 3,
        "stopped, then committed": 10,
        "retried, then committed": 4,
        "late report": 20,
    }
    short = {s: reached[s] for s, least in min_percent.items() if reached[s] * 100 < least * LIVES}
    assert short == {}


def test_a_turn_that_crashes_and_is_resumed_wherever_it_is_goes_on_as_the_oracle_expects() -> None:
    reached: Counter[str] = Counter()
    for seed in range(LIVES):
        life = Life(random.Random(seed).randrange, crashes=True)
        life.play(3 * MAX_MOVES)
        reached.update(life.seen)
        reached["ended"] += life.oracle.ended is not None
    deep = {state: count for state, count in reached.items() if "rash" in state or "Res" in state}
    print(dict(sorted(deep.items())))
    assert reached["ended"] > LIVES * 0.95
    states = ("context", "reply", "journal", "results")
    assert all(reached[f"crashed, waiting for {state}"] > 20 for state in states)
    assert min(reached["crashed, decided"], reached["crashed, stopping"]) > 20
    events = ("ResumedToRequest", "ResumedToCalls", "ResumedToStep", "ResumedToLimit")
    assert all(reached[event] >= 10 for event in events)


def test_exactly_one_end_is_ordered_and_nothing_after_it(lives: list[Life]) -> None:
    ends = (e.JournalCommit, e.JournalAbort, e.JournalFailure)
    for life in lives:
        ordered = effects(life)
        at = [position for position, effect in enumerate(ordered) if isinstance(effect, ends)]
        assert len(at) == 1 or (at == [] and life.oracle.ended in ("fenced", "lost"))
        assert at in ([], [len(ordered) - 1])


def test_no_tool_starts_before_its_call_is_durable(lives: list[Life]) -> None:
    started = 0
    for life in lives:
        durable = set()
        for _, what in life.trace:
            if isinstance(what, e.CallsJournaled):
                durable.add(what.tag)
            if isinstance(what, e.StartTools):
                started += 1
                assert what.tag in durable
    assert started > LIVES // 3


def test_no_step_begins_before_the_last_one_is_durable(lives: list[Life]) -> None:
    begun = 0
    for life in lives:
        durable = {0}
        for _, what in life.trace:
            if isinstance(what, e.StepJournaled) and what.tag is not None:
                durable.add(what.tag.step)
            if isinstance(what, e.BuildContext):
                begun += what.tag.step > 1
                assert what.tag.step - 1 in durable
    assert begun > LIVES // 5


def test_no_work_is_ordered_after_the_order_to_stop(lives: list[Life]) -> None:
    stopped = 0
    work = (e.BuildContext, e.OpenStream, e.JournalCalls, e.StartTools, e.JournalStep)
    for life in lives:
        kinds = [type(effect) for effect in effects(life)]
        if e.StopWork in kinds:
            stopped += 1
            assert kinds.count(e.StopWork) == 1
            assert not set(kinds[kinds.index(e.StopWork) :]) & set(work)
    assert stopped > LIVES // 4


def test_a_drop_before_the_decision_never_commits_and_never_fails(lives: list[Life]) -> None:
    dropped = 0
    for life in lives:
        decided = False
        for kind, what in life.trace:
            decided = decided or isinstance(what, e.JournalCommit | e.JournalFailure)
            if kind == "event" and isinstance(what, e.DropRequested) and not decided:
                dropped += 1
                assert life.oracle.ended in ("aborted", "fenced", "lost")
    assert dropped > LIVES // 8


def test_a_keep_before_the_decision_commits_what_is_kept_or_loses_to_a_drop(
    lives: list[Life],
) -> None:
    kept = 0
    for life in lives:
        trace = [what for _, what in life.trace]
        commits = [effect for effect in trace if isinstance(effect, e.JournalCommit)]
        asked = [at for at, what in enumerate(trace) if isinstance(what, e.KeepRequested)]
        if commits and asked and asked[0] < trace.index(commits[0]):
            kept += 1
            assert commits[0].keep in ("steps", "text")
            assert commits[0].stop_reason == "cancelled"
    assert kept > LIVES // 20
