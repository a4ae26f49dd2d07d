from __future__ import annotations

from typing import Any

from llmsession.transcripts import Conversation
from llmsession.transcripts.chats.chainreview import read_chainreview
from tests.transcripts.chats.records import dumped
from tests.transcripts.chats.samples import CHAINREVIEW
from tests.transcripts.shapes import ids, noted, said, shape


def session(*messages: Any, **fields: Any) -> bytes:
    return dumped({"id": "r1", "repoPath": "/r", "apiHistory": list(messages)} | fields)


def read(*messages: Any) -> Conversation:
    return read_chainreview(session(*messages))[0]


def use(id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "read", "input": {}}


def result(id: str, text: str = "done") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": text}


def asked(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def replied(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


GO = {"role": "user", "content": "go"}


def test_messages_keep_their_blocks_and_the_summary_is_the_condensed_one() -> None:
    (conversation,) = read_chainreview(CHAINREVIEW, strict=True)
    assert shape(conversation) == ["u1:t", "a1:tcc", "u1:rr", "a1:t"]
    assert (conversation.id, conversation.summary) == ("r1", "A review.")
    assert len(set(ids(conversation))) == 4


def test_thinking_in_tags_stays_as_it_was_written() -> None:
    text = "<thinking>hm</thinking>Fine."
    assert said(read(GO, {"role": "assistant", "content": text}))[1] == text


def test_a_second_result_of_one_call_is_left_out() -> None:
    conversation = read(GO, replied(use("1")), asked(result("1", "one"), result("1", "two")))
    assert [each.text for each in conversation.messages[2].tool_results] == ["one"]
    assert noted(conversation, "duplicate").visible


def test_parallel_calls_cut_off_and_gone_on_from_have_one_result_each() -> None:
    """Interrupted between two results; then the user goes on."""
    conversation = read(GO, replied(use("1"), use("2")), asked(result("2")), GO, replied(use("3")))
    assert shape(conversation) == ["u1:t", "a1:cc", "u1:rr", "u2:t", "a2:c"]
    assert conversation.messages[2].synthetic == (0,)
    assert conversation.unanswered == ("3",)
