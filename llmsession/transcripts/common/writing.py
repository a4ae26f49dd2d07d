"""What writers share: file names, ids, and results that are stored inside the call they answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from llmsession.turns.blocks import block_type, encode_json, split_blocks
from llmsession.turns.messages import Message

from .conversation import Conversation
from .record import Record

__all__ = [
    "BESIDE",
    "Attached",
    "attached_results",
    "given_ids",
    "json_lines",
    "path_of",
    "plain_text",
    "results_id",
    "safe_name",
]

BESIDE = frozenset({"system_messages", "unplaced"})
"""Fields of a conversation's ``extra`` that are ours, not the source's."""


def path_of(index: int, conversation: Conversation, ending: str) -> str:
    """The file name of the conversation at *index*."""
    return f"{index:04}-{safe_name(conversation.id)}{ending}"


def safe_name(name: str) -> str:
    """*name* as a part of a file name."""
    return "".join(sign if sign.isalnum() or sign in "-_." else "_" for sign in name)[:100] or "_"


def json_lines(rows: Iterable[Any]) -> bytes:
    """One line of JSON for each of *rows*."""
    return b"".join(encode_json(row) + b"\n" for row in rows)


def given_ids(messages: Sequence[Message], groups: Sequence[Sequence[dict[str, Any]]]) -> None:
    """Write each message's id into all rows that it is written as; ``joined`` joins them again."""
    for message, group in zip(messages, groups, strict=True):
        for row in group:
            row["id"] = message.id


class Attached(msgspec.Struct, frozen=True):
    """A result, and the id of the message that contains it."""

    message: str
    block: bytes
    time: float

    @property
    def is_error(self) -> bool:
        """Did the tool fail?"""
        return Record.of(self.block).flag("is_error")


def results_id(reply: str) -> str:
    """The id of the message that holds the results of a reply, if the source has none."""
    return f"{reply}+results" if reply else ""


def attached_results(messages: Sequence[Message]) -> dict[str, Attached]:
    """The result of each call, by the call's id."""
    return {
        Record.of(raw).text("tool_use_id") or "": Attached(
            message.id, bytes(raw), message.completed_at
        )
        for message in messages
        if message.is_user
        for raw in split_blocks(message.body)
        if block_type(raw) == "tool_result"
    }


def plain_text(content: bytes | None) -> str | None:
    """The content of a result, if it is a text; else None."""
    if content is None or not content.startswith(b'"'):
        return None
    return msgspec.json.decode(content, type=str)
