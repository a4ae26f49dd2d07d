from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from llmsession.compaction.planning.policy import Budget, is_worthwhile
from llmsession.compaction.policies import SwapToolResults
from llmsession.compaction.summaries.extractive import compact_text
from llmsession.compaction.tokens.messages import context_tokens
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.projection import project
from llmsession.compaction.view.view import View
from llmsession.errors import InvalidConfig
from llmsession.turns.request import Profile
from tests.compaction.conversations import (
    FRAME,
    Talk,
    image,
    required,
    shape,
    summaries_of,
    talk,
    talks,
    text,
)

PROFILE = Profile()


def budget(built: Talk, *, committed: int | None = None, **fields: Any) -> Budget:
    return Budget(
        used_tokens=8000,
        limit_tokens=10_000,
        summaries=fields.pop("summaries", summaries_of(built)),
        profile=fields.pop("profile", PROFILE),
        committed=len(built.messages) if committed is None else committed,
    )


def planned(built: Talk, policy: SwapToolResults, view: View | None = None, **fields: Any) -> Plan:
    return required(policy.plan(view or View(), built.messages, budget(built, **fields)))


def compact(number: int, chars: int = 1000, summary: str = "what it said") -> str:
    return compact_text(summary, call_id=f"c{number}", chars=chars)


KEEP_2 = SwapToolResults(keep_recent_turns=2)


# When.


@pytest.mark.parametrize("threshold", [0, 1, -0.1, 1.5, float("nan"), True, "half"])
def test_a_threshold_that_is_not_between_0_and_1_is_refused(threshold: Any) -> None:
    with pytest.raises(InvalidConfig, match="threshold"):
        SwapToolResults(threshold=threshold)


@pytest.mark.parametrize("name", ["keep_recent_turns", "keep_recent_steps"])
@pytest.mark.parametrize("keep", [0, -1, 1.5, True])
def test_keeping_less_than_one_is_refused(name: str, keep: Any) -> None:
    with pytest.raises(InvalidConfig, match=name):
        SwapToolResults(**{name: keep})


def test_another_mode_is_refused() -> None:
    mode: Any = "drop"
    with pytest.raises(InvalidConfig, match="mode"):
        SwapToolResults(mode=mode)


# What.


def long_turn(steps: int, **options: Any) -> Talk:
    return Talk().ask().step("x" * 1000, times=steps, **options)


def keeping(turns: int = 5, steps: int | None = None) -> SwapToolResults:
    return SwapToolResults(keep_recent_turns=turns, keep_recent_steps=steps)


OPENS = Profile(thinking_opens_tool_loop=True)
UNBOUND = Profile(thinking_opens_tool_loop=True, binds_thinking=False)
STEPS_1 = keeping(steps=1)
THOUGHT = long_turn(4, thinking="hm")
JUMPED = talk(3)  # a queue that is jumped: turn 3 was committed before turn 2
JUMPED.messages[4:] = [*JUMPED.messages[8:], *JUMPED.messages[4:8]]
CALLED = long_turn(4)  # the fourth call is not answered yet
CALLED.messages.pop()

# The policy, the conversation, its budget, and the calls whose results are swapped.
# fmt: off
SWAPPED: dict[str, tuple[SwapToolResults, Talk, dict[str, Any], range]] = {
    "five turns, of which five are kept": (keeping(5), talk(5), {}, range(0)),
    "an empty history": (KEEP_2, talk(0), {}, range(0)),
    "u1 and a1 are one turn, and two are kept": (KEEP_2, talk(2), {}, range(0)),
    "u1 and a1 are one turn, and one is kept": (keeping(1), talk(2), {}, range(1, 2)),
    "turns are old by their place and not by their number": (
        keeping(1), JUMPED, {}, range(1, 4, 2)),
    "steps inside a recent turn": (keeping(steps=3), long_turn(10), {}, range(1, 8)),
    "a recent turn stays whole without a limit of steps": (
        SwapToolResults(), long_turn(10), {}, range(0)),
    "three steps, of which three are kept": (keeping(steps=3), long_turn(3), {}, range(0)),
    "a call that is not answered yet is no step": (keeping(steps=2), CALLED, {}, range(1, 2)),
    "the turns are the further position": (keeping(2, 5), talk(6), {}, range(1, 5)),
    "the steps are the further position": (keeping(5, 2), talk(6), {}, range(1, 5)),
    "the open turn must keep its thinking": (
        STEPS_1, THOUGHT, {"committed": 0, "profile": OPENS}, range(0)),
    "at a turn boundary thinking is no obstacle": (
        STEPS_1, long_turn(4, thinking="hm").reply(), {"profile": OPENS}, range(1, 4)),
    # What is said next joins the results, so the loop goes on in the next turn.
    "a turn that was stopped within its loop": (STEPS_1, THOUGHT, {"profile": OPENS}, range(0)),
    "a turn that was stopped within its loop and the next": (
        STEPS_1, long_turn(4, thinking="hm").ask("next"), {"profile": OPENS}, range(0)),
    "an open turn without thinking": (
        STEPS_1, long_turn(4), {"committed": 0, "profile": OPENS}, range(1, 4)),
    "thinking that is not bound: only the committed part": (
        STEPS_1, THOUGHT, {"committed": 5, "profile": UNBOUND}, range(1, 3)),
}
# fmt: on


