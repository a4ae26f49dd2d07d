"""Renders messages as text for a summariser: what was said, called and returned, with long parts
shortened.

Images and documents stay blocks beside the text, each behind a line that names its place, so that a
model that can see them can describe them. Pure: equal messages give equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import msgspec

from llmsession.turns.blocks import (
    Block,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    encode_json,
    join_blocks,
    text_block,
)
from llmsession.turns.messages import Message
from llmsession.turns.request import Profile

from ..tokens.messages import text_tokens_for
from .cap import cap_text
from .shorten import shorten_text

__all__ = [
    "RUNGS",
    "Caps",
    "Passage",
    "body_of",
    "is_media",
    "passage_tokens",
    "render",
    "render_result",
]

MAX_BLOCKS, MAX_BLOCK_CHARS = 20, 8_000_000
"""The most images and documents of one request, and their size in bytes; the newest are taken.
Providers refuse requests over 32 MB, and some refuse more than 20 large images.
"""
_MAX_NAME_CHARS = 100


class Caps(msgspec.Struct, frozen=True, gc=False):
    """The most characters of one tool result or of a call's input, and of one text."""

    tool_chars: int
    text_chars: int


RUNGS = (Caps(1_000, 200_000), Caps(400, 6_000), Caps(150, 1_500))
"""How much of each part is rendered: the first entry that fits into the allowed number of requests.
Other systems show their summarisers 1,000 characters of a result.
"""


class Media(msgspec.Struct, frozen=True):
    """An image or a document as JSON, and the text that replaces it where it is not shown."""

    raw: bytes
    label: str


Part: TypeAlias = str | Media


class Passage(msgspec.Struct, frozen=True):
    """What one message is rendered as: texts, with images and documents between them."""

    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """The whole passage as text."""
        return "\n".join(part if isinstance(part, str) else part.label for part in self.parts)


def render(messages: Sequence[Message], caps: Caps = RUNGS[0]) -> tuple[Passage, ...]:
    """A passage for each of *messages* that says something, in order. Thinking is left out."""
    tools = {call.id: call.name for message in messages for call in message.tool_calls}
    passages: list[Passage] = []
    for message in messages:
        parts: list[Part] = []
        for block in message.content:
            parts.extend(_rendered(block, tools, caps))
        if parts:
            who = "user" if message.is_user else "assistant"
            passages.append(Passage((f"[{message.turn_id}, {who}]", *parts)))
    return tuple(passages)


def render_result(result: ToolResultBlock, tool: str | None, max_chars: int) -> Passage:
    """One tool result by itself, its text at most *max_chars* characters long."""
    name = {} if tool is None else {result.tool_use_id: tool}
    return Passage(tuple(_result(result, name, max_chars)))


def _rendered(block: Block, tools: dict[str, str], caps: Caps) -> Iterable[Part]:
    match block:
        case TextBlock():
            if block.text.strip():
                yield shorten_text(block.text.strip(), caps.text_chars)
        case ToolUseBlock():
            text = encode_json(block.input).decode()
            yield f"call {block.id}: {_name(block.name)} {shorten_text(text, caps.tool_chars)}"
        case ToolResultBlock():
            yield from _result(block, tools, caps.tool_chars)
        case ImageBlock() | DocumentBlock():
            yield from _media({"type": _kind(block), "source": block.source}, "")
        case OpaqueBlock() if block.type not in ("thinking", "redacted_thinking", "text"):
            yield f"[{_name(block.type)}]"


def _kind(block: ImageBlock | DocumentBlock) -> str:
    return "image" if isinstance(block, ImageBlock) else "document"


def _name(name: str) -> str:
    return " ".join(name.split())[:_MAX_NAME_CHARS]


def _result(result: ToolResultBlock, tools: dict[str, str], max_chars: int) -> Iterable[Part]:
    call_id = result.tool_use_id
    tool = f" ({_name(tools[call_id])})" if call_id in tools else ""
    failed = ", an error" if result.is_error else ""
    text = result.text
    visible_text = cap_text(text, max_chars=max_chars, call_id=call_id) or text
    yield f"result of {call_id}{tool}{failed}: {visible_text.strip() or '(no text)'}"
    if not isinstance(result.content, str):
        for part in result.content:
            if is_media(part):
                yield from _media(part, f" in the result of {call_id}")


def is_media(part: Any) -> bool:
    """Is *part*, of a result's content, an image or a document?"""
    return isinstance(part, dict) and part.get("type") in ("image", "document")


def _media(fields: dict[str, Any], place: str) -> Iterable[Part]:
    label = f"[{fields['type']}{place}]"
    selection = {name: fields[name] for name in ("type", "source", "title") if fields.get(name)}
    if "source" in selection:
        yield label
        yield Media(encode_json(selection), f"[{fields['type']}: not shown here]")
    else:
        yield label


def passage_tokens(passage: Passage, profile: Profile) -> int:
    """The estimated tokens of *passage* for a model with *profile*."""
    return sum(
        text_tokens_for(part, profile) + 1 if isinstance(part, str) else profile.image_tokens
        for part in passage.parts
    )


def body_of(passages: Sequence[Passage], *, shows_media: bool) -> tuple[msgspec.Raw, bool]:
    """The content of a user message with *passages*, and whether it holds images or documents.

    If *shows_media*, the newest images and documents are included, as far as the bounds of a
    request allow.
    """
    indexes = _shown_media(passages) if shows_media else frozenset[int]()
    blocks: list[bytes] = []
    texts: list[str] = []
    for passage in passages:
        for index, part in enumerate(passage.parts):
            if isinstance(part, str):
                texts.append(part)
            elif id(part) in indexes:
                blocks.append(text_block("\n".join(texts) or "-"))
                blocks.append(part.raw)
                texts = []
            else:
                texts.append(part.label)
            if index == len(passage.parts) - 1:
                texts.append("")
    text = "\n".join(texts).strip()
    if text:
        blocks.append(text_block(text))
    return join_blocks(blocks), bool(indexes)


def _shown_media(passages: Sequence[Passage]) -> frozenset[int]:
    room, indexes = MAX_BLOCK_CHARS, set[int]()
    for passage in reversed(passages):
        for part in reversed(passage.parts):
            if isinstance(part, Media) and len(indexes) < MAX_BLOCKS and len(part.raw) <= room:
                room -= len(part.raw)
                indexes.add(id(part))
    return frozenset(indexes)
