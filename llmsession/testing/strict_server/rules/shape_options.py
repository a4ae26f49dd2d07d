"""The shape of what goes beside the messages, and of cache breakpoints and images."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

__all__ = ["cache_control_faults", "image_faults", "option_faults"]

Fields: TypeAlias = Mapping[str, Any]

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
OWN_TOOL = re.compile(r"\w+_20\d{6}|mcp_toolset")
MIN_BUDGET_TOKENS = 1024
MAX_IMAGE_BYTES = 5 * 1024 * 1024

_COUNTED = {
    "billing_policy", "cache_control", "compaction", "context_management", "mcp_servers",
    "messages", "model", "output_config", "output_format", "speed", "system", "thinking",
    "tool_choice", "tools", "user_profile_id", "workspace_id",
}  # fmt: skip
_REPLIED = _COUNTED | {
    "container", "diagnostics", "fallback_credit_token", "fallbacks", "inference_geo",
    "max_tokens", "metadata", "service_tier", "stop_sequences", "stream", "temperature", "thread",
    "top_k", "top_p",
}  # fmt: skip
"""The parameters of a request, as SDK 2.11 knows them."""

_KINDS: dict[str, tuple[type, str]] = {
    "cache_control": (dict, "dictionary"),
    "compaction": (dict, "dictionary"),
    "context_management": (dict, "dictionary"),
    "mcp_servers": (list, "list"),
    "metadata": (dict, "dictionary"),
    "output_config": (dict, "dictionary"),
    "stop_sequences": (list, "list"),
    "stream": (bool, "boolean"),
    "thinking": (dict, "dictionary"),
    "tool_choice": (dict, "dictionary"),
    "tools": (list, "list"),
}
_TOOL_FIELDS = {
    "allowed_callers", "cache_control", "defer_loading", "description", "eager_input_streaming",
    "input_examples", "input_schema", "name", "strict", "type",
}  # fmt: skip
_THINKING_FIELDS = {
    "enabled": {"type", "budget_tokens", "display", "block_binding"},
    "adaptive": {"type", "display", "block_binding"},
    "disabled": {"type"},
}
_MEDIA_TYPES = {
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}


def option_faults(body: Fields, *, counting: bool) -> Iterator[str]:
    """What is wrong with the shape of everything but model, messages and system."""
    for name in body:
        if name not in (_COUNTED if counting else _REPLIED):
            yield f"{name}: Extra inputs are not permitted"
    for name, (kind, said) in _KINDS.items():
        if not isinstance(body.get(name), kind | None):
            yield f"{name}: Input should be a valid {said}"
            return
    management = body.get("context_management") or {}
    if not isinstance(management.get("edits"), list | None):
        yield "context_management.edits: Input should be a valid list"
    yield from _tool_faults(body.get("tools"))
    yield from _choice_faults(body)
    yield from _thinking_faults(body.get("thinking"))
    yield from _sampling_faults(body)
    if body.get("cache_control") is not None:
        yield from cache_control_faults("cache_control", body["cache_control"])


def _tool_faults(tools: Any) -> Iterator[str]:
    for index, tool in enumerate(tools or ()):
        place = f"tools.{index}"
        if not isinstance(tool, dict):
            yield f"{place}: Input should be a valid dictionary or object to extract fields from"
            continue
        kind = tool.get("type") or "custom"
        if kind == "custom":
            yield from _custom_tool_faults(f"{place}.custom", tool)
        elif not isinstance(kind, str) or OWN_TOOL.fullmatch(kind) is None:
            yield (
                f"{place}: Input tag '{kind}' found using 'type' does not match any of the"
                " expected tags: 'custom', and the dated types of the provider's own tools"
            )
        elif not isinstance(tool.get("name"), str | None):
            yield f"{place}.name: Input should be a valid string"
        if tool.get("cache_control") is not None:
            yield from cache_control_faults(f"{place}.cache_control", tool["cache_control"])


def _custom_tool_faults(where: str, tool: Fields) -> Iterator[str]:
    name = tool.get("name")
    if name is None:
        yield f"{where}.name: Field required"
    elif not isinstance(name, str):
        yield f"{where}.name: Input should be a valid string"
    elif not name:
        yield f"{where}.name: String should have at least 1 character"
    elif len(name) > 128:
        yield f"{where}.name: String should have at most 128 characters"
    elif TOOL_NAME.fullmatch(name) is None:
        yield f"{where}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
    schema = tool.get("input_schema")
    if schema is None:
        yield f"{where}.input_schema: Field required"
    elif not isinstance(schema, dict):
        yield f"{where}.input_schema: Input should be a valid dictionary"
    elif "type" not in schema:
        yield f"{where}.input_schema.type: Field required"
    elif schema["type"] != "object":
        yield f"{where}.input_schema.type: Input should be 'object'"
    for field in tool:
        if field not in _TOOL_FIELDS:
            yield f"{where}.{field}: Extra inputs are not permitted"


def _choice_faults(body: Fields) -> Iterator[str]:
    choice = body.get("tool_choice")
    if choice is None:
        return
    kind = choice.get("type")
    if kind not in ("auto", "any", "tool", "none"):
        yield (
            f"tool_choice: Input tag '{kind}' found using 'type' does not match any of the"
            " expected tags: 'any', 'auto', 'none', 'tool'"
        )
    elif kind == "tool" and "name" not in choice:
        yield "tool_choice.tool.name: Field required"
    elif kind == "tool" and not isinstance(choice["name"], str):
        yield "tool_choice.tool.name: Input should be a valid string"


def _thinking_faults(thinking: Any) -> Iterator[str]:
    if thinking is None:
        return
    kind = thinking.get("type")
    if not isinstance(kind, str) or kind not in _THINKING_FIELDS:
        yield (
            f"thinking: Input tag '{kind}' found using 'type' does not match any of the expected"
            " tags: 'adaptive', 'disabled', 'enabled'"
        )
        return
    budget = thinking.get("budget_tokens")
    if kind == "enabled" and budget is None:
        yield "thinking.enabled.budget_tokens: Field required"
    elif kind == "enabled" and (not isinstance(budget, int) or isinstance(budget, bool)):
        yield "thinking.enabled.budget_tokens: Input should be a valid integer"
    elif kind == "enabled" and budget < MIN_BUDGET_TOKENS:
        yield (
            "thinking.enabled.budget_tokens: Input should be greater than or equal to"
            f" {MIN_BUDGET_TOKENS}"
        )
    for field in thinking:
        if field not in _THINKING_FIELDS[kind]:
            yield f"thinking.{kind}.{field}: Extra inputs are not permitted"
    if not isinstance(thinking.get("block_binding"), dict | None):
        yield f"thinking.{kind}.block_binding: Input should be a valid dictionary"


def _sampling_faults(body: Fields) -> Iterator[str]:
    for name in ("temperature", "top_p"):
        value = body.get(name)
        if value is not None and not isinstance(value, int | float):
            yield f"{name}: Input should be a valid number"
        elif value is not None and not 0 <= value <= 1:
            yield f"{name}: range: 0..1"
    for sequence in body.get("stop_sequences") or ():
        if not isinstance(sequence, str) or not sequence.strip():
            yield "stop_sequences: each stop sequence must contain non-whitespace"


def cache_control_faults(where: str, control: Any) -> Iterator[str]:
    """What is wrong with one breakpoint by itself."""
    if not isinstance(control, dict):
        yield f"{where}: Input should be a valid dictionary"
        return
    if control.get("type") != "ephemeral":
        yield (
            f"{where}: Input tag '{control.get('type')}' found using 'type' does not match any of"
            " the expected tags: 'ephemeral'"
        )
    elif control.get("ttl") not in (None, "5m", "1h"):
        yield f"{where}.ephemeral.ttl: Input should be '5m' or '1h'"
    for name in control:
        if name not in ("type", "ttl", "scope"):
            yield f"{where}.ephemeral.{name}: Extra inputs are not permitted"


def image_faults(where: str, source: Fields) -> Iterator[str]:
    """What is wrong with an image: its kind, its data, its size. Addresses are not fetched."""
    kind = source.get("type")
    if kind not in ("base64", "url", "file"):
        yield (
            f"{where}: Input tag '{kind}' found using 'type' does not match any of the expected"
            " tags: 'base64', 'file', 'url'"
        )
    elif kind == "base64":
        yield from _data_faults(f"{where}.base64", source)


def _data_faults(where: str, source: Fields) -> Iterator[str]:
    media_type = source.get("media_type")
    starts = _MEDIA_TYPES.get(media_type) if isinstance(media_type, str) else None
    if starts is None:
        yield (
            f"{where}.media_type: Input should be 'image/jpeg', 'image/png', 'image/gif' or"
            " 'image/webp'"
        )
        return
    try:
        image = base64.b64decode(source.get("data") or "", validate=True)
    except (binascii.Error, TypeError, ValueError):
        yield f"{where}.data: Invalid base64 data"
        return
    if not image:
        yield f"{where}: image cannot be empty"
    elif len(image) > MAX_IMAGE_BYTES:
        yield (f"{where}: image exceeds 5 MB maximum: {len(image)} bytes > {MAX_IMAGE_BYTES} bytes")
    elif not image.startswith(starts):
        yield f"{where}.data: Image does not match the provided media type {media_type}"
