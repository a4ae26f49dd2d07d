from __future__ import annotations

import json
from typing import Any

import pytest

from llmsession.errors import TranscriptError
from llmsession.transcripts import Conversation, Note, read_claude_code
from llmsession.turns.blocks import ThinkingBlock, ToolUseBlock
from llmsession.turns.usage import Usage

MARKER = [{"type": "text", "text": "[Request interrupted by user]"}]


def read(file: Any, **options: Any) -> Conversation:
    (conversation,) = read_claude_code(file.bytes(), **options)
    return conversation


def noted(conversation: Conversation, what: str) -> Note:
    """The only note of this kind."""
    (note,) = [note for note in conversation.notes if note.what == what]
    return note


def shape(conversation: Conversation) -> list[str]:
    """Turn ids with what each message holds: t text, c call, r result, o anything else."""
    letters = {"TextBlock": "t", "ToolUseBlock": "c", "ToolResultBlock": "r"}
    return [
        f"{message.turn_id}:"
        + "".join(letters.get(type(block).__name__, "o") for block in message.content)
        for message in conversation.messages
    ]


def test_lines_of_one_response_become_one_message_with_its_usage_counted_once(
    claude_file: Any,
) -> None:
    claude_file.user("hello")
    claude_file.assistant("m1", {"type": "thinking", "thinking": "hm", "signature": "s"})
    claude_file.says("m1", "hi")
    claude_file.calls("m1", "c1", message={"stop_reason": "tool_use"})
    claude_file.result("c1")
    reply = read(claude_file).messages[1]
    assert [type(block) for block in reply.content][::2] == [ThinkingBlock, ToolUseBlock]
    assert reply.text == "hi"
    assert reply.usage == Usage(3, 1, cache_read_tokens=10, cache_write_tokens=7)
    assert (reply.model, reply.provider, reply.stop_reason) == ("claude-x", "anthropic", "tool_use")


def test_the_last_lines_usage_is_the_final_one(claude_file: Any) -> None:
    claude_file.user("hello")
    claude_file.says("m1", "a", message={"usage": {"input_tokens": 3, "output_tokens": 1}})
    claude_file.says("m1", "b", message={"usage": {"input_tokens": 3, "output_tokens": 90}})
    assert read(claude_file).messages[1].usage == Usage(3, 90)


def test_messages_carry_ids_turns_and_times_in_seconds(claude_file: Any) -> None:
    claude_file.user("one")
    claude_file.says("m1", "1")
    claude_file.user("two")
    claude_file.calls("m2", "c1")
    claude_file.result("c1")
    claude_file.says("m3", "2")
    conversation = read(claude_file)
    assert [message.id for message in conversation.messages] == [
        "s1/u1.0", "s1/a1.0", "s1/u2.0", "s1/a2.0", "s1/u2.1", "s1/a2.1",
    ]  # fmt: skip
    assert conversation.messages[0].created_at == 1768248000.5
    assert conversation.messages[1].created_at == 1768248001.5
    assert (conversation.id, conversation.format) == ("s1", "claude-code")


def test_parallel_results_out_of_order_become_one_message_in_call_order(claude_file: Any) -> None:
    claude_file.user("go")
    first = claude_file.calls("m1", "c1")
    second = claude_file.calls("m1", "c2")
    claude_file.result("c2", "two", parentUuid=second)
    claude_file.result("c1", "one", parentUuid=first)
    claude_file.says("m2", "done")
    conversation = read(claude_file)
    assert shape(conversation) == ["u1:t", "a1:cc", "u1:rr", "a1:t"]
    assert [result.text for result in conversation.messages[2].tool_results] == ["one", "two"]
    assert conversation.notes == ()


def test_a_result_between_two_lines_of_one_response_stands_after_the_response(
    claude_file: Any,
) -> None:
    claude_file.user("go")
    first = claude_file.calls("m1", "c1")
    claude_file.result("c1", parentUuid=first)
    claude_file.calls("m1", "c2", parentUuid=first)
    claude_file.result("c2")
    claude_file.says("m2", "done")
    assert shape(read(claude_file)) == ["u1:t", "a1:cc", "u1:rr", "a1:t"]


def test_sidechains_are_noted_and_left_out(claude_file: Any) -> None:
    claude_file.user("go")
    here = claude_file.says("m1", "hi")
    claude_file.user("a task", isSidechain=True, parentUuid=None)
    claude_file.last = here
    claude_file.user("more")
    conversation = read(claude_file)
    assert shape(conversation) == ["u1:t", "a1:t", "u2:t"]
    assert noted(conversation, "sidechain") == Note(3, "sidechain", "user")


