from __future__ import annotations

from typing import Any

import msgspec
import pytest

from llmsession.errors import TranscriptError
from llmsession.transcripts import detect, read, write, write_own


def test_claude_code_is_detected_behind_lines_that_tell_nothing(claude_file: Any) -> None:
    for _ in range(20):
        claude_file.bare("mode", mode="normal")
    claude_file.user("go")
    assert detect(claude_file.bytes()) == "claude-code"
    (conversation,) = read(claude_file.bytes())
    assert (conversation.format, conversation.messages[0].text) == ("claude-code", "go")


def test_our_own_format_is_detected_by_its_header(claude_file: Any) -> None:
    claude_file.user("go")
    (conversation,) = read(claude_file.bytes())
    written = write_own(conversation)
    assert detect(written) == "own"
    assert read(written)[0].messages == conversation.messages
    assert read(written, "own")[0].format == "own"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"plain text",
        b'{"type":"session","id":"x"}\n',
        b'{"type":"response_item"}\n',
        b'[{"role":"narrator","content":"x"}]',
        b"version: 1\nrecords: []\n",
        b"SQLite format 3\x00 of somebody else",
        b'{"type":"user","content":"x"}\n',
        b'{"type":7}\n',
        b'{\n "sessionId": "x",\n "messages": []\n}',
    ],
)
def test_other_files_are_not_detected_and_refused_with_the_known_formats(data: bytes) -> None:
    assert detect(data) is None
    with pytest.raises(TranscriptError, match="known formats: own, claude-code"):
        read(data)


def test_an_unknown_format_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TranscriptError, match="'clode'; known formats: own, claude-code"):
        read(b"{}", "clode")


def test_a_named_format_is_not_guessed(claude_file: Any) -> None:
    claude_file.user("go")
    with pytest.raises(TranscriptError, match="header"):
        read(claude_file.bytes(), "own")


def test_strict_reaches_the_format(claude_file: Any) -> None:
    claude_file.user("go")
    data = claude_file.bytes() + b"{oops\n" + claude_file.bytes()
    assert read(data)[0].count_notes()["bad_line"] == 1
    with pytest.raises(TranscriptError, match="line 2"):
        read(data, strict=True)


def test_only_the_first_lines_are_looked_at(claude_file: Any) -> None:
    claude_file.user("go")
    assert detect(b"{}\n" * 100 + claude_file.bytes()) is None


@pytest.mark.parametrize("format", ["own", "claude-code"])
def test_several_files_are_read_one_by_one_in_the_order_of_their_names(
    claude_file: Any, format: str
) -> None:
    claude_file.user("go")
    (one,) = read(claude_file.bytes())
    two = msgspec.structs.replace(one, id="s2")
    again = read(write([two, one], format), format)
    assert [conversation.id for conversation in again] == ["s2", "s1"]
