"""Shorter forms of long texts and of long inputs of calls."""

from __future__ import annotations

from typing import Any

import msgspec

from llmsession.turns.blocks import encode_json

__all__ = ["KEPT_STRING_CHARS", "shorten_input", "shorten_text"]

KEPT_STRING_CHARS = 400
"""How much of a long string in a call's input is kept. File names, commands and intentions are
shorter than this.
"""
_MAX_DEPTH = 32


def shorten_text(text: str, max_chars: int) -> str:
    """*text*, cut to head and tail with a marker between, in at most *max_chars* characters. The
    marker stays even if it is longer than that.
    """
    if len(text) <= max_chars:
        return text
    marker = f"\n[{len(text):,} characters, the middle is left out]\n"
    room = max(0, max_chars - len(marker))
    tail = room * 3 // 10
    shorter = text[: room - tail] + marker + (text[len(text) - tail :] if tail else "")
    return shorter if len(shorter) < len(text) else text


def shorten_input(value: Any, *, string_chars: int = KEPT_STRING_CHARS) -> msgspec.Raw | None:
    """The JSON of a call's input with its long strings shortened; None if none is long.

    Keys, numbers and structure stay, so it is still an input of that tool.
    """
    shortened = _shortened(value, string_chars, _MAX_DEPTH)
    return None if shortened is value else msgspec.Raw(encode_json(shortened))


def _shortened(value: Any, chars: int, depth: int) -> Any:
    if isinstance(value, str):
        return shorten_text(value, chars) if len(value) > 2 * chars else value
    if depth == 0:
        return value
    if isinstance(value, dict):
        changed = {key: _shortened(item, chars, depth - 1) for key, item in value.items()}
        return changed if any(changed[key] is not value[key] for key in value) else value
    if isinstance(value, list):
        items = [_shortened(item, chars, depth - 1) for item in value]
        return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
    return value
