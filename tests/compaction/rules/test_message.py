from __future__ import annotations

from typing import Any

import pytest

from llmsession.turns.request import Profile
from tests.compaction.conversations import call_block, result_block, text
from tests.compaction.requests import (
    BASH,
    SEARCH,
    assistant,
    broken_rules,
    cached,
    fault,
    places,
    request,
    thought,
    user,
)


def test_v4_calls_are_the_assistants() -> None:
    made = request(user("look", call_block("c1")), assistant("ok"), user("and"), tools=BASH)
    assert places(made)[-1] == ("V4", "messages[0].content[1]")
    assert set(broken_rules(made)) == {"V4"}


def test_v4_results_are_the_users() -> None:
    made = request(user("look"), assistant(result_block("c1", "x")), user("and"))
    assert set(broken_rules(made)) == {"V4"}


@pytest.mark.parametrize("bad", ["c~2", "", "a b", None, 7])
def test_v4_an_id_is_letters_digits_underscore_and_dash(bad: Any) -> None:
    made = request(user("look"), assistant(call_block(bad)), user(result_block(bad, "x")))
    assert places(made) == [
        ("V4", "messages[1].content[0].id"),
        ("V4", "messages[2].content[0].tool_use_id"),
    ]


def test_v5_no_text_is_empty_or_blank() -> None:
    assert places(request(user("a", ""))) == [("V5", "messages[0].content[1]")]
    assert fault(request(user(" \n"))) == "text content blocks must contain non-whitespace text"


def test_v5_no_text_in_a_result_is_empty() -> None:
    made = request(
        user("a"), assistant(call_block("c1")), user(result_block("c1", [text("x"), text(" ")]))
    )
    assert places(made) == [("V5", "messages[2].content[0].content[1]")]


@pytest.mark.parametrize("content", ["", [], None])
def test_v5_an_error_result_says_something(content: Any) -> None:
    bad = result_block("c1", content, is_error=True)
    made = request(user("a"), assistant(call_block("c1")), user(bad))
    assert places(made) == [("V5", "messages[2].content[0]")]
    good = result_block("c1", content)
    assert broken_rules(request(user("a"), assistant(call_block("c1")), user(good))) == []


def test_v6_server_blocks_are_the_assistants() -> None:
    assert places(request(user("a", SEARCH))) == [("V6", "messages[0].content[1]")]


def test_v7_thinking_carries_its_signature() -> None:
    made = request(user("a"), assistant(thought("hm", None), "b"), user("c"))
    assert places(made) == [("V7", "messages[1].content[0]")]
    assert broken_rules(made, Profile(binds_thinking=False)) == []


def test_v7_thinking_is_the_assistants() -> None:
    assert places(request(user("a", thought("hm")))) == [("V7", "messages[0].content[1]")]


def test_v12_no_breakpoint_on_thinking() -> None:
    made = request(user("a"), assistant(cached(thought("hm")), "b"), user("c"))
    assert places(made) == [("V12", "messages[1].content[0].cache_control")]


def test_v12_no_breakpoint_on_empty_text() -> None:
    made = request(user("a", cached(text(""))))
    assert ("V12", "messages[0].content[1].cache_control") in places(made)
