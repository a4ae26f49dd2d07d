"""What the strict server does to a context before the model reads it: edits, and its summaries.

As sent, a request is what signatures are bound to; as read, it is what is counted and cached.
Source: the documentation of context editing and of compaction. Simplified: a turn whose thinking
is cleared or kept is one assistant message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from .prompt_cache import Part, message_parts, prompt_tokens
from .request import THINKING, MessageRequest, blocks_of, read_request

__all__ = [
    "COMPACT_AT_TOKENS",
    "MIN_COMPACT_AT_TOKENS",
    "Context",
    "beginning_with",
    "context_of",
    "edits_of",
    "find_edit",
    "has_summary",
]

CLEARED = "[Old tool result content cleared]"
CLEAR_AT_TOKENS, CLEAR_KEEPS = 100_000, 3
COMPACT_AT_TOKENS, MIN_COMPACT_AT_TOKENS = 150_000, 50_000


class Context(msgspec.Struct, frozen=True):
    """A request as the model reads it, and what was done to get there."""

    request: MessageRequest
    parts: list[Part]
    original_tokens: int
    applied: tuple[dict[str, Any], ...] = ()

    @property
    def compacts(self) -> bool:
        """Is it long enough to be summarised, as its edits say?"""
        edit = find_edit(self.request.body, "compact_")
        if edit is None:
            return False
        trigger = (edit.get("trigger") or {}).get("value", COMPACT_AT_TOKENS)
        return prompt_tokens(self.parts) >= int(trigger)

    @property
    def pauses(self) -> bool:
        """Does it want to be asked again after a summary?"""
        edit = find_edit(self.request.body, "compact_") or {}
        return bool(edit.get("pause_after_compaction"))


def edits_of(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The edits that a request asks for, in order."""
    management = body.get("context_management") or {}
    return [edit for edit in management.get("edits") or [] if isinstance(edit, dict)]


def find_edit(body: Mapping[str, Any], kind: str) -> dict[str, Any] | None:
    """The edit whose type begins with *kind*."""
    edits = edits_of(body)
    return next((edit for edit in edits if str(edit.get("type")).startswith(kind)), None)


def has_summary(block: Mapping[str, Any]) -> bool:
    """Is it a compaction block that says something? One without content does nothing."""
    return block.get("type") == "compaction" and bool(block.get("content"))


def context_of(request: MessageRequest) -> Context:
    """*request* as the model reads it: from the newest summary on, and with its edits made."""
    request = _with(request, _from_summary(request.messages))
    parts = message_parts(request)
    original = prompt_tokens(parts)
    applied: list[dict[str, Any]] = []
    for edit in edits_of(request.body):
        kind = str(edit.get("type"))
        if kind.startswith("clear_thinking"):
            edited, count = _without_thinking(request, edit)
            name = "cleared_thinking_turns"
        elif kind.startswith("clear_tool_uses") and _is_due(request, parts, edit):
            edited, count = _without_results(request, edit)
            name = "cleared_tool_uses"
        else:
            continue
        left = message_parts(edited)
        cleared = prompt_tokens(parts) - prompt_tokens(left)
        minimum = (edit.get("clear_at_least") or {}).get("value", 0)
        if count and cleared >= minimum:
            applied.append({"type": kind, name: count, "cleared_input_tokens": cleared})
            request, parts = edited, left
    return Context(request, parts, original, tuple(applied))


def beginning_with(request: MessageRequest, block: dict[str, Any]) -> MessageRequest:
    """*request* with nothing but *block*, the summary of its messages, in their place."""
    return _with(request, [{"role": "assistant", "content": [block]}])


def _with(request: MessageRequest, messages: list[dict[str, Any]]) -> MessageRequest:
    if messages is request.messages:
        return request
    body = {**request.body, "messages": messages}
    return read_request(body, request.family, request.rules, tuple(request.betas))


def _from_summary(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for number in range(len(messages) - 1, -1, -1):
        blocks = blocks_of(messages[number].get("content") or [])
        for position in range(len(blocks) - 1, -1, -1):
            if has_summary(blocks[position]):
                opening = {**messages[number], "content": blocks[position:]}
                return [opening, *messages[number + 1 :]]
    return messages


def _is_due(request: MessageRequest, parts: list[Part], edit: Mapping[str, Any]) -> bool:
    trigger = edit.get("trigger") or {"type": "input_tokens", "value": CLEAR_AT_TOKENS}
    if trigger.get("type") == "tool_uses":
        return sum(spot.kind == "tool_use" for spot in request.spots()) > int(trigger["value"])
    return prompt_tokens(parts) > int(trigger["value"])


def _without_results(
    request: MessageRequest, edit: Mapping[str, Any]
) -> tuple[MessageRequest, int]:
    kept_tools = set(edit.get("exclude_tools") or ())
    calls = [spot.block for spot in request.spots() if spot.kind == "tool_use"]
    old = [call["id"] for call in calls if call["name"] not in kept_tools]
    keep = (edit.get("keep") or {}).get("value", CLEAR_KEEPS)
    cleared = set(old[: max(0, len(old) - keep)])
    inputs = edit.get("clear_tool_inputs")

    def edited(block: dict[str, Any]) -> dict[str, Any] | None:
        if block["type"] == "tool_result" and block["tool_use_id"] in cleared:
            return {**block, "content": CLEARED}
        if block["type"] == "tool_use" and block["id"] in cleared and inputs:
            named = inputs is True or block["name"] in inputs
            return {**block, "input": {}} if named else block
        return block

    return _edited(request, edited), len(cleared)


def _without_thinking(
    request: MessageRequest, edit: Mapping[str, Any]
) -> tuple[MessageRequest, int]:
    keep: Any = edit.get("keep") or ("all" if request.rules.keeps_thinking else {"value": 1})
    thought = [run for run in request.runs if run.role == "assistant" and run.of(*THINKING)]
    if keep == "all" or keep.get("type") == "all":
        return request, 0
    cleared = thought[: max(0, len(thought) - keep["value"])]
    gone = {id(spot.block) for run in cleared for spot in run.of(*THINKING)}
    return _edited(request, lambda block: None if id(block) in gone else block), len(cleared)


def _edited(request: MessageRequest, edited: Any) -> MessageRequest:
    def blocks(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for block in blocks_of(message.get("content") or []):
            if (edited_block := edited(block)) is not None:
                yield edited_block

    return _with(
        request, [{**message, "content": list(blocks(message))} for message in request.messages]
    )
