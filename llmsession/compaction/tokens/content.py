"""The parts of a message that cost tokens: its texts, and parts with a flat cost. Works without
recursion.

Images, documents and base64 have a flat cost, because their size in bytes says nothing about their
price.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    is_thinking,
)
from llmsession.turns.messages import Message

__all__ = ["ContentCost", "blocks_cost", "content_cost"]

_FLAT_TYPES = frozenset({"image", "image_url", "input_image", "base64"})


class ContentCost(msgspec.Struct, gc=False):
    """The parts of content that cost tokens. It grows with each block that is added.

    - ``texts`` are counted as text, and ``mark_chars`` are the quotes, colons and commas around
      them.
    - ``flats`` is the number of images and documents.
    - ``calls`` and ``results`` are the numbers of tool calls and tool results.
    - ``signed`` has a pair for each thinking block: the length of its signature, or of its
      encrypted form, and its text, which may be a summary.
    """

    texts: list[str] = []
    mark_chars: int = 0
    flats: int = 0
    calls: int = 0
    results: int = 0
    signed: list[tuple[int, str]] = []

    @property
    def chars(self) -> int:
        """The number of all characters, including marks. Encrypted thinking is base64: four
        characters carry three bytes.
        """
        chars = sum(map(len, self.texts)) + self.mark_chars
        for signed, text in self.signed:
            chars += len(text) if text or not signed else signed * 3 // 4
        return chars

    def add_block(self, block: Block) -> None:
        """Add the cost of *block*."""
        # ``match`` and ``isinstance`` take five times as long to see that a struct is of another
        # class, and every block passes here.
        if block.__class__ is TextBlock:
            self.texts.append(block.text)
        elif block.__class__ is ToolUseBlock:
            self.calls += 1
            self.texts.append(block.name)
            self.add_value(block.input, flat=False)
        elif block.__class__ is ToolResultBlock:
            self.results += 1
            self.add_content(block.content)
        elif block.__class__ is ThinkingBlock:
            self.signed.append((len(block.signature or ""), block.thinking))
        elif block.__class__ is RedactedThinkingBlock:
            self.signed.append((len(block.data), ""))
        elif block.__class__ is ImageBlock:
            self.flats += 1
        elif block.__class__ is DocumentBlock:
            self._add_document(block.source)
        elif block.__class__ is OpaqueBlock:
            self.add_value(block.decoded())

    def add_content(self, content: str | Sequence[Any]) -> None:
        """Add a tool result's content."""
        if isinstance(content, str):
            self.texts.append(content)
            return
        for part in content:
            if isinstance(part, dict) and part.get("type") == "text":
                text = part.get("text")
                if isinstance(text, str):
                    self.texts.append(text)
                    continue
            self.add_value(part)

    def _add_document(self, source: Any) -> None:
        # A document may also be plain text or a list of blocks; only the other kinds have a flat
        # cost.
        if isinstance(source, dict):
            if source.get("type") == "text" and isinstance(source.get("data"), str):
                self.texts.append(source["data"])
                return
            if source.get("type") == "content" and isinstance(source.get("content"), str | list):
                self.add_content(source["content"])
                return
        self.flats += 1

    def add_value(self, value: Any, *, flat: bool = True) -> None:
        """Add any JSON value.

        Use *flat* False for a tool's input: the model wrote it as text, so it has no *flat* parts.
        """
        pending = [value]
        while pending:
            item = pending.pop()
            if isinstance(item, str):
                if flat and item.startswith("data:") and ";base64," in item[:200]:
                    self.flats += 1
                else:
                    self.texts.append(item)
            elif isinstance(item, dict):
                kind = item.get("type") if flat else None
                if kind == "document":
                    self._add_document(item.get("source"))
                elif isinstance(kind, str) and kind in _FLAT_TYPES:
                    self.flats += 1
                else:
                    # The quotes, the colon and the comma of each field.
                    self.mark_chars += 4 * len(item)
                    self.texts.extend(item)
                    pending.extend(item.values())
            elif isinstance(item, list):
                self.mark_chars += len(item)
                pending.extend(item)
            else:
                self.texts.append(str(item))


def blocks_cost(blocks: Iterable[Block]) -> ContentCost:
    """What a message of *blocks* costs."""
    cost = ContentCost()
    for block in blocks:
        cost.add_block(block)
    return cost


def content_cost(
    message: Message,
    *,
    texts: Mapping[str, str] | None = None,
    inputs: Mapping[str, msgspec.Raw] | None = None,
    shortened: Mapping[int, str] | None = None,
    thinking: bool = True,
) -> ContentCost:
    """What *message* costs.

    *texts* replace the results of these call ids, *inputs* (JSON) the inputs of these calls, and
    *shortened* the text blocks at these indexes. Without *thinking* its thinking blocks are left
    out.
    """
    cost = ContentCost()
    for index, block in enumerate(message.content):
        if not thinking and is_thinking(block):
            continue
        if texts and isinstance(block, ToolResultBlock) and block.tool_use_id in texts:
            cost.results += 1
            cost.texts.append(texts[block.tool_use_id])
        elif inputs and isinstance(block, ToolUseBlock) and block.id in inputs:
            cost.calls += 1
            cost.texts.append(block.name)
            cost.add_value(msgspec.json.decode(inputs[block.id]), flat=False)
        elif shortened and index in shortened:
            cost.texts.append(shortened[index])
        else:
            cost.add_block(block)
    return cost
