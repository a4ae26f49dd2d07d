from __future__ import annotations

from typing import Any

import pytest

from llmsession.errors import TranscriptError
from llmsession.transcripts import detect, read

from .sources import conversation, dump, roo, text, tool_result, tool_use

HISTORY = "tasks/t1/api_conversation_history.json"


def user(said: str, **tags: Any) -> dict[str, Any]:
    return {"role": "user", "content": [text(said)]} | tags


def reply(*blocks: Any, **tags: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)} | tags


def condensed() -> list[dict[str, Any]]:
    return [
        user("the task", condenseParent="X"),
        reply(text("begin"), tool_use("c1"), condenseParent="X"),
        {"role": "user", "content": [tool_result("c1", "one")], "condenseParent": "X"},
        user("## Conversation Summary\nbegan", isSummary=True, condenseId="X"),
        reply(tool_use("c2")),
        {"role": "user", "content": [tool_result("c2", "two"), tool_result("c1", "late")]},
        reply(text("done")),
    ]


def texts(found: Any) -> list[str]:
    return [message.text for message in found.messages]


def test_a_task_without_tags_is_one_conversation() -> None:
    (found,) = read(roo(), strict=True)
    assert (found.id, found.title, len(found.messages)) == ("t1", "Read", 6)
    assert detect(roo()) == "roo-code"


def test_what_is_before_the_last_summary_is_only_in_the_full_history() -> None:
    shown, full = read(roo(condensed()), strict=True)
    assert texts(shown)[0] == "## Conversation Summary\nbegan"
    assert texts(shown)[-1] == "done"
    assert len(full.messages) == 7
    assert [b"condenseParent" in bytes(m.extra or b"") for m in full.messages][:4] == [
        True, True, True, False,
    ]  # fmt: skip
    assert b'"condenseId"' in bytes(full.messages[3].extra or b"")
    assert (full.parent, full.summary) == ("t1", "## Conversation Summary\nbegan")


def test_a_result_whose_call_was_condensed_is_left_out() -> None:
    shown, _ = read(roo(condensed()), strict=True)
    results = [r.tool_use_id for message in shown.messages for r in message.tool_results]
    assert results == ["c2"]
    assert shown.count_notes()["truncated_result"] == 1


def test_the_summary_stays_a_message_of_its_own_beside_the_users_next_text() -> None:
    """Merged into its neighbour it loses its tag, and everything it stands for comes back."""
    history = [*condensed()[:4], user("go on"), reply(text("done"))]
    shown, _ = read(roo(history), strict=True)
    assert texts(shown) == ["## Conversation Summary\nbegan", "go on", "done"]
    assert b'"isSummary":true' in bytes(shown.messages[0].extra or b"")


def test_of_nested_summaries_the_last_one_is_shown() -> None:
    history = [*condensed()]
    for message in history:
        message.setdefault("condenseParent", "Y")
    history.append(user("second summary", isSummary=True, condenseId="Y"))
    shown, _ = read(roo(history), strict=True)
    assert texts(shown) == ["second summary"]


def test_what_a_marker_cut_off_is_hidden_as_long_as_the_marker_is_there() -> None:
    marker = user("[Sliding window]", isTruncationMarker=True, truncationId="Z")
    history = [
        user("the task"), reply(text("a"), truncationParent="Z"),
        user("b", truncationParent="Z"), marker, reply(text("c")),
    ]  # fmt: skip
    shown, full = read(roo(history), strict=True)
    assert texts(shown) == ["the task", "[Sliding window]", "c"]
    assert len(full.messages) == 5
    (alone,) = read(roo([message for message in history if message is not marker]), strict=True)
    assert texts(alone) == ["the task", "a", "b", "c"]


def test_what_a_marker_behind_the_summary_cut_off_is_hidden_too() -> None:
    marker = user("[Sliding window]", isTruncationMarker=True, truncationId="Z")
    history = [*condensed()[:4], reply(text("cut"), truncationParent="Z"), marker, user("on")]
    shown, _ = read(roo(history), strict=True)
    assert texts(shown) == ["## Conversation Summary\nbegan", "[Sliding window]", "on"]


def test_a_parent_that_is_gone_hides_nothing() -> None:
    (found,) = read(roo([user("a", condenseParent="gone"), reply(text("b"))]), strict=True)
    assert texts(found) == ["a", "b"]


def test_reasoning_is_kept_in_extra_as_a_block_and_as_an_item() -> None:
    history = [
        user("a"),
        {"type": "reasoning", "encrypted_content": "zzz", "id": "rs_1"},
        reply({"type": "reasoning", "text": "hm", "summary": []}, text("b")),
    ]
    (found,) = read(roo(history), strict=True)
    extra = bytes(found.messages[1].extra or b"")
    assert b'"zzz"' in extra
    assert b'"hm"' in extra
    assert found.messages[1].text == "b"


def test_the_old_name_of_the_history_is_read() -> None:
    files = {"tasks/t1/claude_messages.json": dump(conversation())}
    assert detect(files) == "roo-code"
    assert len(read(files, strict=True)[0].messages) == 6


def test_a_corrupt_history_is_an_error_and_never_an_empty_task() -> None:
    with pytest.raises(TranscriptError, match="line 1"):
        read(roo(**{HISTORY: b"{oops"}))
    with pytest.raises(TranscriptError, match="not a list"):
        read(roo(**{HISTORY: b'"x"'}))
    with pytest.raises(TranscriptError, match="no api_conversation_history"):
        read({"a": b"", "b": b""}, "roo-code")


def test_a_history_alone_is_known_by_its_tags() -> None:
    raw = roo(condensed())[HISTORY]
    assert detect(raw) == "roo-code"
    assert len(read(raw, strict=True)) == 2
