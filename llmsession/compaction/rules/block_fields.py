"""The few fields of a block that validity rules and repair look at. Reading them is fast and never
fails.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

__all__ = [
    "BlockFields",
    "Fault",
    "RuleViolation",
    "is_server_call",
    "is_server_result",
    "read_block",
    "read_blocks",
]


class RuleViolation(msgspec.Struct, frozen=True):
    """A broken validity rule. ``where`` is a path into the request, for example
    ``messages[4].content[0]``. ``text`` is the provider's answer to such a request, if it is known.
    """

    rule: str
    where: str
    text: str


class Fault(NamedTuple):
    """A rule that one message breaks by itself. ``place`` is the path inside that message."""

    rule: str
    place: str
    text: str


class BlockFields(msgspec.Struct, frozen=True, gc=False):
    """One block. All fields but ``type`` are as received, of any JSON type; None if absent."""

    type: str = ""
    id: Any = None
    name: Any = None
    tool_use_id: Any = None
    text: Any = None
    signature: Any = None
    is_error: Any = None
    cache_control: Any = None
    content: msgspec.Raw = msgspec.Raw(b"null")

    def inner(self) -> list[BlockFields]:
        """The blocks in ``content``; empty if it is text or absent."""
        # The first byte of a text, or of null. Trying to read it as blocks costs an exception.
        is_text = memoryview(self.content)[0] in b'"n'
        return [] if is_text else read_blocks(self.content) or []


_block = msgspec.json.Decoder(BlockFields)
_blocks = msgspec.json.Decoder(list[BlockFields])


def read_block(raw: bytes | msgspec.Raw) -> BlockFields:
    """One block, or one tool definition. All fields are empty if it is not a JSON object."""
    try:
        return _block.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return BlockFields()


def read_blocks(body: bytes | msgspec.Raw) -> list[BlockFields] | None:
    """The blocks of *body* in order; None if it is not a JSON list of objects with a type."""
    try:
        return _blocks.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None


def is_server_call(kind: str) -> bool:
    """Is *kind* the type of a call that the provider runs itself?"""
    return kind in ("server_tool_use", "mcp_tool_use")


def is_server_result(kind: str) -> bool:
    """Is *kind* the type of a result, which for a server tool the provider made itself?"""
    return kind.endswith("_tool_result")
