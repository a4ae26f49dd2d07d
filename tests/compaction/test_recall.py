from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.compaction.recall import (
    MAX_RECALL_CHARS,
    RECALL_TOOL,
    RECALL_TOOL_NAME,
    recall,
    recall_chars,
)
from llmsession.compaction.summaries.cap import cap_text
from llmsession.turns.messages import Message
from tests.compaction.conversations import Talk, image, required, text

LINES = "".join(f"line number {number}\n" for number in range(1, 5001))


def holding(*outputs: Any) -> Callable[[str], Sequence[Message]]:
    """The messages of a history in which the outputs are the results of c1, c2, ..."""
    built = Talk()
    for output in outputs:
        built.ask().step(output)
    return lambda call_id: built.messages


def given_back(source: Any, **arguments: Any) -> tuple[str, str]:
    """Header and body of a recall of the result c1."""
    answer, is_error = recall(holding(source), {"id": "c1", **arguments})
    assert not is_error, answer
    header, _, body = answer.partition("\n")
    return header, body


def refused(arguments: Any, source: Any = "one\ntwo") -> str:
    answer, is_error = recall(holding(source), arguments)
    assert is_error
    return answer


PICTURE = [text("seen"), image(), text("again")]
MEDIA = "seen\nagain\n[not returned: 1 other block (image)]"
# What is asked of which text, and the header and the body of the answer.
# fmt: off
ANSWERS: dict[str, tuple[Any, dict[str, int], str, str]] = {
    "a short text comes whole": ("one\ntwo", {}, "[lines 1-2 of 2]", "one\ntwo"),
    "lines come with what to call next": (
        LINES, {"line": 1001, "lines": 2},
        '[lines 1001-1002 of 5000; recall(id="c1", line=1003) continues]',
        "line number 1001\nline number 1002\n"),
    "the last lines name nothing further": (
        LINES, {"line": 4999, "lines": 100},
        "[lines 4999-5000 of 5000]", "line number 4999\nline number 5000\n"),
    "characters come with what to call next": (
        "abcdefghij", {"char": 3, "chars": 4},
        '[characters 3-6 of 10; recall(id="c1", char=7) continues]', "cdef"),
    "the last characters": ("abcdefghij", {"char": 8}, "[characters 8-10 of 10]", "hij"),
    "images are named and not returned": (PICTURE, {}, "[lines 1-2 of 2]", MEDIA),
}
# fmt: on


@pytest.mark.parametrize(("source", "arguments", "header", "body"), ANSWERS.values(), ids=ANSWERS)
def test_a_recall_returns_what_was_asked_for_and_says_how_to_go_on(
    source: Any, arguments: dict[str, int], header: str, body: str
) -> None:
    assert given_back(source, **arguments) == (header, body)


def test_an_answer_is_capped_at_a_line_end_and_says_how_to_go_on() -> None:
    answer, _ = recall(holding(LINES), {"id": "c1"}, max_chars=2000)
    header, _, body = answer.partition("\n")
    match = required(
        re.fullmatch(r'\[lines 1-(\d+) of 5000; recall\(id="c1", line=(\d+)\) continues\]', header)
    )
    assert int(match[2]) == int(match[1]) + 1
    assert body.endswith(f"line number {match[1]}\n")
    assert 1500 < len(answer) <= 2000


def test_a_line_that_is_too_long_comes_in_characters() -> None:
    source = "first\n" + "x" * 50_000
    assert given_back(source)[0] == '[lines 1-1 of 2; recall(id="c1", line=2) continues]'
    header, body = given_back(source, line=2)
    assert header.startswith("[characters 7-")
    assert 19_000 < len(body) < 20_000


