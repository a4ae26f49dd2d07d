"""Previews: the text of a step while it is streaming.

Previews may be merged or lost. The durable record that follows is authoritative. Each preview names
the turn, step and attempt that it belongs to, and ``StepRestarted`` says when those of a step are
void.
"""

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
    """The fields of every preview. ``index`` is the block's position in the reply, from 0."""

    turn: int
    step: int
    attempt: int
    index: int
    text: str


class TextDelta(_Delta, frozen=True, tag="preview.text", gc=False):
    """More text of a reply. ``index`` is the block's position in the reply, from 0."""


class ThinkingDelta(_Delta, frozen=True, tag="preview.thinking", gc=False):
    """More thinking of a reply."""


class ToolInputDelta(_Delta, frozen=True, tag="preview.tool_input", gc=False):
    """A piece of a tool call's input, as JSON. The call is final only in ``tools.requested``."""


Preview: TypeAlias = TextDelta | ThinkingDelta | ToolInputDelta
"""A piece of a streaming reply."""


class StepRestarted(msgspec.Struct, frozen=True, tag="step.restarted", tag_field="kind", gc=False):
    """All earlier previews of ``step`` are void: the reply begins again, as ``attempt``.

    It comes when a stream broke and the step is tried again, and after a ``turn.resumed`` that
    found no reply in the log. Unlike a preview it is never lost.
    """

    turn: int
    step: int
    attempt: int


class ToolUse(msgspec.Struct, frozen=True, tag="tool_use", tag_field="kind"):
    """A tool call to run.

    It is read from a durable ``tools.requested`` and carries its seq, so it is never lost. If
    ``runner`` is ``caller``, answer it with ``submit_tool_results``. A subscriber that reads the
    log again gets old calls again; the ones that still wait for a result are in
    ``LLMSession.open_calls``.
    """

    seq: int
    turn: int
    step: int
    id: str
    name: str
    input: Any
    runner: str
