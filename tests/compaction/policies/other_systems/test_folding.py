from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from llmsession.compaction.policies import BasicFold, BudgetProjection, SidecarProjection
from llmsession.compaction.policies.other_systems.folding import (
    fold_notice,
    fold_target,
    fold_trigger,
    middle_cut,
)
from llmsession.compaction.view.view import View
from llmsession.turns.messages import Message
from tests.compaction.conversations import Talk, required, talk, text
from tests.compaction.policies.plans import PLAIN, budget_for, plan_of, texts_sent, visible
from tests.compaction.policies.summaries import applied, said

NOTICE = "<SYSTEM_NOTICE>\nEarlier context was compacted. Summary of your actions after the"
ROOMY = replace(PLAIN, max_output_tokens=1_000)
"""A model that answers with less than it takes, so that the target may be a half."""


# The golden vectors.


@pytest.mark.parametrize(
    ("max_input", "half", "less"), [(200_000, 100_000, 126_000), (128_000, 64_000, 80_640)]
)
def test_the_vectors_of_the_target(max_input: int, half: int, less: int) -> None:
    assert fold_target(max_input, 5, 8_192) == half
    assert fold_target(max_input, 4, 8_192) == less
    assert fold_target(max_input, 5, max_input) == less


def test_the_target_is_below_the_trigger_in_any_window() -> None:
    for window in range(2, 60):
        assert fold_target(window, 5, 1) <= max(0, fold_trigger(window) - 1)


# The notice.


