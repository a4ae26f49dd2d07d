"""``recall``: a tool that returns to the model what a cap or a compaction left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from llmsession.turns.blocks import ToolResultBlock
from llmsession.turns.messages import Message

from .summaries.cap import line_count, other_blocks, result_text

__all__ = ["MAX_RECALL_CHARS", "RECALL_TOOL", "RECALL_TOOL_NAME", "recall", "recall_chars"]

RECALL_TOOL_NAME = "recall"
"""A reserved name: no other tool of a session may have it."""

MAX_RECALL_CHARS = 20_000
"""The most characters that one call returns, about 7,000 tokens."""
MIN_RECALL_CHARS = 2_000

_DEFINITION = {
    "name": RECALL_TOOL_NAME,
    "description": (
        "Returns the full text of an earlier tool result that is shown shortened or compacted."
        " Give the id that the shortened result names. Long texts come in parts: pass line (and"
        " lines) for a range of lines, or char (and chars) for a range of characters where the"
        " lines are very long. Counting starts at 1."
    ),
    "input_schema": {
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": "The id of the tool call."},
            "line": {"type": "integer", "minimum": 1, "description": "The first line."},
            "lines": {"type": "integer", "minimum": 1, "description": "How many lines."},
            "char": {"type": "integer", "minimum": 1, "description": "The first character."},
            "chars": {"type": "integer", "minimum": 1, "description": "How many characters."},
        },
        "required": ["id"],
    },
}

RECALL_TOOL = msgspec.Raw(msgspec.json.encode(_DEFINITION))
"""The tool's definition. It never changes, so that it can be in ``tools`` from the start without
breaking the prompt cache.
"""

_RANGE_ARGUMENTS = ("line", "lines", "char", "chars")
_MAX_ID_ECHO_CHARS = 100
_HEADER_ROOM_CHARS = 200


def recall_chars(budget_tokens: int, chars_per_token: float) -> int:
    """The most characters that one call returns if a request may hold *budget_tokens*: an eighth of
    it.

    A page must fit beside the messages that it is read for.
    """
    page = int(budget_tokens * chars_per_token) // 8
    return min(MAX_RECALL_CHARS, max(MIN_RECALL_CHARS, page))


class _BadArguments(Exception):
    """The arguments are invalid. The message is written for the model."""


def recall(
    messages_of_call: Callable[[str], Sequence[Message]],
    arguments: Any,
    *,
    max_chars: int = MAX_RECALL_CHARS,
) -> tuple[str, bool]:
    """The requested part of a tool result's full text, and whether the answer is an error.

    *messages_of_call* returns the messages in which the result of a call may be, for any text as
    its id. They are searched from the newest. The text begins with a header that says which part it
    is and how to get the next one; together they have at most *max_chars* characters, or 1,000 if
    that is more. Images are mentioned but not returned. Never raises, whatever a model passes.
    """
    try:
        call_id, ranges = _checked(arguments)
        result = _find(messages_of_call(call_id), call_id)
        text = result_text(result.content)
        note = other_blocks(result.content)
        suffix = f"\n[not returned: {note}]" if note else ""
        room = max(max_chars, 1000) - _HEADER_ROOM_CHARS - len(call_id) - len(suffix)
        if not text:
            return f"the result of {call_id} has no text{suffix}", False
        return _part(text, call_id, ranges, max(room, _HEADER_ROOM_CHARS)) + suffix, False
    except _BadArguments as error:
        return f"recall: {error}", True


def _checked(arguments: Any) -> tuple[str, dict[str, int]]:
    if not isinstance(arguments, Mapping):
        raise _BadArguments("the arguments must be an object with an id")
    unknown = sorted(str(key)[:_MAX_ID_ECHO_CHARS] for key in arguments)
    unknown = [key for key in unknown if key != "id" and key not in _RANGE_ARGUMENTS]
    if unknown:
        raise _BadArguments(f"unknown argument {unknown[0]}; known: id, line, lines, char, chars")
    call_id = arguments.get("id")
    if not isinstance(call_id, str) or not call_id:
        raise _BadArguments("id is required: the id of an earlier tool call, as a string")
    ranges = {
        name: _positive(name, arguments[name])
        for name in _RANGE_ARGUMENTS
        if arguments.get(name) is not None
    }
    if ranges.keys() & {"line", "lines"} and ranges.keys() & {"char", "chars"}:
        raise _BadArguments("ask for lines or for characters, not for both")
    return call_id, ranges


def _positive(name: str, value: Any) -> int:
    # Models pass "12" and 12.0 for 12; those are clear enough.
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _BadArguments(f"{name} must be a whole number from 1")
    return value


def _find(messages: Sequence[Message], call_id: str) -> ToolResultBlock:
    for message in reversed(messages):
        for result in message.tool_results:
            if result.tool_use_id == call_id:
                return result
    raise _BadArguments(f"no tool result has the id {call_id[:_MAX_ID_ECHO_CHARS]!r}")


def _part(text: str, call_id: str, ranges: dict[str, int], room: int) -> str:
    if ranges.keys() & {"char", "chars"}:
        return _characters(text, call_id, ranges.get("char", 1), ranges.get("chars"), room)
    total = line_count(text)
    first = ranges.get("line", 1)
    if first > total:
        raise _BadArguments(f"line {first} does not exist, the result has {total} lines")
    start = _line_start(text, first)
    count = min(ranges.get("lines", total), total - first + 1)
    end = start
    last = first - 1
    while last < first - 1 + count:
        newline = text.find("\n", end)
        after = len(text) if newline < 0 else newline + 1
        if after - start > room:
            break
        end = after
        last += 1
    if last < first:
        # Not even one line fits.
        return _characters(text, call_id, start + 1, None, room)
    more = f'; recall(id="{call_id}", line={last + 1}) continues' if last < total else ""
    return f"[lines {first}-{last} of {total}{more}]\n{text[start:end]}"


def _line_start(text: str, line: int) -> int:
    start = 0
    for _ in range(line - 1):
        start = text.find("\n", start) + 1
    return start


def _characters(text: str, call_id: str, first: int, count: int | None, room: int) -> str:
    total = len(text)
    if first > total:
        raise _BadArguments(f"character {first} does not exist, the result has {total}")
    last = first - 1 + min(total - first + 1, room, count or total)
    more = f'; recall(id="{call_id}", char={last + 1}) continues' if last < total else ""
    return f"[characters {first}-{last} of {total}{more}]\n{text[first - 1 : last]}"
