"""Where a conversation may be cut, and what of it is recent."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.compaction.planning.boundaries import (
    is_safe_cut,
    is_turn_start,
    newest_that_fit,
    recent_from,
    safe_cuts,
    shows_open_thinking,
    steps_from,
    turns_from,
)
from llmsession.compaction.view.view import View
from tests.compaction.conversations import Talk, call_block, result_block, talk
from tests.compaction.requests import FOUND, SEARCH, assistant, history, user


def one_long_turn(steps: int) -> Talk:
    return Talk().ask().step("x" * 100, times=steps)


def test_no_cut_falls_between_calls_and_their_results() -> None:
    messages = talk(3).messages  # ask, call, result, reply: four messages a turn
    cuts = list(safe_cuts(messages, 0, len(messages)))
    assert cuts == [0, 1, 3, 4, 5, 7, 8, 9, 11, 12]
    assert all(not messages[at].tool_results for at in cuts if at < len(messages))


def test_a_cut_behind_calls_that_nobody_has_answered_is_not_safe() -> None:
    messages = talk(1).messages[:2]
    assert not is_safe_cut(messages, 2)
    assert is_safe_cut(messages, 1)
    assert is_safe_cut([], 0)
    assert not is_safe_cut(messages, -1)
    assert not is_safe_cut(messages, 3)


def test_no_cut_falls_into_a_run_of_replies_behind_its_first_call_nor_between_results() -> None:
    # Recorded replies and results may stand one by one: neighbours are one message when sent.
    built = Talk().ask().add("assistant", "first a word").add("assistant", [call_block("c1")])
    built.add("assistant", "then another").add("assistant", [call_block("c2")])
    built.add("user", [result_block("c1", "one")]).add("user", "a word between")
    built.add("user", [result_block("c2", "two")]).reply()
    assert list(safe_cuts(built.messages, 0, 9)) == [0, 1, 2, 8, 9]


def test_a_turn_starts_where_its_number_is_new() -> None:
    messages = talk(2).messages
    assert [at for at in range(8) if is_turn_start(messages, at)] == [0, 4]


def test_steps_are_counted_from_the_newest_and_open_calls_are_none() -> None:
    messages = talk(3).messages
    assert [steps_from(messages, count) for count in (1, 2, 3, 4, None)] == [9, 5, 1, 0, 0]
    assert [steps_from(messages[:10], count) for count in (1, 2, 3)] == [5, 1, 0]


def test_turns_are_counted_from_the_newest() -> None:
    messages = talk(3).messages
    assert [turns_from(messages, count) for count in (1, 2, 3, 4)] == [8, 4, 0, 0]
    assert turns_from([], 1) == 0


def test_the_newest_that_fit_are_taken_until_one_does_not() -> None:
    # The golden vector: budget 100, primer 3, [50, 40, 30, 20] keeps [40, 30, 20], 93 in all.
    assert newest_that_fit([50, 40, 30, 20], 100 - 3) == 1
    assert newest_that_fit([50, 40, 30, 20], 90) == 1
    assert newest_that_fit([50, 40, 30, 20], 89) == 2
    assert newest_that_fit([1, 100, 2], 3) == 2  # the older 1 is not taken over the misfit
    assert newest_that_fit([5], 4) == 1
    assert newest_that_fit([5], -1) == 1
    assert newest_that_fit([], 0) == 0


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 50)), st.integers(0, 400))
def test_the_suffix_fits_and_is_the_longest(sizes: list[int], room: int) -> None:
    start = newest_that_fit(sizes, room)
    assert sum(sizes[start:]) <= room
    assert start == 0 or sum(sizes[start - 1 :]) > room


@pytest.mark.parametrize(
    ("keep_turns", "keep_steps", "max_tokens", "recent"),
    [
        (2, None, 1_000, 16),  # where the second newest turn starts
        (100, None, 1_000, 0),
        (100, 2, 1_000, 17),  # where the second newest step starts
        (1, 5, 1_000, 20),
        (100, None, 70, 17),  # the newest seven messages of ten tokens
        (100, 1, 5, 21),  # the newest step is always recent
    ],
)
def test_what_is_recent_is_bounded_by_turns_steps_and_tokens(
    keep_turns: int, keep_steps: int | None, max_tokens: int, recent: int
) -> None:
    messages = talk(6).messages
    at = recent_from(
        messages, [10] * 24, keep_turns=keep_turns, keep_steps=keep_steps, max_tokens=max_tokens
    )
    assert at == recent


def test_of_one_long_turn_only_the_newest_steps_are_recent() -> None:
    messages = one_long_turn(50).messages
    sizes = [10] * len(messages)
    assert recent_from(messages, sizes, keep_turns=5, keep_steps=10, max_tokens=10**6) == 81


def test_the_last_message_is_always_recent() -> None:
    # Split at the length left no recent message (NeuroLink).
    built = Talk().ask("a question larger than anything that is allowed")
    assert recent_from(built.messages, [10**6], keep_turns=1, keep_steps=1, max_tokens=1) == 0
    built.reply().ask()
    at = recent_from(built.messages, [10**6] * 3, keep_turns=1, keep_steps=None, max_tokens=1)
    assert at == 2
    assert recent_from([], [], keep_turns=1, keep_steps=1, max_tokens=1) == 0


def test_open_thinking_is_that_of_the_open_turn_that_is_shown() -> None:
    built = talk(1).ask()
    committed = len(built.messages) - 1
    assert not shows_open_thinking(View(), built.messages, committed)
    built.step("x", thinking="hm")
    assert shows_open_thinking(View(), built.messages, committed)
    assert not shows_open_thinking(View(thinking_from=7), built.messages, committed)
    built.reply()
    assert not shows_open_thinking(View(), built.messages, len(built.messages))


def test_a_cut_between_a_server_tool_s_call_and_its_result_is_not_safe() -> None:
    loop = history(user("a"), assistant("b", SEARCH), assistant(FOUND, "c"), user("d"))
    assert [is_safe_cut(loop, at) for at in range(5)] == [True, True, False, True, True]
    waiting = history(user("a"), assistant(SEARCH, call_block("c1")), user(result_block("c1", "x")))
    assert not is_safe_cut(waiting, 3)