def test_every_part_of_the_text_can_be_had_by_following_the_headers() -> None:
    source = LINES + "x" * 45_000 + "\n" + LINES
    arguments: dict[str, Any] = {}
    parts = []
    while True:
        header, body = given_back(source, **arguments)
        parts.append(body)
        following = re.search(r"(line|char)=(\d+)\) continues", header)
        if following is None:
            break
        arguments = {following[1]: int(following[2])}
    assert "".join(parts) == source


def test_a_cap_names_a_call_that_returns_what_was_left_out() -> None:
    capped = required(cap_text(LINES, max_chars=2000, call_id="c1"))
    match = required(
        re.search(r'lines (\d+)-\d+ of 5000 left out; recall\(id="c1", line=(\d+)\)', capped)
    )
    assert match[1] == match[2]
    body = given_back(LINES, line=int(match[2]), lines=1)[1]
    assert body == f"line number {match[1]}\n"


def test_the_full_text_comes_back_and_not_what_a_view_shows() -> None:
    messages = holding(LINES, "two")
    answer, _ = recall(messages, {"id": "c2"})
    assert answer.endswith("two")


def test_a_result_without_text_says_so() -> None:
    assert recall(holding(""), {"id": "c1"}) == ("the result of c1 has no text", False)
    answer, is_error = recall(holding([image()]), {"id": "c1"})
    assert "1 other block (image)" in answer
    assert not is_error


def test_an_unknown_id_is_an_error_that_names_it() -> None:
    assert "'c9'" in refused({"id": "c9"})
    assert len(refused({"id": "x" * 10_000})) < 300


def test_a_call_without_a_result_yet_is_unknown() -> None:
    built = Talk().ask().step("out")
    assert recall(lambda call_id: built.messages[:-1], {"id": "c1"})[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (None, "object"),
        ("c1", "object"),
        ({}, "id is required"),
        ({"id": 7}, "id is required"),
        ({"id": "c1", "line": 0}, "line must be"),
        ({"id": "c1", "line": True}, "line must be"),
        ({"id": "c1", "line": 1.5}, "line must be"),
        ({"id": "c1", "lines": "many"}, "lines must be"),
        ({"id": "c1", "chars": [1]}, "chars must be"),
        ({"id": "c1", "line": 1, "char": 1}, "not for both"),
        ({"id": "c1", "offset": 1}, "unknown argument offset"),
        ({"id": "c1", "line": 3}, "has 2 lines"),
        ({"id": "c1", "char": 8}, "has 7"),
    ],
)
def test_bad_arguments_are_answered_in_words(arguments: Any, words: str) -> None:
    assert words in refused(arguments)


def test_numbers_that_are_clear_are_taken() -> None:
    assert given_back(LINES, line="3", lines=1.0)[1] == "line number 3\n"
    assert given_back(LINES, line=3, lines=1, char=None)[1] == "line number 3\n"


def test_the_definition_names_the_tool_and_its_arguments() -> None:
    definition = msgspec.json.decode(RECALL_TOOL)
    assert definition["name"] == RECALL_TOOL_NAME == "recall"
    assert list(definition["input_schema"]["properties"]) == [
        "id",
        "line",
        "lines",
        "char",
        "chars",
    ]
    assert definition["input_schema"]["required"] == ["id"]


_values = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5))


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["line", "lines", "char", "chars", "x"]), _values, max_size=3),
    st.sampled_from(["", "one", LINES, "x" * 30_000]),
    st.integers(-5, 30_000),
)
def test_no_argument_makes_recall_raise_or_exceed_its_size(
    ranges: dict[str, Any], source: str, max_chars: int
) -> None:
    answer, _ = recall(holding(source), {"id": "c1", **ranges}, max_chars=max_chars)
    assert 0 < len(answer) <= max(max_chars, 1000)


def test_a_page_is_an_eighth_of_what_a_request_may_hold_within_bounds() -> None:
    assert recall_chars(40_000, 3.0) == 15_000
    assert recall_chars(1_000_000, 3.0) == MAX_RECALL_CHARS
    assert recall_chars(100, 3.0) == 2_000
