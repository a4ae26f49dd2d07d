"""What holds for every format of the folder."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llmsession.errors import TranscriptError
from llmsession.transcripts import FORMATS, Conversation, detect, read, read_own, write, write_own
from llmsession.transcripts.agents.formats import AGENTS, MESSAGE_LISTS

from .sources import SOURCES, continue_session

NAMES = list(SOURCES)
WRITTEN = [name for name in NAMES if FORMATS[name].write is not None]
DEEP = int(os.environ.get("TRANSCRIPT_EXAMPLES", "60"))


def told(conversation: Conversation) -> list[tuple[Any, ...]]:
    """What a round trip keeps: ids, order, text, calls and results."""
    return [
        (
            message.id,
            message.role,
            message.text,
            [(call.id, call.name, call.input) for call in message.tool_calls],
            [(result.tool_use_id, result.text) for result in message.tool_results],
        )
        for message in conversation.messages
    ]


def test_there_is_a_source_for_each_format() -> None:
    assert [*AGENTS, *MESSAGE_LISTS] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_taken_for_what_it_is(name: str) -> None:
    assert detect(SOURCES[name]) == name
    assert read(SOURCES[name], strict=True)[0].format == name


@pytest.mark.parametrize("name", NAMES)
def test_turns_calls_and_results_are_those_of_the_script(name: str) -> None:
    conversation = read(SOURCES[name], name, strict=True)[0]
    openings = [turn[0].text for turn in conversation.turns]
    assert openings[:2] == ["print()" * (name == "continue") + "read both", "thanks"]
    replies = [message.text for message in conversation.messages if message.is_assistant]
    if name != "codebuddy":
        assert replies[0] == "I will."
        calls = [call.id for message in conversation.messages for call in message.tool_calls]
        assert calls == ["c1", "c2"]
        assert conversation.unanswered == (("c2",) if name == "continue" else ())
    assert "Welcome." in replies


@pytest.mark.parametrize("name", NAMES)
def test_our_own_format_gives_every_conversation_back_as_it_was(name: str) -> None:
    for conversation in read(SOURCES[name], name):
        again = read_own(write_own(conversation), strict=True)
        assert again.messages == conversation.messages
        for field in ("interrupted", "extra", "records", "summary", "system", "parent", "title"):
            assert getattr(again, field) == getattr(conversation, field)


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_and_read_again_is_the_same(name: str) -> None:
    first = read(SOURCES[name], name, strict=True)
    again = read(write(first, name), name, strict=True)
    assert [each.id for each in again] == [each.id for each in first]
    assert [told(each) for each in again] == [told(each) for each in first]
    assert [each.messages for each in again] == [each.messages for each in first]
    assert [each.interrupted for each in again] == [each.interrupted for each in first]


@pytest.mark.parametrize("name", [*WRITTEN, "claude-code"])
@pytest.mark.parametrize("source", NAMES)
def test_every_format_is_written_as_every_other_with_ids_order_and_text(
    source: str, name: str
) -> None:
    first = read(SOURCES[source], source)
    again = read(write(first, name), name, strict=True)
    assert [each.id for each in again] == [each.id for each in first]
    assert [told(each) for each in again] == [told(each) for each in first]


@pytest.mark.parametrize("name", NAMES)
def test_messages_of_a_conversation_have_ids_of_their_own(name: str) -> None:
    for conversation in read(SOURCES[name], name):
        ids = [message.id for message in conversation.messages]
        assert len(set(ids)) == len(ids)
        assert all(ids)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_file_is_one_clear_error(name: str) -> None:
    for strict in (False, True):
        with pytest.raises(TranscriptError) as caught:
            read(dict.fromkeys(SOURCES[name], b""), name, strict=strict)
        assert "\n" not in str(caught.value)


def survives(files: dict[str, bytes], name: str | None) -> None:
    for strict in (False, True):
        try:
            conversations = read(files, name, strict=strict)
        except TranscriptError:
            continue
        for conversation in conversations:
            # Whatever came in is a conversation that can be kept.
            assert read_own(write_own(conversation), strict=True).messages == conversation.messages


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_was_cut_off_at_any_byte_is_read_or_refused(name: str) -> None:
    for path, raw in SOURCES[name].items():
        # A database is a few pages: its header byte by byte, the rest in steps.
        step = 1 if len(raw) < 8_000 else 97
        for end in range(0, len(raw), step):
            survives(SOURCES[name] | {path: raw[:end]}, name)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_with_any_byte_changed_is_read_or_refused(name: str) -> None:
    for path, raw in SOURCES[name].items():
        step = max(1, len(raw) // 300)
        for at in range(0, len(raw), step):
            for byte in (0, 0x22, 0x5B, 0xFF):
                survives(SOURCES[name] | {path: raw[:at] + bytes([byte]) + raw[at + 1 :]}, name)


@pytest.mark.parametrize("name", NAMES)
def test_any_bytes_are_read_or_refused(name: str) -> None:
    path = next(iter(SOURCES[name]))

    @settings(max_examples=DEEP, deadline=None, derandomize=True)
    @given(st.binary(max_size=300))
    @example(b"[" * 100_000)
    @example(b'{"messages":' * 3_000)
    @example(b'[{"role":"user","content":"\\ud800"}]')
    @example(b'[{"role":"user","content":1e999,"ts":1e999}]')
    @example(b"SQLite format 3\x00")
    @example(b"interactions: !!python/object/apply:os.getcwd []")
    @example(b"interactions:\n- request: {uri: a}\n  response: {status: []}\n")
    def survives_any(raw: bytes) -> None:
        survives(SOURCES[name] | {path: raw}, name)

    survives_any()


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=6)
    | st.sampled_from(["user", "assistant", "tool", "tool_use", "text", "c1", "thinking"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner: Any = value.items() if isinstance(value, dict) else ()
    inner = enumerate(value) if isinstance(value, list) else inner
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], by)
    return copy


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("codebuddy", "cassette")])
def test_any_value_in_any_place_is_read_or_refused(name: str) -> None:
    path, raw = next(iter(SOURCES[name].items()))
    is_lines = path.endswith(".jsonl")
    document = [json.loads(row) for row in raw.splitlines()] if is_lines else json.loads(raw)
    everywhere = places(document)

    @settings(max_examples=DEEP * 4, deadline=None, derandomize=True)
    @given(st.sampled_from(everywhere), values)
    def survives_it(place: tuple[Any, ...], value: Any) -> None:
        changed = replaced(document, place, value)
        rows = changed if is_lines and isinstance(changed, list) else [changed]
        written = b"\n".join(json.dumps(row).encode() for row in rows)
        survives(SOURCES[name] | {path: written}, name)

    survives_it()


def test_a_surrogate_in_a_document_is_replaced_and_noted() -> None:
    raw = continue_session().replace(b'"thanks"', b'"a\\ud800"')
    (conversation,) = read(raw, "continue", strict=True)
    assert conversation.turns[-1][0].text == "a\ufffd"
    assert conversation.count_notes()["surrogates"] == 1
