"""What a format is: how files of it are recognised, read and written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import msgspec

from .conversation import Conversation
from .jsonl import read_lines

__all__ = ["Files", "Format", "Probe", "as_files", "only_file"]

Files: TypeAlias = Mapping[str, bytes]
"""What is read or written: the files by their path below the folder, with ``/``. A single file
stands under its name, or under "" where nobody knows one."""

_FIRST_LINES = 40
"""Lines that tell nothing, such as settings, may come before the first that does."""


def as_files(written: bytes | Files) -> Files:
    """A single file's bytes as files."""
    return {"": written} if isinstance(written, bytes) else written


def only_file(files: Files) -> bytes | None:
    """The bytes of the only file; None if there are several, or none."""
    return next(iter(files.values())) if len(files) == 1 else None


class Probe:
    """Files, and what several formats ask of them, each found once."""

    def __init__(self, files: Files) -> None:
        self.files = files

    @cached_property
    def lines(self) -> tuple[dict[str, msgspec.Raw], ...]:
        """The fields of the first objects of a single JSON Lines file; () for anything else."""
        raw = only_file(self.files)
        if raw is None:
            return ()
        head = b"\n".join(raw.split(b"\n", _FIRST_LINES)[:_FIRST_LINES])
        lines, _ = read_lines(head)
        return tuple(msgspec.json.decode(line.raw, type=dict[str, msgspec.Raw]) for line in lines)

    @cached_property
    def document(self) -> Any:
        """A single file that is one JSON document, decoded; None for anything else."""
        raw = only_file(self.files)
        if raw is None:
            return None
        try:
            return msgspec.json.decode(raw.removeprefix(b"\xef\xbb\xbf"))
        except (msgspec.DecodeError, RecursionError):
            return None

    @property
    def fields(self) -> dict[str, Any]:
        """The document, if it is an object; {} for anything else."""
        return self.document if isinstance(self.document, dict) else {}

    @property
    def items(self) -> list[Any]:
        """The document, if it is an array; [] for anything else."""
        return self.document if isinstance(self.document, list) else []


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """One format. ``title`` is what a person reads. ``read`` takes the files, and whether the
    first thing that cannot be read is an error; it raises TranscriptError. ``write``, where
    an application can import such files, gives the files of some conversations: their ids, order
    and text come back when they are read again. ``lacks`` names what files of the format cannot
    give, for people.
    """

    title: str
    looks_like: Callable[[Probe], bool]
    read: Callable[[Files, bool], tuple[Conversation, ...]]
    write: Callable[[Sequence[Conversation]], Files] | None = None
    lacks: tuple[str, ...] = ()
