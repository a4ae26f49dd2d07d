"""What a format consists of: how its files are recognised, read and written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import msgspec

from .conversation import Conversation
from .jsonl import read_lines

__all__ = ["Files", "Format", "Probe", "as_files", "only_file"]

Files: TypeAlias = Mapping[str, bytes]
"""Files by their path below the folder, with ``/`` as separator. A single file has its name as the
key, or "" if the name is unknown.
"""

_FIRST_LINES = 40
"""Lines that do not identify the format, such as settings, may come before the first line that
does.
"""


def as_files(written: bytes | Files) -> Files:
    """A single file's bytes as files."""
    return {"": written} if isinstance(written, bytes) else written


def only_file(files: Files) -> bytes | None:
    """The bytes of the only file; None if there are several, or none."""
    return next(iter(files.values())) if len(files) == 1 else None


class Probe:
    """Files, and the parsed forms of them that several formats need, each computed once."""

    def __init__(self, files: Files) -> None:
        self.files = files

    @cached_property
    def lines(self) -> tuple[dict[str, msgspec.Raw], ...]:
        """The fields of the first objects of a single JSON Lines file; empty for anything else."""
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
        """The document if it is an object; empty for anything else."""
        return self.document if isinstance(self.document, dict) else {}

    @property
    def items(self) -> list[Any]:
        """The document if it is an array; empty for anything else."""
        return self.document if isinstance(self.document, list) else []


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """One format.

    - ``title`` is its name for people.
    - ``looks_like`` recognises its files.
    - ``read`` takes the files, and whether the first thing that cannot be read is an error. It
      raises TranscriptError.
    - ``write`` makes the files of some conversations. When they are read again, ids, order and text
      are the same. It is None if no application can import such files.
    - ``lacks`` lists, for people, what files of the format cannot provide.
    """

    title: str
    looks_like: Callable[[Probe], bool]
    read: Callable[[Files, bool], tuple[Conversation, ...]]
    write: Callable[[Sequence[Conversation]], Files] | None = None
    lacks: tuple[str, ...] = ()
