"""Results of formats that keep them inside of the call that they answer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from llmsession.turns.blocks import block_type, split_blocks
from llmsession.turns.messages import Message

from .record import Record

__all__ = ["Attached", "attached_results", "plain_text", "results_id"]


class Attached(msgspec.Struct, frozen=True):
    """A result, and the id of the message that it stands in."""

    message: str
    block: bytes
    at: float

    @property
    def is_error(self) -> bool:
        """Did the tool fail?"""
        return Record.of(self.block).flag("is_error")


def results_id(reply: str) -> str:
    """The id of the message that the results of a reply make, where the source has none."""
    return f"{reply}+results" if reply else ""


def attached_results(messages: Sequence[Message]) -> dict[str, Attached]:
    """The result of each call."""
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
    """The content of a result, if it is a text."""
    if content is None or not content.startswith(b'"'):
        return None
    return msgspec.json.decode(content, type=str)
