from __future__ import annotations

from typing import Any

import pytest

from llmsession.errors import TranscriptError
from llmsession.transcripts import detect, read, write
from llmsession.turns.blocks import ImageBlock
from llmsession.turns.usage import Usage

from .sources import at, codex, lines, rows_of


def item(**payload: Any) -> dict[str, Any]:
    return {"timestamp": at(20), "type": "response_item", "payload": payload}


def event(**payload: Any) -> dict[str, Any]:
    return {"timestamp": at(20), "type": "event_msg", "payload": payload}


def message(role: str, *content: dict[str, Any]) -> dict[str, Any]:
    return item(type="message", role=role, content=list(content))


def said(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


def test_items_in_a_row_are_one_reply_with_its_model_and_times() -> None:
    (conversation,) = read(codex(), strict=True)
    reply = conversation.messages[1]
    assert [block.__class__.__name__ for block in reply.content] == [
        "TextBlock", "ToolUseBlock", "ToolUseBlock",
    ]  # fmt: skip
    assert (reply.model, reply.provider) == ("gpt-x", "openai")
    assert reply.completed_at - reply.created_at == 1.0
    assert reply.tool_calls[1].input == {"input": "*** Begin"}


def test_usage_leaves_cached_tokens_out_and_counts_once_however_often_it_is_reported() -> None:
    (conversation,) = read(codex(), strict=True)
    usages = [message.usage for message in conversation.messages if message.is_assistant]
    assert usages == [Usage(60, 7, 40)] * 3


def test_usage_that_is_written_behind_the_outputs_is_the_replys() -> None:
    rows = rows_of(codex())
    count = next(row for row in rows if row["payload"].get("info"))
    rows.remove(count)
    place = next(n for n, row in enumerate(rows) if row["payload"].get("call_id") == "c2")
    rows.insert(place + 2, count)
    (conversation,) = read(lines(*rows), strict=True)
    assert conversation.messages[1].usage == Usage(60, 7, 40)


def test_usage_of_no_reply_is_noted() -> None:
    info = {"total_token_usage": {"total_tokens": 999}, "last_token_usage": {"input_tokens": 1}}
    (conversation,) = read(codex(event(type="token_count", info=info)), strict=True)
    assert conversation.count_notes()["usage"] == 1


def test_the_system_prompt_survives_and_is_no_message() -> None:
    (conversation,) = read(codex(), strict=True)
    assert conversation.system == "Be short.\n\nPermissions."
    assert conversation.messages[0].text == "read both"


def test_reasoning_is_kept_whole_in_extra_and_noted() -> None:
    (conversation,) = read(codex(), strict=True)
    assert b'"encrypted_content":"abc"' in bytes(conversation.messages[1].extra or b"")
    assert conversation.count_notes()["reasoning"] == 1


def test_text_in_the_middle_of_a_loop_is_answered_by_the_next_reply() -> None:
    (conversation,) = read(codex(), strict=True)
    assert [len(turn) for turn in conversation.turns] == [6, 2]
    assert conversation.turns[0][4].text.startswith("<notice>")


def test_an_aborted_turn_is_interrupted_and_the_next_text_starts_one() -> None:
    (conversation,) = read(
        codex(
            message("user", said("more")),
            item(type="function_call", call_id="c9", name="run", arguments="{}"),
            item(type="function_call_output", call_id="c9", output="x"),
            message("user", said("<turn_aborted>")),
            event(type="turn_aborted", reason="interrupted"),
            message("user", said("again")),
        ),
        strict=True,
    )
    assert conversation.interrupted == (3,)
    assert [turn[0].text for turn in conversation.turns] == ["read both", "thanks", "more", "again"]
    assert conversation.turns[2][-1].text == "<turn_aborted>"


def test_a_task_that_starts_starts_a_turn_also_behind_results() -> None:
    (conversation,) = read(
        codex(
            event(type="task_started"),
            message("user", said("more")),
            item(type="function_call", call_id="c9", name="run", arguments="{}"),
            item(type="function_call_output", call_id="c9", output="x"),
            event(type="task_started"),
            message("user", said("new")),
        ),
        strict=True,
    )
    assert [turn[0].text for turn in conversation.turns][-2:] == ["more", "new"]


def test_compaction_keeps_the_history_and_the_replacement_with_a_visible_note() -> None:
    compacted = {
        "timestamp": at(21), "type": "compacted",
        "payload": {"message": "So far: read both.", "replacement_history": [{}, {}]},
    }  # fmt: skip
    (conversation,) = read(codex(compacted), strict=True)
    assert conversation.summary == "So far: read both."
    assert len(conversation.messages) == 8
    assert b"replacement_history" in bytes(conversation.records[0])
    assert [note.visible for note in conversation.notes if note.what == "compacted"] == [True]


def test_an_image_as_a_data_url_is_an_image() -> None:
    url = "data:image/png;base64,aGk="
    picture = {"type": "input_image", "image_url": url, "detail": "high"}
    (conversation,) = read(codex(message("user", said("see"), picture)), strict=True)
    image = conversation.messages[-1].content[1]
    assert isinstance(image, ImageBlock)
    assert image.source == {"type": "base64", "media_type": "image/png", "data": "aGk="}
    (again,) = read(write([conversation], "codex"), "codex")
    assert again.messages == conversation.messages


def test_arguments_that_are_no_object_are_wrapped_and_the_rest_is_kept_as_text() -> None:
    (conversation,) = read(
        codex(
            message("user", said("more")),
            item(type="function_call", call_id="c9", name="run", arguments='{"cmd": tr'),
            item(type="function_call_output", call_id="c9", output={"content": "x"}),
        ),
        strict=True,
    )
    assert conversation.messages[-2].tool_calls[0].input == {"INVALID_JSON": '{"cmd": tr'}
    assert conversation.messages[-1].tool_results[0].text == '{"content":"x"}'


def test_unknown_lines_and_items_are_kept_and_noted() -> None:
    (conversation,) = read(
        codex(
            {"timestamp": at(9), "type": "new_thing", "payload": 1}, item(type="web_search_call")
        ),
        strict=True,
    )
    notes = conversation.count_notes()
    assert (notes["unknown_type"], notes["foreign_item"]) == (1, 1)
    assert b"new_thing" in bytes(conversation.records[0])


def test_torn_and_glued_lines_are_read_and_a_broken_one_is_noted_or_refused() -> None:
    rows = codex().split(b"\n")
    glued = b"\n".join([*rows[:5], rows[5] + rows[6], *rows[7:-1]]) + b'\n{"timest'
    (conversation,) = read(glued, strict=True)
    assert conversation.messages == read(codex())[0].messages
    assert {"glued", "torn_line"} <= conversation.count_notes().keys()
    broken = b"\n".join([*rows[:5], b"{oops", *rows[5:]])
    assert read(broken)[0].count_notes()["bad_line"] == 1
    with pytest.raises(TranscriptError, match=r"^line 6"):
        read(broken, strict=True)


def test_an_item_without_a_type_is_noted_or_refused_with_its_line() -> None:
    raw = codex(item(call_id="c1"))
    assert read(raw)[0].count_notes()["bad_line"] == 1
    with pytest.raises(TranscriptError, match=r"^line 23: an item without a type"):
        read(raw, strict=True)


def test_a_resumed_session_is_one_conversation() -> None:
    first = rows_of(codex())[0]
    (conversation,) = read(codex(first), strict=True)
    assert conversation.count_notes()["session_meta"] == 1


def test_other_lines_are_not_taken_for_a_rollout() -> None:
    assert detect(b'{"type":"event","payload":{}}\n') is None
    with pytest.raises(TranscriptError, match="not a Codex rollout: no line of it is one"):
        read(b'{"a":1}\n', "codex")
