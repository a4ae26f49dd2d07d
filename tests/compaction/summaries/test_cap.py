from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.compaction.summaries.cap import (
    cap_content,
    cap_text,
    line_count,
    other_blocks,
    result_text,
)
from tests.compaction.conversations import image, required, text

LINES = "".join(f"line number {number}\n" for number in range(1, 1001))
BY_LINES = re.compile(
    r'\[lines (\d+)-(\d+) of (\d+) left out; recall\(id="c1", line=(\d+)\) returns them\]'
)
BY_CHARACTERS = re.compile(
    r'\[characters (\d+)-(\d+) of (\d+) left out; recall\(id="c1", char=(\d+)\) returns them\]'
)


def capped(source: str, max_chars: int) -> str:
    return required(cap_text(source, max_chars=max_chars, call_id="c1"))


def test_a_text_within_the_cap_is_left_alone() -> None:
    assert cap_text("x" * 100, max_chars=100, call_id="c1") is None


def test_lines_are_cut_at_their_ends_and_the_marker_names_those_left_out() -> None:
    found = capped(LINES, 2000)
    match = required(BY_LINES.search(found))
    first, last, total, argument = map(int, match.groups())
    assert (total, argument) == (1000, first)
    lines = LINES.splitlines()
    assert found.split("\n")[: first - 1] == lines[: first - 1]
    assert found.rstrip("\n").split("\n")[first:] == lines[last:]


def test_about_seven_tenths_of_the_cap_are_the_head() -> None:
    head, tail = BY_LINES.split(capped(LINES, 2000))[0::5]
    assert 1100 < len(head) <= 1400
    assert 400 < len(tail) <= 600


def test_a_single_huge_line_is_counted_in_characters() -> None:
    source = "".join(chr(97 + number % 26) for number in range(50_000))
    found = capped(source, 1000)
    match = required(BY_CHARACTERS.search(found))
    first, last, total, argument = map(int, match.groups())
    assert (total, argument) == (50_000, first)
    head, tail = found[: match.start()].rstrip("\n"), found[match.end() :].lstrip("\n")
    assert source == head + source[first - 1 : last] + tail
    assert len(found) <= 1000


def test_characters_are_counted_where_only_one_cut_is_at_a_line_end() -> None:
    assert BY_CHARACTERS.search(capped("short\n" * 300 + "x" * 5000, 1000))
    assert BY_CHARACTERS.search(capped("x" * 5000 + "\nshort" * 300, 1000))


def test_a_last_line_without_a_newline_is_counted() -> None:
    found = capped("a" * 300 + "\n" + "b" * 300, 40)
    assert found == '[lines 1-2 of 2 left out; recall(id="c1", line=1) returns them]'


def test_a_cap_that_would_not_shorten_is_none() -> None:
    assert cap_text("x" * 50, max_chars=10, call_id="c1") is None


def test_a_list_is_capped_by_its_joined_texts() -> None:
    content = [text("x" * 800), text("y" * 800)]
    assert cap_content(content, max_chars=2000, call_id="c1") is None
    joined = "x" * 800 + "\n" + "y" * 800
    assert cap_content(content, max_chars=1000, call_id="c1") == capped(joined, 1000)


def test_text_content_is_capped_as_text() -> None:
    assert cap_content(LINES, max_chars=1000, call_id="c1") == capped(LINES, 1000)


def test_images_alone_do_not_bring_a_list_over_the_cap() -> None:
    assert cap_content([image(), image(), text("x")], max_chars=100, call_id="c1") is None


def test_blocks_that_are_no_text_are_counted_in_a_capped_list() -> None:
    content = [text("x" * 5000), image(), image(), {"type": "document", "source": {}}]
    found = required(cap_content(content, max_chars=1000, call_id="c1"))
    assert found.endswith("[3 other blocks (document, image) left out]")
    assert len(found) <= 1000


def test_other_blocks_are_named_shortly_whatever_they_are() -> None:
    assert other_blocks("text") == ""
    assert other_blocks([text("a")]) == ""
    assert other_blocks([image()]) == "1 other block (image)"
    assert (
        len(other_blocks([7, {"type": "x" * 9000}, *({"type": f"t{n}"} for n in range(99))])) < 200
    )


def test_lines_are_counted_at_newlines() -> None:
    assert [line_count(value) for value in ("", "a", "a\n", "a\nb", "\n\n")] == [0, 1, 1, 2, 2]


def test_a_text_that_is_no_string_counts_as_empty() -> None:
    assert result_text([text("a"), {"type": "text", "text": None}, image(), text("b")]) == "a\n\nb"


_sources = st.lists(st.sampled_from(["\n", "word ", "x" * 90, "é", "\r\n"]), max_size=300).map(
    "".join
)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(_sources, st.integers(0, 3000))
def test_a_cap_is_deterministic_shorter_not_empty_and_within_its_size(
    source: str, max_chars: int
) -> None:
    found = cap_text(source, max_chars=max_chars, call_id="c1")
    assert found == cap_text(source, max_chars=max_chars, call_id="c1")
    if found is None:
        assert len(source) <= max(max_chars, 100)
    else:
        assert 0 < len(found) < len(source)
        assert len(found) <= max(max_chars, 100)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(_sources, st.integers(100, 1000))
def test_what_a_cap_shows_and_what_it_names_is_the_whole(source: str, max_chars: int) -> None:
    found = cap_text(source, max_chars=max_chars, call_id="c1")
    if found is None:
        return
    match = BY_LINES.search(found) or BY_CHARACTERS.search(found)
    assert match is not None
    first, last, total, _ = map(int, match.groups())
    if match.re is BY_LINES:
        pieces = re.findall(r"[^\n]*\n|[^\n]+$", source)
        middle = "".join(pieces[first - 1 : last])
        assert total == len(pieces)
    else:
        middle = source[first - 1 : last]
        assert total == len(source)
    start = found[: match.start()]
    end = found[match.end() :].removeprefix("\n")
    assert source in (start + middle + end, start.removesuffix("\n") + middle + end)
