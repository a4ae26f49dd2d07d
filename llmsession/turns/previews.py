"""Previews: the text of a step while it streams. Previews may be merged or lost; the durable
record that follows is authoritative. Each has the turn, step and attempt that it belongs to."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

__all__ = ["Preview", "TextDelta", "ThinkingDelta", "ToolInputDelta", "ToolUse"]


class TextDelta(msgspec.Struct, frozen=True, tag="preview.text", tag_field="kind", gc=False):
    """More text of a reply. ``index`` is the block's place in the reply, from 0."""

    turn: int
    step: int
    attempt: int
    index: int
    text: str


class ThinkingDelta(
    msgspec.Struct, frozen=True, tag="preview.thinking", tag_field="kind", gc=False
):  # fmt: skip
    """More thinking of a reply."""

    turn: int
    step: int
    attempt: int
    index: int
    text: str


class ToolInputDelta(
    msgspec.Struct, frozen=True, tag="preview.tool_input", tag_field="kind", gc=False
):  # fmt: skip
    """A piece of a call's input JSON. The call is final only in ``tools.requested``."""

    turn: int
    step: int
    attempt: int
    index: int
    text: str


Preview: TypeAlias = TextDelta | ThinkingDelta | ToolInputDelta


class ToolUse(msgspec.Struct, frozen=True, tag="tool_use", tag_field="kind"):
    """A call to run, read out of a durable ``tools.requested`` (whose seq it carries), so it is
    never lost. ``runner`` says who runs it: answer those of the caller with
    ``submit_tool_results``. A log that is read again tells old calls again: those that still wait
    are ``LLMSession.open_calls``."""

    seq: int
    turn: int
    step: int
    id: str
    name: str
    input: Any
    runner: str
