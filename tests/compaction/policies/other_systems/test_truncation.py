from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from llmsession.compaction.planning.prefix_summaries import extracted_summary, with_summary
from llmsession.compaction.policies import (
    AdaptiveWindowTruncate,
    NondestructiveCondense,
    NondestructiveTruncate,
)
from llmsession.compaction.policies.other_systems.reads import DUPLICATE_NOTICE
from llmsession.compaction.policies.other_systems.truncation import (
    NOTICE,
    Keep,
    deleted_end,
    effective_percent,
    hidden_count,
)
from llmsession.compaction.view.plan import Plan, SummaryRequest
from llmsession.compaction.view.projection import project
from llmsession.compaction.view.view import View
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.messages import Message
from llmsession.turns.records import Injected
from tests.compaction.conversations import FRAME, Talk, image, required, text
from tests.compaction.policies.plans import (
    PLAIN,
    budget_for,
    filled,
    plain,
    plan_of,
    texts_sent,
    visible,
)
from tests.compaction.policies.transcripts import Talked, transcripts


def long_turn(steps: int, size: int = 100) -> list[Message]:
    """A request and steps of about *size* tokens each."""
    return Talk().ask("first").step("x" * size, times=steps).messages


# adaptive_window_truncate


@pytest.mark.parametrize(
    ("count", "start", "keep", "end"),
    [
        (20, 2, "half", 9),
        (20, 2, "quarter", 13),
        (20, 10, "half", 13),
        (30, 10, "quarter", 23),
        (4, 2, "half", 1),
        (20, 2, "lastTwo", 17),
        (20, 2, "none", 19),
        (3, 2, "lastTwo", 1),
    ],
)
def test_the_range_that_goes_is_the_catalogues(
    count: int, start: int, keep: Keep, end: int
) -> None:
    assert deleted_end(count, start, keep) == end
    assert deleted_end(count, start, keep, range(1, count, 2)) == end


def test_the_range_ends_with_an_answer() -> None:
    assert deleted_end(20, 2, "half", [1, 3, 5, 8]) == 8
    assert deleted_end(4, 2, "half", [3]) == 1


def after(plan: Plan | None, messages: list[Message], view: View | None = None) -> View:
    assert plan is not None
    return (view or View()).applied(plan, len(messages))


# With a limit of 1,000 tokens 800 are allowed, and more than 1,600 are crowded.
HALF: dict[str, Any] = {"used": 1_600}
CROWDED: dict[str, Any] = {"used": 1_601}
CALM: dict[str, Any] = {"used": 10}


@pytest.mark.parametrize(
    ("limit", "fields", "end"),
    [
        pytest.param(1_000, HALF, 10, id="half stays"),
        pytest.param(1_000, CROWDED, 14, id="a quarter stays where it is crowded"),
        pytest.param(1_000, {**HALF, "trigger": "overflow"}, 14, id="a quarter stays if refused"),
        pytest.param(64_000, {"used": 150_000}, 14, id="a switch to a smaller model"),
        pytest.param(200_000, {"used": 165_000}, 10, id="a switch to a larger model"),
    ],
)
def test_what_goes_begins_behind_the_first_pair(
    limit: int, fields: dict[str, Any], end: int
) -> None:
    plan = required(plan_of(AdaptiveWindowTruncate(), plain(*[100] * 20).messages, limit, **fields))
    assert plan.omitted == ((2, end),)
    assert plan.figures["kept_before_tokens"] == 200


def test_the_range_only_grows() -> None:
    messages = plain(*[100] * 30).messages
    view = View(omitted=((2, 10),))
    once = after(plan_of(AdaptiveWindowTruncate(), messages[:20], 1_000, view, **HALF), messages)
    assert once.omitted == ((2, 14),)
    crowded = plan_of(AdaptiveWindowTruncate(), messages, 1_000, view, **CROWDED)
    assert after(crowded, messages, view).omitted == ((2, 24),)


def test_one_notice_stands_where_the_range_begins() -> None:
    messages = plain(*[100] * 20).messages
    plan = plan_of(AdaptiveWindowTruncate(), messages, 1_000, **HALF)
    view = after(plan, messages)
    assert view.injected == (Injected(2, NOTICE),)
    told = texts_sent(messages, view)
    assert told[:4] == [["x" * 96], ["x" * 96], [NOTICE, "x" * 96], ["x" * 96]]
    again = plan_of(AdaptiveWindowTruncate(), messages, 1_000, view, **HALF)
    assert after(again, messages, view).injected == view.injected
    assert NOTICE.startswith("[NOTE] Some previous conversation history")


