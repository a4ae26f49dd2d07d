from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.errors import TranscriptError
from llmsession.transcripts import Conversation, read_own, write_own
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.messages import Message
from llmsession.turns.usage import Usage

HEADER = b'{"llmsession":1,"session":"s"}\n'


def row(id: str = "m1", text: str = "hi", **fields: Any) -> bytes:
    record = {"id": id, "session": "s", "turn": 1, "role": "user"} | fields
    record.setdefault("content", [{"type": "text", "text": text}])
    return json.dumps(record).encode() + b"\n"


def message(body: bytes = b"[]", **fields: Any) -> Message:
    given: dict[str, Any] = {"id": "m1", "session": "s", "turn": 1, "role": "user"}
    return Message(body=msgspec.Raw(body), **(given | fields))


def whole() -> Conversation:
    blocks = (
        b'[{"type":"text", "text":"caf\\u00e9","citations":[1.50]},'
        b'{"type":"never_seen","x":{"b":1,"a":2}}]'
    )
    return Conversation(
        id="s",
        format="own",
        messages=(
            message(blocks, synthetic=(0,)),
            message(
                b'[{"type":"tool_use","id":"c1","name":"run","input":{},"caller":{"type":"x"}}]',
                id="m2", role="assistant", model="m", provider="p", usage=Usage(1, 2, 3, 4),
                stop_reason="tool_use", error="e", created_at=1.5, completed_at=2.5,
            ),
        ),
        interrupted=(1,),
        title="A title",
        labels={"k": "v"},
        source="scripted model, real tool outputs",
        extra={"later": msgspec.Raw(b'{"a" : 1.0}')},
    )  # fmt: skip


def test_a_round_trip_is_the_identity_with_unknown_blocks_and_unknown_fields() -> None:
    assert read_own(write_own(whole()), strict=True) == whole()
    assert write_own(read_own(write_own(whole()))) == write_own(whole())


def test_the_header_comes_first_with_what_is_known_and_what_is_not() -> None:
    header = json.loads(write_own(whole()).split(b"\n")[0])
    assert header == {
        "llmsession": 1,
        "session": "s",
        "title": "A title",
        "labels": {"k": "v"},
        "interrupted": [1],
        "source": "scripted model, real tool outputs",
        "later": {"a": 1.0},
    }


def test_every_message_is_one_line_even_if_its_json_came_with_line_breaks() -> None:
    conversation = Conversation(
        id="s", format="own", messages=(message(b'[\n{"type":"text",\n"text":"a\\nb"}]'),)
    )
    written = write_own(conversation)
    assert written.count(b"\n") == 2
    assert read_own(written).messages[0].text == "a\nb"


def test_unknown_records_are_kept_and_noted() -> None:
    record = b'{"kind":"bookmark", "at":3}'
    conversation = read_own(HEADER + record + b"\n" + row())
    assert conversation.records == (msgspec.Raw(record),)
    assert conversation.count_notes() == {"unknown_type": 1}
    assert record in write_own(conversation)


def test_unknown_fields_of_a_message_are_kept_in_extra_and_noted_by_name() -> None:
    conversation = read_own(HEADER + row(mood="good", extra={"was": 1}))
    (note,) = conversation.notes
    assert (note.line, note.what, note.detail) == (2, "unknown_fields", "kept in extra: mood")
    (message,) = conversation.messages
    assert bytes(message.extra or b"") == b'{"was":1,"mood":"good"}'
    again = read_own(write_own(conversation))
    assert (again.messages, again.notes) == (conversation.messages, ())


def test_the_extra_fields_of_a_message_come_back_byte_for_byte() -> None:
    given = message(extra=msgspec.Raw(b'{"a":[1.50,"\\u00e9"]}'))
    written = write_own(Conversation(id="s", format="own", messages=(given,)))
    assert read_own(written, strict=True).messages == (given,)


def test_of_two_messages_with_one_id_the_later_counts_at_the_place_of_the_first() -> None:
    conversation = read_own(HEADER + row("m1", "old") + row("m2", "x") + row("m1", "new"))
    assert [message.text for message in conversation.messages] == ["new", "x"]
    assert [(note.line, note.what) for note in conversation.notes] == [(2, "duplicate")]


def test_a_torn_last_line_is_tolerated_even_in_strict_mode() -> None:
    conversation = read_own(HEADER + row() + row("m2")[:20], strict=True)
    assert len(conversation.messages) == 1
    assert conversation.count_notes() == {"torn_line": 1}


def test_glued_lines_are_split() -> None:
    conversation = read_own(HEADER + row().strip() + row("m2"))
    assert [message.id for message in conversation.messages] == ["m1", "m2"]


