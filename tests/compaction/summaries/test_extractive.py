from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.compaction.summaries.extractive import (
    compact_text,
    is_extracted,
    is_worth,
    summarise,
)
from tests.compaction.conversations import required

LOG = (
    "$ pytest -q\n"
    + "".join(f"tests/test_{number}.py .....\n" for number in range(200))
    + "Traceback (most recent call last):\n"
    + '  File "src/a/b.py", line 12, in f\n'
    + "ValueError: \x1b[31mboom\x1b[0m\n"
    + "see https://docs.example.org/en/x.html, there\n"
    + "src/c.py:33: AssertionError\n"
    + "==== 3 failed, 20 passed in 1.2s ====\n"
    + "exit code: 1\n"
)


def summary_of(source: str, **options: bool | str | int) -> str:
    return required(summarise(source, **options))  # type: ignore[arg-type]  # options of several types


def filled(*lines: str) -> str:
    """Lines in the middle of 400 that say nothing."""
    return "nothing here\n" * 200 + "".join(line + "\n" for line in lines) + "nothing here\n" * 200


def test_a_short_text_is_not_worth_a_summary() -> None:
    assert summarise("x" * 1199) is None
    assert summarise("x" * 1200) is not None


def test_a_summary_says_how_much_there_was() -> None:
    found = summary_of(LOG)
    title, *lines = found.split("\n")
    numbered = [line for line in lines if re.match(r"\d+: ", line)]
    left_out = 208 - len(numbered)
    assert title == f"208 lines, {len(LOG):,} characters; {left_out} lines left out:"


def test_a_text_of_one_line_has_no_lines_left_out() -> None:
    assert summary_of("word " * 1000).startswith("1 line, 5,000 characters; in part:\n")


def test_paths_without_a_line_are_listed_too_and_those_of_places_not_again() -> None:
    found = summary_of(filled("M  src/a/b.py", "a/b.py:12: x", "/etc/hosts and ../up/c.txt, 1/2"))
    assert "paths: src/a/b.py, /etc/hosts, ../up/c.txt" in found.split("\n")
    assert "places: a/b.py:12" in found.split("\n")


def test_an_address_is_a_link_and_no_path() -> None:
    found = summary_of(filled("see https://example.org/a/b for more"))
    assert "paths:" not in found


def test_a_summary_names_the_tool_and_that_it_failed() -> None:
    found = summary_of(LOG, tool="bash\n  -c", is_error=True)
    assert found.startswith("bash -c: ")
    assert "characters (error);" in found.split("\n")[0]
    assert "(error)" not in summary_of(LOG)


def test_first_and_last_lines_are_kept_with_their_numbers() -> None:
    lines = "".join(f"row {number}\n" for number in range(1, 501))
    assert summary_of(lines).split("\n")[1:] == [
        "1: row 1", "2: row 2", "3: row 3", "498: row 498", "499: row 499", "500: row 500",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "exit code: 137",
        "Process exited with code 2",
        "exited with status 3",
        "returncode=4",
        "==== 3 failed, 20 passed in 1.2s ====",
        "Ran 12 tests in 0.1s",
        "test result: ok. 5 passed",
        "error: cannot find crate",
        "Traceback (most recent call last):",
        "pkg.TimeoutError: too late",
        "java.io.IOException",
        "fatal: not a git repository",
        "thread 'main' panicked",
        "bash: foo: Permission denied",
        "--- FAIL: TestX",
    ],
)
def test_outcomes_and_error_lines_are_kept(line: str) -> None:
    assert f"201: {line}" in summary_of(filled(line)).split("\n")


def test_places_in_files_are_listed_once() -> None:
    found = summary_of(filled("a/b.py:12: x", "at a/b.py:12", "./c.ts:7:3", 'File "d.py", line 9'))
    assert "places: a/b.py:12, ./c.ts:7, d.py:9" in found.split("\n")


def test_links_are_listed_without_the_punctuation_behind_them() -> None:
    found = summary_of(filled("see https://example.org/a?b=1, or (http://x.example/y)."))
    assert "links: https://example.org/a?b=1, http://x.example/y" in found.split("\n")


