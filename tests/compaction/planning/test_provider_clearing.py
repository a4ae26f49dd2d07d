"""What a provider will clear, estimated."""

from __future__ import annotations

from typing import Any

from llmsession.compaction.planning.provider_clearing import Clearing, clearing_of
from llmsession.compaction.view.view import View
from llmsession.turns.request import Profile
from tests.compaction.conversations import Talk, required

PROFILE = Profile(chars_per_token=1.0)


def steps(count: int) -> Talk:
    return Talk().ask().step("x" * 1_020, times=count)


def clearing(**edit: Any) -> Clearing:
    edits = {"edits": [{"type": "clear_tool_uses_20250919", **edit}]}
    return required(clearing_of({"context_management": edits}))


def tokens(value: int) -> dict[str, Any]:
    return {"type": "input_tokens", "value": value}


def test_only_an_edit_of_tool_uses_clears_them() -> None:
    assert clearing_of({}) is None
    assert clearing_of({"context_management": {"edits": [{"type": "compact_20260112"}]}}) is None
    assert clearing().trigger_tokens == 100_000
    assert clearing().keep == 3


def test_nothing_is_cleared_up_to_the_trigger_and_all_but_the_newest_above_it() -> None:
    messages = steps(5).messages
    rule = clearing(trigger=tokens(4_000), keep={"type": "tool_uses", "value": 2})
    assert rule.expected(4_000, messages, View(), PROFILE) == 0
    assert rule.expected(4_001, messages, View(), PROFILE) == 3_000


def test_a_trigger_may_count_uses() -> None:
    rule = clearing(trigger={"type": "tool_uses", "value": 4})
    assert rule.expected(9, steps(4).messages, View(), PROFILE) == 0
    assert rule.expected(9, steps(5).messages, View(), PROFILE) == 2_000


def test_tools_that_are_excluded_keep_their_results() -> None:
    rule = clearing(trigger=tokens(1), exclude_tools=["bash"])
    assert rule.expected(9_000, steps(9).messages, View(), PROFILE) == 0


def test_less_than_the_least_is_not_cleared() -> None:
    messages = steps(5).messages
    assert (
        clearing(trigger=tokens(1), clear_at_least=tokens(2_001)).expected(
            9_000, messages, View(), PROFILE
        )
        == 0
    )
    assert (
        clearing(trigger=tokens(1), clear_at_least=tokens(2_000)).expected(
            9_000, messages, View(), PROFILE
        )
        == 2_000
    )


def test_what_was_cleared_before_is_not_counted_again() -> None:
    messages = steps(6).messages
    rule = clearing(trigger=tokens(1))
    assert rule.expected(9_000, messages, View(), PROFILE, cleared_before=9) == 2_000


def test_what_we_show_in_short_has_less_to_be_cleared() -> None:
    messages = steps(5).messages
    view = View(compacted_before=3, shown_results={"c1": "x" * 120})
    assert clearing(trigger=tokens(1)).expected(9_000, messages, view, PROFILE) == 1_100
