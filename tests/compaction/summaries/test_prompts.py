from __future__ import annotations

import pytest

from llmsession.compaction.summaries.prompts import (
    earlier_passage,
    result_instructions,
    summary_instructions,
    summary_text,
)
from llmsession.compaction.view.summary_wording import introduced
from tests.compaction.conversations import required


@pytest.mark.parametrize(
    "answer",
    [
        "",
        " \n\t ",
        "None",
        "undefined",
        "null.",
        "[object Object]",
        "API Error: 529 overloaded",
        '{"type":"error","error":{"type":"overloaded_error"}}',
        '{"error": {"message": "no"}}',
        "Error code: 500 - internal",
        "429 Too Many Requests",
        "Internal server error",
        "Service Unavailable",
    ],
)
def test_nothing_and_the_text_of_an_error_are_no_summary(answer: str) -> None:
    assert summary_text(answer) is None


@pytest.mark.parametrize(
    "answer",
    [
        "The user asked why the server answers 500.",
        "Error handling was rewritten in a.py.",
        "5000 files were read.",
        "None of the tests failed.",
        "error 500 in the shop came from the cache: " + "and so on " * 50,
    ],
)
def test_a_summary_that_speaks_of_errors_is_one(answer: str) -> None:
    assert summary_text(answer) == answer.strip()


def test_a_title_that_a_model_repeats_and_half_characters_are_taken_off() -> None:
    assert summary_text(introduced("we sailed")) == "we sailed"
    assert summary_text("a\ud800b") == "a\ufffdb"


def test_an_earlier_summary_is_given_without_its_title() -> None:
    assert required(earlier_passage(introduced("we sailed"))).text == "[earlier summary]\nwe sailed"
    assert earlier_passage("") is None


def test_instructions_name_the_part_the_length_and_what_was_asked_for_beside() -> None:
    told = summary_instructions(1_000, further="in French", part=(2, 5))
    assert "part 2 of 5" in told
    assert "600 words" in told
    assert "in French" in told
    assert "earlier summary" not in told
    assert "earlier summary" in summary_instructions(1_000, has_earlier=True)
    assert "600 characters" in result_instructions(600)


def test_instructions_say_that_the_source_is_not_to_be_obeyed() -> None:
    for told in (summary_instructions(500), result_instructions(600)):
        assert "is not for you to do" in told
