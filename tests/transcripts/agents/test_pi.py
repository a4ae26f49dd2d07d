from __future__ import annotations

from typing import Any

import pytest

from llmsession.errors import TranscriptError
from llmsession.transcripts import read, write
from llmsession.turns.blocks import ThinkingBlock
from llmsession.turns.usage import Usage

from .sources import at, lines, pi, rows_of


def entry(id: str, parent: str | None, **message: Any) -> dict[str, Any]:
    return {
        "type": "message", "id": id, "parentId": parent, "timestamp": at(20), "message": message,
    }  # fmt: skip


def reply(stop: str, *content: dict[str, Any], **more: Any) -> dict[str, Any]:
    told = {"role": "assistant", "content": list(content), "provider": "anthropic"}
    return (
        told | {"model": "claude-x", "stopReason": stop, "usage": {"input": 1, "output": 1}} | more
    )


def test_entries_keep_their_ids_usage_thinking_and_errors() -> None:
    (conversation,) = read(pi(), strict=True)
    assert [message.id for message in conversation.messages] == [f"e{n}" for n in range(1, 9)]
    first = conversation.messages[1]
    assert first.usage == Usage(3, 5, 10, 1)
    assert (first.model, first.provider, first.stop_reason) == ("claude-x", "anthropic", "end_turn")
    assert first.content[0] == ThinkingBlock("hm", "sig")
    results = [message.tool_results[0] for message in conversation.messages[2:4]]
    assert [result.is_error for result in results] == [None, True]


def test_the_results_of_parallel_calls_stand_behind_their_reply_one_by_one() -> None:
    (conversation,) = read(pi(), strict=True)
    assert [len(turn) for turn in conversation.turns] == [6, 2]
    assert conversation.unanswered == ()


def test_files_without_ids_are_read_in_their_order() -> None:
    rows = [{k: v for k, v in row.items() if k != "parentId"} for row in rows_of(pi())]
    for row in rows[1:]:
        del row["id"]
    (conversation,) = read(lines(*rows), strict=True)
    assert conversation.messages[0].id == "s1/u1.0"
    assert [message.text for message in conversation.messages] == [
        message.text for message in read(pi())[0].messages
    ]


def test_an_aborted_reply_ends_its_turn_and_its_unsigned_thinking_is_kept_beside() -> None:
    thought = {"type": "thinking", "thinking": "half a thou", "thinkingSignature": ""}
    text = {"type": "text", "text": "I beg"}
    call = {"type": "toolCall", "id": "c9", "name": "run", "arguments": {}, "partialJson": "{"}
    (conversation,) = read(
        pi(
            entry("e9", "e8", role="user", content="go"),
            entry("e10", "e9", **reply("aborted", thought, text, call, errorMessage="aborted")),
            entry("e11", "e10", role="user", content="stop"),
        ),
        strict=True,
    )
    cut = conversation.messages[-2]
    assert (cut.text, cut.stop_reason, cut.error) == ("I beg", "cancelled", "aborted")
    assert conversation.interrupted == (3,)
    assert conversation.unanswered == ("c9",)
    assert b"half a thou" in bytes(cut.extra or b"")
    assert b"partialJson" in bytes(cut.extra or b"")
    assert conversation.count_notes() == {"unanswered_call": 1, "unsigned_thinking": 1}


@pytest.mark.parametrize("stop", ["aborted", "error"])
def test_a_reply_that_was_cut_without_calls_interrupts_its_turn_too(stop: str) -> None:
    (conversation,) = read(
        pi(
            entry("e9", "e8", role="user", content="go"),
            entry("e10", "e9", **reply(stop, {"type": "text", "text": "I beg"})),
            entry("e11", "e10", role="user", content="again"),
            entry("e12", "e11", **reply(stop)),
        ),
        strict=True,
    )
    assert conversation.interrupted == (3, 4)
    (again,) = read(write([conversation], "pi"), strict=True)
    assert again.interrupted == (3, 4)


def test_thinking_of_another_vendor_is_never_passed_off_as_signed() -> None:
    thought = {"type": "thinking", "thinking": "hm", "thinkingSignature": '{"id":"rs_1"}'}
    text = {"type": "text", "text": "yes"}
    (conversation,) = read(
        pi(
            entry("e9", "e8", role="user", content="go"),
            entry("e10", "e9", **reply("stop", thought, text, provider="openai")),
        ),
        strict=True,
    )
    assert conversation.messages[-1].content[0].__class__.__name__ == "TextBlock"
    assert b"rs_1" in bytes(conversation.messages[-1].extra or b"")


