from __future__ import annotations

import json
from typing import Any

import pytest

from llmsession.errors import TranscriptError
from llmsession.transcripts import detect, read
from llmsession.turns.usage import Usage

from .sources import cline_classic, conversation, dump, text, tool_result, tool_use

HISTORY = "tasks/t1/api_conversation_history.json"
NOTE = "[NOTE] Some previous conversation history"


def truncated(deleted: Any = (2, 5), overrides: Any = None, **more: bytes) -> dict[str, bytes]:
    """A task of five exchanges whose messages 3 to 6 are hidden."""
    history = [
        {"role": "user", "content": [text("the task")]},
        {"role": "assistant", "content": [text("begin")]},
        {"role": "user", "content": [text("[read_file for 'a.py'] Result:\nold")]},
        {"role": "assistant", "content": [text("hidden")]},
        {"role": "user", "content": [text("hidden too")]},
        {"role": "assistant", "content": [tool_use("c1")]},
        {"role": "user", "content": [tool_result("c1", "of the hidden call"), text("env")]},
        {"role": "assistant", "content": [text("shown")]},
    ]
    item = {"id": "t1", "task": "T", "conversationHistoryDeletedRange": deleted}
    files = {HISTORY: dump(history), "state/taskHistory.json": dump([{"id": "t0"}, item])}
    if overrides is not None:
        files["tasks/t1/context_history.json"] = dump(overrides)
    return files | more


def texts(found: Any) -> list[str]:
    return [message.text for message in found.messages]


def test_a_task_without_a_range_is_one_conversation_with_models_and_usage() -> None:
    (found,) = read(cline_classic(), strict=True)
    assert (found.id, found.title) == ("t1", "Read")
    reply = found.messages[1]
    assert (reply.model, reply.provider, reply.usage) == ("claude-x", "anthropic", Usage(9, 4, 2))
    assert reply.created_at == 1767225600.0


def test_the_truncation_is_not_forgotten() -> None:
    """Who forgets it sends a prompt that is too long."""
    shown, full = read(truncated(), strict=True)
    assert texts(shown) == ["the task", "begin", "env", "shown"]
    assert len(full.messages) == 8
    assert (full.id, full.parent, full.shared_turns) == ("t1/full", "t1", 1)
    assert shown.messages[:2] == full.messages[:2]
    assert shown.messages[0] is full.messages[0]


def test_results_of_hidden_calls_are_left_out_behind_the_cut() -> None:
    shown, _ = read(truncated(), strict=True)
    assert not any(message.tool_results for message in shown.messages)
    assert shown.count_notes()["truncated_result"] == 1
    assert not any(note.visible for note in shown.notes)


def test_the_latest_new_text_of_each_block_is_what_the_model_is_sent() -> None:
    updates = [[1, "text", ["first"], []], [2, "text", [NOTE], []]]
    shown, full = read(truncated(None, [[1, [0, [[0, updates]]]]]), strict=True)
    assert texts(shown)[1] == NOTE
    assert texts(full)[1] == "begin"
    assert shown.count_notes()["replaced_text"] == 1


@pytest.mark.parametrize("deleted", [None, [], [5, 2], ["a", 3], [2], [-1, 3], "x", [2, 10**30]])
def test_a_range_that_is_none_hides_nothing_and_none_hides_what_is_not_there(deleted: Any) -> None:
    shown, *_ = read(truncated(deleted), strict=True)
    assert texts(shown)[:2] == ["the task", "begin"]
    assert len(shown.messages) == (2 if deleted == [2, 10**30] else 8)


def test_new_texts_that_are_none_change_nothing_and_a_broken_file_of_them_is_noted() -> None:
    for odd in ([[1]], [[1, 2]], [[1, [0, [[0, []]]]]], [["x", [0, []]]], {"a": 1}):
        assert len(read(truncated(None, odd), strict=True)) == 1
    broken = truncated(None) | {"tasks/t1/context_history.json": b"[1,"}
    (found,) = read(broken, strict=True)
    assert [note.visible for note in found.notes if note.what == "bad_file"] == [True]


def test_a_reply_that_was_interrupted_ends_its_turn() -> None:
    said = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "half\n\n[Response interrupted by user]"},
        {"role": "user", "content": "y"},
    ]
    (found,) = read(cline_classic(**{HISTORY: dump(said)}), strict=True)
    assert found.interrupted == (1,)


def test_all_tasks_of_a_folder_are_read() -> None:
    second = {"tasks/t2/api_conversation_history.json": dump(conversation())}
    assert [found.id for found in read(cline_classic(**second), strict=True)] == ["t1", "t2"]


def test_a_history_alone_is_known_by_what_it_keeps_beside_its_messages() -> None:
    raw = cline_classic()[HISTORY]
    assert detect(raw) == "cline-classic"
    (found,) = read(raw, strict=True)
    assert found.id == "cline-classic"


def test_the_other_files_of_a_task_are_noted() -> None:
    (found,) = read(cline_classic(), strict=True)
    assert [note.detail for note in found.notes if note.what == "other_file"] == [
        "ui_messages.json"
    ]


def test_a_corrupt_history_is_an_error_and_never_an_empty_task() -> None:
    with pytest.raises(TranscriptError, match="line 1"):
        read(cline_classic(**{HISTORY: b"{oops"}))
    with pytest.raises(TranscriptError, match="not a list"):
        read(cline_classic(**{HISTORY: b"{}"}))
    with pytest.raises(TranscriptError, match="no api_conversation_history"):
        read({"a": b"", "b": b""}, "cline-classic")


def test_a_message_without_a_role_keeps_the_places_of_the_others() -> None:
    files = truncated()
    history = json.loads(files[HISTORY])
    history[1] = "gone"
    files[HISTORY] = dump(history)
    shown, _ = read(files)
    assert texts(shown) == ["the task", "env", "shown"]
    with pytest.raises(TranscriptError, match=r"^message 2"):
        read(files, strict=True)
