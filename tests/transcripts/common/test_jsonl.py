from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.errors import TranscriptError
from llmsession.transcripts.common.jsonl import clip, read_lines


def kinds(data: bytes) -> list[tuple[int, str]]:
    return [(note.line, note.what) for note in read_lines(data)[1]]


def test_an_object_keeps_its_bytes_and_its_line() -> None:
    lines, notes = read_lines(b'{"a" : 1.50}\n\n{"b":"\\u00e9"}\n')
    assert [(line.line, line.raw) for line in lines] == [
        (1, b'{"a" : 1.50}'),
        (3, b'{"b":"\\u00e9"}'),
    ]
    assert notes == []


def test_glued_objects_are_split_and_noted() -> None:
    lines, _ = read_lines(b'{"a":1}{"b":2} {"c":3}\n{"d":4}\n')
    assert [line.raw for line in lines] == [b'{"a":1}', b'{"b":2}', b'{"c":3}', b'{"d":4}']
    assert kinds(b'{"a":1}{"b":2}\n{}\n') == [(1, "glued")]


def test_an_object_glued_to_a_torn_one_is_saved() -> None:
    data = b'{"a":1}{"b":\n{"c":3}\n'
    assert [line.raw for line in read_lines(data)[0]] == [b'{"a":1}', b'{"c":3}']
    assert kinds(data) == [(1, "glued"), (1, "bad_line")]


def test_many_glued_objects_are_split() -> None:
    assert len(read_lines(b'{"a":1} ' * 20_000)[0]) == 20_000


def test_only_the_last_line_can_be_torn() -> None:
    assert kinds(b'{"a":\n{"b":2}\n{"c":\n\n') == [(1, "bad_line"), (3, "torn_line")]


@pytest.mark.parametrize("row", [b"[1]", b"3", b"NaN", b'{"a":NaN}', b"[" * 9000, b"\x00\x00"])
def test_what_is_no_json_object_is_a_bad_line(row: bytes) -> None:
    assert kinds(row + b"\n{}\n") == [(1, "bad_line")]
    with pytest.raises(TranscriptError, match="line 1: not a JSON object"):
        read_lines(row + b"\n{}\n", strict=True)


def test_a_split_surrogate_pair_is_kept_and_a_lone_one_replaced() -> None:
    ((lone,), _) = read_lines(b'{"a":"\\ud83d!"}')
    assert json.loads(lone.raw) == {"a": "\ufffd!"}
    ((pair,), notes) = read_lines(b'{"a":"\\ud83d\\ude00"}')
    assert pair.raw == b'{"a":"\\ud83d\\ude00"}'
    assert notes == []


def test_clip_makes_one_short_line() -> None:
    assert clip("a\n b") == "a b"
    assert clip("x" * 100, 10) == "xxxxxxx..."


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.booleans())
def test_garbage_gives_objects_and_notes_or_a_transcript_error(data: bytes, strict: bool) -> None:
    try:
        lines, notes = read_lines(b'{"a":1}\n' + data, strict=strict)
    except TranscriptError:
        assert strict
        return
    assert lines[0].raw.startswith(b'{"a":1}')
    assert all(isinstance(json.loads(line.raw), dict) for line in lines)
    seen = {line.line for line in lines} | {note.line for note in notes}
    rows = (b'{"a":1}\n' + data).split(b"\n")
    assert {number for number, row in enumerate(rows, 1) if row.strip(b" \t\r")} == seen
