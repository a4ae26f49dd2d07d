from __future__ import annotations

import pytest

from llmsession.compaction.planning.policy import Policy
from llmsession.compaction.policies import (
    LlmSummary,
    RecencyTurnSummary,
    SummaryKeepLast4,
    UnionPreserveCompress,
)
from llmsession.compaction.policies.other_systems.digests import (
    kept_tokens,
    metadata_stub,
    tool_failures,
)
from llmsession.compaction.view.projection import project
from llmsession.compaction.view.summary_wording import introduced
from llmsession.compaction.view.view import View
from llmsession.turns.records import Injected, PrefixSummary
from tests.compaction.conversations import FRAME, Talk, image, required, sent, talk, text
from tests.compaction.policies.summaries import (
    PROFILE,
    applied,
    chat,
    left_without_summary,
    loop,
    planned,
    said,
)

# llm_summary.


def test_llm_summary_puts_one_summary_in_place_of_all_older_turns() -> None:
    built = talk(7, "x" * 6_000)
    after = applied(LlmSummary(), built.messages, 10_000)
    assert (
        after.summary_request.first,
        after.summary_request.upto,
        after.summary_request.max_tokens,
    ) == (0, 8, 1_520)
    assert built.messages[8].turn == 3
    assert after.plan.turns_compacted == 2
    assert after.plan.figures["turns_kept"] == 5
    shown = sent(project(built.messages, after.view, PROFILE, FRAME))
    assert shown[0][0]["text"].startswith(introduced("").strip())
    assert shown[1:] == sent(project(built.messages[8:], View(), PROFILE, FRAME))[1:]


def test_llm_summary_folds_the_summary_so_far_into_the_next() -> None:
    built = talk(7, "x" * 6_000)
    first = applied(LlmSummary(), built.messages, 10_000, text="the first summary").view
    built.turns(2, "y" * 6_000)
    second = applied(LlmSummary(), built.messages, 10_000, first)
    assert (second.summary_request.first, second.summary_request.upto) == (8, 16)
    assert second.summary_request.earlier == introduced("the first summary")
    assert [each.upto for each in second.view.prefix_summaries] == [8, 16]


def test_a_summary_is_at_most_two_thousand_tokens() -> None:
    after = applied(LlmSummary(), talk(7, "x" * 60_000).messages, 50_000)
    assert after.summary_request.max_tokens == 2_048


# recency_turn_summary.


@pytest.mark.parametrize(("least", "plans"), [(12, True), (13, False)])
def test_messages_to_refine_counts_what_would_be_folded(least: int, plans: bool) -> None:
    policy = RecencyTurnSummary(trigger="messages_to_refine", trigger_value=least)
    assert (planned(policy, talk(5, said(1_000)).messages, 5_000) is not None) is plans


def failing(count: int, why: str = "no such file") -> Talk:
    built = Talk().ask()
    for number in range(count):
        built.step(f"{why} {number}", is_error=True)
    built.reply()
    return built


def test_the_newest_eight_failures_are_listed_behind_the_summary() -> None:
    built = failing(10)
    assert tool_failures(built.messages) == "\n".join(
        ["## Tool Failures", *(f"- bash: no such file {number}" for number in range(2, 10))]
    )
    built.turns(2, said(2_000)).ask().reply()
    after = applied(RecencyTurnSummary(), built.messages, 4_000, text="the checkpoint")
    assert required(after.view.prefix_summary).text == introduced(
        "the checkpoint"
    ) + "\n\n" + tool_failures(built.messages[: after.summary_request.upto])


def test_a_failure_is_listed_in_240_characters_and_once_for_each_call() -> None:
    assert tool_failures(talk(2).messages) == ""
    title, *lines = tool_failures(failing(1, "w" * 1_000).messages).splitlines()
    assert title == "## Tool Failures"
    assert [len(line) for line in lines] == [240]


def test_a_list_of_failures_does_not_grow_by_being_folded_again() -> None:
    built = failing(3)
    built.turns(5, said(2_000))
    view, limits = View(), (4_000, 6_000)
    for number in range(2):
        messages = built.messages[: 8 + 12 + 4 * number]
        view = applied(RecencyTurnSummary(), messages, limits[number], view, text="it").view
    assert view.prefix_summary is not None
    assert view.prefix_summary.text.count("## Tool Failures") == 1
    assert view.prefix_summary.text.count("no such file") == 3


