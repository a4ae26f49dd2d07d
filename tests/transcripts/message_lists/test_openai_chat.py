from __future__ import annotations

import json
from typing import Any

import pytest

from llmsession.errors import TranscriptError
from llmsession.transcripts import detect, read, write
from llmsession.turns.blocks import ImageBlock, OpaqueBlock, ThinkingBlock

from ..agents.sources import dump, openai_chat


def call(id: str, arguments: Any = "{}") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "run", "arguments": arguments}}


def test_the_system_prompt_survives_outside_the_messages_and_comes_back() -> None:
    (conversation,) = read(openai_chat(), strict=True)
    assert conversation.system == "Be short."
    assert conversation.count_notes() == {"system": 1}
    (raw,) = write([conversation], "openai-chat").values()
    assert json.loads(raw)["messages"][0] == {"role": "system", "content": "Be short."}


def test_what_is_written_has_no_ids_where_the_place_gives_them_away() -> None:
    (raw,) = write(read(openai_chat()), "openai-chat").values()
    written = json.loads(raw)["messages"]
    assert all("id" not in message for message in written)
    given = json.loads(openai_chat())
    given[6]["content"] = "thanks"
    assert written == given


def test_tool_messages_become_results_and_keep_their_other_fields() -> None:
    (conversation,) = read(openai_chat(), strict=True)
    results = [message for message in conversation.messages if message.tool_results]
    assert [message.tool_results[0].text for message in results] == ["one", "two"]
    assert bytes(results[0].extra or b"") == b'{"name":"run"}'


def test_arguments_come_back_byte_for_byte() -> None:
    odd = '{ "b" : 1.50,\n"a": "\\u00e9" }'
    asked = {"role": "assistant", "content": None, "tool_calls": [call("c9", odd)]}
    raw = openai_chat({"role": "user", "content": "x"}, asked)
    (written,) = write(read(raw), "openai-chat").values()
    message = json.loads(written)["messages"][-1]
    assert message["tool_calls"][0]["function"]["arguments"] == odd


def test_a_system_message_in_the_middle_keeps_its_place() -> None:
    late = {"role": "developer", "content": "Now be long."}
    raw = openai_chat(late, {"role": "user", "content": "x"})
    (conversation,) = read(raw, strict=True)
    assert conversation.system == "Be short."
    (written,) = write([conversation], "openai-chat").values()
    assert [message["role"] for message in json.loads(written)["messages"]] == [
        message["role"] for message in json.loads(raw)
    ]


def test_an_array_of_tasks_is_a_conversation_each_with_what_is_told_of_the_task() -> None:
    tasks = [
        {"task_id": n, "trial": 0, "reward": 0.5, "traj": json.loads(openai_chat())} for n in (4, 5)
    ]
    assert detect(dump(tasks)) == "openai-chat"
    first, second = read(dump(tasks), strict=True)
    assert (first.id, second.id) == ("task-4-trial-0", "task-5-trial-0")
    assert bytes(first.extra["reward"]) == b"0.5"
    again = read(write([first, second], "openai-chat"), "openai-chat", strict=True)
    assert [each.messages for each in again] == [first.messages, second.messages]
    assert again[0].extra == first.extra


def test_a_task_without_messages_is_noted_or_refused_by_its_number() -> None:
    tasks = [{"task_id": 1, "traj": json.loads(openai_chat())}, {"task_id": 2, "traj": None}]
    (conversation,) = read(dump(tasks))
    assert conversation.count_notes()["bad_record"] == 1
    with pytest.raises(TranscriptError, match=r"^record 2: no list"):
        read(dump(tasks), strict=True)


def test_an_id_that_a_model_gave_to_two_calls_is_made_unique() -> None:
    (conversation,) = read(
        openai_chat(
            {"role": "user", "content": "again"},
            {"role": "assistant", "content": None, "tool_calls": [call("c1")]},
            {"role": "tool", "tool_call_id": "c1", "content": "new"},
        ),
        strict=True,
    )
    assert conversation.messages[-1].tool_results[0].tool_use_id == "c1_2"
    assert conversation.count_notes()["renamed_call"] == 1
    (again,) = read(write([conversation], "openai-chat"))
    assert again.messages == conversation.messages


def test_a_data_url_is_an_image_and_comes_back_with_its_detail() -> None:
    picture = {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64,aGk=", "detail": "low"},
    }
    raw = openai_chat({"role": "user", "content": [picture]})
    (conversation,) = read(raw, strict=True)
    assert isinstance(conversation.messages[-1].content[0], ImageBlock)
    (written,) = write([conversation], "openai-chat").values()
    assert json.loads(written)["messages"][-1]["content"] == [picture]


def test_a_part_of_an_unknown_kind_stays_as_it_is() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}}
    (conversation,) = read(openai_chat({"role": "user", "content": [sound]}), strict=True)
    (block,) = conversation.messages[-1].content
    assert isinstance(block, OpaqueBlock)
    assert block.decoded() == sound


def test_reasoning_is_kept_beside_and_signed_thinking_comes_back() -> None:
    signed = {"type": "thinking", "thinking": "hm", "signature": "sig"}
    (conversation,) = read(
        openai_chat(
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "y", "reasoning_content": "because"},
            {"role": "user", "content": "z"},
            {"role": "assistant", "content": "w", "thinking_blocks": [signed]},
        ),
        strict=True,
    )
    assert b"because" in bytes(conversation.messages[-3].extra or b"")
    assert conversation.messages[-1].content[0] == ThinkingBlock("hm", "sig")
    assert conversation.count_notes()["reasoning"] == 1


def test_a_refusal_is_what_the_model_said() -> None:
    (conversation,) = read(
        openai_chat(
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": None, "refusal": "I can't."},
        ),
        strict=True,
    )
    assert conversation.messages[-1].text == "I can't."


def test_calls_of_the_first_interface_are_paired_with_their_function_message() -> None:
    asked = {"name": "f", "arguments": "{}"}
    (conversation,) = read(
        openai_chat(
            {"role": "user", "content": "x"},
            {
                "role": "assistant",
                "content": None,
                "function_call": asked,
            },
            {"role": "function", "name": "f", "content": "done"},
        ),
        strict=True,
    )
    (made,) = conversation.messages[-2].tool_calls
    assert conversation.messages[-1].tool_results[0].tool_use_id == made.id
    assert conversation.unanswered == ()


def test_plain_texts_of_both_sides_are_taken_for_a_chat() -> None:
    assert detect(b'[{"role":"user","content":"hi"},{"role":"assistant","content":"yo"}]') == (
        "openai-chat"
    )
    assert detect(b'[{"role":"user"}]') is None
