"""How the strict server counts: simple, the same for everyone, and additive over blocks.

A text is one token for each 4 bytes of its UTF-8, rounded up; any other value is counted as its
compact JSON. A block costs 3 tokens more, a message 4, an image 1,600, a document 3,000. No real
model counts so; what matters is that equal prefixes have equal counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llmsession.turns.blocks import encode_json

__all__ = ["BLOCK_TOKENS", "MESSAGE_TOKENS", "block_tokens", "text_tokens", "value_tokens"]

BYTES_PER_TOKEN = 4
BLOCK_TOKENS = 3
MESSAGE_TOKENS = 4
IMAGE_TOKENS = 1600
DOCUMENT_TOKENS = 3000

_FLAT = {
    "image": IMAGE_TOKENS,
    "image_url": IMAGE_TOKENS,
    "document": DOCUMENT_TOKENS,
    "file": DOCUMENT_TOKENS,
}
_NOT_READ = {"type", "id", "tool_use_id", "signature", "cache_control", "caller", "citations"}
"""Fields of a block that the model does not read as text."""


def text_tokens(text: str) -> int:
    """The tokens of a text; 0 if it is empty."""
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def value_tokens(value: Any) -> int:
    """The tokens of any JSON value."""
    if isinstance(value, str):
        return text_tokens(value)
    return -(-len(encode_json(value)) // BYTES_PER_TOKEN)


def block_tokens(block: Mapping[str, Any]) -> int:
    """The tokens of one block of content, what is nested in it included."""
    flat = _FLAT.get(str(block.get("type")))
    if flat is not None:
        return flat
    return BLOCK_TOKENS + sum(
        _field_tokens(value) for name, value in block.items() if name not in _NOT_READ
    )


def _field_tokens(value: Any) -> int:
    if value is None or isinstance(value, bool):
        return 0
    if isinstance(value, list) and value and all(_is_block(item) for item in value):
        return _all_tokens(value)
    return value_tokens(value)


def _all_tokens(blocks: Iterable[Mapping[str, Any]]) -> int:
    return sum(block_tokens(block) for block in blocks)


def _is_block(value: Any) -> bool:
    return isinstance(value, dict) and "type" in value
