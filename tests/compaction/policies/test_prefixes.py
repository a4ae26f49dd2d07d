from __future__ import annotations

import pytest

from llmsession.compaction.planning.prefix_summaries import extracted_summary, with_summary
from llmsession.compaction.policies.prefixes import (
    cut_at_least,
    cut_at_most,
    latest_cut,
    note_behind_earlier,
    request_starts,
    summary_plan,
)
from llmsession.compaction.view.summary_wording import introduced
from llmsession.compaction.view.view import View
from llmsession.turns.records import PrefixSummary
from llmsession.turns.request import Profile
from tests.compaction.conversations import Talk, image, required, talk, text
from tests.compaction.policies.summaries import budget_for, chat, loop

MANUAL = Profile(thinking_opens_tool_loop=True)


def cut(built: Talk, *, pins: bool = False, view: View | None = None, **fields: object) -> int:
    budget = budget_for(built.messages, 10_000, **fields)  # type: ignore[arg-type]  # of several types
    return latest_cut(view or View(), built.messages, budget, pins=pins)


def test_a_cut_is_moved_off_results_to_either_side() -> None:
    built = talk(2)  # u c r a u c r a
    assert [cut_at_most(built.messages, at) for at in range(9)] == [0, 1, 1, 3, 4, 5, 5, 7, 8]
    assert [cut_at_least(built.messages, at) for at in range(9)] == [0, 1, 3, 3, 4, 5, 7, 7, 8]


def test_the_users_newest_words_and_the_last_message_stay() -> None:
    assert cut(talk(2)) == 4
    assert cut(loop(3)) == 0
    assert cut(chat(9, 9, 9)) == 2
    assert cut(Talk()) == 0


def test_who_pins_may_go_up_to_the_newest_step() -> None:
    assert cut(loop(3), pins=True) == 5
    assert cut(chat(9, 9, 9), pins=True) == 2


def test_words_among_results_end_what_may_go_before_their_calls() -> None:
    built = loop(3).step("more", word="wait").step("again")
    assert cut(built) == 7
    # Beside results they cannot be said alone: nothing is pinned of them.
    assert cut(built, pins=True) == 7


def test_an_image_is_not_pinned() -> None:
    built = Talk()
    built.turn = 1
    built.add("user", [text("see"), image()]).step("x").step("x")
    assert cut(built, pins=True) == 0


def test_nothing_goes_while_thinking_has_to_open_the_loop() -> None:
    built = talk(3).ask().step("x", thinking="hm")
    assert cut(built, profile=MANUAL, committed=12) == 0
    shown = View(thinking_from=len(built.messages))
    assert cut(built, view=shown, profile=MANUAL, committed=12) == 12


def test_where_thinking_is_not_bound_the_open_turn_keeps_what_opens_it() -> None:
    built = loop(5)
    free = Profile(thinking_opens_tool_loop=True, binds_thinking=False)
    assert cut(built, pins=True, profile=free, committed=0) == 0


def test_a_turn_begins_with_a_request_and_not_with_results() -> None:
    assert request_starts(talk(3).messages) == [0, 4, 8]
    assert request_starts(talk(3).messages, 1) == [4, 8]
    assert request_starts(loop(3).messages, 1) == []


@pytest.mark.parametrize(("tokens", "wants"), [(499, False), (500, True)])
def test_what_is_too_small_for_a_summary_gets_none(tokens: int, wants: bool) -> None:
    built = chat(tokens - 100, 100, 9)
    plan = summary_plan("p", View(), built.messages, budget_for(built.messages, 0), upto=2)
    assert (plan is not None) is wants


def test_a_summary_is_half_of_its_source_at_most_in_the_tokens_of_the_text() -> None:
    built = chat(1_000, 1_000, 9)
    for scale, most in ((1_000, 1_000), (2_000, 1_000), (500, 1_000)):
        budget = budget_for(built.messages, 0, scale_permille=scale)
        plan = required(summary_plan("p", View(), built.messages, budget, upto=2))
        assert plan.summary_request is not None
        assert plan.summary_request.max_tokens == most
    budget = budget_for(built.messages, 0, scale_permille=2_000)
    plan = required(summary_plan("p", View(), built.messages, budget, upto=2, max_tokens=1_200))
    assert required(plan.summary_request).max_tokens == 600


def test_what_a_plan_promises_is_what_its_summary_frees_at_least() -> None:
    built = chat(*[1_000] * 9)
    budget = budget_for(built.messages, 0)
    plan = required(summary_plan("p", View(), built.messages, budget, upto=4, omitted=((4, 6),)))
    assert (plan.tokens_before, plan.tokens_after) == (9_000, 3_000 + 2_000)
    prefix_summary = extracted_summary(
        required(plan.summary_request), built.messages, budget.profile
    )
    filled = required(with_summary(plan, prefix_summary, View(), built.messages, budget))
    assert filled.tokens_after <= plan.tokens_after + 4
    assert filled.omitted == ((4, 6),)
    assert with_summary(plan, None, View(), built.messages, budget) is None


def test_nothing_before_where_the_summary_ends_is_asked_for_again() -> None:
    built = chat(*[1_000] * 9)
    budget = budget_for(built.messages, 0)
    assert summary_plan("p", View(), built.messages, budget, upto=0) is None
    view = View(prefix_summaries=(PrefixSummary(4, "told"),))
    assert summary_plan("p", view, built.messages, budget, upto=4) is None


def test_a_note_in_place_of_a_summary_stands_behind_the_newest_summary_that_is_none() -> None:
    def note(first: int) -> str:
        return f"[mark: from {first}]"

    def told(*texts: str) -> View:
        summaries = (PrefixSummary(2 * n, introduced(t)) for n, t in enumerate(texts, 1))
        return View(prefix_summaries=tuple(summaries))

    assert note_behind_earlier(View(), "[mark:", note) == "[mark: from 0]"
    assert note_behind_earlier(told("[mark: x]"), "[mark:", note) == "[mark: from 0]"
    expected = "goals\n\n[mark: from 4]"
    assert note_behind_earlier(told("old", "goals"), "[mark:", note) == expected
    later = told("old", "goals", "goals\n\n[mark: from 4]")
    assert note_behind_earlier(later, "[mark:", note) == expected