def test_a_bom_crlf_and_blank_lines_change_nothing() -> None:
    data = HEADER + row() + row("m2")
    odd = b"\xef\xbb\xbf\r\n" + data.replace(b"\n", b"\r\n\r\n")
    assert read_own(odd) == read_own(data)


@pytest.mark.parametrize(
    "bad",
    [
        row(turn=0),
        row(role="system"),
        row(content="text"),
        row(content=None),
        row(extra=7),
        b'{"role":"user"}\n',
        b"{oops\n",
    ],
)
def test_a_bad_middle_line_is_noted_or_in_strict_mode_refused_by_its_number(bad: bytes) -> None:
    conversation = read_own(HEADER + bad + row("m2"))
    assert [message.id for message in conversation.messages] == ["m2"]
    assert [(note.line, note.what, note.visible) for note in conversation.notes] == [
        (2, "bad_line", True)
    ]
    with pytest.raises(TranscriptError, match=r"^line 2: "):
        read_own(HEADER + bad + row("m2"), strict=True)


def test_a_message_that_comes_back_to_a_turn_is_noted_or_refused() -> None:
    data = HEADER + row("m1", turn=2) + row("m2", turn=1) + row("m3", turn=2)
    conversation = read_own(data)
    assert [message.id for message in conversation.messages] == ["m1", "m2"]
    assert [(note.line, note.what, note.visible) for note in conversation.notes] == [
        (4, "bad_line", True)
    ]
    with pytest.raises(TranscriptError, match=r"^line 4: .* turn 2 after turn 1"):
        read_own(data, strict=True)


def test_a_turn_that_jumped_the_queue_stands_where_it_was_committed() -> None:
    data = HEADER + row("m1", turn=1) + row("m3", turn=3) + row("m2", turn=2)
    conversation = read_own(data, strict=True)
    assert [message.id for message in conversation.messages] == ["m1", "m3", "m2"]
    assert conversation.notes == ()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no JSON object"),
        (b"\n", "no JSON object"),
        (row(), "line 1: .*header"),
        (b'{"llmsession":2,"session":"s"}\n', "version 2"),
        (b'{"llmsession":1}\n', "line 1: not a header.*session"),
        (b'{"llmsession":1,"session":"s","labels":3}\n', "line 1: not a header.*labels"),
        (HEADER + row() + HEADER, "line 3: a second conversation"),
    ],
)
def test_what_is_no_transcript_of_ours_is_refused_in_one_line(data: bytes, says: str) -> None:
    with pytest.raises(TranscriptError, match=says) as caught:
        read_own(data)
    assert "\n" not in str(caught.value)


def test_lone_surrogates_in_the_header_are_replaced() -> None:
    conversation = Conversation(id="s", format="own", messages=(), title="a\ud800")
    assert read_own(write_own(conversation)).title == "a\ufffd"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)
)
any_block = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_use", "thinking", "image", "new"])},
    optional={"text": json_values, "id": json_values, "x": json_values},
)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.lists(any_block, max_size=3), max_size=4), st.text(max_size=5))
def test_any_blocks_round_trip_byte_for_byte(contents: list[list[Any]], title: str) -> None:
    messages = tuple(
        message(bytes(encode_blocks(blocks)), id=f"m{at}") for at, blocks in enumerate(contents)
    )
    written = write_own(Conversation(id="s", format="own", messages=messages, title=title))
    again = read_own(written, strict=True)
    assert [bytes(one.body) for one in again.messages] == [bytes(one.body) for one in messages]
    assert write_own(again) == written


def test_a_call_id_that_no_provider_accepts_is_replaced_noted_and_kept() -> None:
    call = {"type": "tool_use", "name": "run", "input": {}}
    lines = [
        row("m1"),
        row("m2", role="assistant", content=[call | {"id": "a|b"}, call | {"id": "a_b"}]),
        row("m3", content=[{"type": "tool_result", "tool_use_id": "a|b", "content": "x"}]),
        row("m4", role="assistant", content=[call | {"id": "y" * 100}]),
    ]
    conversation = read_own(HEADER + b"".join(lines), strict=True)
    calls = [block.id for message in conversation.messages for block in message.tool_calls]
    assert calls[:2] == ["a_b_2", "a_b"]
    assert len(calls[2]) == 64
    assert conversation.messages[2].tool_results[0].tool_use_id == "a_b_2"
    assert [(note.line, note.what) for note in conversation.notes] == [
        (3, "renamed_call"),
        (5, "renamed_call"),
    ]
    assert msgspec.json.decode(conversation.messages[1].extra or b"") == {
        "recorded_call_ids": {"a_b_2": "a|b"}
    }
    again = read_own(write_own(conversation), strict=True)
    assert (again.messages, again.notes) == (conversation.messages, ())
