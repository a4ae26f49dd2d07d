from __future__ import annotations

from llmsession.compaction.rules.check import Checker
from llmsession.turns.request import Profile
from tests.compaction.conversations import call_block, result_block
from tests.compaction.requests import (
    assistant,
    history,
    request,
    thinking_steps,
    thought,
    user,
    violations,
    without_thinking,
)


def test_thinking_as_it_was_made_is_valid() -> None:
    said = thinking_steps(4)
    assert violations(said, said) == []


def test_v7_a_changed_thinking_block_is_found() -> None:
    said = thinking_steps(2)
    other = [*said[:3], assistant(thought("other"), call_block("c1")), said[4]]
    assert violations(other, said) == [("V7", "messages[3].content[0]")]


def test_v7_a_thinking_block_out_of_order_is_found() -> None:
    said = [user("go"), assistant(thought("a"), thought("b"), "c"), user("d")]
    swapped = [said[0], assistant(thought("b"), thought("a"), "c"), said[2]]
    found = violations(swapped, said)
    assert ("V7", "messages[1].content[1]") in found


def test_v7_a_thinking_block_sent_twice_is_found() -> None:
    said = [user("go"), assistant(thought("a"), "c"), user("d")]
    twice = [said[0], assistant(thought("a"), thought("a"), "c"), said[2]]
    assert violations(twice, said) == [("V7", "messages[1].content[1]")]


def test_v9_no_thinking_from_before_an_edit_stands_after_it() -> None:
    said = thinking_steps(4)
    assert violations(said, said, thinking_from=9, edited=4) == [
        ("V9", "messages[5].content[0]"),
        ("V9", "messages[7].content[0]"),
    ]
    assert violations(without_thinking(said, 5, 7), said, thinking_from=9, edited=4) == []


def test_v9_thinking_made_after_the_edit_stays() -> None:
    said = thinking_steps(4)
    assert violations(without_thinking(said, 5), said, thinking_from=7, edited=4) == []
    found = violations(without_thinking(said, 7), said, thinking_from=7, edited=4)
    assert found == [("V9", "messages[5].content[0]")]


def test_v9_all_thinking_may_be_left_out() -> None:
    said = thinking_steps(4)
    assert violations(without_thinking(said, 1, 3, 5, 7), said, thinking_from=9, edited=4) == []
    assert violations(without_thinking(said, 1, 3, 5, 7), said) == []


def test_v9_none_is_left_out_in_the_middle() -> None:
    said = thinking_steps(4)
    assert violations(without_thinking(said, 5), said) == [("V9", "messages[7].content[0]")]
    assert violations(without_thinking(said, 5, 7), said) == []


def test_v9_a_block_without_a_signature_may_be_left_out_in_the_middle() -> None:
    said = [
        user("a"),
        assistant(thought("x", None), "b"),
        user("c"),
        assistant(thought("y"), "d"),
        user("e"),
    ]
    assert violations(without_thinking(said, 1), said) == []


def test_v9_in_the_edited_message_only_what_follows_a_call_is_void() -> None:
    said = [
        user("go"),
        assistant(thought("a"), call_block("c1", x="big"), thought("b"), call_block("c2")),
        user(result_block("c1", "x"), result_block("c2", "x")),
    ]
    edited = [
        said[0],
        assistant(thought("a"), call_block("c1"), thought("b"), call_block("c2")),
        said[2],
    ]
    assert violations(edited, said, thinking_from=3, edited=1) == [("V9", "messages[1].content[2]")]


def test_v9_is_not_asked_where_thinking_is_not_bound() -> None:
    said = thinking_steps(4)
    made = request(*without_thinking(said, 5))
    free = Checker(Profile(binds_thinking=False))
    bound = Checker(Profile(binds_thinking=True))
    assert free.check_against_history(made, history(*said)) == ()
    assert len(bound.check_against_history(made, history(*said))) == 1


def test_thinking_blocks_that_are_equal_are_told_apart_by_what_was_left_out() -> None:
    same = [user("go")]
    for number in range(4):
        same.append(assistant(thought("same"), call_block(f"c{number}")))
        same.append(user(result_block(f"c{number}", "x")))
    assert violations(without_thinking(same, 1, 3), same, thinking_from=5, edited=0) == []


def test_thinking_made_after_the_edits_is_not_taken_for_an_equal_block_from_before_them() -> None:
    said = [user("go")]
    for number, words in enumerate(("same", "early", "same", "late")):
        said.append(assistant(thought(words), call_block(f"c{number}")))
        said.append(user(result_block(f"c{number}", "x")))
    assert violations(without_thinking(said, 1, 3), said, thinking_from=5) == []


def test_v9_the_last_from_before_the_edits_may_be_left_out_and_what_came_after_stays() -> None:
    said = thinking_steps(4)
    assert violations(without_thinking(said, 3), said, thinking_from=5) == []
    assert violations(without_thinking(said, 1), said, thinking_from=5) != []


def test_v9_an_edit_behind_all_that_was_made_before_it_voids_nothing() -> None:
    said = thinking_steps(4)
    assert violations(said, said, thinking_from=3, edited=6) == []
