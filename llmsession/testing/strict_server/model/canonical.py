"""One form for what means the same: what signatures are bound to and prefixes are known by.

Left out are breakpoints, fields that are null or say the default, and the difference between a
text and a list of one text block. Keys are sorted; a block is what it says, not how it came.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from .request import blocks_of

__all__ = ["canonical_block", "canonical_json", "canonical_tool"]

_encoder = msgspec.json.Encoder(order="sorted")

_DEFAULTS: dict[str, list[Any]] = {
    "is_error": [False],
    "citations": [[]],
    "caller": [{"type": "direct"}],
}


def canonical_json(value: Any) -> bytes:
    """Any JSON value, its keys sorted."""
    return _encoder.encode(value)


def canonical_block(block: Mapping[str, Any]) -> bytes:
    """One block of content."""
    return canonical_json(_plain(block))


def canonical_tool(tool: Mapping[str, Any]) -> bytes:
    """One tool definition."""
    fields = {name: value for name, value in tool.items() if value is not None}
    fields.pop("cache_control", None)
    return canonical_json(fields)


def _plain(block: Mapping[str, Any]) -> dict[str, Any]:
    fields = {
        name: value
        for name, value in block.items()
        if value is not None and name != "cache_control" and value not in _DEFAULTS.get(name, ())
    }
    # The input of a call is the model's own, whatever its fields are named.
    if fields.get("type") == "tool_result":
        inner = blocks_of(fields.pop("content", None) or [])
        fields["content"] = [_plain(one) for one in inner]
    return fields