def test_a_file_of_only_sidechains_is_the_sub_agents_conversation(claude_file: Any) -> None:
    claude_file.user("a task", isSidechain=True)
    claude_file.says("m1", "hi", isSidechain=True)
    assert shape(read(claude_file)) == ["u1:t", "a1:t"]


def test_history_goes_on_across_a_compaction_without_its_summary(claude_file: Any) -> None:
    claude_file.user("go")
    claude_file.calls("m1", "c1")
    end = claude_file.result("c1")
    claude_file.line("system", subtype="compact_boundary", parentUuid=None, logicalParentUuid=end)
    claude_file.user("It was about ...", isCompactSummary=True, isVisibleInTranscriptOnly=True)
    claude_file.says("m2", "done")
    conversation = read(claude_file)
    assert shape(conversation) == ["u1:t", "a1:c", "u1:r", "a1:t"]
    assert noted(conversation, "compact_summary") == Note(
        5, "compact_summary", "It was about ...", visible=True
    )
    assert not noted(conversation, "compact_boundary").visible


def test_a_synthetic_reply_never_was_a_request(claude_file: Any) -> None:
    claude_file.user("<command-name>/exit</command-name>")
    claude_file.says("m1", "No response requested.", message={"model": "<synthetic>"})
    claude_file.user("go on")
    claude_file.says("m2", "yes")
    conversation = read(claude_file)
    assert shape(conversation) == ["u1:tt", "a1:t"]
    assert noted(conversation, "synthetic") == Note(2, "synthetic", "No response requested.")


def test_an_api_error_ends_its_turn_as_interrupted(claude_file: Any) -> None:
    claude_file.user("go")
    claude_file.says("m1", "API Error", message={"model": "<synthetic>"}, isApiErrorMessage=True)
    claude_file.user("again")
    claude_file.says("m2", "yes")
    conversation = read(claude_file)
    assert shape(conversation) == ["u1:t", "u2:t", "a2:t"]
    assert conversation.interrupted == (1,)


def test_an_interrupt_marker_ends_its_turn_and_is_noted(claude_file: Any) -> None:
    claude_file.user("go")
    claude_file.user(MARKER)
    claude_file.user("go there")
    claude_file.calls("m1", "c1")
    claude_file.result("c1", "The user doesn't want to proceed")
    claude_file.user([{"type": "text", "text": "[Request interrupted by user for tool use]"}])
    claude_file.user("stop")
    claude_file.says("m2", "ok")
    conversation = read(claude_file)
    assert shape(conversation) == ["u1:t", "u2:t", "a2:c", "u2:r", "u3:t", "a3:t"]
    assert conversation.interrupted == conversation.unfinished == (1, 2)
    assert [note.line for note in conversation.notes] == [2, 6]
    assert {(note.what, note.visible) for note in conversation.notes} == {
        ("interrupt_marker", True)
    }


def test_a_marker_after_a_partial_reply_interrupts_a_turn_that_looks_finished(
    claude_file: Any,
) -> None:
    claude_file.user("go")
    claude_file.assistant("m1", {"type": "thinking", "thinking": "hm"})
    claude_file.user(MARKER)
    conversation = read(claude_file)
    assert (conversation.interrupted, conversation.unfinished) == ((1,), ())


def test_a_new_prompt_in_a_tool_loop_starts_a_turn_and_marks_the_one_before(
    claude_file: Any,
) -> None:
    claude_file.user("go")
    claude_file.calls("m1", "c1")
    claude_file.result("c1")
    claude_file.user("no, the other")
    claude_file.says("m2", "ok")
    conversation = read(claude_file)
    assert shape(conversation) == ["u1:t", "a1:c", "u1:r", "u2:t", "a2:t"]
    assert conversation.interrupted == (1,)


def test_a_text_beside_a_result_is_a_steer_and_stands_after_the_results(claude_file: Any) -> None:
    claude_file.user("go")
    first = claude_file.calls("m1", "c1", "c2")
    steer = {"type": "text", "text": "mind the tests"}
    result = {"type": "tool_result", "tool_use_id": "c2", "content": "done"}
    claude_file.user([result, steer], parentUuid=first)
    claude_file.result("c1")
    claude_file.says("m2", "ok")
    conversation = read(claude_file)
    assert shape(conversation) == ["u1:t", "a1:cc", "u1:rrt", "a1:t"]
    assert conversation.interrupted == ()


