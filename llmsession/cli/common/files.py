"""What a command reads at once: a file, a folder that holds one history, or each file of it."""

from __future__ import annotations

import sys
from pathlib import Path

from llmsession.errors import InvalidInput
from llmsession.transcripts import Files, detect

__all__ = ["MAX_FOLDER_BYTES", "sources"]

MAX_FOLDER_BYTES = 2 << 30
"""A folder that holds more is surely not the one that was meant."""


def sources(path: Path, format: str | None) -> list[tuple[Path, Files]]:
    """What is read at once: a file, or a folder that a format keeps one history in; else each
    file of the folder is its own, and those of no known format are named on stderr and left out.

    Raises InvalidInput for a folder that is too large, and OSError.
    """
    if not path.is_dir():
        return [(path, {path.name: path.read_bytes()})]
    below = sorted(file for file in path.rglob("*") if file.is_file())
    if sum(file.stat().st_size for file in below) > MAX_FOLDER_BYTES:
        raise InvalidInput(f"{path}: more than {MAX_FOLDER_BYTES >> 30} GiB in it")
    files = {file.relative_to(path).as_posix(): file.read_bytes() for file in below}
    if format is not None or detect(files) is not None:
        return [(path, files)]
    alone: list[tuple[Path, Files]] = [
        (file, {file.name: files[file.relative_to(path).as_posix()]}) for file in below
    ]
    known = [source for source in alone if detect(source[1]) is not None]
    for where, _ in alone:
        if where not in {file for file, _ in known}:
            print(f"llmsession: {where}: no known transcript format; left out", file=sys.stderr)
    return known
