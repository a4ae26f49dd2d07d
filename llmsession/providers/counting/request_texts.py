"""What is counted of a request: its texts, and parts that cost a flat number of tokens. Pure.

Images, documents and base64 cost a flat number, because their size in bytes says nothing about what
a provider charges for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from llmsession.turns.blocks import (
    Block,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    parse_blocks,
)

__all__ = ["Countable", "countable_json", "countable_message", "slices", "text_of_value"]

_FLAT_TYPES = frozenset({"image", "image_url", "input_image", "base64"})


class Countable(msgspec.Struct, frozen=True, gc=False):
    """The countable parts of a message.

    ``texts`` are counted as text. ``images`` have a flat cost. ``hidden_chars`` is the length of
    encrypted thinking, of which only the length is known. ``calls`` and ``results`` are the numbers
    of tool calls and tool results, which cost something beside their texts.
    """

    texts: tuple[str, ...]
    images: int = 0
    hidden_chars: int = 0
    calls: int = 0
    results: int = 0

    @property
    def chars(self) -> int:
        """The number of characters of all texts, the hidden ones included."""
        return self.hidden_chars + sum(map(len, self.texts))


def countable_message(body: bytes | msgspec.Raw) -> Countable:
    """What is counted of a message with *body*, the JSON list of its blocks. Raises nothing: an
    unreadable body counts as the text that it is.
    """
    try:
        blocks = parse_blocks(body)
        parts = [_countable_block(block) for block in blocks]
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return Countable((bytes(body).decode("utf-8", "replace"),))
    return Countable(
        tuple(text for part in parts for text in part.texts if text),
        sum(part.images for part in parts),
        sum(part.hidden_chars for part in parts),
        sum(part.calls for part in parts),
        sum(part.results for part in parts),
    )


def countable_json(raw: bytes | msgspec.Raw) -> str:
    """A tool's definition as text."""
    return bytes(raw).decode("utf-8", "replace")


def _countable_block(block: Block) -> Countable:
    match block:
        case TextBlock():
            return Countable((block.text,))
        case ThinkingBlock():
            return Countable((block.thinking,))
        case RedactedThinkingBlock():
            # Encrypted thinking is base64: four characters carry three bytes.
            return Countable((), hidden_chars=len(block.data) * 3 // 4)
        case ToolUseBlock():
            # The model wrote the input as text, so nothing in it has a flat cost.
            return Countable((block.name, text_of_value(block.input)), calls=1)
        case ToolResultBlock():
            return msgspec.structs.replace(_countable_value(block.content), results=1)
        case ImageBlock():
            return Countable((), images=1)
        case DocumentBlock():
            return _countable_document(block.source)
        case OpaqueBlock():
            return _countable_value(block.decoded())


def text_of_value(value: Any) -> str:
    """A JSON value as the text that a model reads or writes. Strings stand without quotes."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        # One parameter on each line, as most models are shown them. Escaped JSON would count too
        # much.
        return "\n".join(f"{name}: {text_of_value(item)}" for name, item in value.items())
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _countable_document(source: Any) -> Countable:
    # A document may also be plain text or a list of blocks; only the other kinds have a flat cost.
    if isinstance(source, dict):
        if source.get("type") == "text" and isinstance(source.get("data"), str):
            return Countable((source["data"],))
        if source.get("type") == "content" and isinstance(source.get("content"), str | list):
            return _countable_value(source["content"])
    return Countable((), images=1)


def _countable_value(value: Any) -> Countable:
    """What is counted of any JSON value, which may hold blocks. Works without recursion."""
    texts: list[str] = []
    images = 0
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            if item.startswith("data:") and ";base64," in item[:200]:
                images += 1
            else:
                texts.append(item)
        elif isinstance(item, list):
            pending.extend(reversed(item))
        elif isinstance(item, dict):
            kind = item.get("type")
            if kind == "document":
                document = _countable_document(item.get("source"))
                texts += document.texts
                images += document.images
            elif kind == "text" and isinstance(item.get("text"), str):
                texts.append(item["text"])
            elif isinstance(kind, str) and kind in _FLAT_TYPES:
                images += 1
            else:
                texts.append(" ".join(map(str, item)))
                pending.extend(reversed(item.values()))
        else:
            texts.append(str(item))
    return Countable(tuple(texts), images)


def slices(texts: Iterable[str], max_chars: int) -> Iterator[list[str]]:
    """*texts* in order, in batches of at most *max_chars* characters together. A longer text is
    cut, at a cost of about one token for each cut.
    """
    batch: list[str] = []
    room = max_chars
    for text in filter(None, texts):
        if len(text) > room and batch:
            yield batch
            batch, room = [], max_chars
        start = 0
        while len(text) - start > max_chars:
            yield [text[start : start + max_chars]]
            start += max_chars
        batch.append(text[start:])
        room -= len(text) - start
    if batch:
        yield batch