@pytest.mark.parametrize("removed_first", [True, False])
def test_a_queued_prompt_that_was_taken_out_is_a_steer_of_the_open_step(
    claude_file: Any, removed_first: bool
) -> None:
    claude_file.user("go")
    claude_file.says("m1", "I look")
    claude_file.bare("queue-operation", operation="enqueue", content="any tests?")
    # Seen: the prompt is taken out between two lines of one response, before its call.
    if removed_first:
        claude_file.bare("queue-operation", operation="remove")
    claude_file.calls("m1", "c1")
    claude_file.result("c1")
    if not removed_first:
        claude_file.bare("queue-operation", operation="remove")
    claude_file.says("m2", "no tests")
    conversation = read(claude_file)
    assert shape(conversation) == ["u1:t", "a1:tc", "u1:rt", "a1:t"]
    assert conversation.messages[2].text == "any tests?"
    assert not noted(conversation, "steer").visible


def test_a_queued_prompt_that_became_a_line_of_its_own_is_there_once(claude_file: Any) -> None:
    claude_file.user("go")
    claude_file.bare("queue-operation", operation="enqueue", content="next")
    claude_file.says("m1", "ok")
    claude_file.bare("queue-operation", operation="dequeue")
    claude_file.user("next")
    conversation = read(claude_file)
    assert shape(conversation) == ["u1:t", "a1:t", "u2:t"]
    assert conversation.count_notes() == {"queue": 2}


def test_an_attached_queued_prompt_is_a_steer_and_is_there_once(claude_file: Any) -> None:
    claude_file.user("go")
    claude_file.calls("m1", "c1")
    claude_file.bare("queue-operation", operation="enqueue", content="mind")
    claude_file.result("c1")
    claude_file.bare("queue-operation", operation="remove")
    claude_file.line("attachment", attachment={"type": "queued_command", "prompt": "mind"})
    claude_file.says("m2", "ok")
    conversation = read(claude_file)
    assert shape(conversation) == ["u1:t", "a1:c", "u1:rt", "a1:t"]


def test_other_attachments_were_seen_by_the_model_and_are_noted_so(claude_file: Any) -> None:
    claude_file.user("go")
    claude_file.line("attachment", attachment={"type": "todo_reminder"})
    note = noted(read(claude_file), "attachment")
    assert note == Note(2, "attachment", "todo_reminder", visible=True)


def test_meta_text_before_a_prompt_is_a_block_of_its_message(claude_file: Any) -> None:
    claude_file.user("Caveat: ...", isMeta=True)
    claude_file.user("<local-command-stdout>ok</local-command-stdout>")
    claude_file.user("go")
    claude_file.says("m1", "ok")
    conversation = read(claude_file)
    assert shape(conversation) == ["u1:ttt", "a1:t"]
    assert not noted(conversation, "meta").visible


def test_a_skills_text_stands_after_the_result_that_brought_it(claude_file: Any) -> None:
    claude_file.user("go")
    first = claude_file.calls("m1", "c1")
    brought = claude_file.result("c1", parentUuid=first)
    claude_file.user("A skill", isMeta=True, sourceToolUseID="c1", parentUuid=brought)
    second = claude_file.calls("m1", "c2", parentUuid=first)
    claude_file.result("c2", parentUuid=second)
    claude_file.says("m2", "ok")
    conversation = read(claude_file)
    assert shape(conversation) == ["u1:t", "a1:cc", "u1:rrt", "a1:t"]
    assert conversation.interrupted == ()


def test_an_orphan_call_stays_unanswered_in_the_messages(claude_file: Any) -> None:
    claude_file.user("go")
    claude_file.calls("m1", "c1", "c2")
    claude_file.result("c2")
    conversation = read(claude_file)
    assert shape(conversation) == ["u1:t", "a1:cc", "u1:r"]
    assert conversation.unanswered == ("c1",)
    assert conversation.unfinished == (1,)


def test_an_orphan_result_is_noted_and_left_out(claude_file: Any) -> None:
    claude_file.result("c9")
    claude_file.user("go")
    conversation = read(claude_file)
    assert shape(conversation) == ["u1:t"]
    assert noted(conversation, "orphan_result").visible