@pytest.mark.parametrize(("policy", "built", "fields", "calls"), SWAPPED.values(), ids=SWAPPED)
def test_results_that_are_old_are_swapped_and_no_others(
    policy: SwapToolResults, built: Talk, fields: dict[str, Any], calls: range
) -> None:
    plan = policy.plan(View(), built.messages, budget(built, **fields))
    assert set(plan.shown_results if plan else ()) == {f"c{number}" for number in calls}
    assert (plan is None) is (not calls)
    assert plan is None or plan.voids_thinking is (fields.get("profile") is not UNBOUND)


def test_turns_1_to_3_keep_2_swaps_turn_1_only() -> None:
    plan = planned(talk(3), KEEP_2)
    assert plan.shown_results == {"c1": compact(1)}
    assert plan.compacted_before == 4
    assert (plan.policy, plan.results_summarised, plan.results_redacted, plan.turns_compacted) == (
        "swap_tool_results", 1, 0, 1,
    )  # fmt: skip


def test_a_result_without_a_summary_stays_as_it_is() -> None:
    plan = planned(talk(4), KEEP_2, summaries={"c2": "what it said", "c1": " "})
    assert plan.shown_results == {"c2": compact(2)}
    assert (plan.results_summarised, plan.turns_compacted) == (1, 1)


def test_redact_shows_a_notice_and_needs_no_summary() -> None:
    redact = SwapToolResults(keep_recent_turns=2, mode="redact")
    plan = planned(talk(4), redact, summaries={})
    assert plan.shown_results == {"c1": compact(1, summary=""), "c2": compact(2, summary="")}
    assert (plan.results_summarised, plan.results_redacted, plan.turns_compacted) == (0, 2, 2)


def test_a_result_that_is_already_smaller_is_not_swapped() -> None:
    short = talk(3, output="x" * 50)
    assert KEEP_2.plan(View(), short.messages, budget(short)) is None


def test_a_result_is_compared_with_what_its_cap_shows() -> None:
    built = talk(3)
    capped = View(capped={"c1": "y" * len(compact(1))})
    assert KEEP_2.plan(capped, built.messages, budget(built)) is None
    longer = View(capped={"c1": "y" * (len(compact(1)) + 1)})
    assert planned(built, KEEP_2, longer).shown_results == {"c1": compact(1)}


def test_an_image_is_larger_than_a_summary_and_is_named_in_it() -> None:
    built = talk(0)
    for _ in range(3):
        built.ask().step([text("seen"), image()])
    assert planned(built, KEEP_2).shown_results == {
        "c1": compact(1, chars=4, summary="what it said\n[1 other block (image) left out]")
    }


def test_a_swap_leaves_the_newest_turns_identical() -> None:
    built = talk(4)
    view = View().applied(planned(built, KEEP_2), len(built.messages))
    request = project(built.messages, view, PROFILE, FRAME)
    newest = zip(request.messages[8:], built.messages[8:], strict=True)
    assert all(part.body is message.body for part, message in newest)


def test_of_steps_of_one_turn_one_turn_is_compacted() -> None:
    assert planned(long_turn(10), keeping(steps=3)).turns_compacted == 1


# Again.


