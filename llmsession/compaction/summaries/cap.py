"""The cap: how much of one tool output is ever shown. It is decided once, when the output arrives.

The history keeps the whole text. The model sees head and tail, and how to get the middle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["cap_content", "cap_text", "line_count", "other_blocks", "result_text"]

HEAD_PERCENT = 70
"""The rest is the tail. The head gets more, because listings and files are read from the top;
errors stand at the end.
"""

_MAX_TYPES_NAMED = 4
_MAX_TYPE_CHARS = 32


def line_count(text: str) -> int:
    """The number of lines of *text*. A final newline does not start another line."""
    return text.count("\n") + (1 if text and not text.endswith("\n") else 0)


def result_text(content: str | Sequence[Any]) -> str:
    """The text of a tool result's content: its text blocks, joined with newlines."""
    if isinstance(content, str):
        return content
    texts = [part.get("text") for part in content if isinstance(part, dict) and _is_text(part)]
    return "\n".join(text if isinstance(text, str) else "" for text in texts)


def cap_content(content: str | Sequence[Any], *, max_chars: int, call_id: str) -> str | None:
    """What to show instead of the *content* of a tool result; None if it is within the cap.

    Only text counts. If the content is a list with other blocks, its text is capped, and the other
    blocks are counted in a note.
    """
    if isinstance(content, str):
        return cap_text(content, max_chars=max_chars, call_id=call_id)
    text = result_text(content)
    if len(text) <= max_chars:
        return None
    left_out = other_blocks(content)
    if not left_out:
        return cap_text(text, max_chars=max_chars, call_id=call_id)
    note = f"\n[{left_out} left out]"
    capped = cap_text(text, max_chars=max(0, max_chars - len(note)), call_id=call_id)
    return None if capped is None or len(capped + note) >= len(text) else capped + note


def other_blocks(content: str | Sequence[Any]) -> str:
    """The blocks of *content* that are not text, in words, for example "2 other blocks (image)"; ""
    if there are none.
    """
    if isinstance(content, str):
        return ""
    others = [part for part in content if not _is_text(part)]
    if not others:
        return ""
    types = {
        str(part["type"])[:_MAX_TYPE_CHARS] if isinstance(part, dict) and "type" in part else "?"
        for part in others
    }
    named = ", ".join(sorted(types)[:_MAX_TYPES_NAMED])
    return f"{len(others)} other {'block' if len(others) == 1 else 'blocks'} ({named})"


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text"


def cap_text(text: str, *, max_chars: int, call_id: str) -> str | None:
    """The head and the tail of *text* with a marker between them; None if it is within *max_chars*.

    The marker counts lines, from 1, if both cuts fall on line ends; otherwise characters, from 1.
    The result has at most *max_chars* characters, unless the marker alone is longer. It is always
    shorter than *text*; None if that is not possible.
    """
    if len(text) <= max_chars:
        return None
    # Reserve room for the longest possible marker, in which each number has as many digits as the
    # length of the text.
    room = max(0, max_chars - len(_marker("characters", len(text), len(text), text, call_id)) - 2)
    head = _head_end(text, room * HEAD_PERCENT // 100)
    tail = _tail_start(text, room - room * HEAD_PERCENT // 100)
    if _is_line_start(text, head) and _is_line_start(text, tail):
        first = text.count("\n", 0, head) + 1
        marker = _marker("lines", first, line_count(text[:tail]), text, call_id)
    else:
        marker = _marker("characters", head + 1, tail, text, call_id)
    before = "" if _is_line_start(text, head) else "\n"
    after = "" if tail == len(text) else "\n"
    capped = f"{text[:head]}{before}{marker}{after}{text[tail:]}"
    return capped if len(capped) < len(text) else None


def _marker(unit: str, first: int, last: int, text: str, call_id: str) -> str:
    total = line_count(text) if unit == "lines" else len(text)
    argument = "line" if unit == "lines" else "char"
    return (
        f"[{unit} {first}-{last} of {total} left out;"
        f' recall(id="{call_id}", {argument}={first}) returns them]'
    )


def _is_line_start(text: str, index: int) -> bool:
    return index == 0 or index == len(text) or text[index - 1] == "\n"


def _head_end(text: str, chars: int) -> int:
    """Where a head of at most *chars* characters ends: after the last newline in its second
    half.
    """
    newline = text.rfind("\n", chars // 2, chars)
    return chars if newline < 0 else newline + 1


def _tail_start(text: str, chars: int) -> int:
    """Where a tail of at most *chars* characters begins: at the first line start in its first
    half.
    """
    start = len(text) - chars
    newline = text.find("\n", max(0, start - 1), start + chars // 2)
    return start if newline < 0 else newline + 1
