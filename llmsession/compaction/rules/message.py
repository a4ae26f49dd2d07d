"""Validity rules that one message breaks by itself, whatever stands around it.

They run once per message; what they find is remembered with the message. The numbers and texts
are those of the Anthropic Messages API: its types, its documentation and its error messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from .block_fields import Fault, Part, is_server_call, is_server_result

__all__ = ["MESSAGE_RULES", "MessageRule", "find_faults"]

MessageRule: TypeAlias = Callable[[str, Sequence[Part]], Iterator[Fault]]

CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")
THINKING = ("thinking", "redacted_thinking")


def v4_tool_blocks_stand_on_their_side(role: str, parts: Sequence[Part]) -> Iterator[Fault]:
    """Calls are the assistant's, results the user's, and both carry an id."""
    for at, part in enumerate(parts):
        if part.type == "tool_use":
            yield from _side(at, "tool_use", "assistant", role)
            yield from _id(f"content[{at}].id", part.id)
        elif part.type == "tool_result":
            yield from _side(at, "tool_result", "user", role)
            yield from _id(f"content[{at}].tool_use_id", part.tool_use_id)


def _side(at: int, kind: str, owner: str, role: str) -> Iterator[Fault]:
    if role != owner:
        text = f"`{kind}` blocks can only be in `{owner}` messages"
        yield Fault("V4", f"content[{at}]", text)


def _id(place: str, value: Any) -> Iterator[Fault]:
    if not isinstance(value, str) or CALL_ID.fullmatch(value) is None:
        yield Fault("V4", place, f"String should match pattern '^[a-zA-Z0-9_-]+$', not {value!r}")


def v5_no_text_is_empty(role: str, parts: Sequence[Part]) -> Iterator[Fault]:
    """No empty or blank text, not in a result either; an error result says something."""
    for at, part in enumerate(parts):
        place = f"content[{at}]"
        yield from _blank(place, part)
        if part.type == "tool_result":
            yield from _result_text(place, part)


def _blank(place: str, part: Part) -> Iterator[Fault]:
    if part.type != "text":
        return
    if not isinstance(part.text, str) or not part.text:
        yield Fault("V5", place, "text content blocks must be non-empty")
    elif not part.text.strip():
        yield Fault("V5", place, "text content blocks must contain non-whitespace text")


def _result_text(place: str, part: Part) -> Iterator[Fault]:
    for at, inner in enumerate(part.inner()):
        yield from _blank(f"{place}.content[{at}]", inner)
    if part.is_error is True and _is_empty(part.content):
        text = "tool_result: content cannot be empty if `is_error` is true"
        yield Fault("V5", place, text)


def _is_empty(content: msgspec.Raw) -> bool:
    value = bytes(content)
    return value in (b"null", b'""') or (value[:1] == b"[" and not value[1:-1].strip())


def v7_thinking_is_the_assistants_and_signed(role: str, parts: Sequence[Part]) -> Iterator[Fault]:
    """Thinking stands in assistant messages, with the signature that came with it."""
    for at, part in enumerate(parts):
        if part.type not in THINKING:
            continue
        if role != "assistant":
            text = f"`{part.type}` blocks can only be in `assistant` messages"
            yield Fault("V7", f"content[{at}]", text)
        elif part.type == "thinking" and not (isinstance(part.signature, str) and part.signature):
            yield Fault("V7", f"content[{at}]", "thinking.signature: Field required")


def v12_no_breakpoint_on_thinking_or_empty_text(
    role: str, parts: Sequence[Part]
) -> Iterator[Fault]:
    """A cache breakpoint needs a block that can be cached."""
    for at, part in enumerate(parts):
        if part.cache_control is None:
            continue
        place = f"content[{at}].cache_control"
        if part.type in THINKING:
            yield Fault("V12", place, f"{part.type}.cache_control: Extra inputs are not permitted")
        elif part.type == "text" and not part.text:
            yield Fault("V12", place, "cache_control cannot be set for empty text blocks")


def v6_server_blocks_are_the_assistants(role: str, parts: Sequence[Part]) -> Iterator[Fault]:
    """What the provider's own tools say stands in assistant messages."""
    for at, part in enumerate(parts):
        if role != "assistant" and (is_server_call(part.type) or is_server_result(part.type)):
            text = f"`{part.type}` blocks can only be in `assistant` messages"
            yield Fault("V6", f"content[{at}]", text)


MESSAGE_RULES: dict[str, MessageRule] = {
    "V4": v4_tool_blocks_stand_on_their_side,
    "V5": v5_no_text_is_empty,
    "V6": v6_server_blocks_are_the_assistants,
    "V7": v7_thinking_is_the_assistants_and_signed,
    "V12": v12_no_breakpoint_on_thinking_or_empty_text,
}


def find_faults(role: str, parts: Sequence[Part]) -> tuple[Fault, ...]:
    """What one message breaks by itself, rule by rule."""
    return tuple(fault for rule in MESSAGE_RULES.values() for fault in rule(role, parts))