def test_a_second_result_of_a_call_is_noted_and_the_first_one_stays(claude_file: Any) -> None:
    claude_file.user("go")
    claude_file.calls("m1", "c1")
    claude_file.result("c1", "first")
    claude_file.result("c1", "second")
    conversation = read(claude_file)
    assert [result.text for result in conversation.messages[2].tool_results] == ["first"]
    assert noted(conversation, "duplicate").visible


def test_a_line_that_is_there_twice_counts_once(claude_file: Any) -> None:
    claude_file.user("go")
    claude_file.says("m1", "hi")
    claude_file.lines.append(claude_file.lines[1])
    conversation = read(claude_file)
    assert shape(conversation) == ["u1:t", "a1:t"]
    assert noted(conversation, "duplicate").line == 3
    assert not noted(conversation, "duplicate").visible


def test_a_uuid_that_comes_back_with_other_content_is_a_visible_loss(claude_file: Any) -> None:
    first = claude_file.user("go")
    claude_file.user("stop", uuid=first)
    conversation = read(claude_file)
    assert conversation.messages[0].text == "go"
    assert noted(conversation, "duplicate").visible


def test_a_call_id_that_comes_back_is_noted_and_left_out(claude_file: Any) -> None:
    claude_file.user("go")
    claude_file.calls("m1", "c1")
    claude_file.calls("m1", "c1")
    claude_file.result("c1")
    conversation = read(claude_file)
    assert shape(conversation) == ["u1:t", "a1:c", "u1:r"]
    assert noted(conversation, "duplicate").visible


def test_a_rewound_branch_is_noted_block_by_block(claude_file: Any) -> None:
    root = claude_file.user("go")
    answer = claude_file.says("m1", "hi", parentUuid=root)
    claude_file.user("left")
    claude_file.calls("m2", "c1")
    claude_file.result("c1")
    claude_file.user("right", parentUuid=answer)
    claude_file.says("m3", "ok")
    conversation = read(claude_file)
    assert [message.text for message in conversation.messages] == ["go", "hi", "right", "ok"]
    branch = [note for note in conversation.notes if note.what == "branch"]
    assert [note.line for note in branch] == [3, 4, 5]
    assert all(note.visible for note in branch)


def test_where_a_parent_is_missing_the_line_before_stands_in(claude_file: Any) -> None:
    claude_file.user("go")
    claude_file.says("m1", "hi")
    claude_file.line("progress", parentUuid="lost")
    claude_file.user("more")
    conversation = read(claude_file)
    assert shape(conversation) == ["u1:t", "a1:t", "u2:t"]
    assert noted(conversation, "missing_parent") == Note(3, "missing_parent", "lost", visible=True)


def test_parents_that_go_in_a_circle_end_the_walk(claude_file: Any) -> None:
    claude_file.user("go", parentUuid="uuid-2")
    claude_file.says("m1", "hi")
    assert shape(read(claude_file)) == ["u1:t", "a1:t"]


def test_a_reply_before_any_user_text_is_noted_and_left_out(claude_file: Any) -> None:
    claude_file.says("m0", "late")
    claude_file.user("go")
    conversation = read(claude_file)
    assert shape(conversation) == ["u1:t"]
    assert noted(conversation, "no_user_message").visible


def test_bookkeeping_lines_are_noted_as_not_visible(claude_file: Any) -> None:
    claude_file.user("go")
    claude_file.line("progress")
    claude_file.line("system", subtype="turn_duration")
    claude_file.bare("file-history-snapshot", messageId="x", snapshot={})
    claude_file.bare("summary", summary="About", leafUuid="elsewhere")
    claude_file.bare("last-prompt")
    claude_file.bare("something-new")
    claude_file.bare("something-said", message={"role": "user", "content": "x"})
    conversation = read(claude_file)
    assert conversation.count_notes() == {
        "progress": 1, "turn_duration": 1, "snapshot": 1, "summary": 1, "last_prompt": 1,
        "unknown_type": 2,
    }  # fmt: skip
    assert [note.line for note in conversation.notes if note.visible] == [8]
    assert conversation.title == ""


def test_the_title_is_the_summary_of_this_session_or_the_users_own(claude_file: Any) -> None:
    here = claude_file.user("go")
    claude_file.bare("summary", summary="Ours", leafUuid=here)
    claude_file.bare("summary", summary="Another's", leafUuid="elsewhere")
    assert read(claude_file).title == "Ours"
    claude_file.bare("custom-title", customTitle="Mine")
    assert read(claude_file).title == "Mine"


