"""Translates content between the forms of OpenAI's and Anthropic's interfaces and our blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from llmsession.turns.blocks import block_type, encode_json, split_blocks, text_block

from .conversation import Note
from .record import Record
from .recorded_message import image_block, image_url

__all__ = [
    "Parts",
    "blocks_of",
    "has_other_fields",
    "openai_blocks",
    "openai_parts",
    "result_content",
    "without_unsigned",
]

Parts: TypeAlias = Literal["chat", "user_items", "assistant_items"]
"""Which part types to use: those of chat messages, or those of Responses items by their role."""

_TEXT_PART: dict[Parts, str] = {
    "chat": "text",
    "user_items": "input_text",
    "assistant_items": "output_text",
}
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_NOTHING = (b"null", b"[]", b"{}", b'""')


def blocks_of(content: bytes | None, number: int, notes: list[Note]) -> list[bytes]:
    """Anthropic's content, a text or a list of blocks, as blocks. What is neither is noted."""
    if content is None:
        return []
    if content.startswith(b'"'):
        text = msgspec.json.decode(content, type=str)
        return [text_block(text)] if text else []
    if not content.startswith(b"["):
        notes.append(
            Note(number, "bad_content", "the content is neither text nor a list", visible=True)
        )
        return []
    blocks = []
    for raw in split_blocks(content):
        if block_type(raw):
            blocks.append(bytes(raw))
        else:
            notes.append(Note(number, "bad_block", "a block without a type", visible=True))
    return blocks


def without_unsigned(
    blocks: Sequence[bytes],
    number: int,
    notes: list[Note],
    extra: dict[str, Any],
    foreign: str = "",
) -> list[bytes]:
    """The blocks of the message *number* that can be sent.

    Thinking without a signature cannot be sent and is kept in *extra*, followed by blocks of the
    type *foreign*.
    """
    unsigned = [
        raw
        for raw in blocks
        if block_type(raw) == "thinking" and not Record.of(raw).text("signature")
    ]
    unsent = unsigned + [raw for raw in blocks if foreign and block_type(raw) == foreign]
    if unsent:
        extra["unsigned_thinking"] = [msgspec.Raw(raw) for raw in unsent]
        notes.append(Note(number, "unsigned_thinking", "kept in extra, never sent"))
    return [raw for raw in blocks if raw not in unsent]


def openai_blocks(content: bytes | None, number: int, notes: list[Note]) -> list[bytes]:
    """OpenAI's content, a text or a list of parts, as blocks. A part of an unknown kind stays
    unchanged, as a block of that type.
    """
    if content is None or content.startswith(b'"'):
        return blocks_of(content, number, notes)
    blocks = []
    for raw in blocks_of(content, number, notes):
        part = Record.of(raw)
        kind = block_type(raw)
        text = part.text(_TEXTS.get(kind, ""))
        url = _url_of(part) if kind in ("image_url", "input_image") else None
        if text is not None:
            blocks.append(text_block(text))
        elif url is not None:
            blocks.append(image_block(url))
        else:
            blocks.append(raw)
    return blocks


def _url_of(part: Record) -> str | None:
    return part.text("image_url") or part.record("image_url").text("url")


def has_other_fields(content: bytes | None) -> bool:
    """Do the parts of *content* contain more than texts and images?"""
    if content is None or not content.startswith(b"["):
        return False
    for raw in split_blocks(content):
        rest = Record.of(raw).rest({"type", "text", "refusal", "image_url"})
        if any(bytes(value) not in _NOTHING for value in rest.values()):
            return True
        if "detail" in Record.of(raw).record("image_url").fields:
            return True
    return False


def openai_parts(
    blocks: Sequence[bytes], words: Parts, recorded: bytes | msgspec.Raw | None = None
) -> Any:
    """Blocks as OpenAI's content.

    The result is *recorded*, the parts that the blocks were read from, if it still matches them;
    for a chat message with a single text, that text; else parts.
    """
    if recorded is not None and openai_blocks(bytes(recorded), 0, []) == list(blocks):
        return msgspec.Raw(bytes(recorded))
    parts = [_part(raw, words) for raw in blocks]
    if words == "chat" and len(parts) == 1 and isinstance(parts[0], dict):
        return parts[0].get("text", parts)
    return parts


def _part(raw: bytes, words: Parts) -> Any:
    block = Record.of(raw)
    match block_type(raw):
        case "text":
            return {"type": _TEXT_PART[words], "text": block.text("text") or ""}
        case "image":
            url = image_url(block.value("source"))
            if url is not None and words == "chat":
                return {"type": "image_url", "image_url": {"url": url}}
            if url is not None:
                return {"type": "input_image", "image_url": url}
    return msgspec.Raw(raw)


def result_content(result: bytes, words: Parts) -> Any:
    """The content of a tool_result block, as OpenAI's content."""
    content = Record.of(result).raw("content") or b'""'
    if content.startswith(b'"'):
        return msgspec.Raw(content)
    parts = [_part(bytes(raw), words) for raw in split_blocks(content)]
    return msgspec.Raw(encode_json(parts))
