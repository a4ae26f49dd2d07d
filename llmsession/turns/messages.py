"""Messages: immutable, with content in the provider's format and our metadata beside it."""

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
    """One message. ``body`` is its content as JSON bytes; ``content`` reads them once.

    Times are seconds since the epoch. ``synthetic`` holds the indexes of the blocks that the
    session wrote itself: receipts, and results that settle a call. ``model``, ``provider``,
    ``usage``, ``stop_reason`` and ``error`` are an assistant's. ``extra`` is a JSON object with
    the fields that an imported message had beside these; UNSET, which is false, without any.
    """

    id: str
    session: str
    turn: int
    role: Role
    body: msgspec.Raw
    created_at: float = 0.0
    completed_at: float = 0.0
    synthetic: tuple[int, ...] = ()
    model: str | None = None
    provider: str | None = None
    usage: Usage | None = None
    stop_reason: str | None = None
    error: str | None = None
    # Not None: msgspec reads "Raw or null" as null alone.
    extra: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def turn_id(self) -> TurnId:
        """The side and the turn of the message: ``u7`` or ``a7``."""
        return TurnId("u" if self.role == "user" else "a", self.turn)

    @property
    def is_user(self) -> bool:
        """Is it of the user's side? Tool results are."""
        return self.role == "user"

    @property
    def is_assistant(self) -> bool:
        """Is it of the assistant?"""
        return self.role == "assistant"

    @cached_property
    def content(self) -> tuple[Block, ...]:
        """The blocks, parsed on first use and kept."""
        return parse_blocks(self.body)

    @property
    def text(self) -> str:
        """The text blocks, joined; without receipts."""
        return "".join(
            block.text
            for index, block in enumerate(self.content)
            if isinstance(block, TextBlock) and index not in self.synthetic
        )

    @property
    def tool_calls(self) -> tuple[ToolUseBlock, ...]:
        """The calls in it, in order; the provider's own tools are not among them."""
        return tuple(block for block in self.content if isinstance(block, ToolUseBlock))

    @property
    def tool_results(self) -> tuple[ToolResultBlock, ...]:
        """The results in it, in order."""
        return tuple(block for block in self.content if isinstance(block, ToolResultBlock))

    @property
    def opaque(self) -> tuple[OpaqueBlock, ...]:
        """The blocks of types that we do not know, in order."""
        return tuple(block for block in self.content if isinstance(block, OpaqueBlock))


def message_id(session: str, turn: TurnId, position: int) -> str:
    """The deterministic id of the *position*-th message (from 0) of its side of a turn."""
    return f"{session}/{turn.owner}{turn.number}.{position}"


def message_name(session: str, role: Role, turn: int, position: int) -> str:
    """As ``message_id``, without a TurnId: a fold makes thousands."""
    side = "u" if role == "user" else "a"
    return f"{session}/{side}{turn}.{position}"


def count_turns(messages: Iterable[Message]) -> int:
    """How many turns *messages* belong to. u1 and a1 are one turn."""
    return len({message.turn for message in messages})