def test_a_later_run_counts_only_what_is_new() -> None:
    built = talk(3)
    view = View().applied(planned(built, KEEP_2), len(built.messages))
    built.ask().step("x" * 1000)
    plan = planned(built, KEEP_2, view)
    assert plan.shown_results == {"c2": compact(2)}
    assert (plan.results_summarised, plan.turns_compacted) == (1, 1)


def test_a_better_summary_does_not_change_a_shown_text() -> None:
    built = talk(3)
    view = View().applied(planned(built, KEEP_2), len(built.messages))
    better = summaries_of(built, "better")
    assert KEEP_2.plan(view, built.messages, budget(built, summaries=better)) is None


def test_a_summary_that_comes_late_still_serves_its_result() -> None:
    built = talk(4)
    first = planned(built, KEEP_2, summaries={"c1": "what it said"})
    view = View().applied(first, len(built.messages))
    assert planned(built, KEEP_2, view).shown_results == {"c2": compact(2)}


def test_compacted_before_never_goes_back() -> None:
    built = talk(4)
    view = View(compacted_before=12)
    plan = planned(built, KEEP_2, view)
    assert plan.compacted_before == 12
    assert set(plan.shown_results) == {"c1", "c2", "c3"}


# Thinking.


def test_thinking_that_is_left_out_already_is_no_obstacle() -> None:
    built = long_turn(4, thinking="hm")
    view = View(thinking_from=len(built.messages))
    assert planned(built, STEPS_1, view, committed=0, profile=OPENS).shown_results


def test_another_profile_gives_up_the_thinking_of_the_open_turn() -> None:
    built = long_turn(4, thinking="hm")
    plan = planned(built, STEPS_1, committed=0)
    view = View().applied(plan, len(built.messages))
    assert plan.voids_thinking
    assert view.thinking_from == len(built.messages)


# How much.


def test_tokens_are_those_of_the_context_before_and_after() -> None:
    built = long_turn(4, thinking="hm" * 50)
    plan = planned(built, STEPS_1)
    view = View().applied(plan, len(built.messages))
    assert plan.tokens_before == context_tokens(built.messages, View(), PROFILE)
    assert plan.tokens_after == context_tokens(built.messages, view, PROFILE)
    assert is_worthwhile(plan)


def test_the_reason_says_how_much_is_used_and_what_is_kept() -> None:
    assert planned(talk(3), KEEP_2).reason == (
        "8,000 of 10,000 tokens used; results before the 2 newest turns are swapped"
    )
    both = SwapToolResults(keep_recent_turns=9, keep_recent_steps=1)
    assert "the 1 newest steps of the 9 newest turns" in planned(talk(3), both).reason


# Whatever comes.

_policies = st.builds(
    SwapToolResults,
    keep_recent_turns=st.integers(1, 4),
    keep_recent_steps=st.one_of(st.none(), st.integers(1, 3)),
    mode=st.sampled_from(["summarize", "redact"]),
)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(talks(), _policies, st.integers(0, 8), st.booleans())
def test_any_plan_is_monotone_shrinks_keeps_the_shape_and_is_the_last(
    built: Talk, policy: SwapToolResults, known: int, opens: bool
) -> None:
    length = len(built.messages)
    summaries = {f"c{number}": "it said" for number in range(1, known + 1)}
    profile = Profile(thinking_opens_tool_loop=opens)
    view = View()
    for cut in (length // 2, length):
        messages = tuple(built.messages[:cut])
        given_budget = budget(built, summaries=summaries, profile=profile, committed=cut // 2)
        before = copy.deepcopy((view, given_budget))
        plan = policy.plan(view, messages, given_budget)
        assert (view, given_budget) == before
        assert plan == policy.plan(view, messages, given_budget)
        if plan is None:
            event("nothing to swap")
            continue
        event("swapped")
        after = view.applied(plan, cut)
        assert plan.shown_results.keys().isdisjoint(view.shown_results)
        assert view.compacted_before <= plan.compacted_before <= cut
        assert plan.tokens_after <= plan.tokens_before
        assert shape(project(messages, after, profile, FRAME).messages) == shape(messages)
        assert policy.plan(after, messages, given_budget) is None
        assert {
            call: after.shown_results[call] for call in view.shown_results
        } == view.shown_results
        view = after
