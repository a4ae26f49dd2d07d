from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from llmsession.compaction.policies import (
    AgeCountToken,
    CleanAndBudget30k,
    KeepLastSequence,
    LastNMessages,
    ReverseBudget,
)
from llmsession.compaction.policies.other_systems.windows import clean_text
from llmsession.compaction.view.view import View
from llmsession.turns.messages import Message
from tests.compaction.conversations import Talk, call_block, required, text, thinking_block
from tests.compaction.policies.plans import (
    PLAIN,
    budget_for,
    plain,
    plan_of,
    second_turn,
    texts_sent,
    visible,
)
from tests.compaction.policies.transcripts import Talked, transcripts


@pytest.mark.parametrize(
    "policy",
    [ReverseBudget(), LastNMessages(n=1), AgeCountToken(max_messages=1), KeepLastSequence()],
    ids=lambda each: each.name,
)
def test_a_tool_loop_that_thinking_opens_is_left_alone_until_it_ends(policy: Any) -> None:
    built = Talk().ask().reply("x" * 5_000).ask().step("x", thinking="hm")
    profile = replace(PLAIN, thinking_opens_tool_loop=True)
    open_turn = plan_of(policy, built.messages, 3_000, profile=profile, committed=2)
    assert open_turn is None
    built.reply()
    assert required(plan_of(policy, built.messages, 3_000, profile=profile)).voids_thinking


# reverse_budget


def test_reverse_budget_keeps_a_long_turns_request_and_its_newest_steps() -> None:
    messages = second_turn(5).messages
    plan = required(plan_of(ReverseBudget(), messages, 300))
    assert plan.omitted == ((0, 2), (3, 9))
    assert visible(plan, messages) == [2, 9, 10, 11, 12]
    assert (plan.policy, plan.figures["messages_left_out"]) == ("reverse_budget", 8)
    assert plan.tokens_after < plan.tokens_before


