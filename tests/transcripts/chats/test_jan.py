from __future__ import annotations

import json
from typing import Any

import pytest

from llmsession.errors import TranscriptError
from llmsession.transcripts import Conversation, detect, write
from llmsession.transcripts.chats.jan import read_jan
from llmsession.turns.blocks import ThinkingBlock
from tests.transcripts.chats.records import START_S, jan, jan_call, jan_lines, jan_thread, linked
from tests.transcripts.chats.samples import JAN
from tests.transcripts.shapes import ids, noted, said, shape


def read(*messages: dict[str, Any]) -> Conversation:
    return read_raw(jan_lines(*messages))


def read_raw(lines: bytes, **options: Any) -> Conversation:
    return read_jan({"thread.json": jan_thread(), "messages.jsonl": lines}, **options)[0]


ASK = jan("q", "user", 0, "find x")
ANSWER = jan("a", "assistant", 1, "found")


def test_a_threads_two_files_are_one_conversation_with_its_branches() -> None:
    main, branch = read_jan(JAN, strict=True)
    assert shape(main) == ["u1:t", "a1:kcc", "u1:rr", "a1:t", "u2:t", "a2:t"]
    assert ids(main) == ["m1", "m2", "m2#1", "m2#2", "m3", "m4"]
    assert [each.text for each in main.messages[2].tool_results] == ["found", '{"n":1}']
    assert (main.id, main.title, main.system) == ("t1", "Search", "Be brief.")
    assert (branch.parent, branch.shared_turns, ids(branch)[-1]) == ("t1", 1, "m6")


def test_either_file_alone_is_detected_and_read() -> None:
    lines = JAN["threads/t1/messages.jsonl"]
    assert detect(lines) == detect(jan_thread()) == "jan"
    assert read_jan({"": lines})[0].id == "t1"
    assert read_jan({"": jan_thread()})[0].title == "Search"


def test_several_threads_are_several_conversations() -> None:
    files = {f"threads/{id}/messages.jsonl": jan_lines({**ASK, "thread_id": id}) for id in "ab"}
    assert detect(files) == "jan"
    assert [each.id for each in read_jan(files)] == ["a", "b"]


def test_a_broken_thread_file_does_not_hide_its_messages_or_other_threads() -> None:
    files = {
        "threads/a/thread.json": b'{"id": "a", ',
        "threads/a/messages.jsonl": jan_lines(ASK),
        "threads/b/messages.jsonl": jan_lines({**ASK, "thread_id": "b"}),
    }
    first, second = read_jan(files)
    assert (said(first), second.id) == (["find x"], "b")
    assert noted(first, "bad_thread").visible
    with pytest.raises(TranscriptError, match=r"threads/a/thread\.json: "):
        read_jan(files, strict=True)


# Three generations of fields.


def test_thinking_in_tags_inside_of_a_text_is_thinking() -> None:
    conversation = read(ASK, jan("a", "assistant", 1, "<think>\nhm\n</think>\n\nfound"))
    assert conversation.messages[1].content[0] == ThinkingBlock("\nhm\n")
    assert conversation.messages[1].text == "\n\nfound"
    (written,) = [raw for path, raw in write([conversation], "jan").items() if "jsonl" in path]
    assert b"<think>" in written


def test_tags_that_were_never_closed_are_thinking_and_a_users_tags_are_text() -> None:
    conversation = read(
        jan("q", "user", 0, "<think>x</think>"), jan("a", "assistant", 1, "<think>h")
    )
    assert shape(conversation) == ["u1:t", "a1:k"]


