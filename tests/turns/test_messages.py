from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.turns.blocks import OpaqueBlock, TextBlock, encode_blocks
from llmsession.turns.ids import TurnId
from llmsession.turns.messages import Message, Role, count_turns, message_id, message_name
from llmsession.turns.request import RequestMessage
from llmsession.turns.usage import Usage

CALL = {"type": "tool_use", "id": "c", "name": "bash", "input": {"x": 1}, "caller": None}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": "out"}


def message(content: Any = "hello", **fields: Any) -> Message:
    defaults: dict[str, Any] = {"id": "s/u1.0", "session": "s", "turn": 1, "role": "user"}
    return Message(**{**defaults, "body": encode_blocks(content), **fields})


@pytest.mark.parametrize(("role", "turn_id"), [("user", "u7"), ("assistant", "a7")])
def test_a_message_belongs_to_its_side_of_its_turn(role: Role, turn_id: str) -> None:
    said = message(turn=7, role=role)
    assert str(said.turn_id) == turn_id
    assert (said.is_user, said.is_assistant) == (role == "user", role == "assistant")


def test_the_accessors_pick_blocks_by_type() -> None:
    said = message([{"type": "text", "text": "a"}, CALL, RESULT, {"type": "new", "f": 1}])
    assert [call.id for call in said.tool_calls] == ["c"]
    assert [result.tool_use_id for result in said.tool_results] == ["c"]
    assert said.opaque == (OpaqueBlock("new", b'{"type":"new","f":1}'),)
    assert len(said.content) == 4


def test_content_is_parsed_once_and_kept() -> None:
    said = message()
    assert said.content is said.content
    assert said.content == (TextBlock("hello"),)


def test_text_joins_the_text_blocks_without_what_the_session_wrote() -> None:
    parts = [{"type": "text", "text": text} for text in ("a", "receipt", "b")]
    assert message(parts, synthetic=(1,)).text == "ab"
    assert message([CALL]).text == ""


def test_a_message_is_immutable() -> None:
    with pytest.raises(AttributeError):
        message().turn = 2  # type: ignore[misc]  # it is frozen


def test_reading_content_changes_neither_equality_nor_hash() -> None:
    one, other = message(), message()
    assert one.content
    assert one == other
    assert len({one, other}) == 1


def test_messages_with_other_bytes_are_not_equal() -> None:
    assert message("a") != message("b")


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.text(max_size=6), st.none() | st.integers() | st.text(), max_size=4),
        max_size=4,
    )
)
def test_a_message_comes_back_from_its_json_byte_for_byte(blocks: list[dict[str, Any]]) -> None:
    said = message(
        [{**block, "type": "x"} for block in blocks],
        role="assistant",
        created_at=1.5,
        completed_at=2.5,
        synthetic=(0,),
        model="m",
        provider="p",
        usage=Usage(1, 2),
        stop_reason="end_turn",
        error="none",
    )
    written = msgspec.json.encode(said)
    read = msgspec.json.decode(written, type=Message)
    assert read == said
    assert bytes(read.body) == bytes(said.body)
    assert msgspec.json.encode(read) == written


def test_the_body_is_written_as_the_provider_calls_it() -> None:
    assert b'"content":[{"type":"text","text":"hello"}]' in msgspec.json.encode(message())


def test_ids_say_session_turn_side_and_place() -> None:
    assert message_id("s", TurnId("a", 7), 2) == message_name("s", "assistant", 7, 2) == "s/a7.2"
    assert message_id("s", TurnId("u", 12), 0) == message_name("s", "user", 12, 0) == "s/u12.0"


def test_a_turn_counts_once_however_many_messages_it_has() -> None:
    said = [message(turn=turn) for turn in (1, 1, 3, 3, 3, 2)]
    assert count_turns(said) == 3
    assert count_turns([]) == 0


def test_the_blocks_and_the_text_of_a_requests_message_are_read_without_its_bytes() -> None:
    body = encode_blocks([TextBlock("hel"), {"type": "new", "f": 1}, TextBlock("lo")])
    message = RequestMessage("user", body)
    assert message.text == "hello"
    assert message.blocks[1] == OpaqueBlock("new", b'{"type":"new","f":1}')
