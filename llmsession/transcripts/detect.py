"""Which format a file is in, and reading it without knowing."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from llmsession.errors import TranscriptError

from . import claude_code, own
from .conversation import Conversation
from .jsonl import read_lines

__all__ = ["FORMATS", "Format", "detect", "read"]

_FIRST_LINES = 40
"""Lines that tell nothing, such as settings, may come before the first that does."""


class Format(msgspec.Struct, frozen=True):
    """How one format is recognised and read. ``looks_like`` gets the fields of one of the
    file's first objects; one that it says yes to is enough."""

    looks_like: Callable[[dict[str, msgspec.Raw]], bool]
    read: Callable[[bytes, bool], tuple[Conversation, ...]]


FORMATS: dict[str, Format] = {
    own.FORMAT: Format(own.looks_own, lambda raw, strict: (own.read_own(raw, strict=strict),)),
    claude_code.FORMAT: Format(
        claude_code.looks_claude_code,
        lambda raw, strict: claude_code.read_claude_code(raw, strict=strict),
    ),
}


def detect(raw: bytes) -> str | None:
    """The name of the format of *raw*, a file's bytes, by its first lines; None if none fits."""
    head = b"\n".join(raw.split(b"\n", _FIRST_LINES)[:_FIRST_LINES])
    lines, _ = read_lines(head)
    for line in lines:
        fields = msgspec.json.decode(line.raw, type=dict[str, msgspec.Raw])
        for name, format in FORMATS.items():
            if format.looks_like(fields):
                return name
    return None


def read(
    raw: bytes, format: str | None = None, *, strict: bool = False
) -> tuple[Conversation, ...]:
    """The conversations in *raw*, a file's bytes, in *format* or in what it looks like.

    Raises TranscriptError: an unknown format, or a file that cannot be read.
    """
    known = ", ".join(FORMATS)
    name = detect(raw) if format is None else format
    if name is None:
        what = "the file is empty" if not raw.strip() else "no known transcript format"
        raise TranscriptError(f"{what}; known formats: {known}")
    if name not in FORMATS:
        raise TranscriptError(f"unknown format {name!r}; known formats: {known}")
    return FORMATS[name].read(raw, strict)
