"""Which format files are in, and reading and writing them by its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llmsession.errors import InvalidInput, TranscriptError

from . import own
from .agents import claude_code
from .agents.formats import AGENTS, MESSAGE_LISTS
from .chats.formats import WEBCHATS
from .common.conversation import Conversation
from .common.format import Files, Format, Probe, as_files

__all__ = ["FORMATS", "detect", "read", "write"]


def _each_file(
    read: Callable[[bytes, bool], tuple[Conversation, ...]],
) -> Callable[[Files, bool], tuple[Conversation, ...]]:
    """Reads what is a file of its own; several files one by one, in the order of their names."""

    def read_files(files: Files, strict: bool) -> tuple[Conversation, ...]:
        return tuple(one for name in sorted(files) for one in read(files[name], strict))

    return read_files


FORMATS: dict[str, Format] = {
    own.FORMAT: Format(
        title="llmsession's own: a header line, then a message a line",
        looks_like=lambda peek: any(map(own.looks_own, peek.lines)),
        read=_each_file(lambda raw, strict: (own.read_own(raw, strict=strict),)),
        write=own.write_own_files,
    ),
    claude_code.FORMAT: Format(
        title="Claude Code session file",
        looks_like=lambda peek: any(map(claude_code.looks_claude_code, peek.lines)),
        read=_each_file(
            lambda raw, strict: claude_code.read_claude_code(raw, strict=strict),
        ),
        write=claude_code.write_claude_code,
    ),
    **AGENTS,
    **WEBCHATS,
    **MESSAGE_LISTS,
}
"""By name, the most telling first: the first that says yes is what files are taken for."""


def detect(written: bytes | Files) -> str | None:
    """The name of the format of *written*: one file's bytes, or a folder's files. None if none
    fits."""
    peek = Probe(as_files(written))
    return next((name for name, format in FORMATS.items() if format.looks_like(peek)), None)


def read(
    written: bytes | Files, format: str | None = None, *, strict: bool = False
) -> tuple[Conversation, ...]:
    """The conversations in *written*, in *format* or in what it looks like.

    Raises TranscriptError: an unknown format, or files that cannot be read.
    """
    files = as_files(written)
    name = detect(files) if format is None else format
    if name is None:
        empty = not any(raw.strip() for raw in files.values())
        what = "the file is empty" if empty else "no known transcript format"
        raise TranscriptError(f"{what}; known formats: {', '.join(FORMATS)}")
    return _format(name).read(files, strict)


def write(conversations: Sequence[Conversation], format: str = own.FORMAT) -> Files:
    """*conversations* as files of *format*.

    Raises TranscriptError for a format that is not known, or that nothing is written in, and
    InvalidInput for no conversation at all.
    """
    if not conversations:
        raise InvalidInput("there is no conversation to write")
    found = _format(format)
    if found.write is None:
        able = ", ".join(name for name, known in FORMATS.items() if known.write is not None)
        raise TranscriptError(f"nothing is written as {format!r}; formats to write: {able}")
    return found.write(conversations)


def _format(name: str) -> Format:
    if name not in FORMATS:
        raise TranscriptError(f"unknown format {name!r}; known formats: {', '.join(FORMATS)}")
    return FORMATS[name]