def test_without_a_summary_one_line_says_how_many_messages_there_were() -> None:
    built = talk(5, said(1_000))
    assert metadata_stub(built.messages[:12]) == (
        "[Metadata summary: 12 messages (3 human, 6 ai, 3 tool)]\n[Tools used: bash]"
    )
    assert metadata_stub(chat(9, 9).messages) == ("[Metadata summary: 2 messages (1 human, 1 ai)]")
    left = required(left_without_summary(RecencyTurnSummary(), built.messages, 5_000))
    assert left.prefix_summary == PrefixSummary(12, introduced(metadata_stub(built.messages[:12])))


# union_preserve_compress.


@pytest.mark.parametrize(
    ("window", "keep"), [(128_000, 19_200), (1_000_000, 32_000), (8_192, 1_228)]
)
def test_lobechat_keeps_a_fifth_of_its_threshold_up_to_a_cap(window: int, keep: int) -> None:
    assert kept_tokens(window) == keep


def test_a_newest_request_before_the_suffix_is_said_once_more_behind_the_summary() -> None:
    built = loop(9)
    after = applied(UnionPreserveCompress(), built.messages, 10_000)
    assert after.summary_request.upto == 17
    assert after.view.injected == (Injected(17, "look at all of it"),)
    shown = sent(project(built.messages, after.view, PROFILE, FRAME))
    assert [block["text"] for block in shown[0]][1:] == ["look at all of it"]
    assert shown[1:] == sent(project(built.messages, View(), PROFILE, FRAME))[17:]


def test_a_pin_goes_with_its_summary() -> None:
    built = loop(9)
    view = applied(UnionPreserveCompress(), built.messages, 10_000).view
    assert view.clamped(10).injected == ()
    built.step(said(1_000), times=9)
    again = applied(UnionPreserveCompress(), built.messages, 10_000, view).view
    assert again.injected == (Injected(35, "look at all of it"),)
    built.reply().ask("something else").step(said(1_000), times=9)
    other = applied(UnionPreserveCompress(), built.messages, 10_000, again).view
    assert [each.text for each in other.injected] == ["something else"]


def test_a_newest_request_with_an_image_ends_the_group() -> None:
    built = Talk().ask("first").reply(said(9_000))
    built.turn += 1
    built.add("user", [text("what is this"), image()]).step(said(1_000), times=9)
    after = applied(UnionPreserveCompress(), built.messages, 10_000)
    assert after.summary_request.upto == 2
    assert after.view.injected == ()


# summary_keep_last_4.


def test_the_oldest_pairs_behind_the_summary_go_and_never_the_summary() -> None:
    built = chat(2_000, 2_000, 200, 200, 3_000, 200, 200)
    after = applied(SummaryKeepLast4(), built.messages, 4_000)
    assert after.summary_request.upto == 3
    # 5 and 6 would fit; 5 is the model's.
    assert after.summary_request.omitted == ((3, 6),)
    assert after.view.prefix_summary is not None
    assert [at for at in range(7) if after.view.shows(at)] == [6]


@pytest.mark.parametrize("count", [3, 5])
def test_fewer_than_six_messages_get_no_summary(count: int) -> None:
    built = chat(*[1_000] * count)
    after = applied(SummaryKeepLast4(), built.messages, 2_500)
    assert after.plan.summary_request is None
    assert after.plan.omitted == ((0, count - 1),)
    request = project(built.messages, after.view, PROFILE, FRAME)
    assert request.messages[0].role == "user"


# All of them, and those of the files beside this one.


@pytest.mark.parametrize(
    "policy", [LlmSummary(), RecencyTurnSummary(), UnionPreserveCompress(), SummaryKeepLast4()]
)
def test_a_conversation_of_small_talk_is_not_worth_a_summary(policy: Policy) -> None:
    built = chat(*[20] * 16)
    plan = planned(policy, built.messages, 400, used=400)
    assert plan is None or plan.summary_request is None
