from __future__ import annotations

import json
from typing import Any

from llmsession.transcripts import read
from llmsession.turns.blocks import RedactedThinkingBlock, ThinkingBlock

from .sources import continue_session


def item(role: str, content: Any, **message: Any) -> dict[str, Any]:
    return {"message": {"role": role, "content": content} | message, "contextItems": []}


def test_results_are_read_from_the_states_of_the_calls() -> None:
    (conversation,) = read(continue_session(), strict=True)
    (results,) = [message for message in conversation.messages if message.tool_results]
    assert [(r.tool_use_id, r.text) for r in results.tool_results] == [("c1", "one")]
    assert (conversation.id, conversation.title) == ("s1", "Read")


def test_a_cancelled_call_has_no_result_and_keeps_its_state() -> None:
    (conversation,) = read(continue_session(), strict=True)
    assert conversation.unanswered == ("c2",)
    assert b'"canceled"' in bytes(conversation.messages[1].extra or b"")


def test_a_failed_call_is_an_error_and_one_that_said_nothing_has_an_empty_result() -> None:
    raw = json.loads(continue_session())
    states = raw["history"][2]["toolCallStates"]
    states[0] |= {"status": "errored"}
    states[1] |= {"status": "done", "output": []}
    (conversation,) = read(json.dumps(raw).encode(), strict=True)
    results = [r for message in conversation.messages for r in message.tool_results]
    assert [(r.text, r.is_error) for r in results] == [("one", True), ("", None)]


def test_results_that_are_written_twice_are_read_once() -> None:
    raw = json.loads(continue_session())
    raw["history"].insert(3, item("tool", "one", toolCallId="c1"))
    (conversation,) = read(json.dumps(raw).encode(), strict=True)
    results = [r for message in conversation.messages for r in message.tool_results]
    assert [r.text for r in results] == ["one"]
    assert [(n.what, n.visible) for n in conversation.notes if n.what == "duplicate"] == [
        ("duplicate", False)
    ]


def test_a_thinking_item_is_the_beginning_of_the_next_reply() -> None:
    (conversation,) = read(continue_session(), strict=True)
    assert conversation.messages[1].content[0] == ThinkingBlock("hm", "sig")
    assert conversation.messages[1].text == "I will."


def test_thinking_that_nobody_signed_is_kept_beside_and_redacted_thinking_sent() -> None:
    (conversation,) = read(
        continue_session(
            item("user", "x"), item("thinking", "secret"),
            item("thinking", "", redactedThinking="zzz"), item("assistant", "y"),
        ),
        strict=True,
    )  # fmt: skip
    last = conversation.messages[-1]
    assert last.content[0] == RedactedThinkingBlock("zzz")
    assert b"secret" in bytes(last.extra or b"")


def test_thinking_without_a_reply_is_noted_and_kept_beside() -> None:
    (conversation,) = read(continue_session(item("thinking", "lost")), strict=True)
    assert [n.visible for n in conversation.notes if n.what == "empty"] == [True]
    assert b"lost" in bytes(conversation.extra["unplaced"])


def test_context_items_stand_before_the_text_and_are_kept_in_extra() -> None:
    (conversation,) = read(continue_session(), strict=True)
    assert [block.text for block in conversation.messages[0].content] == ["print()", "read both"]  # type: ignore[union-attr]
    assert b'"contextItems"' in bytes(conversation.messages[0].extra or b"")


def test_the_newest_summary_is_the_conversations_and_nothing_is_left_out_for_it() -> None:
    raw = json.loads(continue_session())
    raw["history"][0]["conversationSummary"] = "old"
    raw["history"][2]["conversationSummary"] = "new"
    (conversation,) = read(json.dumps(raw).encode(), strict=True)
    assert conversation.summary == "new"
    assert len(conversation.messages) == len(read(continue_session())[0].messages)


def test_a_system_item_is_no_message() -> None:
    raw = json.loads(continue_session())
    raw["history"].insert(0, item("system", "Be short."))
    (conversation,) = read(json.dumps(raw).encode(), strict=True)
    assert conversation.system == "Be short."
