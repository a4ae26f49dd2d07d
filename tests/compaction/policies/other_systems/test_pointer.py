from __future__ import annotations

import pytest

from llmsession.compaction.policies import PointerSummary
from llmsession.compaction.view.summary_wording import introduced
from llmsession.compaction.view.view import View
from llmsession.turns.records import PrefixSummary
from tests.compaction.conversations import required
from tests.compaction.policies.summaries import (
    applied,
    budget_for,
    chat,
    left_without_summary,
    planned,
    said,
)


def test_thirty_percent_stay_and_the_summary_has_twenty() -> None:
    # The threshold is 8,000: 2,400 stay, which are two of 1,000, and the summary gets 1,600.
    built = chat(*[1_000] * 9)
    after = applied(PointerSummary(), built.messages, 10_000)
    assert (after.summary_request.upto, after.summary_request.max_tokens) == (7, 1_600)
    assert after.plan.figures["iterations"] == 1


def test_less_is_kept_each_time_until_the_context_is_safe() -> None:
    built = chat(*[500] * 17)
    # Of 8,000, 4,000 go to system text and tools: 5,600 less those and the summary leave nothing.
    frame = budget_for(built.messages, 0).used_tokens + 4_000
    after = applied(PointerSummary(), built.messages, 10_000, used=frame, frame_tokens=4_000)
    assert after.plan.figures["iterations"] > 1
    assert after.summary_request.upto == 16
    calm = applied(PointerSummary(), built.messages, 10_000)
    assert (calm.plan.figures["iterations"], calm.summary_request.upto) == (1, 13)
    few = applied(
        PointerSummary(max_iterations=2), built.messages, 10_000, used=frame, frame_tokens=4_000
    )
    assert (few.plan.figures["iterations"], few.summary_request.upto) == (2, 15)


def test_the_pointer_only_moves_on() -> None:
    view, pointers = View(), list[int]()
    for turns in range(9, 40, 2):
        built = chat(*[1_000] * turns)
        if planned(PointerSummary(), built.messages, 10_000, view) is not None:
            after = applied(PointerSummary(), built.messages, 10_000, view)
            assert after.summary_request.first == view.start
            view = after.view
        pointers.append(view.start)
    assert pointers == sorted(pointers)
    assert len(set(pointers)) > 5


@pytest.mark.parametrize("is_result", [False, True])
def test_a_message_over_80_percent_of_the_threshold_is_cut_and_not_dropped(is_result: bool) -> None:
    built = chat(1_000, 1_000)
    if is_result:
        built.ask().step("begin" + said(20_000) + "end")
    else:
        built.ask("begin" + said(20_000) + "end")
    after = applied(PointerSummary(), built.messages, 10_000)
    assert after.summary_request.upto == 2
    (shown,) = (after.plan.shown_results or after.plan.texts).values()
    assert shown.startswith("begin")
    assert shown.endswith("end")
    used = budget_for(built.messages[2:], 0, view=View()).used_tokens
    kept = budget_for(built.messages, 0, view=after.view).used_tokens
    assert used > 20_000
    assert 5_000 < kept < 6_400 + 1_000
    assert planned(PointerSummary(), built.messages, 10_000, after.view) is None


def test_a_failed_summary_leaves_pointer_and_text() -> None:
    built = chat(*[1_000] * 9)
    assert left_without_summary(PointerSummary(), built.messages, 10_000) is None


@pytest.mark.parametrize("trigger", ["window", "overflow"])
def test_where_it_has_to_fit_an_emergency_note_stands_for_what_went(trigger: str) -> None:
    built = chat(*[1_000] * 9)
    left = required(left_without_summary(PointerSummary(), built.messages, 10_000, trigger=trigger))
    note = "[Emergency compression: 7 messages archived due to size]"
    assert left.prefix_summary == PrefixSummary(7, introduced(note))


def test_a_pointer_beyond_the_history_is_forgotten_and_all_is_shown() -> None:
    view = applied(PointerSummary(), chat(*[1_000] * 9).messages, 10_000).view
    assert view.clamped(6).start == 0
