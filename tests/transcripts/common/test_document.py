from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.errors import TranscriptError
from llmsession.transcripts import Note
from llmsession.transcripts.common.document import read_document


def read(raw: bytes, *, strict: bool = False) -> tuple[bytes, list[Note]]:
    notes: list[Note] = []
    return read_document(raw, notes, strict=strict), notes


def test_white_space_goes_and_numbers_and_escapes_stay() -> None:
    raw = b'\xef\xbb\xbf{ "a" : [1.50,\r\n 123456789012345678901234567890, "\\u00e9\\/"] }\n'
    expected = b'{"a":[1.50,123456789012345678901234567890,"\\u00e9\\/"]}'
    assert read(raw, strict=True) == (expected, [])


def test_what_is_no_json_is_refused_with_its_line() -> None:
    with pytest.raises(TranscriptError, match=r"^line 3: not a JSON document") as caught:
        read(b'{"a": 1,\n "b": 2,\n oops}')
    assert caught.value.line == 3


@pytest.mark.parametrize(
    ("torn", "kept"),
    [
        (b'[{"a":1},{"b":2},{"c"', [{"a": 1}, {"b": 2}]),
        (b'[{"a":1},{"b":"x,[', [{"a": 1}]),
        (b'[{"a":[1,2', []),
        (b'{"id":"s","messages":[{"a":1},{"b":{"c":[', {"id": "s", "messages": [{"a": 1}]}),
        (b'{"id":"s","messages":[{"a":1}', {"id": "s", "messages": [{"a": 1}]}),
    ],
)
def test_of_a_document_that_was_cut_off_the_whole_items_are_read(torn: bytes, kept: Any) -> None:
    raw, notes = read(torn)
    assert json.loads(raw) == kept
    assert [(note.what, note.visible) for note in notes] == [("torn_file", True)]
    with pytest.raises(TranscriptError, match="line 1"):
        read(torn, strict=True)


@pytest.mark.parametrize("raw", [b"", b" \n", b"{", b'{"a"', b'"', b"]", b'{"a":1}]', b"nul"])
def test_what_holds_no_item_is_refused(raw: bytes) -> None:
    with pytest.raises(TranscriptError):
        read(raw)


def test_bytes_that_are_not_utf8_are_replaced_with_a_note_or_refused_with_their_line() -> None:
    raw, notes = read(b'["a",\n"\xff"]')
    assert json.loads(raw) == ["a", "\ufffd"]
    assert [(note.line, note.what) for note in notes] == [(2, "bad_utf8")]
    with pytest.raises(TranscriptError, match=r"^line 2: not valid UTF-8"):
        read(b'["a",\n"\xff"]', strict=True)


def test_lone_surrogates_are_replaced() -> None:
    raw, notes = read(b'["\\ud800", "\\ud83d\\ude00"]', strict=True)
    assert json.loads(raw) == ["\ufffd", "\U0001f600"]
    assert [note.what for note in notes] == ["surrogates"]


def test_what_is_nested_too_deep_is_refused() -> None:
    with pytest.raises(TranscriptError, match="too deep"):
        read(b"[" * 5_000 + b"]" * 5_000)
    assert read(b"[" * 200_000)[0] == b"[]"  # cut off before its first item was whole


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


def test_a_cut_into_an_escape_is_a_cut_into_a_string() -> None:
    assert json.loads(read(b'[[],{"a":1,"}\\')[0]) == [[]]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(json_values, min_size=1, max_size=4), st.data())
def test_a_cut_keeps_a_beginning_of_the_list(values: list[Any], data: st.DataObject) -> None:
    whole = json.dumps(values).encode()
    cut = whole[: data.draw(st.integers(1, len(whole) - 1))]
    kept = json.loads(read(cut)[0])
    assert kept == values[: len(kept)]
