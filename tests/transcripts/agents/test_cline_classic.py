from __future__ import annotations

import json
from typing import Any

import pytest

from llmsession.transcripts import detect, read
from llmsession.turns.usage import Usage

from ..shapes import Case, case, check, every, said
from .sources import cline_classic, conversation, dump, text, tool_result, tool_use

HISTORY = "tasks/t1/api_conversation_history.json"
NOTE = "[NOTE] Some previous conversation history"
MESSAGES: list[Any] = [
    {"role": "user", "content": [text("the task")]},
    {"role": "assistant", "content": [text("begin")]},
    {"role": "user", "content": [text("[read_file for 'a.py'] Result:\nold")]},
    {"role": "assistant", "content": [text("hidden")]},
    {"role": "user", "content": [text("hidden too")]},
    {"role": "assistant", "content": [tool_use("c1")]},
    {"role": "user", "content": [tool_result("c1", "of the hidden call"), text("env")]},
    {"role": "assistant", "content": [text("shown")]},
]


def truncated(
    deleted: Any = (2, 5), overrides: Any = None, messages: list[Any] = MESSAGES
) -> dict[str, bytes]:
    """A task of five exchanges whose messages 3 to 6 are hidden."""
    item = {"id": "t1", "task": "T", "conversationHistoryDeletedRange": deleted}
    files = {HISTORY: dump(messages), "state/taskHistory.json": dump([{"id": "t0"}, item])}
    if overrides is not None:
        files["tasks/t1/context_history.json"] = dump(overrides)
    return files


UPDATES = [[1, "text", ["first"], []], [2, "text", [NOTE], []]]
INTERRUPTED = [
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": "half\n\n[Response interrupted by user]"},
    {"role": "user", "content": "y"},
]

CASES = {
    "a task without a range is one conversation with models and usage": case(
        cline_classic(), id="t1", title="Read", usages=[Usage(9, 4, 2)],
        models=[None, "claude-x", *[None] * 4], times=[1767225600.0] * 6, notes=["1 other_file"],
    ),
    # Who forgets the truncation sends a prompt that is too long.
    "the truncation is not forgotten": case(
        truncated(), said=["the task", "begin", "env", "shown"],
        # Results of hidden calls are left out behind the cut.
        results=[], notes=["3 truncated", "7 truncated_result"],
        branches=[{
            "id": "t1/full", "parent": "t1", "shared_turns": 1,
            "shape": "u1:t a1:t u2:t a2:t u3:t a3:c u3:rt a3:t",
        }],
    ),
    "the latest new text of each block is what the model is sent": case(
        truncated(None, [[1, [0, [[0, UPDATES]]]]]), noted=["2 replaced_text"],
        said=["the task", NOTE, "[read_file for 'a.py'] Result:\nold", "hidden", "hidden too",
              "env", "shown"],
        branches=[{"noted": []}],
    ),
    "a reply that was interrupted ends its turn": case(
        cline_classic(**{HISTORY: dump(INTERRUPTED)}), interrupted=(1,)
    ),
    "all tasks of a folder are read": case(
        cline_classic(**{"tasks/t2/api_conversation_history.json": dump(conversation())}),
        id="t1", branches=[{"id": "t2"}],
    ),
    "a broken file of new texts is noted": case(
        truncated(None) | {"tasks/t1/context_history.json": b"[1,"}, noted=["1 bad_file!"]
    ),
    "a message without a role keeps the places of the others": case(
        truncated(messages=[MESSAGES[0], "gone", *MESSAGES[2:]]),
        said=["the task", "env", "shown"], branches=[{}], refused=r"^message 2",
    ),
}  # fmt: skip


@every(CASES)
def test_a_task_is_read(case: Case) -> None:
    check(case, "cline-classic")


def test_a_branch_shares_the_message_objects_and_the_reply_has_its_provider() -> None:
    shown, full = read(truncated(), strict=True)
    assert shown.messages[:2] == full.messages[:2]
    assert shown.messages[0] is full.messages[0]
    assert read(cline_classic())[0].messages[1].provider == "anthropic"
    assert said(full)[1] == "begin"


@pytest.mark.parametrize("deleted", [None, [], [5, 2], ["a", 3], [2], [-1, 3], "x", [2, 10**30]])
def test_a_range_that_is_none_hides_nothing_and_none_hides_what_is_not_there(deleted: Any) -> None:
    shown, *_ = read(truncated(deleted), strict=True)
    assert said(shown)[:2] == ["the task", "begin"]
    assert len(shown.messages) == (2 if deleted == [2, 10**30] else 8)


@pytest.mark.parametrize(
    "odd", [[[1]], [[1, 2]], [[1, [0, [[0, []]]]]], [["x", [0, []]]], {"a": 1}], ids=json.dumps
)
def test_new_texts_that_are_none_change_nothing(odd: Any) -> None:
    assert len(read(truncated(None, odd), strict=True)) == 1


def test_a_history_alone_is_known_by_what_it_keeps_beside_its_messages() -> None:
    raw = cline_classic()[HISTORY]
    assert detect(raw) == "cline-classic"
    (found,) = read(raw, strict=True)
    assert found.id == "cline-classic"


def test_the_other_files_of_a_task_are_noted() -> None:
    (note,) = read(cline_classic(), strict=True)[0].notes
    assert note.detail == "ui_messages.json"