def call(name: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": "c", "name": name, "input": given}


def test_a_notice_lists_files_commands_and_the_latest_texts() -> None:
    built = Talk().ask()
    for number in range(4):
        built.add("assistant", [text(f"text {number}")])
    built.add(
        "assistant",
        [
            call("read_file", path="src/a.py"),
            call("read_file", path="./src/a.py"),
            call("Read", file_path="b.py", offset=10, limit=20),
            call("edit", path="b.py", old="x" * 400, new="y"),
            call("bash", command="make  test\n" + "x" * 200),
            call("look", at="c.py"),
        ],
    )
    assert fold_notice(built.messages[1:]) == (
        f"{NOTICE} request above:\nFiles read:\nsrc/a.py\nb.py:10-29\n\nFiles edited:\nb.py\n\n"
        f"Commands ran:\n{('make test ' + 'x' * 200)[:100]}\n\n"
        "Your recent responses:\ntext 1\ntext 2\ntext 3</SYSTEM_NOTICE>"
    )


def test_answers_that_are_all_there_was_are_not_repeated() -> None:
    built = Talk().ask().reply("a long answer")
    assert fold_notice(built.messages[1:]) == f"{NOTICE} request above:\n</SYSTEM_NOTICE>"


# basic_fold.


def working(turns: int, steps: int = 3, size: int = 1_000) -> list[Message]:
    built = Talk()
    for number in range(turns):
        built.ask(f"request {number}")
        for _ in range(steps):
            built.call("read", "x" * size, path=f"c{built.calls + 1}.py")
        built.reply(f"answer {number}")
    return built.messages


def test_what_a_person_said_stays_and_what_was_done_becomes_a_notice_behind_it() -> None:
    messages = working(3)
    limit = budget_for(messages, 1).used_tokens
    plan = required(plan_of(BasicFold(), messages, limit, profile=ROOMY))
    assert plan.summary_request is None
    view = View().applied(plan, len(messages))
    # Requests at 0, 8, 16 and answers at 7, 15, 23; the newest turn as far as it fits.
    kept = visible(plan, messages)
    assert {0, 7, 8, 15, 16} <= set(kept)
    assert not {1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 13, 14} & set(kept)
    assert [each.at for each in required(plan.injected)] == [end for _, end in plan.omitted]
    said = texts_sent(messages, view)
    assert said[0][0] == "request 0"
    assert (
        said[0][1] == f"{NOTICE} request above:\nFiles read:\nc1.py\nc2.py\nc3.py</SYSTEM_NOTICE>"
    )
    assert budget_for(messages, limit, view).used_tokens <= fold_target(limit, 3, 1_000)


def test_what_fits_of_the_newest_turn_begins_with_an_assistant() -> None:
    messages = working(1, steps=20)
    limit = budget_for(messages, 1).used_tokens
    plan = required(plan_of(BasicFold(), messages, limit, profile=ROOMY))
    ((first, end),) = plan.omitted
    assert first == 1
    assert messages[end].is_assistant
    assert end < 20


def test_the_step_that_is_not_answered_stays_however_large_it_is() -> None:
    messages = working(1, steps=3)[:-1]
    plan = required(plan_of(BasicFold(), messages, 1_000, profile=ROOMY))
    assert visible(plan, messages) == [0, 5, 6]


def test_a_word_that_came_with_results_stays_with_their_calls() -> None:
    built = Talk().ask("first").step("x" * 1_000).step("x" * 1_000, word="wait")
    built.step("x" * 1_000, times=6)
    plan = required(plan_of(BasicFold(), built.messages, 4_500, profile=ROOMY))
    assert {0, 3, 4} <= set(visible(plan, built.messages))
    assert 1 not in visible(plan, built.messages)


def test_at_the_target_nothing_is_folded_and_a_second_fold_changes_nothing() -> None:
    messages = working(6)
    limit = budget_for(messages, 1).used_tokens
    assert plan_of(BasicFold(), messages, limit * 3, profile=ROOMY) is None
    plan = required(plan_of(BasicFold(), messages, limit, profile=ROOMY))
    view = View().applied(plan, len(messages))
    assert plan_of(BasicFold(), messages, limit, view, profile=ROOMY) is None


def test_a_later_fold_leaves_the_notices_that_stand_and_has_one_for_each_gap() -> None:
    messages = working(6)
    limit = budget_for(messages, 1).used_tokens
    plan = required(plan_of(BasicFold(), messages, limit, profile=ROOMY))
    view = View().applied(plan, len(messages))
    more = working(12)
    again = required(plan_of(BasicFold(), more, limit, view, profile=ROOMY))
    after = view.applied(again, len(more))
    assert [each.at for each in after.injected] == [end for _, end in after.omitted]
    same = set(view.omitted) & set(after.omitted)
    assert same
    for _, end in same:
        before = [each for each in view.injected if each.at == end]
        assert [each for each in after.injected if each.at == end] == before


# budget_projection.


def test_a_cut_keeps_both_ends_and_counts_the_middle() -> None:
    assert middle_cut("a" * 60 + "b" * 60, 100) == (
        "a" * 50 + "\n\n...[truncated 20 chars]...\n\n" + "b" * 50
    )
    assert middle_cut("a" * 100, 100) == "a" * 100


def thoughtful(size: int) -> Talk:
    built = Talk()
    for _ in range(3):
        built.ask("q" * 50).step("x" * 50, thinking="t" * size).reply("a" * 50)
    return built


def test_thinking_goes_first_and_nothing_else_if_that_is_enough() -> None:
    messages = thoughtful(1_000).messages
    limit = budget_for(messages, 1).used_tokens
    plan = required(plan_of(BudgetProjection(), messages, limit, profile=ROOMY))
    assert plan.drops_thinking
    assert plan.figures.keys() == {"thinking_tokens"}
    assert plan.texts == plan.shown_results == {}
    assert plan.omitted == ()


def test_texts_are_cut_next_the_newest_first_and_then_whole_closures_go_the_oldest_first() -> None:
    built = Talk().ask("first").step("x" * 2_000, times=10)
    messages = built.messages
    plan = required(plan_of(BudgetProjection(), messages, 22_000, profile=ROOMY))
    assert plan.omitted == ()
    assert "c9" in plan.shown_results
    assert "c1" not in plan.shown_results
    assert "c10" not in plan.shown_results  # not answered yet
    assert "...[truncated " in plan.shown_results["c9"]
    plan = required(plan_of(BudgetProjection(), messages, 4_500, profile=ROOMY))
    ((first, end),) = plan.omitted
    assert first == 1
    assert messages[end].is_assistant
    assert not plan.figures.get("unachievable")


def test_the_first_and_the_newest_request_and_the_open_step_stay_as_they_are() -> None:
    built = Talk()
    for _ in range(3):
        built.ask("q" * 3_000).step("x" * 3_000).reply("a" * 3_000)
    built.ask("q" * 3_000).step("x" * 3_000)
    messages = built.messages
    plan = required(plan_of(BudgetProjection(), messages, 1_000, profile=ROOMY))
    assert visible(plan, messages) == [0, 12, 13, 14]
    assert plan.shown_results.keys().isdisjoint({"c4"})
    assert plan.figures["unachievable"] == 1
    assert "cannot be reached" in plan.reason
    view = View().applied(plan, len(messages))
    assert plan_of(BudgetProjection(), messages, 1_000, view, profile=ROOMY) is None


def test_where_thinking_opens_a_tool_loop_it_is_not_taken_away() -> None:
    messages = thoughtful(1_000).messages
    limit = budget_for(messages, 1).used_tokens
    opens = replace(ROOMY, thinking_opens_tool_loop=True)
    plan = plan_of(BudgetProjection(), messages, limit, profile=opens)
    assert plan is None or not plan.drops_thinking


# sidecar_projection.


def test_a_cut_goes_back_to_a_safe_one() -> None:
    built = talk(9, said(3_000))
    cut = applied(SidecarProjection(), built.messages, 30_000).summary_request.upto
    assert not built.messages[cut].tool_results