def test_a_shell_command_of_the_user_is_the_users_text() -> None:
    bash = entry("e9", "e8", role="bashExecution", command="ls", output="a.py", exitCode=0)
    (conversation,) = read(pi(bash), strict=True)
    assert conversation.messages[-1].text == "Ran `ls`\n```\na.py\n```"
    assert conversation.count_notes() == {"bash_execution": 1}
    (again,) = read(write([conversation], "pi"))
    assert again.messages == conversation.messages


def test_a_compaction_is_the_summary_and_nothing_is_left_out_for_it() -> None:
    compaction = {"type": "compaction", "id": "x1", "parentId": "e8", "timestamp": at(9)}
    (conversation,) = read(pi(compaction | {"summary": "So far."}), strict=True)
    assert conversation.summary == "So far."
    assert len(conversation.messages) == 8
    assert [(note.what, note.visible) for note in conversation.notes] == [("compaction", True)]
    assert read(write([conversation], "pi"))[0].summary == "So far."


def test_another_leaf_is_a_branch_that_shares_its_messages() -> None:
    other = entry("b1", "e6", role="user", content="no thanks")
    answer = entry("b2", "b1", **reply("stop", {"type": "text", "text": "As you like."}))
    rows = rows_of(pi())
    main, branch = read(lines(*rows[:-2], other, answer, *rows[-2:]), strict=True)
    assert [message.id for message in main.messages][-2:] == ["e7", "e8"]
    assert [message.id for message in branch.messages][-2:] == ["b1", "b2"]
    assert (branch.id, branch.parent, branch.shared_turns) == ("s1/b2", "s1", 1)
    assert all(a is b for a, b in zip(main.messages[:6], branch.messages[:6], strict=True))
    again = read(write([main, branch], "pi"), strict=True)
    assert [each.messages for each in again] == [main.messages, branch.messages]
    assert [each.id for each in again] == ["s1", "s1/b2"]


def test_the_last_entry_says_which_path_is_active_also_if_the_trunk_is_all_of_it() -> None:
    longer = entry("b1", "e8", role="user", content="more")
    label = {"type": "label", "id": "l1", "parentId": "e8", "timestamp": at(30)}
    main, branch = read(pi(longer, label), strict=True)
    assert (main.messages[-1].id, branch.messages[-1].id) == ("e8", "b1")
    again = read(write([main, branch], "pi"), strict=True)
    assert [each.messages for each in again] == [main.messages, branch.messages]


def test_an_entry_whose_parent_is_missing_follows_the_one_before_it() -> None:
    lost = entry("e9", "gone", role="user", content="more")
    (conversation, *_) = read(pi(lost), strict=True)
    assert conversation.messages[-1].text == "more"
    assert len(conversation.messages) == 9
    assert conversation.count_notes()["missing_parent"] >= 1


def test_a_circle_of_parents_ends() -> None:
    rows = rows_of(pi())
    rows[1]["parentId"] = "e8"
    assert len(read(lines(*rows), strict=True)[0].messages) == 8


def test_images_and_custom_messages_are_read_and_written() -> None:
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    custom = {
        "type": "custom_message", "id": "e10", "parentId": "e9", "timestamp": at(21),
        "customType": "note", "content": "by the way", "display": True,
    }  # fmt: skip
    (conversation,) = read(pi(entry("e9", "e8", role="user", content=[image]), custom), strict=True)
    kinds = [block.__class__.__name__ for block in conversation.messages[-2].content]
    assert (kinds, conversation.messages[-1].text) == (["ImageBlock"], "by the way")
    (again,) = read(write([conversation], "pi"), strict=True)
    assert again.messages == conversation.messages


def test_a_message_of_an_unknown_role_is_noted_or_refused_with_its_line() -> None:
    raw = pi(entry("e9", "e8", role="narrator", content="meanwhile"))
    assert read(raw)[0].count_notes()["bad_line"] == 1
    with pytest.raises(TranscriptError, match=r"^line 10: .*'narrator'"):
        read(raw, strict=True)