def test_results_of_the_first_pair_stay_with_their_calls() -> None:
    messages = long_turn(12)
    plan = required(plan_of(AdaptiveWindowTruncate(), messages, 1_000, **HALF))
    # 1 calls and 2 answers it. Of 22 behind them 10 would go, but 12 answers what 11 calls.
    assert visible(plan, messages) == [0, 1, 2, *range(11, 25)]


def test_where_thinking_opens_a_loop_no_loop_is_left_open_by_what_goes() -> None:
    built = Talk().ask("first").step("x" * 500, thinking="hm")
    for _ in range(8):
        built.reply("x" * 100).ask("next")
    profile = replace(PLAIN, thinking_opens_tool_loop=True)
    plan = required(plan_of(AdaptiveWindowTruncate(), built.messages, 100, profile=profile))
    assert plan.omitted[0][0] == 1


def test_the_newest_request_stays_where_the_range_would_reach_it() -> None:
    built = Talk().ask("first").reply("x" * 500).ask("second").step("x" * 100, times=12)
    plan = required(plan_of(AdaptiveWindowTruncate(), built.messages, 1_000, **CROWDED))
    assert {0, 1, 2} <= set(visible(plan, built.messages))
    assert plan.omitted[0][0] == 3


def reads(*sizes: int) -> list[Message]:
    """A conversation that reads one file again and again, then talks."""
    built = Talk().ask("read it")
    for size in sizes:
        built.call("read_file", "x" * size, path="a")
    for _ in range(4):
        built.reply("x" * 96).ask("x" * 96)
    return built.messages


def test_where_files_read_again_are_enough_nothing_else_goes() -> None:
    messages = reads(2_000, 2_000)
    plan = required(plan_of(AdaptiveWindowTruncate(), messages, 1_000, **HALF))
    assert plan.shown_results == {"c1": DUPLICATE_NOTICE}
    assert (plan.omitted, plan.injected) == ((), None)
    assert plan.figures["saved_chars"] == 2_000 - len(DUPLICATE_NOTICE)


def test_where_they_are_not_enough_both_go() -> None:
    messages = reads(400, 2_000)
    plan = required(plan_of(AdaptiveWindowTruncate(), messages, 1_000, **HALF))
    assert plan.omitted
    assert plan.shown_results == {"c1": DUPLICATE_NOTICE}


# nondestructive_truncate


@pytest.mark.parametrize(
    ("visible", "hidden"),
    [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 2), (6, 2), (9, 4), (10, 4), (21, 10)],
)
def test_half_of_all_but_the_first_is_hidden_made_even(visible: int, hidden: int) -> None:
    assert hidden_count(visible) == hidden


def test_a_quarter_is_hidden_after_a_refusal_up_to_three_times() -> None:
    messages = plain(*[100] * 41).messages
    policy = NondestructiveTruncate()
    enough = required(plan_of(policy, messages, 3_500, trigger="overflow"))
    assert enough.omitted == ((1, 11),)
    assert enough.figures == {"messages_left_out": 10, "kept_before_tokens": 100}
    twice = required(plan_of(policy, messages, 2_500, trigger="overflow"))
    assert len(visible(twice, messages)) == 41 - 10 - 6
    most = required(plan_of(policy, messages, 100, trigger="overflow"))
    assert len(visible(most, messages)) == 41 - 10 - 6 - 6


def test_the_first_stays_and_one_marker_says_how_many_are_hidden() -> None:
    messages = plain(*[200] * 21).messages
    plan = plan_of(NondestructiveTruncate(), messages, 100)
    view = after(plan, messages)
    assert view.omitted == ((1, 11),)
    marker = "[Sliding window truncation: 10 messages hidden to reduce context]"
    assert view.injected == (Injected(1, marker),)
    again = plan_of(NondestructiveTruncate(), messages, 100, view)
    view = after(again, messages, view)
    assert view.omitted == ((1, 15),)
    marker = "[Sliding window truncation: 14 messages hidden to reduce context]"
    assert view.injected == (Injected(1, marker),)
    told = texts_sent(messages, view)
    assert told[0] == ["x" * 196, marker]
    assert len(told) == 7


def test_calls_are_hidden_with_their_results_only_and_the_newest_request_never() -> None:
    messages = [*plain(*[100] * 4).messages, *long_turn(12)]
    messages = [replace(each, id=f"m{at}") for at, each in enumerate(messages)]
    view = View()
    for _ in range(6):
        plan = plan_of(NondestructiveTruncate(), messages, 100, view)
        view = view if plan is None else after(plan, messages, view)
    kept = [at for at in range(len(messages)) if view.shows(at)]
    assert {0, 4, 27, 28} <= set(kept)
    assert messages[kept[2]].tool_calls


# nondestructive_condense


