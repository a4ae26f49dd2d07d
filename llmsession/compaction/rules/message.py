"""Validity rules that one message, or the tools, can break by themselves, whatever stands around.

They run once for each message, and the result is remembered with it. Numbers and texts are those of
the Anthropic Messages API: its types, its documentation and its error messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from .block_fields import BlockFields, Fault, is_server_call, is_server_result

__all__ = [
    "MESSAGE_RULES", "MessageRule", "find_faults", "find_tool_faults", "is_call_id", "is_spoken",
]  # fmt: skip

MessageRule: TypeAlias = Callable[[str, Sequence[BlockFields]], Iterator[Fault]]

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")
THINKING = ("thinking", "redacted_thinking")


def v4_tool_blocks_stand_on_their_side(role: str, blocks: Sequence[BlockFields]) -> Iterator[Fault]:
    """V4: calls are the assistant's, results are the user's, and both carry an id."""
    for index, block in enumerate(blocks):
        if block.type == "tool_use":
            yield from _side(index, "tool_use", "assistant", role)
            yield from _id(f"content[{index}].id", block.id)
        elif block.type == "tool_result":
            yield from _side(index, "tool_result", "user", role)
            yield from _id(f"content[{index}].tool_use_id", block.tool_use_id)


def _side(index: int, kind: str, owner: str, role: str) -> Iterator[Fault]:
    if role != owner:
        text = f"`{kind}` blocks can only be in `{owner}` messages"
        yield Fault("V4", f"content[{index}]", text)


def is_call_id(value: Any) -> bool:
    """May *value* be the id of a call?"""
    return isinstance(value, str) and CALL_ID.fullmatch(value) is not None


def _id(place: str, value: Any) -> Iterator[Fault]:
    if not is_call_id(value):
        yield Fault("V4", place, f"String should match pattern '^[a-zA-Z0-9_-]+$', not {value!r}")


def v5_no_text_is_empty(role: str, blocks: Sequence[BlockFields]) -> Iterator[Fault]:
    """V5: no empty or blank text, also within a result; a result with ``is_error`` is not empty."""
    for index, block in enumerate(blocks):
        place = f"content[{index}]"
        yield from _blank(place, block)
        if block.type == "tool_result":
            yield from _result_text(place, block)


def _blank(place: str, block: BlockFields) -> Iterator[Fault]:
    if block.type != "text":
        return
    if not isinstance(block.text, str) or not block.text:
        yield Fault("V5", place, "text content blocks must be non-empty")
    elif not block.text.strip():
        yield Fault("V5", place, "text content blocks must contain non-whitespace text")


def is_spoken(text: Any) -> bool:
    """Is *text* a text that is not blank?"""
    return isinstance(text, str) and bool(text) and not text.isspace()


def _result_text(place: str, block: BlockFields) -> Iterator[Fault]:
    for index, inner in enumerate(block.inner()):
        yield from _blank(f"{place}.content[{index}]", inner)
    if block.is_error is True and _is_empty(block.content):
        text = "tool_result: content cannot be empty if `is_error` is true"
        yield Fault("V5", place, text)


def _is_empty(content: msgspec.Raw) -> bool:
    value = bytes(content)
    return value in (b"null", b'""') or (value[:1] == b"[" and not value[1:-1].strip())


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def v7_thinking_is_the_assistants_and_signed(
    role: str, blocks: Sequence[BlockFields]
) -> Iterator[Fault]:
    """V7: thinking stands in assistant messages, with the signature that came with it."""
    for index, block in enumerate(blocks):
        if block.type not in THINKING:
            continue
        if role != "assistant":
            text = f"`{block.type}` blocks can only be in `assistant` messages"
            yield Fault("V7", f"content[{index}]", text)
        elif block.type == "thinking" and not (
            isinstance(block.signature, str) and block.signature
        ):
            yield Fault("V7", f"content[{index}]", "thinking.signature: Field required")


def v12_no_breakpoint_on_thinking_or_empty_text(
    role: str, blocks: Sequence[BlockFields]
) -> Iterator[Fault]:
    """V12: a cache breakpoint stands on a block that can be cached."""
    for index, block in enumerate(blocks):
        if block.cache_control is None:
            continue
        place = f"content[{index}].cache_control"
        if block.type in THINKING:
            yield Fault("V12", place, f"{block.type}.cache_control: Extra inputs are not permitted")
        elif block.type == "text" and not block.text:
            yield Fault("V12", place, "cache_control cannot be set for empty text blocks")


def v6_server_blocks_are_the_assistants(
    role: str, blocks: Sequence[BlockFields]
) -> Iterator[Fault]:
    """V6: blocks of the provider's own tools stand in assistant messages."""
    for index, block in enumerate(blocks):
        if role != "assistant" and (is_server_call(block.type) or is_server_result(block.type)):
            text = f"`{block.type}` blocks can only be in `assistant` messages"
            yield Fault("V6", f"content[{index}]", text)


MESSAGE_RULES: dict[str, MessageRule] = {
    "V4": v4_tool_blocks_stand_on_their_side,
    "V5": v5_no_text_is_empty,
    "V6": v6_server_blocks_are_the_assistants,
    "V7": v7_thinking_is_the_assistants_and_signed,
    "V12": v12_no_breakpoint_on_thinking_or_empty_text,
}


def find_faults(role: str, blocks: Sequence[BlockFields]) -> tuple[Fault, ...]:
    """The violations of one message by itself, rule by rule."""
    return tuple(fault for rule in MESSAGE_RULES.values() for fault in rule(role, blocks))


def find_tool_faults(tools: Sequence[BlockFields]) -> Iterator[Fault]:
    """V13: the name of each tool that is not the provider's own is short and unique."""
    names: set[str] = set()
    for index, tool in enumerate(tools):
        name = tool.name
        if name is None and tool.type not in ("", "custom"):
            continue  # the provider's own tools may have a type and no name
        if not isinstance(name, str) or TOOL_NAME.fullmatch(name) is None:
            text = f"name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$', not {name!r}"
            yield Fault("V13", f"tools[{index}]", text)
        elif name in names:
            yield Fault("V13", f"tools[{index}]", f"Tool names must be unique: {name}")
        else:
            names.add(name)
