"""Previews: the text of a step while it streams. Previews may be merged or lost; the durable
record that follows is authoritative. Each has the turn, step and attempt that it belongs to, and
``StepRestarted`` says when those of a step are void."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

__all__ = [
    "Preview",
    "StepRestarted",
    "TextDelta",
    "ThinkingDelta",
    "ToolInputDelta",
    "ToolUse",
]


class _Delta(msgspec.Struct, frozen=True, tag_field="kind", gc=False):
    """What every preview has. ``index`` is the block's place in the reply, from 0."""

    turn: int
    step: int
    attempt: int
    index: int
    text: str


class TextDelta(_Delta, frozen=True, tag="preview.text", gc=False):
    """More text of a reply. ``index`` is the block's place in the reply, from 0."""


class ThinkingDelta(_Delta, frozen=True, tag="preview.thinking", gc=False):
    """More thinking of a reply."""


class ToolInputDelta(_Delta, frozen=True, tag="preview.tool_input", gc=False):
    """A piece of a call's input JSON. The call is final only in ``tools.requested``."""


Preview: TypeAlias = TextDelta | ThinkingDelta | ToolInputDelta
"""A piece of a reply while it streams. Previews are not in the log."""


class StepRestarted(msgspec.Struct, frozen=True, tag="step.restarted", tag_field="kind", gc=False):
    """The previews of ``step`` that came before are void: the reply begins anew, as ``attempt``.

    It comes when a stream broke and the step is tried again, and after a ``turn.resumed`` that
    found no reply in the log. Unlike a preview it is never lost.
    """

    turn: int
    step: int
    attempt: int


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