def test_a_profiles_percentage_counts_from_5_to_100() -> None:
    assert [effective_percent(70, own) for own in (-1, 4, 5, 100, 101)] == [70, 70, 5, 100, 70]


def test_all_before_the_newest_request_becomes_a_summary() -> None:
    messages = plain(*[1_000] * 9).messages
    plan = required(plan_of(NondestructiveCondense(), messages, 9_500))
    assert plan.summary_request == SummaryRequest(first=0, upto=8, max_tokens=570)
    assert (plan.omitted, plan.injected) == ((), None)
    assert plan.tokens_after == 9_000 - 8_000 + 570
    view = filled(plan, messages)
    assert [at for at in range(9) if view.shows(at)] == [8]


def test_a_summary_that_is_fresh_is_left_alone() -> None:
    messages = plain(*[1_000] * 11).messages
    view = filled(plan_of(NondestructiveCondense(), messages[:9], 100_000, **CALM), messages[:9])
    assert plan_of(NondestructiveCondense(), messages[:9], 100_000, view, **CALM) is None
    again = required(plan_of(NondestructiveCondense(), messages, 10_000, view, **CALM))
    assert again.summary_request is not None
    assert (again.summary_request.first, again.summary_request.upto) == (8, 10)
    assert again.summary_request.earlier == required(view.prefix_summary).text


def test_all_but_the_open_step_becomes_a_summary_and_the_request_is_repeated_behind_it() -> None:
    messages = [*plain(*[1_000] * 8).messages, *long_turn(9, size=1_000)]
    plan = required(plan_of(NondestructiveCondense(max_tokens=1), messages, 5_000))
    wanted = required(plan.summary_request)
    assert wanted.upto == len(messages) - 2
    assert wanted.pinned == Injected(wanted.upto, messages[8].text)
    assert plan.omitted == ()


def test_where_a_summary_is_not_enough_half_of_the_open_turn_is_hidden_too() -> None:
    messages = [*plain(*[1_000] * 8).messages, *long_turn(9, size=1_000)]
    messages = [replace(each, id=f"m{at}") for at, each in enumerate(messages)]
    # What is no text is not repeated behind a summary.
    messages[8] = replace(messages[8], body=encode_blocks([text("look"), image()]))
    plan = required(plan_of(NondestructiveCondense(max_tokens=1), messages, 5_000))
    assert required(plan.summary_request).upto == 8
    assert plan.omitted == ((9, 15),)
    assert required(plan.injected)[0].at == 9
    # If there is no summary, the steps are hidden all the same, and nothing else is lost.
    view = View()
    left = required(with_summary(plan, None, view, messages, budget_for(messages, 5_000)))
    kept = after(left, messages)
    assert [at for at in range(27) if not kept.shows(at)] == list(range(9, 15))


def test_of_several_summaries_the_newest_is_shown_and_a_rewind_goes_back_to_the_one_before() -> (
    None
):
    messages = plain(*[1_000] * 21).messages
    first = filled(plan_of(NondestructiveCondense(), messages[:11], 100_000, **CALM), messages[:11])
    both = filled(
        plan_of(NondestructiveCondense(), messages, 100_000, first, **CALM), messages, first
    )
    assert [each.upto for each in both.prefix_summaries] == [10, 20]
    assert texts_sent(messages, both)[0] == [both.prefix_summaries[1].text, "x" * 996]
    back = both.clamped(15)
    assert [each.upto for each in back.prefix_summaries] == [10]
    assert texts_sent(messages[:15], back) == texts_sent(messages[:15], first)


@settings(derandomize=True, deadline=None, max_examples=80)
@given(transcripts(), st.integers(20, 90), st.data())
def test_a_rewind_to_before_it_shows_everything_again(
    talked: Talked, percent: int, data: st.DataObject
) -> None:
    messages = list(talked.messages)
    profile = replace(talked.profile, binds_thinking=False, thinking_opens_tool_loop=False)
    budget = budget_for(messages, 10**9, profile=profile)
    budget = replace(budget, limit_tokens=max(1, budget.used_tokens * percent // 100))
    plan = NondestructiveCondense().plan(View(), messages, budget)
    if plan is None or plan.summary_request is None:
        return
    prefix_summary = extracted_summary(plan.summary_request, messages, profile)
    whole = with_summary(plan, prefix_summary, View(), messages, budget)
    if whole is None or whole.prefix_summary is None:
        return
    cut = data.draw(st.integers(0, whole.prefix_summary.upto - 1))
    rewound = View().applied(whole, len(messages)).clamped(cut)
    frame = replace(FRAME, tools=())
    assert project(messages[:cut], rewound, profile, frame) == project(
        messages[:cut], View(), profile, frame
    )