@settings(derandomize=True, deadline=None, max_examples=60)
@given(transcripts(), st.integers(10, 100))
def test_reverse_budget_keeps_all_that_a_window_may_begin_with_and_fits(
    talked: Talked, percent: int
) -> None:
    messages = talked.messages
    whole = budget_for(messages, 10**9, profile=replace(talked.profile, binds_thinking=False))
    budget = replace(whole, limit_tokens=whole.used_tokens * percent // 100)
    plan = ReverseBudget().plan(View(), messages, budget)
    if plan is None or len(plan.omitted) != 1:
        return
    start = plan.omitted[0][1]
    older = [at for at in range(start) if messages[at].text and not messages[at].tool_results]
    opening = max((at for at in older if messages[at].is_user), default=None)
    if opening is not None:
        wider = View(omitted=((0, opening),) if opening else ())
        assert budget.size(messages, wider) > budget.limit_tokens - 3


def test_what_stays_in_the_cache_is_told_for_the_scheduler() -> None:
    messages = second_turn(5).messages
    view = View(omitted=((0, 2),))
    budget = budget_for(messages, 300, view, frame_tokens=7)
    plan = required(ReverseBudget().plan(view, messages, budget))
    # Before the first message that goes now, 3, stands the newest request.
    assert plan.figures["kept_before_tokens"] == 7 + len("second") + 4


# last_n_messages


def test_the_last_eight_messages_are_always_due() -> None:
    assert LastNMessages().n == 8
    assert LastNMessages().due(1, 10**6)


# age_count_token

HOUR_S = 3_600.0


def aged(*hours: float) -> list[Message]:
    """Requests and answers, so many hours after the beginning of times; 0 has no time."""
    return [
        replace(message, created_at=hour * HOUR_S)
        for message, hour in zip(plain(*[10] * len(hours)).messages, hours, strict=True)
    ]


def test_what_is_too_old_is_left_out_and_now_is_the_newest_message() -> None:
    messages = aged(1, 2, 700, 721, 722)
    policy = AgeCountToken()
    assert (policy.max_age_h, policy.max_messages, policy.max_tokens) == (720, 50, 32_000)
    plan = plan_of(policy, messages, 10**6)
    assert visible(plan, messages) == [2, 3, 4]
    assert plan is not None
    assert plan.figures == {
        "messages_left_out": 2, "dropped_by_age": 2, "dropped_by_count": 0, "dropped_by_tokens": 0,
        "kept_before_tokens": 0,
    }  # fmt: skip
    # Exactly as old as is allowed is too old; a little younger is not.
    assert policy.start_by_age(aged(2, 722)) == 1
    assert policy.start_by_age(aged(2.01, 722)) == 0


def test_a_message_without_a_time_is_not_old_and_one_with_a_text_is_an_error() -> None:
    assert AgeCountToken().start_by_age(aged(0, 0, 5_000)) == 0
    written: Any = replace(aged(1)[0], created_at="2026-03-01T10:22:31Z")
    with pytest.raises(TypeError, match="is text"):
        AgeCountToken().start_by_age([written])


@settings(derandomize=True, deadline=None, max_examples=60)
@given(transcripts(), st.lists(st.tuples(*[st.integers(1, 60)] * 3), min_size=2, max_size=2))
def test_a_tighter_limit_never_keeps_more(
    talked: Talked, limits: list[tuple[int, int, int]]
) -> None:
    looser, tighter = (
        AgeCountToken(max_age_h=24 * age, max_messages=number, max_tokens=500 * tokens)
        for age, number, tokens in (map(max, *limits), map(min, *limits))
    )
    profile = replace(talked.profile, thinking_opens_tool_loop=False)
    kept = [
        set(visible(plan_of(policy, talked.messages, 10**6, profile=profile), talked.messages))
        for policy in (tighter, looser)
    ]
    assert kept[0] <= kept[1]


# keep_last_sequence


def test_the_oldest_go_and_no_more_than_have_to() -> None:
    messages = plain(*[500] * 5).messages
    policy = KeepLastSequence(max_tokens=100)  # 2 % and 100 are not for messages
    limit = 1_700  # 1,566 of them: three messages
    plan = required(plan_of(policy, messages, limit))
    assert visible(plan, messages) == [2, 3, 4]
    assert plan.figures["used_percent"] == 1_500 * 100 // 1_566


# clean_and_budget_30k


def test_thinking_in_tags_is_cut_out() -> None:
    assert clean_text("a <thinking>b\nc</thinking>d<thinking></thinking>") == "a d"
    assert clean_text("<thinking>never closed") == "<thinking>never closed"


@pytest.mark.parametrize("language", ["", "json", "text", "typescript", "javascript"])
def test_a_long_fenced_block_keeps_800_and_400_characters(language: str) -> None:
    body = "h" * 800 + "m" * 800 + "t" * 400
    cut = "h" * 800 + "\n... [truncated 800 chars] ...\n" + "t" * 400
    assert clean_text(f"see\n```{language}\n{body}```") == f"see\n```{language}\n{cut}```"
    short = f"```{language}\n{body[1:]}```"
    assert clean_text(short) == short


def test_a_fence_of_another_language_is_not_cut() -> None:
    fenced = f"```rust\n{'x' * 3_000}```"
    assert clean_text(fenced) == fenced


def test_a_text_beyond_6000_characters_is_cut_and_trimmed() -> None:
    assert clean_text(" " + "x" * 5_999) == "x" * 5_999
    assert clean_text("x" * 6_001) == "x" * 6_000 + "\n... [truncated]"


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    st.lists(
        st.sampled_from(
            [
                "<thinking>",
                "</thinking>",
                "<think",
                "ing>",
                "```",
                "```json\n",
                "\n",
                " ",
                "x" * 1_900,
                "y" * 700,
                "... [truncated]",
                "``",
                "`",
            ]
        ),
        max_size=14,
    )
)
def test_what_is_clean_stays_as_it_is(parts: list[str]) -> None:
    once = clean_text("".join(parts))
    assert clean_text(once) == once


def test_texts_are_cleaned_and_the_message_that_loses_all_is_left_out() -> None:
    built = Talk().ask("look <thinking>hm</thinking>at this")
    built.add("assistant", [thinking_block("t"), text("<thinking>only</thinking>")]).ask("and now?")
    built.add("assistant", [text("<thinking>why</thinking>"), call_block("c1")])
    messages = built.messages
    plan = required(plan_of(CleanAndBudget30k(), messages, 10**6))
    assert visible(plan, messages) == [0, 2, 3]
    after = View().applied(plan, len(messages))
    # What neighbours of one role say is joined.
    assert texts_sent(messages, after) == [["look at this", "and now?"], []]
    assert plan_of(CleanAndBudget30k(), messages, 10**6, view=after) is None


def test_the_newest_30000_tokens_of_clean_text_are_shown() -> None:
    fenced = "```\n" + "x" * 5_900 + "```"  # 1,240 characters when it is clean
    built = Talk()
    for _ in range(60):
        built.ask("y" * 4_000).reply(fenced)
    built.ask("last")
    plan = required(plan_of(CleanAndBudget30k(), built.messages, 10**6))
    kept = visible(plan, built.messages)
    # 1,000 and about 310 tokens a turn.
    assert len(kept) == 22 * 2 + 1
    assert kept[-1] == 120
