"""Files of recorded conversations: the options that name them, and how a command reads them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from llmsession.errors import InvalidInput
from llmsession.session.values.price_file import load_prices
from llmsession.transcripts import FORMATS, Conversation, Files, LeftOut, detect, left_out
from llmsession.turns.spending.prices import PriceTable

from .options import option
from .terminal import TerminalConsole, complain

__all__ = [
    "MAX_FOLDER_BYTES",
    "FormatName",
    "RecordedFiles",
    "check_format",
    "one_line",
    "price_table",
    "print_failure",
    "print_left_out",
    "progress_bar",
    "read_file",
    "sources",
    "user_folder",
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
MAX_NAMED = 3
"""Of the files that are left out for one reason."""


def sources(path: Path, format: str | None) -> list[tuple[Path, Files]]:
    """What is read at once: a file, or a folder that a format keeps one history in; else each
    file of the folder is its own. Files of a folder that cannot be read, or have no known format,
    are left out: one line on stderr counts them by reason and names the first ones.

    Raises InvalidInput for a folder that is too large and for what is no file, such as a named
    pipe, and OSError.
    """
    if not path.is_dir():
        try:
            return [(path, {path.name: read_file(path)})]
        except InvalidInput as error:
            raise InvalidInput(f"{path}: {error}") from error
    below, unreadable = _files_below(path)
    files: dict[str, bytes] = {}
    for file in below:
        try:
            files[file.relative_to(path).as_posix()] = read_file(file)
        except (OSError, InvalidInput) as error:
            unreadable.append((file, one_line(error)))
    left_out = [(file, f"cannot be read: {why}") for file, why in unreadable]
    known: list[tuple[Path, Files]] = []
    if files and (format is not None or detect(files) is not None):
        known = [(path, files)]
    else:
        for name, raw in files.items():
            source: tuple[Path, Files] = (path / name, {(path / name).name: raw})
            if detect(source[1]) is not None:
                known.append(source)
            else:
                left_out.append((path / name, "of no known transcript format"))
    if left_out:
        print_failure(path, _left_out_line(path, left_out, len(below)))
    return known


def read_file(path: Path) -> bytes:
    """The bytes of the file at *path*. Raises InvalidInput for what is no file: reading a named
    pipe could wait for ever. Raises OSError."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a folder is an error of its own
        kind = "a named pipe (FIFO)" if stat.S_ISFIFO(mode) else "a socket or a device"
        raise InvalidInput(f"{kind} is not read; write what comes from it to a file first")
    return path.read_bytes()


def _files_below(folder: Path) -> tuple[list[Path], list[tuple[Path, str]]]:
    """The files in *folder* and below, and the folders that cannot be listed, with the reason."""
    unlisted: list[tuple[Path, str]] = []
    note = lambda error: unlisted.append((Path(error.filename), one_line(error)))  # noqa: E731
    files = sorted(
        Path(where) / name for where, _, names in os.walk(folder, onerror=note) for name in names
    )
    sizes = (file.lstat().st_size for file in files)
    if sum(sizes) > MAX_FOLDER_BYTES:
        raise InvalidInput(f"{folder}: more than {MAX_FOLDER_BYTES >> 30} GiB in it")
    return files, unlisted


def _left_out_line(folder: Path, left_out: Sequence[tuple[Path, str]], total: int) -> str:
    by_reason: dict[str, list[str]] = {}
    for file, reason in left_out:
        name = file.relative_to(folder).as_posix() if file.is_relative_to(folder) else str(file)
        by_reason.setdefault(reason, []).append(name)
    reasons = []
    for reason, names in by_reason.items():
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        reasons.append(f"{len(names)} {reason} ({', '.join(names[:MAX_NAMED])}{more})")
    return f"{len(left_out)} of {total} files left out: {'; '.join(reasons)}"


def user_folder(variable: str, below_home: str) -> Path:
    """The user's own folder of this program, by the rules of XDG: in the folder that *variable*
    names, else in *below_home*. It is made, for its user alone. Raises InvalidInput."""
    base = os.environ.get(variable, "")
    folder = (Path(base) if Path(base).is_absolute() else Path.home() / below_home) / "llmsession"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        reason = f"{folder} cannot be made: {error.strerror}"
        raise InvalidInput(f"{reason}; set ${variable}, or name a place with --store") from error
    return folder


def price_table(path: Path | None) -> PriceTable:
    """The built-in prices, and before them those of the file at *path*. Raises InvalidInput."""
    with option("--prices"):
        return PriceTable(load_prices(path) if path is not None else None)


def check_format(format: str | None) -> None:
    """Raises InvalidInput for a format that does not exist; None stands for any."""
    if format is not None and format not in FORMATS:
        known = ", ".join(FORMATS)
        raise InvalidInput(f"--from: unknown format {format!r}; known formats: {known}")


def one_line(error: Exception) -> str:
    """The message of *error*, without a file's name and on one line."""
    message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(message.split())


def print_failure(path: Path | str, message: str) -> None:
    """Say on stderr why *path* was not read."""
    complain(f"llmsession: {path}: {message}")


def print_left_out(path: Path | str, conversations: Iterable[Conversation]) -> LeftOut:
    """Say on stderr what the reader of *path* left out of its *conversations*, if anything."""
    missing = left_out(conversations)
    if missing.count:
        print_failure(path, str(missing))
    return missing


def progress_bar(figure: str) -> Progress:
    """A bar with *figure* behind it, on a terminal; it vanishes at the end. Elsewhere nothing."""
    console = TerminalConsole(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(figure),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
