"""Session files in Claude Code's words, written by us."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from llmsession.transcripts import Conversation, detect, read, write
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.messages import Message
from llmsession.turns.usage import Usage


def conversation() -> Conversation:
    def message(id: str, turn: int, role: Any, *blocks: Any, **fields: Any) -> Message:
        body = encode_blocks([*blocks])
        return Message(id=id, session="s1", turn=turn, role=role, body=body, **fields)

    call = {"type": "tool_use", "id": "c1", "name": "run", "input": {"a": 1.50}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "x", "is_error": True}
    text = {"type": "text", "text": "a"}
    return Conversation(
        id="s1",
        format="own",
        title="T",
        interrupted=(3,),
        messages=(
            message("m1", 2, "user", text, text, created_at=1.25, completed_at=2.0),
            message(
                "m2", 2, "assistant", text, call, model="m", provider="p", error="e",
                usage=Usage(1, 2, 3, 4), stop_reason="tool_use", completed_at=3.0,
            ),
            message("m3", 2, "user", result, text, synthetic=(1,)),
            message("m4", 3, "user", extra=msgspec.Raw(b'{"tag":1.0}')),
            message("m5", 3, "user", text),
        ),
    )  # fmt: skip


def test_every_field_of_every_message_comes_back() -> None:
    files = write([conversation()], "claude-code")
    (raw,) = files.values()
    assert detect(raw) == "claude-code"
    (again,) = read(raw, strict=True)
    assert again.messages == conversation().messages
    assert (again.id, again.title, again.interrupted) == ("s1", "T", (3,))
    assert again.notes == ()


def test_each_block_is_a_line_the_child_of_the_one_before() -> None:
    (raw,) = write([conversation()], "claude-code").values()
    rows = [json.loads(row) for row in raw.splitlines()]
    said = [row for row in rows if row["type"] in ("user", "assistant")]
    assert [len(row["message"]["content"]) for row in said] == [1, 1, 1, 1, 1, 1, 0, 1, 1]
    assert [row["parentUuid"] for row in said] == [None, *(row["uuid"] for row in said[:-1])]
    assert len({row["uuid"] for row in said}) == len(said)
    assert write([conversation()], "claude-code") == write([conversation()], "claude-code")


def test_a_file_that_claude_code_went_on_writing_is_read_as_any_other(claude_file: Any) -> None:
    (raw,) = write([conversation()], "claude-code").values()
    rows = [json.loads(row) for row in raw.splitlines()]
    last = next(row["uuid"] for row in reversed(rows) if "uuid" in row)
    claude_file.user("more", parentUuid=last)
    (found,) = read(raw + claude_file.bytes(), strict=True)
    assert [turn[0].text for turn in found.turns][-1].endswith("more")


def test_branches_are_files_of_their_own() -> None:
    branch = msgspec.structs.replace(conversation(), id="s1/b", parent="s1")
    files = write([conversation(), branch], "claude-code")
    assert list(files) == ["0000-s1.jsonl", "0001-s1_b.jsonl"]
    assert [read(raw)[0].id for raw in files.values()] == ["s1", "s1/b"]
