"""Shorter forms of texts and of the inputs of calls."""

from __future__ import annotations

import random
import string
from typing import Any

import msgspec
import pytest

from llmsession.compaction.summaries.shorten import KEPT_STRING_CHARS, shorten_input, shorten_text
from tests.compaction.conversations import required


def test_head_and_tail_stay_and_what_is_between_is_counted() -> None:
    text = "head " * 100 + "middle" * 500 + " tail" * 100
    shown = shorten_text(text, 400)
    assert len(shown) == 400
    assert shown.startswith("head head")
    assert shown.endswith("tail tail")
    assert f"[{len(text):,} characters, the middle is left out]" in shown


def test_a_text_that_fits_is_the_same() -> None:
    assert shorten_text("short", 5) == "short"
    assert shorten_text("", 0) == ""


@pytest.mark.parametrize("seed", range(5))
def test_a_text_never_grows(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        text = "".join(rng.choices(string.printable, k=rng.randrange(200)))
        most = rng.randrange(220)
        shown = shorten_text(text, most)
        assert len(shown) <= len(text)
        assert len(shown) <= max(most, 60) or shown == text


def test_long_strings_of_an_input_are_shortened_wherever_they_stand() -> None:
    long = "x" * 5_000
    given: dict[str, Any] = {
        "path": "a.py",
        "edits": [{"new": long, "line": 3}, {"deep": {"er": long}}],
        "n": 1.5,
    }
    shown = required(shorten_input(given))
    read: dict[str, Any] = msgspec.json.decode(shown)
    assert read["path"] == "a.py"
    assert read["edits"][0]["line"] == 3
    assert read["n"] == 1.5
    assert list(read) == list(given)
    assert len(read["edits"][0]["new"]) == KEPT_STRING_CHARS
    assert len(read["edits"][1]["deep"]["er"]) == KEPT_STRING_CHARS
    assert given["edits"][0]["new"] == long


@pytest.mark.parametrize(
    "given", [{}, {"cmd": "ls"}, {"text": "x" * (2 * KEPT_STRING_CHARS)}, [1, None], "y", None]
)
def test_an_input_without_long_strings_is_left_alone(given: Any) -> None:
    assert shorten_input(given) is None


def test_an_input_nested_beyond_reason_is_left_alone_down_there() -> None:
    given: Any = "x" * 5_000
    for _ in range(100):
        given = [given]
    assert shorten_input(given) is None
