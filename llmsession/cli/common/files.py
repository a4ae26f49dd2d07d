"""Files of recorded conversations: their options, and how commands read them."""

from __future__ import annotations

import os
import stat
import uuid
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
    "write_new",
]

# Typer would reject the whole command for one unreadable file; the others are processed.
RecordedFiles: TypeAlias = Annotated[
    list[Path],
    typer.Argument(metavar="FILE...", help="Recorded conversations.", readable=False),
]
FormatName: TypeAlias = Annotated[
    str | None,
    typer.Option("--from", metavar="FORMAT", help=f"Format of the files: {', '.join(FORMATS)}."),
]

MAX_FOLDER_BYTES = 2 << 30
"""A larger folder is refused: most likely it was named by mistake."""
MAX_NAMED = 3
"""How many files are named for each reason why files are left out."""


def sources(path: Path, format: str | None) -> list[tuple[Path, Files]]:
    """The files of *path*, grouped by what has to be read together.

    A folder is one group if a format keeps a single history in several of its files. Else each of
    its files is a group of its own. Files that cannot be read or have no known format are left out:
    one line on stderr counts them by reason and names the first ones.

    Raises OSError, and InvalidInput for a folder that is too large or a path that is not a regular
    file, such as a named pipe.
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
    """The bytes of the file at *path*. Raises OSError, and InvalidInput for anything but a regular
    file, because reading a named pipe could block for ever."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # reading a folder raises its own OSError
        kind = "a named pipe (FIFO)" if stat.S_ISFIFO(mode) else "a socket or a device"
        raise InvalidInput(f"{kind} cannot be read; save its content to a file first")
    return path.read_bytes()


def write_new(path: Path, raw: bytes) -> None:
    """Write *raw* to a new file at *path*, completely or not at all: part of a file could be taken
    for the whole one. Raises OSError, and FileExistsError if there is something at *path*."""
    temporary = path.with_name(f".llmsession-{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        path.open("xb").close()  # from here on the file at this path is ours, so it may be replaced
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _files_below(folder: Path) -> tuple[list[Path], list[tuple[Path, str]]]:
    """The files below *folder*, and each folder that cannot be listed, with the reason."""
    unlisted: list[tuple[Path, str]] = []
    note = lambda error: unlisted.append((Path(error.filename), one_line(error)))  # noqa: E731
    files = sorted(
        Path(where) / name for where, _, names in os.walk(folder, onerror=note) for name in names
    )
    sizes = (file.lstat().st_size for file in files)
    if sum(sizes) > MAX_FOLDER_BYTES:
        raise InvalidInput(f"{folder}: the folder holds more than {MAX_FOLDER_BYTES >> 30} GiB")
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
    """The user's folder of this program by the XDG rules: below the folder in the environment
    variable *variable*, else below *below_home* in the home folder. It is created with access for
    its user alone. Raises InvalidInput if it cannot be created."""
    base = os.environ.get(variable, "")
    folder = (Path(base) if Path(base).is_absolute() else Path.home() / below_home) / "llmsession"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        reason = f"cannot create {folder}: {error.strerror}"
        raise InvalidInput(f"{reason}; set ${variable}, or use --store") from error
    return folder


def price_table(path: Path | None) -> PriceTable:
    """The built-in prices, overridden by those in the file at *path*. Raises InvalidInput."""
    with option("--prices"):
        return PriceTable(load_prices(path) if path is not None else None)


def check_format(format: str | None) -> None:
    """Raises InvalidInput for an unknown format. None stands for detection."""
    if format is not None and format not in FORMATS:
        known = ", ".join(FORMATS)
        raise InvalidInput(f"--from: unknown format {format!r}; known formats: {known}")


def one_line(error: Exception) -> str:
    """The message of *error* on one line, without a file's name."""
    message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(message.split())


def print_failure(path: Path | str, message: str) -> None:
    """Print on stderr why *path* was not read."""
    complain(f"llmsession: {path}: {message}")


def print_left_out(path: Path | str, conversations: Iterable[Conversation]) -> LeftOut:
    """Print on stderr what the reader of *path* left out of its *conversations*, if anything."""
    missing = left_out(conversations)
    if missing.count:
        print_failure(path, str(missing))
    return missing


def progress_bar(figure: str) -> Progress:
    """A progress bar with *figure* beside it. It is shown on a terminal only, and removed at the
    end."""
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
