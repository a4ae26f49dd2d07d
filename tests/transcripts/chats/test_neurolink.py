from __future__ import annotations

import json
from typing import Any

import pytest

from llmsession.errors import TranscriptError
from llmsession.transcripts import Conversation, detect
from llmsession.transcripts.chats.neurolink import read_neurolink
from tests.transcripts.chats.records import dumped, neuro, neurolink
from tests.transcripts.chats.samples import NEUROLINK
from tests.transcripts.shapes import ids, noted, said, shape

ASK = neuro("q", "user", "read")


def read(*messages: dict[str, Any], **fields: Any) -> Conversation:
    return read_neurolink(neurolink(*messages, **fields))[0]


def call(id: str, path: str, tool: str = "readFile") -> dict[str, Any]:
    return neuro(id, "tool_call", tool=tool, args={"path": path})


def result(id: str, text: str, tool: str = "readFile", **fields: Any) -> dict[str, Any]:
    return neuro(id, "tool_result", text, tool=tool, **fields)


def answers(conversation: Conversation) -> dict[str, str]:
    """What each call was answered, by the path that it was made with."""
    found = {r.tool_use_id: r.text for m in conversation.messages for r in m.tool_results}
    return {c.input["path"]: found[c.id] for m in conversation.messages for c in m.tool_calls}


def test_parallel_calls_are_paired_in_their_order_and_nothing_is_put_in() -> None:
    (conversation,) = read_neurolink(NEUROLINK, strict=True)
    assert answers(conversation) == {"a": "A", "b": "B"}
    assert not any(message.synthetic for message in conversation.messages)
    assert sorted(ids(conversation)) == [f"m{number}" for number in range(1, 9)]
    assert shape(conversation)[:5] == ["u1:t", "a1:c", "u1:r", "a1:c", "u1:r"]


def test_parallel_calls_of_several_tools_are_paired_by_their_tools() -> None:
    conversation = read(
        ASK, call("1", "a"), call("2", "b", "list"), result("3", "B", "list"), result("4", "A")
    )
    assert answers(conversation) == {"a": "A", "b": "B"}


def test_calls_one_after_the_other_are_paired_each_with_the_next_result() -> None:
    conversation = read(ASK, call("1", "a"), result("2", "A"), call("3", "b"), result("4", "B"))
    assert answers(conversation) == {"a": "A", "b": "B"}
    assert ids(conversation) == ["q", "1", "2", "3", "4"]
    assert conversation.notes == ()


def test_a_result_after_a_new_run_of_calls_is_not_one_of_the_run_before() -> None:
    conversation = read(
        ASK, call("1", "a"), call("2", "b"), result("3", "A"), call("4", "c"), result("5", "C"),
        neuro("6", "assistant", "done"),
    )  # fmt: skip
    assert answers(conversation)["c"] == "C"
    assert conversation.count_notes()["unanswered_call"] == 1


def test_a_result_without_a_call_is_left_out_and_no_call_is_made_up() -> None:
    conversation = read(ASK, result("1", "lost"), neuro("2", "assistant", "done"))
    assert ids(conversation) == ["q", "2"]
    assert noted(conversation, "orphan_result").visible


def test_the_summary_and_its_pointer_are_kept_also_if_it_points_nowhere() -> None:
    conversation = read(ASK, neuro("2", "assistant", "ok"), summarizedUpToMessageId="gone")
    assert conversation.summary == "They read files."
    assert said(conversation) == ["read", "ok"]
    assert b'"summarizedUpToMessageId":"gone"' in bytes(conversation.extra["neurolink"])


def test_what_the_system_put_among_the_messages_is_left_out() -> None:
    conversation = read(
        neuro("s", "user", "[Previous conversation summary]", metadata={"isSummary": True}),
        neuro("t", "user", "[truncated]", isTruncationMarker=True),
        neuro("q", "user", "read", condenseParent="c1"), neuro("a", "assistant", "ok"),
    )  # fmt: skip
    assert ids(conversation) == ["q", "a"]
    assert {"summary", "truncation_marker"} == set(conversation.count_notes())
    extra = json.loads(bytes(conversation.messages[0].extra or b""))
    assert extra["condenseParent"] == "c1"


def test_a_result_without_text_is_its_object_as_json() -> None:
    conversation = read(ASK, call("1", "a"), result("2", "", result={"n": 1}))
    assert answers(conversation) == {"a": '{"n":1}'}
    failed = read(ASK, call("1", "a"), result("2", "", result={"error": "no"}))
    assert failed.messages[2].tool_results[0].is_error is True


def test_a_dump_of_keys_is_one_conversation_for_each() -> None:
    session = json.loads(NEUROLINK)
    dump = {
        "neurolink:conversation:u1:s1": session,
        "neurolink:conversation:u1:s2": json.dumps({**session, "sessionId": "s2"}),
        "neurolink:conversation:u1:s3": "not json",
    }
    assert detect(dumped(dump)) == "neurolink"
    assert [each.id for each in read_neurolink(dumped(dump))] == ["s1", "s2"]
    with pytest.raises(TranscriptError, match=r"^record 3: a session without messages"):
        read_neurolink(dumped(dump), strict=True)


def test_a_session_of_other_systems_is_not_taken_for_one() -> None:
    assert detect(b'{"sessionId":"x","messages":[{"type":"user","content":"hi"}]}') != "neurolink"
