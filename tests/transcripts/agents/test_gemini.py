from __future__ import annotations

import json
from typing import Any

from llmsession.transcripts import read, write
from llmsession.turns.usage import Usage

from .sources import at, dump, gemini


def with_messages(*messages: dict[str, Any]) -> bytes:
    whole = json.loads(gemini())
    return dump(whole | {"messages": [*whole["messages"], *messages]})


def test_calls_and_results_of_one_message_become_two() -> None:
    (conversation,) = read(gemini(), strict=True)
    ids = [message.id for message in conversation.messages]
    assert ids == ["m1", "m2", "m2+results", "m4", "m5", "m6"]
    results = conversation.messages[2].tool_results
    assert [(r.text, r.is_error) for r in results] == [("one", None), ("denied", True)]


def test_usage_counts_thoughts_as_output_and_leaves_cached_tokens_out() -> None:
    (conversation,) = read(gemini(), strict=True)
    assert conversation.messages[1].usage == Usage(60, 7, 40)
    assert conversation.messages[1].model == "gemini-x"


def test_thoughts_are_kept_in_extra_and_what_was_only_shown_among_the_records() -> None:
    (conversation,) = read(gemini(), strict=True)
    assert b'"subject":"Plan"' in bytes(conversation.messages[1].extra or b"")
    assert b"update available" in bytes(conversation.records[0])
    assert conversation.count_notes() == {"reasoning": 1, "info": 1}
    assert not any(note.visible for note in conversation.notes)


def test_calls_that_a_notice_cut_off_their_text_are_put_to_it() -> None:
    result = [{"functionResponse": {"response": {"error": "no"}}}]
    call = {"id": "c9", "name": "run", "args": {}, "status": "success", "result": result}
    nothing = {"input": 0, "output": 0, "total": 0}
    (conversation,) = read(
        with_messages(
            {"id": "m7", "timestamp": at(1), "type": "user", "content": "go"},
            {"id": "m8", "timestamp": at(2), "type": "gemini", "content": "I go."},
            {"id": "m9", "timestamp": at(3), "type": "info", "content": "by the way"},
            {"id": "m10", "timestamp": at(4), "type": "gemini", "content": "", "tokens": nothing,
             "toolCalls": [call]},
        ),
        strict=True,
    )  # fmt: skip
    ids = [message.id for message in conversation.messages][-3:]
    assert ids == ["m7", "m8", "m10+results"]
    assert [call.id for call in conversation.messages[-2].tool_calls] == ["c9"]
    assert conversation.messages[-1].tool_results[0].text == "no"
    assert conversation.count_notes()["continued"] == 1
    (again,) = read(write([conversation], "gemini-cli"), strict=True)
    assert again.messages == conversation.messages


def test_a_call_without_a_result_is_unanswered() -> None:
    call = {"id": "c9", "name": "run", "args": {}, "status": "cancelled"}
    (conversation,) = read(
        with_messages(
            {"id": "m7", "type": "user", "content": "go"},
            {"id": "m8", "type": "gemini", "content": "", "toolCalls": [call]},
        ),
        strict=True,
    )
    assert conversation.unanswered == ("c9",)


def test_parts_of_a_users_message_are_blocks() -> None:
    parts = [
        {"text": "see"},
        {"inlineData": {"mimeType": "image/png", "data": "aGk="}},
        {"fileData": {"fileUri": "x"}},
    ]
    (conversation,) = read(with_messages({"id": "m7", "type": "user", "content": parts}))
    kinds = [block.__class__.__name__ for block in conversation.messages[-1].content]
    assert kinds == ["TextBlock", "ImageBlock", "OpaqueBlock"]
    (again,) = read(write([conversation], "gemini-cli"))
    assert again.messages == conversation.messages
