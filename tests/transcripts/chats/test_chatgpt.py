from __future__ import annotations

import json
from typing import Any

import pytest

from llmsession.errors import TranscriptError
from llmsession.transcripts import Conversation
from llmsession.transcripts.chats.chatgpt import read_chatgpt
from llmsession.turns.blocks import ThinkingBlock
from tests.transcripts.chats.records import START_S, dumped, gpt, gpt_call, gpt_chat, gpt_tool
from tests.transcripts.chats.samples import CHATGPT
from tests.transcripts.shapes import ids, noted, said, shape

ASK = gpt("u", "root", "user", "go", 0)


def read(*nodes: dict[str, Any], **fields: Any) -> Conversation:
    current = fields.pop("current", nodes[-1]["id"])
    rows = json.loads(json.dumps(nodes))
    return read_chatgpt(dumped([gpt_chat(*rows, current=current, **fields)]))[0]


def test_the_root_without_a_message_is_none_and_node_ids_are_the_messages_ids() -> None:
    main, branch = read_chatgpt(CHATGPT, strict=True)
    assert ids(main) == ["u1", "c1", "t1", "a1", "u2", "a3"]
    assert ids(branch) == ["u1", "c1", "t1", "a1", "u2", "a2"]
    assert shape(main) == ["u1:t", "a1:c", "u1:r", "a1:t", "u2:t", "a2:t"]
    assert (main.id, main.title, branch.parent) == ("g1", "Sums", "g1")


def test_times_are_seconds_with_their_fraction() -> None:
    assert read_chatgpt(CHATGPT)[0].messages[0].created_at == START_S + 1.5


def test_calls_are_paired_with_answers_by_adjacency() -> None:
    main, _ = read_chatgpt(CHATGPT)
    (call,), (result,) = main.messages[1].tool_calls, main.messages[2].tool_results
    assert (call.name, call.input) == ("python", {"arguments": "print(2+2)"})
    assert (result.tool_use_id, result.text) == (call.id, "4")


def test_parallel_calls_are_answered_each_by_its_own_tool() -> None:
    conversation = read(
        ASK, gpt_call("c1", "u", "python", "1", 1), gpt_call("c2", "c1", "browser.search", "2", 2),
        gpt_tool("t2", "c2", "browser", "two", 3), gpt_tool("t1", "t2", "python", "one", 4),
        gpt("a", "t1", "assistant", "done", 5),
    )  # fmt: skip
    answers = {r.tool_use_id: r.text for m in conversation.messages for r in m.tool_results}
    calls = [call.id for message in conversation.messages for call in message.tool_calls]
    assert [answers[call] for call in calls] == ["one", "two"]
    assert sorted(ids(conversation)) == ["a", "c1", "c2", "t1", "t2", "u"]
    assert conversation.messages[3].tool_calls[0].name == "browser_search"


def test_what_a_tool_says_after_its_answer_is_more_of_that_answer() -> None:
    conversation = read(
        ASK, gpt_call("c", "u", "browser", "{}", 1), gpt_tool("t1", "c", "browser", "one", 2),
        gpt_tool("t2", "t1", "browser", "two", 3), gpt("a", "t2", "assistant", "done", 4),
    )  # fmt: skip
    assert shape(conversation) == ["u1:t", "a1:c", "u1:r", "a1:t"]
    assert conversation.messages[2].tool_results[0].text == "one\n\ntwo"
    assert not noted(conversation, "merged").visible


def test_an_answer_without_a_call_is_left_out_and_noted() -> None:
    conversation = read(
        ASK, gpt_tool("t", "u", "bio", "saved", 1), gpt("a", "t", "assistant", "k", 2)
    )
    assert said(conversation) == ["go", "k"]
    assert noted(conversation, "orphan_result").visible


def test_hidden_system_nodes_and_the_users_instructions_are_the_system_prompt() -> None:
    about = {"content_type": "user_editable_context", "user_profile": "a cook",
             "user_instructions": "be brief"}  # fmt: skip
    conversation = read(
        gpt("s", "root", "system", "", 0), gpt("i", "s", "user", about, 1),
        gpt("u", "i", "user", "go", 2), gpt("a", "u", "assistant", "ok", 3),
    )  # fmt: skip
    assert conversation.system == "a cook\n\nbe brief"
    assert said(conversation) == ["go", "ok"]
    assert conversation.notes == ()


def test_of_parts_texts_are_read_and_others_noted_and_kept() -> None:
    asset = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://x"}
    spoken = {"content_type": "audio_transcription", "text": "said aloud"}
    content = {"content_type": "multimodal_text", "parts": [asset, "look", spoken]}
    conversation = read(gpt("u", "root", "user", content, 0), gpt("a", "u", "assistant", "ok", 1))
    assert shape(conversation)[0] == "u1:tt"
    assert noted(conversation, "part").visible
    assert json.loads(bytes(conversation.messages[0].extra or b""))["content"] == content


def test_thoughts_are_thinking_and_their_recap_is_not() -> None:
    thoughts = {"content_type": "thoughts", "thoughts": [{"summary": "s", "content": "deep"}]}
    recap = {"content_type": "reasoning_recap", "content": "Thought for 5s"}
    conversation = read(
        ASK, gpt("k", "u", "assistant", thoughts, 1), gpt("r", "k", "assistant", recap, 2),
        gpt("a", "r", "assistant", "so", 3),
    )  # fmt: skip
    assert conversation.messages[1].content == (ThinkingBlock("deep"),)
    assert ids(conversation) == ["u", "k", "a"]


def test_a_call_before_the_user_spoke_again_stays_without_an_answer() -> None:
    conversation = read(
        ASK, gpt_call("c", "u", "python", "1", 1), gpt("v", "c", "user", "stop", 2),
        gpt_tool("t", "v", "python", "late", 3), gpt("a", "t", "assistant", "ok", 4),
    )  # fmt: skip
    assert shape(conversation) == ["u1:t", "a1:c", "u1:r", "u2:t", "a2:t"]
    assert conversation.interrupted == (1,)
    assert {"unanswered_call", "orphan_result"} <= conversation.count_notes().keys()


def test_a_current_node_that_is_not_there_is_noted() -> None:
    conversation = read(ASK, gpt("a", "u", "assistant", "ok", 1), current=None)
    assert said(conversation) == ["go", "ok"]
    assert noted(conversation, "no_head")


@pytest.mark.parametrize("author", [None, {"role": "narrator"}])
def test_a_message_without_an_author_is_noted_or_refused(author: Any) -> None:
    raw = dumped([gpt_chat(ASK, gpt("a", "u", "x", "ok", 1, author=author), current="a")])
    assert noted(read_chatgpt(raw)[0], "bad_record").line == 3
    with pytest.raises(TranscriptError, match=r"^conversation 1, record 3: a message without an"):
        read_chatgpt(raw, strict=True)
