"""Tokens by characters: an estimate that needs no vocabulary, no network and no time.

Text counts by its decoded characters. Images, documents and base64 are a flat cost, because
their bytes say nothing about what a model is charged for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

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
)
from llmsession.turns.messages import Message
from llmsession.turns.request import Profile

from .projection import Frame, is_thinking
from .view import View

__all__ = [
    "MESSAGE_OVERHEAD_TOKENS",
    "Ledger",
    "content_weight",
    "context_tokens",
    "estimate_text_tokens",
    "frame_tokens",
    "message_tokens",
]

MESSAGE_OVERHEAD_TOKENS = 4
"""Role and separators of one message."""

_FLAT_TYPES = frozenset({"image", "image_url", "input_image", "base64"})


def estimate_text_tokens(chars: int, profile: Profile) -> int:
    """The tokens of *chars* characters of text, rounded up."""
    return max(0, math.ceil(chars / profile.chars_per_token))


def message_tokens(
    message: Message,
    profile: Profile,
    *,
    texts: Mapping[str, str] | None = None,
    thinking: bool = True,
) -> int:
    """The estimated tokens of *message*.

    *texts* are shown in place of the results of these call ids; without *thinking* its thinking
    blocks are left out.
    """
    chars = flats = 0
    for block in message.content:
        if not thinking and is_thinking(block):
            continue
        if texts and isinstance(block, ToolResultBlock) and block.tool_use_id in texts:
            chars += len(texts[block.tool_use_id])
            continue
        more_chars, more_flats = _block_weight(block)
        chars += more_chars
        flats += more_flats
    text_tokens = estimate_text_tokens(chars, profile)
    return text_tokens + flats * profile.image_tokens + MESSAGE_OVERHEAD_TOKENS


def context_tokens(
    messages: Sequence[Message], view: View, profile: Profile, *, start: int = 0
) -> int:
    """The estimated tokens of *messages* as *view* shows them, without system and tools.

    Messages before position *start* are not counted.
    """
    total = 0
    for position in range(start, len(messages)):
        message = messages[position]
        texts = {
            result.tool_use_id: text
            for result in message.tool_results
            if (text := view.text_for(result.tool_use_id, position)) is not None
        }
        thinking = position >= view.thinking_from
        total += message_tokens(message, profile, texts=texts, thinking=thinking)
    return total


_CAREFUL = Profile()


def frame_tokens(frame: Frame, profile: Profile = _CAREFUL) -> int:
    """The estimated tokens of the system text and the tool definitions."""
    chars = len(frame.system or "") + sum(len(bytes(tool).decode()) for tool in frame.tools)
    return estimate_text_tokens(chars, profile)


class Ledger:
    """Tokens per message, each counted once, with running sums.

    The sequences asked for are histories: a message that stands at a position always has the
    same messages before it. So only the newest known position is compared, and a total after
    an append costs the new messages alone.
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._tokens: dict[str, int] = {}
        self._messages: list[Message] = []
        self._sums = [0]

    def tokens(self, message: Message) -> int:
        """The estimate of one message."""
        known = self._tokens.get(message.id)
        if known is None:
            known = self._tokens[message.id] = message_tokens(message, self._profile)
        return known

    def total(self, messages: Sequence[Message]) -> int:
        """The sum over *messages*, as they are stored: full results, with thinking."""
        at = shared = min(len(messages), len(self._messages))
        while at and messages[at - 1] is not self._messages[at - 1]:
            at -= 1
        if at < shared:
            del self._messages[at:]
            del self._sums[at + 1 :]
        for position in range(len(self._messages), len(messages)):
            message = messages[position]
            self._messages.append(message)
            self._sums.append(self._sums[-1] + self.tokens(message))
        return self._sums[len(messages)]


def content_weight(content: str | Sequence[Any]) -> tuple[int, int]:
    """Characters, and the number of flat costs, of a tool result's content."""
    if isinstance(content, str):
        return len(content), 0
    chars = flats = 0
    for part in content:
        if isinstance(part, dict) and isinstance(part.get("text"), str) and _is_text(part):
            chars += len(part["text"])
            continue
        more_chars, more_flats = _value_weight(part)
        chars += more_chars
        flats += more_flats
    return chars, flats


def _is_text(part: dict[str, Any]) -> bool:
    return part.get("type") == "text"


def _block_weight(block: Block) -> tuple[int, int]:
    match block:
        case TextBlock():
            return len(block.text), 0
        case ThinkingBlock():
            return len(block.thinking), 0
        case RedactedThinkingBlock():
            # Encrypted thinking in base64: four characters carry three bytes of it.
            return len(block.data) * 3 // 4, 0
        case ToolUseBlock():
            return len(block.name) + _value_weight(block.input, flat=False)[0], 0
        case ToolResultBlock():
            return content_weight(block.content)
        case ImageBlock():
            return 0, 1
        case DocumentBlock():
            return _document_weight(block.source)
        case OpaqueBlock():
            return _value_weight(block.decoded())


def _document_weight(source: Any) -> tuple[int, int]:
    # A document may also be plain text or a list of blocks; only the others are flat.
    if isinstance(source, dict):
        if source.get("type") == "text" and isinstance(source.get("data"), str):
            return len(source["data"]), 0
        if source.get("type") == "content" and isinstance(source.get("content"), str | list):
            return content_weight(source["content"])
    return 0, 1


def _value_weight(value: Any, *, flat: bool = True) -> tuple[int, int]:
    """Characters and flat costs of a JSON value, without recursion. A tool's input was written
    by the model as text, so it has no flat parts."""
    chars = flats = 0
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            if flat and item.startswith("data:") and ";base64," in item[:200]:
                flats += 1
            else:
                chars += len(item)
        elif isinstance(item, dict):
            kind = item.get("type") if flat else None
            if kind == "document":
                more_chars, more_flats = _document_weight(item.get("source"))
                chars += more_chars
                flats += more_flats
            elif isinstance(kind, str) and kind in _FLAT_TYPES:
                flats += 1
            else:
                # Quotes, colon and comma of each field.
                chars += sum(len(key) + 4 for key in item)
                pending.extend(item.values())
        elif isinstance(item, list):
            chars += len(item)
            pending.extend(item)
        else:
            chars += len(str(item))
    return chars, flats
