"""Files of recorded conversations: the options that name them, and how a command reads them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from llmsession.errors import InvalidInput
from llmsession.transcripts import FORMATS, Conversation, Files, LeftOut, detect, left_out

__all__ = [
    "MAX_FOLDER_BYTES",
    "FormatName",
    "RecordedFiles",
    "check_format",
    "one_line",
    "print_failure",
    "print_left_out",
    "progress_bar",
    "sources",
]

# Typer would refuse the whole call for one file that may not be read.
RecordedFiles: TypeAlias = Annotated[
    list[Path],
    typer.Argument(metavar="FILE...", help="Recorded conversations.", readable=False),
]
FormatName: TypeAlias = Annotated[
    str | None,
    typer.Option("--from", metavar="FORMAT", help=f"One of: {', '.join(FORMATS)}."),
]

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
            print_failure(where, "no known transcript format; left out")
    return known


def check_format(format: str | None) -> None:
    """Raises InvalidInput for a format that does not exist; None stands for any."""
    if format is not None and format not in FORMATS:
        raise InvalidInput(f"unknown format {format!r}; known formats: {', '.join(FORMATS)}")


def one_line(error: Exception) -> str:
    """The message of *error*, without a file's name and on one line."""
    message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(message.split())


def print_failure(path: Path | str, message: str) -> None:
    """Say on stderr why *path* was not read."""
    print(f"llmsession: {path}: {message}", file=sys.stderr)


def print_left_out(path: Path | str, conversations: Iterable[Conversation]) -> LeftOut:
    """Say on stderr what the reader of *path* left out of its *conversations*, if anything."""
    missing = left_out(conversations)
    if missing.count:
        print_failure(path, str(missing))
    return missing


def progress_bar(figure: str) -> Progress:
    """A bar with *figure* behind it, on a terminal; it vanishes at the end. Elsewhere nothing."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(figure),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
