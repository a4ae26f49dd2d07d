from __future__ import annotations

import copy
from typing import Any

import msgspec
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


# What: turns.


def test_turns_1_to_3_keep_2_swaps_turn_1_only() -> None:
    plan = planned(talk(3), KEEP_2)
    assert plan.shown_results == {"c1": compact(1)}
    assert plan.compacted_before == 4
    assert (plan.policy, plan.results_summarised, plan.results_redacted, plan.turns_compacted) == (
        "swap_tool_results", 1, 0, 1,
    )  # fmt: skip


def test_turns_1_to_5_keep_5_swaps_nothing() -> None:
    built = talk(5)
    assert SwapToolResults(keep_recent_turns=5).plan(View(), built.messages, budget(built)) is None


def test_an_empty_history_has_nothing_to_swap() -> None:
    assert KEEP_2.plan(View(), (), budget(talk(0))) is None


def test_turns_are_counted_by_number_so_u1_and_a1_are_one() -> None:
    built = talk(2)
    assert KEEP_2.plan(View(), built.messages, budget(built)) is None
    assert set(planned(built, SwapToolResults(keep_recent_turns=1)).shown_results) == {"c1"}


def test_turns_are_old_by_their_place_and_not_by_their_number() -> None:
    # A queue that is jumped: turn 3 was committed before turn 2.
    built = talk(3)
    messages = [*built.messages[:4], *built.messages[8:], *built.messages[4:8]]
    keep_1 = SwapToolResults(keep_recent_turns=1)
    assert set(required(keep_1.plan(View(), messages, budget(built))).shown_results) == {"c1", "c3"}


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


# What: steps.


def long_turn(steps: int, **options: Any) -> Talk:
    return Talk().ask().step("x" * 1000, **options, times=steps)


def test_steps_inside_a_recent_turn_can_be_old() -> None:
    plan = planned(long_turn(10), SwapToolResults(keep_recent_steps=3))
    assert set(plan.shown_results) == {f"c{number}" for number in range(1, 8)}
    assert plan.turns_compacted == 1


def test_without_a_limit_of_steps_a_recent_turn_stays_whole() -> None:
    built = long_turn(10)
    assert SwapToolResults().plan(View(), built.messages, budget(built)) is None


def test_as_many_steps_as_are_kept_swaps_nothing() -> None:
    built = long_turn(3)
    policy = SwapToolResults(keep_recent_steps=3)
    assert policy.plan(View(), built.messages, budget(built)) is None


def test_a_call_that_is_not_answered_yet_is_no_step() -> None:
    built = long_turn(3)
    open_call = Talk()
    open_call.calls = 3
    open_call.step("later")
    built.messages.append(msgspec.structs.replace(open_call.messages[0], id="open"))
    assert set(planned(built, SwapToolResults(keep_recent_steps=2)).shown_results) == {"c1"}


def test_the_further_of_both_positions_counts() -> None:
    built = talk(6)
    many = SwapToolResults(keep_recent_turns=2, keep_recent_steps=5)
    few = SwapToolResults(keep_recent_turns=5, keep_recent_steps=2)
    expected = {"c1", "c2", "c3", "c4"}
    assert set(planned(built, many).shown_results) == expected
    assert set(planned(built, few).shown_results) == expected


# Again.


def test_a_second_run_changes_nothing() -> None:
    built = talk(4)
    view = View().applied(planned(built, KEEP_2), len(built.messages))
    assert KEEP_2.plan(view, built.messages, budget(built)) is None


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

OPENS = Profile(thinking_opens_tool_loop=True)
STEPS_1 = SwapToolResults(keep_recent_steps=1)


def test_nothing_is_swapped_while_the_open_turn_must_keep_its_thinking() -> None:
    built = long_turn(4, thinking="hm")
    staged = budget(built, committed=0, profile=OPENS)
    assert STEPS_1.plan(View(), built.messages, staged) is None


def test_at_a_turn_boundary_thinking_is_no_obstacle() -> None:
    built = long_turn(4, thinking="hm")
    built.reply()
    assert set(planned(built, STEPS_1, profile=OPENS).shown_results) == {"c1", "c2", "c3"}


def test_a_turn_that_was_stopped_within_its_loop_keeps_its_thinking() -> None:
    # What is said next joins the results, so the loop goes on in the next turn.
    built = long_turn(4, thinking="hm")
    assert STEPS_1.plan(View(), built.messages, budget(built, profile=OPENS)) is None
    built.ask("next")
    assert STEPS_1.plan(View(), built.messages, budget(built, profile=OPENS)) is None


def test_an_open_turn_without_thinking_is_compacted() -> None:
    assert set(planned(long_turn(4), STEPS_1, committed=0, profile=OPENS).shown_results) == {
        "c1",
        "c2",
        "c3",
    }


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


def test_where_thinking_is_not_bound_only_the_committed_part_is_swapped() -> None:
    built = long_turn(4, thinking="hm")
    profile = Profile(thinking_opens_tool_loop=True, binds_thinking=False)
    plan = planned(built, STEPS_1, committed=5, profile=profile)
    assert set(plan.shown_results) == {"c1", "c2"}
    assert not plan.voids_thinking


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
