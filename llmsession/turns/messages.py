"""Messages: immutable, with the content in the provider's format and our metadata beside it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Literal, TypeAlias

import msgspec

from .blocks import Block, OpaqueBlock, TextBlock, ToolResultBlock, ToolUseBlock, parse_blocks
from .ids import TurnId
from .usage import Usage

__all__ = ["Message", "Role", "count_turns", "message_id", "message_name"]

Role: TypeAlias = Literal["user", "assistant"]
"""Who a message is from."""


class Message(
    msgspec.Struct, frozen=True, dict=True, kw_only=True, omit_defaults=True,
    rename={"body": "content"},
):  # fmt: skip
    """One message of a conversation.

    Times are in seconds since the epoch. ``model``, ``provider``, ``usage``, ``stop_reason`` and
    ``error`` are set on the assistant's messages only.
    """

    id: str
    """The message's id. It is deterministic: folding the log again gives the same one."""
    session: str
    """The session in which the message was made. In a fork it may be an ancestor's id."""
    turn: int
    """The number of its turn."""
    role: Role
    body: msgspec.Raw
    """The content as JSON bytes. ``content`` reads them."""
    created_at: float = 0.0
    """When the message was begun: for a reply, when its stream was opened."""
    completed_at: float = 0.0
    """When the message was complete."""
    synthetic: tuple[int, ...] = ()
    """The indexes of blocks that the session wrote itself: a seed, receipts, and results that
    settle a call.
    """
    model: str | None = None
    provider: str | None = None
    usage: Usage | None = None
    stop_reason: str | None = None
    error: str | None = None
    # UNSET instead of None, because msgspec reads "Raw or null" as null only.
    extra: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """Other fields of an imported message, as a JSON object. UNSET, which is false, if none."""

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def turn_id(self) -> TurnId:
        """The side and the number of the message's turn: ``u7`` or ``a7``."""
        return TurnId("u" if self.role == "user" else "a", self.turn)

    @property
    def is_user(self) -> bool:
        """Is it a user message? Messages with tool results are."""
        return self.role == "user"

    @property
    def is_assistant(self) -> bool:
        """Is it an assistant message?"""
        return self.role == "assistant"

    @cached_property
    def content(self) -> tuple[Block, ...]:
        """The blocks, parsed on first use and cached."""
        return parse_blocks(self.body)

    @property
    def text(self) -> str:
        """The text blocks, joined, without those that the session wrote itself."""
        return "".join(
            block.text
            for index, block in enumerate(self.content)
            if isinstance(block, TextBlock) and index not in self.synthetic
        )

    @property
    def tool_calls(self) -> tuple[ToolUseBlock, ...]:
        """The tool calls in it, in order, without calls of the provider's own tools."""
        return tuple(block for block in self.content if isinstance(block, ToolUseBlock))

    @property
    def tool_results(self) -> tuple[ToolResultBlock, ...]:
        """The tool results in it, in order."""
        return tuple(block for block in self.content if isinstance(block, ToolResultBlock))

    @property
    def opaque(self) -> tuple[OpaqueBlock, ...]:
        """The blocks of unknown types, in order."""
        return tuple(block for block in self.content if isinstance(block, OpaqueBlock))


def message_id(session: str, turn: TurnId, position: int) -> str:
    """The deterministic id of message number *position* (from 0) of one side of a turn."""
    return f"{session}/{turn.owner}{turn.number}.{position}"


def message_name(session: str, role: Role, turn: int, position: int) -> str:
    """The same as ``message_id`` without a TurnId, because a fold makes thousands of ids."""
    side = "u" if role == "user" else "a"
    return f"{session}/{side}{turn}.{position}"


def count_turns(messages: Iterable[Message]) -> int:
    """The number of turns that *messages* belong to. u1 and a1 are one turn."""
    return len({message.turn for message in messages})
