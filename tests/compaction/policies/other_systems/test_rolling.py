from __future__ import annotations

import pytest

from llmsession.compaction.policies import RollingSummary75
from llmsession.compaction.policies.other_systems.rolling import extracted_lines, history_room
from llmsession.compaction.tokens.messages import text_tokens_for
from llmsession.compaction.view.summary_wording import introduced
from llmsession.compaction.view.view import View
from llmsession.turns.records import PrefixSummary
from tests.compaction.conversations import required
from tests.compaction.policies.summaries import (
    PROFILE,
    applied,
    budget_for,
    chat,
    left_without_summary,
    planned,
    said,
)


@pytest.mark.parametrize(
    ("system", "primer", "room"), [(0, 0, 3_072), (500, 2, 2_570), (3_072, 2, -2)]
)
def test_three_quarters_of_4096_are_for_everything(system: int, primer: int, room: int) -> None:
    assert history_room(4_096, system, primer) == room


def test_the_newest_that_fit_beside_the_summary_are_kept_from_a_users_word_on() -> None:
    # 3,072 less 800 for the summary: 2,272, which are four of 500.
    built = chat(*[500] * 9)
    after = applied(RollingSummary75(), built.messages, 100_000)
    assert (
        after.summary_request.first,
        after.summary_request.upto,
        after.summary_request.max_tokens,
    ) == (0, 6, 800)
    assert built.messages[6].is_user


def test_system_text_and_tools_come_out_of_the_same_room() -> None:
    built = chat(*[500] * 9)
    frame = budget_for(built.messages, 100_000).used_tokens + 1_000
    after = applied(RollingSummary75(), built.messages, 100_000, used=frame, frame_tokens=1_000)
    assert after.summary_request.upto == 8


def test_the_context_fits_again_with_the_new_summary_in_it() -> None:
    built = chat(*[500] * 9)
    after = applied(RollingSummary75(), built.messages, 100_000)
    assert budget_for(built.messages, 0, view=after.view).used_tokens <= 3_072
    assert planned(RollingSummary75(), built.messages, 100_000, after.view) is None


def test_each_message_is_folded_once() -> None:
    view, folded = View(), list[int]()
    for count in range(9, 31, 2):
        built = chat(*[500] * count)
        plan = planned(RollingSummary75(), built.messages, 100_000, view)
        if plan is None:
            continue
        after = applied(RollingSummary75(), built.messages, 100_000, view)
        folded += range(after.summary_request.first, after.summary_request.upto)
        if view.prefix_summary:
            assert after.summary_request.earlier == view.prefix_summary.text
        view = after.view
    assert folded == list(range(len(folded)))
    assert len(folded) >= 20


def count(text: str) -> int:
    return text_tokens_for(text, PROFILE)


def test_without_a_summary_its_own_lines_stand_there() -> None:
    built = chat(*[500] * 9)
    lines = extracted_lines(built.messages[:6], "", 800, count)
    assert count(lines) <= 800
    assert lines == "ASSISTANT: " + said(500, "a")
    left = required(left_without_summary(RollingSummary75(), built.messages, 100_000))
    assert left.prefix_summary == PrefixSummary(6, introduced(lines))


def test_lines_are_kept_newest_first_and_the_earlier_summary_goes_first() -> None:
    messages = chat(14, 14, 14).messages
    u, a = said(14, "u"), said(14, "a")
    assert extracted_lines(messages, "before", 100, count) == "\n\n".join(
        ["before", f"USER: {u}", f"ASSISTANT: {a}", f"USER: {u}"]
    )
    assert extracted_lines(messages, "before" * 99, 100, count) == "\n\n".join(
        [f"USER: {u}", f"ASSISTANT: {a}", f"USER: {u}"]
    )
    assert extracted_lines(messages, "before", 13, count) == f"USER: {u}"
    assert extracted_lines((), "", 13, count) == ""


def test_a_newest_part_over_the_cap_is_cut_and_not_lost() -> None:
    lines = extracted_lines(chat(10, 10, 2_000).messages, "before", 800, count)
    assert lines.startswith("USER: uuu")
    assert 700 <= count(lines) <= 800
    assert 0 < count(extracted_lines(chat(500).messages, "", 10, count)) <= 10