def test_calls_in_metadata_are_read_with_their_responses() -> None:
    function = {"name": "search", "arguments": '{"q":"x"}'}
    response = {"content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}
    calls = [
        {"tool": {"id": "k1", "function": function}, "response": response, "state": "completed"},
        {"tool": {"id": "k2", "function": function}, "state": "pending"},
    ]
    asked = jan("a", "assistant", 1, "I look.", metadata={"tool_calls": calls})
    conversation = read(ASK, asked, jan("b", "assistant", 2, "found"))
    assert shape(conversation) == ["u1:t", "a1:tcc", "u1:rr", "a1:t"]
    first, second = conversation.messages[2].tool_results
    assert (first.text, second.is_error) == ("one\ntwo", True)
    assert conversation.messages[2].synthetic == (1,)


def test_older_names_of_times_and_seconds_are_read() -> None:
    older = {"id": "q", "role": "user", "content": [], "created": START_S, "updated": START_S + 1}
    (message,) = read({**older, "object": "thread.message"}).messages
    assert (message.created_at, message.completed_at) == (START_S, START_S + 1)
    assert read(ASK).messages[0].completed_at == START_S + 0.5


def test_files_that_were_put_into_the_text_are_noted_and_kept() -> None:
    files = [{"name": "a.txt", "content": "long"}]
    conversation = read(jan("q", "user", 0, "read", metadata={"inline_file_contents": files}))
    assert noted(conversation, "inline_files").visible
    written = write([conversation], "jan")["threads/t1/messages.jsonl"]
    assert json.loads(written)["metadata"]["inline_file_contents"] == files


# Lines.


def test_torn_glued_and_broken_lines_cost_no_more_than_themselves() -> None:
    one, two, three = (
        jan_lines(message).strip() for message in (ASK, ANSWER, jan("z", "user", 2, "?"))
    )
    conversation = read_raw(b"\xef\xbb\xbf" + one + two + b"\r\n\r\n{oops\n" + three + b"\n{torn")
    assert ids(conversation) == ["q", "a", "z"]
    assert conversation.count_notes() == {"glued": 1, "bad_line": 1, "torn_line": 1}
    with pytest.raises(TranscriptError, match=r"^line 3: not a JSON object"):
        read_raw(one + two + b"\n\n{oops\n" + three, strict=True)


def test_a_torn_last_line_is_no_error_in_strict_mode_either() -> None:
    assert ids(read_raw(jan_lines(ASK) + jan_lines(ANSWER)[:50], strict=True)) == ["q"]


def test_of_two_lines_with_one_id_the_later_counts_at_the_place_of_the_first() -> None:
    conversation = read(ASK, jan("a", "assistant", 1, "draft"), jan("z", "user", 2, "?"), ANSWER)
    assert said(conversation) == ["find x", "found", "?"]
    assert noted(conversation, "duplicate").line == 2


def test_a_line_without_a_role_is_noted_or_refused_by_its_number() -> None:
    raw = jan_lines(ASK) + b'{"id":"x"}\n' + jan_lines(ANSWER)
    assert noted(read_raw(raw), "bad_record").line == 2
    with pytest.raises(TranscriptError, match="record 2: a message without a role"):
        read_raw(raw, strict=True)


# Conversations.


def test_users_texts_in_a_row_all_stay() -> None:
    conversation = read(ASK, jan("r", "user", 1, "and y"), jan("a", "assistant", 2, "both"))
    assert said(conversation) == ["find x", "and y", "both"]
    assert shape(conversation) == ["u1:t", "u2:t", "a2:t"]


def test_a_message_with_an_error_is_none_and_what_follows_it_stays() -> None:
    failed = jan("e", "assistant", 1, "half", metadata={"error": "out of memory"})
    conversation = read(ASK, failed, jan("z", "user", 2, "again"), ANSWER)
    assert said(conversation) == ["find x", "again", "found"]
    assert noted(conversation, "error")
    assert read(ASK, jan("a", "assistant", 1, "ok", metadata={"error": None})).notes == ()


@pytest.mark.parametrize("status", ["stopped", "pending"])
def test_a_stopped_reply_is_kept_and_interrupts_its_turn(status: str) -> None:
    conversation = read(
        ASK, jan("a", "assistant", 1, "hal", status=status), jan("z", "user", 2, "?")
    )
    assert (said(conversation)[1], conversation.interrupted) == ("hal", (1,))


def test_the_active_child_is_followed_else_the_newest() -> None:
    fork = [jan("b", "user", 2, "old", **linked("a")), jan("c", "user", 3, "new", **linked("a"))]
    root = jan("q", "user", 0, "find x", **linked(None, "a"))
    for child, expected in (("b", "b"), (None, "c"), ("gone", "c")):
        main, branch = read_jan(
            {"messages.jsonl": jan_lines(root, {**ANSWER, **linked("q", child)}, *fork)}
        )
        assert ids(main)[-1] == expected
        assert branch.shared_turns == 1


def test_replies_that_a_branch_switch_left_without_a_parent_are_put_back() -> None:
    """The question after the lost reply had been hung off the question before it."""
    rows = [
        jan("q", "user", 0, "find x", **linked(None)),
        jan("a", "assistant", 1, "found", **linked(None)),
        jan("r", "user", 2, "more", **linked("q")),
        jan("b", "assistant", 3, "here", **linked("r")),
    ]
    conversation = read(*rows)
    assert ids(conversation) == ["q", "a", "r", "b"]
    assert noted(conversation, "detached")
    written = write([conversation], "jan")
    assert [ids(each) for each in read_jan(written)] == [["q", "a", "r", "b"]]
    assert read_jan(written)[0].notes == ()


def test_a_call_that_nothing_came_after_is_still_open() -> None:
    conversation = read(ASK, jan("a", "assistant", 1, jan_call("k", None)))
    assert conversation.unanswered == ("k",)


def test_two_first_messages_keep_which_is_active() -> None:
    main, branch = read_jan(
        {
            "thread.json": jan_thread(metadata={"activeChildId": "q"}),
            "messages.jsonl": jan_lines(
                jan("q", "user", 0, "one", **linked(None)),
                jan("r", "user", 1, "two", **linked(None)),
            ),
        }
    )
    assert (ids(main), ids(branch)) == (["q"], ["r"])
    assert [ids(each) for each in read_jan(write([main, branch], "jan"))] == [["q"], ["r"]]
