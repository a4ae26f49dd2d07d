from __future__ import annotations

import json

import pytest

from llmsession.transcripts import read, write
from llmsession.turns.usage import Usage

from ..agents.sources import anthropic_list, conversation, dump, text, tool_result, tool_use


def test_blocks_stay_byte_for_byte_and_text_content_is_a_block() -> None:
    (found,) = read(anthropic_list(), strict=True)
    assert json.loads(bytes(found.messages[1].body)) == conversation()[1]["content"]
    assert json.loads(bytes(found.messages[0].body)) == [text("read both")]


def test_a_plain_list_is_written_without_ids_and_with_its_system_prompt() -> None:
    request = {"system": "Be short.", "messages": conversation(), "max_tokens": 5}
    (found,) = read(dump(request), strict=True)
    assert (found.system, bytes(found.extra["max_tokens"])) == ("Be short.", b"5")
    (raw,) = write([found], "anthropic-messages").values()
    written = json.loads(raw)
    assert (written["system"], written["max_tokens"]) == ("Be short.", 5)
    assert all(set(message) == {"role", "content"} for message in written["messages"])


def test_a_system_prompt_in_blocks_comes_back_as_blocks() -> None:
    blocks = [text("Be short.") | {"cache_control": {"type": "ephemeral"}}, text("Be kind.")]
    (found,) = read(dump({"system": blocks, "messages": conversation()}), strict=True)
    assert found.system == "Be short.\n\nBe kind."
    (again,) = read(write([found], "anthropic-messages"))
    assert (again.system, again.extra) == (found.system, found.extra)


def test_unsigned_thinking_is_kept_in_extra_and_comes_back() -> None:
    thought = {"type": "thinking", "thinking": "secret"}
    raw = anthropic_list(
        {"role": "user", "content": "x"}, {"role": "assistant", "content": [thought, text("y")]}
    )
    (found,) = read(raw, strict=True)
    assert found.messages[-1].text == "y"
    assert b"secret" not in bytes(found.messages[-1].body)
    assert b"secret" in bytes(found.messages[-1].extra or b"")
    (again,) = read(write([found], "anthropic-messages"))
    assert again.messages == found.messages


def test_a_reply_with_its_usage_keeps_it() -> None:
    usage = {"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": 3}
    reply = {"role": "assistant", "id": "msg_1", "model": "claude-x", "stop_reason": "end_turn"}
    raw = anthropic_list(
        {"role": "user", "content": "x"}, reply | {"content": [text("y")], "usage": usage}
    )
    last = read(raw, strict=True)[0].messages[-1]
    assert (last.id, last.model, last.usage) == ("msg_1", "claude-x", Usage(1, 2, 3))


def test_results_in_a_message_of_their_own_and_a_text_behind_them_are_one_loop() -> None:
    raw = dump(
        [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [tool_use("c1"), tool_use("c2")]},
            {"role": "user", "content": [tool_result("c2")]},
            {"role": "user", "content": [tool_result("c1")]},
            {"role": "user", "content": "and hurry"},
            {"role": "assistant", "content": "done"},
        ]
    )
    (found,) = read(raw, strict=True)
    assert len(found.turns) == 1
    assert [message.text for message in found.messages][-2:] == ["and hurry", "done"]


def test_a_second_result_of_one_call_is_left_out() -> None:
    raw = anthropic_list({"role": "user", "content": [tool_result("c1", "again")]})
    (found,) = read(raw, strict=True)
    assert found.count_notes() == {"duplicate": 1}
    ids = [r.tool_use_id for message in found.messages for r in message.tool_results]
    assert ids == ["c1", "c2"]


@pytest.mark.parametrize("content", [7, {"a": 1}, [{"no": "type"}], [3]])
def test_content_that_is_none_is_noted(content: object) -> None:
    (found,) = read(anthropic_list({"role": "user", "content": content}))
    notes = found.count_notes()
    assert notes.get("bad_content", 0) + notes.get("bad_block", 0) == 1