def test_sessions_that_are_not_linked_are_conversations_of_their_own(claude_file: Any) -> None:
    claude_file.user("one")
    claude_file.user("two", sessionId="s2", parentUuid=None)
    claude_file.says("m1", "2", sessionId="s2")
    first, second = read_claude_code(claude_file.bytes())
    assert (first.id, shape(first)) == ("s1", ["u1:t"])
    assert (second.id, shape(second)) == ("s2", ["u1:t", "a1:t"])


def test_a_resumed_session_under_a_new_id_is_one_conversation(claude_file: Any) -> None:
    claude_file.user("one")
    claude_file.says("m1", "1")
    claude_file.user("two", sessionId="s2")
    assert shape(read(claude_file)) == ["u1:t", "a1:t", "u2:t"]
    assert read(claude_file).id == "s2"


def test_blocks_keep_their_bytes() -> None:
    block = b'{"type": "new_kind",  "caf\\u00e9": 1.50}'
    line = b'{"type":"user","uuid":"a","message":{"role":"user","content":[' + block + b"]}}\n"
    (conversation,) = read_claude_code(line)
    assert bytes(conversation.messages[0].body) == b"[" + block + b"]"


def test_a_torn_last_line_is_noted_even_in_strict_mode(claude_file: Any) -> None:
    claude_file.user("go")
    claude_file.says("m1", "hi")
    data = claude_file.bytes() + b'{"type":"user","mess'
    (conversation,) = read_claude_code(data, strict=True)
    assert shape(conversation) == ["u1:t", "a1:t"]
    assert noted(conversation, "torn_line") == Note(
        3, "torn_line", '{"type":"user","mess', visible=True
    )


def test_a_bad_middle_line_is_noted_or_in_strict_mode_refused_by_its_number(
    claude_file: Any,
) -> None:
    claude_file.user("go")
    claude_file.says("m1", "hi")
    rows = claude_file.bytes().split(b"\n")
    data = b"\n".join([rows[0], b"{oops", *rows[1:]])
    assert shape(read_claude_code(data)[0]) == ["u1:t", "a1:t"]
    assert noted(read_claude_code(data)[0], "bad_line").line == 2
    with pytest.raises(TranscriptError, match=r"^line 2: ") as caught:
        read_claude_code(data, strict=True)
    assert caught.value.line == 2


def test_a_line_with_fields_of_the_wrong_kind_is_a_bad_line(claude_file: Any) -> None:
    claude_file.user("go")
    claude_file.line("user", message={"role": "user", "content": 5})
    assert noted(read(claude_file), "bad_line").line == 2
    with pytest.raises(TranscriptError, match=r"^line 2: "):
        read(claude_file, strict=True)


def test_a_lone_surrogate_becomes_a_replacement_character(claude_file: Any) -> None:
    claude_file.user("a\ud800b")
    conversation = read(claude_file)
    assert conversation.messages[0].text == "a\ufffdb"
    assert noted(conversation, "surrogates").line == 1


def test_bytes_that_are_not_utf8_are_replaced_or_in_strict_mode_refused(claude_file: Any) -> None:
    claude_file.user("a?b")
    data = claude_file.bytes().replace(b"?", b"\xff")
    (conversation,) = read_claude_code(data)
    assert conversation.messages[0].text == "a\ufffdb"
    with pytest.raises(TranscriptError, match="line 1: not valid UTF-8"):
        read_claude_code(data, strict=True)


def test_a_bom_crlf_and_blank_lines_change_nothing(claude_file: Any) -> None:
    claude_file.user("go")
    claude_file.says("m1", "hi")
    odd = b"\xef\xbb\xbf" + claude_file.bytes().replace(b"\n", b"\r\n\r\n")
    assert read_claude_code(odd)[0].messages == read(claude_file).messages


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n \n",
        b"no json at all\nreally\n",
        b"\x00\xff\xfe" * 50,
        b'{"type":"session_meta","payload":{}}\n',
        b"[1,2]\n3\n",
        b'{"type":"user","uuid":5,"message":5}\n',
        b"[" * 5000,
        json.dumps({"messages": [1, 2]}, indent=1).encode(),
    ],
)
def test_a_file_that_is_none_of_ours_is_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(TranscriptError) as caught:
        read_claude_code(data)
    assert "\n" not in str(caught.value)
    assert "not a Claude Code session file" in str(caught.value)