def test_more_places_than_fit_are_counted() -> None:
    found = summary_of(filled(*(f"dir/file{number}.py:{number}" for number in range(100))))
    assert re.search(r"^places: dir/file0\.py:0, .* \(\+92\)$", found, re.MULTILINE)


def test_colour_codes_are_left_out() -> None:
    assert "204: ValueError: boom" in summary_of(LOG)
    assert "\x1b" not in summary_of(LOG)


def test_the_end_of_a_failure_is_kept_rather_than_its_start() -> None:
    rows = "".join(f"row {number} {'-' * 90}\n" for number in range(1, 101))
    assert "97: row" in summary_of(rows, is_error=True)
    assert "97: row" not in summary_of(rows)


def test_a_single_huge_line_shows_how_it_starts_and_ends() -> None:
    found = summary_of("START" + "x" * 1_000_000 + "END")
    assert "1: STARTx" in found
    assert found.endswith("xEND")


def test_line_numbers_are_right_in_the_tail_of_a_huge_text() -> None:
    rows = "".join(f"row {number}\n" for number in range(1, 200_001))
    assert summary_of(rows).endswith("\n200000: row 200000")


def test_white_space_is_called_white_space() -> None:
    assert summarise(" " * 5000) == "1 line, 5,000 characters; only white space"


@pytest.mark.parametrize(
    "source",
    [
        "a" * 10**6,
        " " * 10**6,
        "\n" * 10**6,
        "a\n" * 500_000,
        "a/a.py:" * 150_000,
        "Error " * 200_000,
        ("a.b:" * 95 + "\n") * 2600,
        ("exit" + " " * 390 + "\n") * 2500,
        ("9" * 390 + "\n") * 2500,
        "\x1b[" * 500_000,
    ],
    ids=[
        "line",
        "spaces",
        "newlines",
        "lines",
        "paths",
        "errors",
        "dots",
        "exits",
        "digits",
        "codes",
    ],
)
@pytest.mark.timeout(300)  # a tenth of a second each; what is quadratic takes hours
def test_hostile_megabytes_are_summarised_too(source: str) -> None:
    assert len(summary_of(source)) <= 600


def test_a_summary_that_does_not_fit_is_none() -> None:
    assert summarise(LOG, max_chars=10) is None


_parts = st.sampled_from(
    ["\n", "error: x\n", "a.py:1 ", "word ", "x" * 500, "https://e.org/ ", "é\r\n"]
)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.lists(_parts, max_size=200).map("".join), st.integers(0, 1000), st.booleans())
def test_a_summary_is_deterministic_and_at_most_half_its_source(
    source: str, max_chars: int, is_error: bool
) -> None:
    found = summarise(source, is_error=is_error, max_chars=max_chars)
    assert found == summarise(source, is_error=is_error, max_chars=max_chars)
    if found is not None:
        assert found.strip()
        assert len(found) <= max_chars <= len(source) / 2


def test_compact_text_says_what_it_is_and_how_to_get_the_whole() -> None:
    assert compact_text("it said yes", call_id="toolu_1", chars=18_220) == (
        '[compacted: the full result has 18,220 characters; recall(id="toolu_1") returns it]\n'
        "it said yes"
    )


def test_compact_text_without_a_summary_is_its_header() -> None:
    assert compact_text(" \n", call_id="c1", chars=5) == compact_text("", call_id="c1", chars=5)
    assert "\n" not in compact_text("", call_id="c1", chars=5)


def test_only_a_shorter_text_is_worth_it() -> None:
    assert is_worth("abc", 4)
    assert not is_worth("abc", 3)
    assert not is_worth("", 100)
    assert not is_worth("  ", 100)


def test_an_extracted_summary_is_known_by_the_size_that_it_begins_with() -> None:
    assert is_extracted(summary_of(LOG, max_chars=600), LOG)
    assert is_extracted(summary_of(LOG, tool="bash", is_error=True, max_chars=600), LOG)
    assert not is_extracted(summary_of(LOG, max_chars=600), LOG + "x")
    assert not is_extracted("three tests failed", LOG)
