"""Is the body of a Messages request of the right shape? Asked before any rule looks at it.

The fields and the words of the answers are those of the real API's validation (its SDK's types
and the texts that users report). The first fault is the one that is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from .shape_options import cache_control_faults, image_faults, option_faults

__all__ = ["BLOCKS", "shape_faults"]

Fields: TypeAlias = Mapping[str, Any]

MAX_MESSAGES = 100_000
ID = re.compile(r"[a-zA-Z0-9_-]+")

_KINDS: dict[type, str] = {
    str: "Input should be a valid string",
    dict: "Input should be a valid dictionary",
    list: "Input should be a valid list",
    bool: "Input should be a valid boolean",
}


class BlockShape(NamedTuple):
    """The fields that a block must have, with their kinds, and those that it may have."""

    required: dict[str, type]
    optional: Mapping[str, type | None] = MappingProxyType({})


_CACHED: dict[str, type | None] = {"cache_control": dict}
_CALLED: dict[str, type | None] = {**_CACHED, "caller": dict}

BLOCKS: dict[str, BlockShape] = {
    "text": BlockShape({"text": str}, {**_CACHED, "citations": list}),
    "image": BlockShape({"source": dict}, {**_CACHED, "transformations": None}),
    "document": BlockShape(
        {"source": dict}, {**_CACHED, "citations": dict, "context": str, "title": str}
    ),
    "search_result": BlockShape(
        {"content": list, "source": str, "title": str}, {**_CACHED, "citations": dict}
    ),
    "thinking": BlockShape({"signature": str, "thinking": str}),
    "redacted_thinking": BlockShape({"data": str}),
    "tool_use": BlockShape(
        {"id": str, "input": dict, "name": str}, {**_CALLED, "toolset_name": str}
    ),
    "tool_result": BlockShape(
        {"tool_use_id": str},
        {**_CACHED, "content": None, "is_error": bool, "toolset_name": str},
    ),
    "server_tool_use": BlockShape({"id": str, "input": dict, "name": str}, _CALLED),
    "mcp_tool_use": BlockShape(
        {"id": str, "input": dict, "name": str, "server_name": str}, _CACHED
    ),
    "container_upload": BlockShape({"file_id": str}, _CACHED),
    "compaction": BlockShape(
        {},
        {
            **_CACHED,
            "content": str,
            "encrypted_content": str,
            "signature": str,
            "tool_changes": list,
        },
    ),
    "tool_addition": BlockShape({"tool": dict}, _CACHED),
    "tool_removal": BlockShape({"tool": dict}, _CACHED),
    "tool_reference": BlockShape({"tool_name": str}, _CACHED),
}
_SERVER_RESULT = BlockShape({"tool_use_id": str}, {**_CALLED, "content": None, "is_error": bool})

_MESSAGE_FIELDS = {
    "user": {"role", "content"},
    "assistant": {"role", "content"},
    "system": {"role", "content", "clear_at", "output_config"},
}


def shape_faults(body: Fields, *, counting: bool) -> Iterator[str]:
    """What is wrong with the shape of a request; *counting* is for ``count_tokens``."""
    yield from _model_faults(body)
    if not counting:
        yield from _max_tokens_faults(body)
    yield from _message_list_faults(body)
    yield from _system_faults(body.get("system"))
    yield from option_faults(body, counting=counting)


def _model_faults(body: Fields) -> Iterator[str]:
    model = body.get("model")
    if model is None:
        yield "model: Field required"
    elif not isinstance(model, str):
        yield "model: Input should be a valid string"
    elif not model:
        yield "model: String should have at least 1 character"


def _max_tokens_faults(body: Fields) -> Iterator[str]:
    max_tokens = body.get("max_tokens")
    if max_tokens is None:
        yield "max_tokens: Field required"
    elif not isinstance(max_tokens, int) or isinstance(max_tokens, bool):
        yield "max_tokens: Input should be a valid integer"
    elif max_tokens < 1:
        yield "max_tokens: must be greater than or equal to 1"


def _message_list_faults(body: Fields) -> Iterator[str]:
    messages = body.get("messages")
    if messages is None:
        yield "messages: Field required"
    elif not isinstance(messages, list):
        yield "messages: Input should be a valid list"
    elif not messages:
        yield "messages: at least one message is required"
    elif len(messages) > MAX_MESSAGES:
        yield f"messages: List should have at most {MAX_MESSAGES} items, not {len(messages)}"
    else:
        for index, message in enumerate(messages):
            yield from _message_faults(f"messages.{index}", message)


def _message_faults(where: str, message: Any) -> Iterator[str]:
    if not isinstance(message, dict):
        yield f"{where}: Input should be a valid dictionary or object to extract fields from"
        return
    role = message.get("role")
    if role is None:
        yield f"{where}.role: Field required"
        return
    if not isinstance(role, str) or role not in _MESSAGE_FIELDS:
        yield f'messages: Unexpected role "{role}". Allowed roles are "user" or "assistant"'
        return
    for name in message:
        if name not in _MESSAGE_FIELDS[role]:
            yield f"{where}.{name}: Extra inputs are not permitted"
    yield from _content_faults(f"{where}.content", message.get("content"))


def _content_faults(where: str, content: Any) -> Iterator[str]:
    if content is None:
        yield f"{where}: Field required"
    elif isinstance(content, list):
        for index, block in enumerate(content):
            yield from _block_faults(f"{where}.{index}", block)
    elif not isinstance(content, str):
        yield f"{where}: Input should be a valid list"


def _block_faults(where: str, block: Any) -> Iterator[str]:
    if not isinstance(block, dict):
        yield f"{where}: Input should be a valid dictionary or object to extract fields from"
        return
    kind = block.get("type")
    if kind is None:
        yield f"{where}.type: Field required"
        return
    shape = _shape_of(kind)
    if shape is None:
        yield (
            f"{where}: Input tag '{kind}' found using 'type' does not match any of the expected"
            f" tags: {', '.join(repr(known) for known in BLOCKS)}"
        )
        return
    yield from _field_faults(f"{where}.{kind}", block, shape)
    yield from _inner_faults(where, kind, block)


def _shape_of(kind: Any) -> BlockShape | None:
    if not isinstance(kind, str):
        return None
    return BLOCKS.get(kind) or (_SERVER_RESULT if kind.endswith("_tool_result") else None)


def _field_faults(where: str, block: Fields, shape: BlockShape) -> Iterator[str]:
    for name, kind in shape.required.items():
        if name not in block:
            yield f"{where}.{name}: Field required"
        elif not isinstance(block[name], kind):
            yield f"{where}.{name}: {_KINDS[kind]}"
    for name, value in block.items():
        if name == "type" or name in shape.required:
            continue
        if name not in shape.optional:
            yield f"{where}.{name}: Extra inputs are not permitted"
        elif (maybe := shape.optional[name]) and not isinstance(value, maybe | None):
            yield f"{where}.{name}: {_KINDS[maybe]}"


def _inner_faults(where: str, kind: str, block: Fields) -> Iterator[str]:
    """What the fields of a block hold, once they are of their kinds."""
    if isinstance(control := block.get("cache_control"), dict):
        yield from cache_control_faults(f"{where}.{kind}.cache_control", control)
    if kind == "image" and isinstance(source := block.get("source"), dict):
        yield from image_faults(f"{where}.image.source", source)
    for name in {"tool_use": ["id"], "tool_result": ["tool_use_id"]}.get(kind, []):
        value = block.get(name)
        if isinstance(value, str) and ID.fullmatch(value) is None:
            yield f"{where}.{kind}.{name}: String should match pattern '^[a-zA-Z0-9_-]+$'"
    if kind == "tool_result" and block.get("content") is not None:
        yield from _content_faults(f"{where}.tool_result.content", block["content"])


def _system_faults(system: Any) -> Iterator[str]:
    if isinstance(system, list):
        for index, block in enumerate(system):
            if not isinstance(block, dict) or block.get("type") != "text":
                yield f"system.{index}.type: Input should be 'text'"
            else:
                # Here the place is said without the block's type.
                for fault in _block_faults(f"system.{index}", block):
                    yield fault.replace(f"system.{index}.text.", f"system.{index}.", 1)
    elif system is not None and not isinstance(system, str):
        yield "system: Input should be a valid list"
