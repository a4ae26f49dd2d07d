"""Replays of files of recorded conversations."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import msgspec

from llmsession.errors import InvalidInput, SessionError
from llmsession.testing.replay.replay import DriveOptions, DriveReport, replay_conversation
from llmsession.transcripts import FORMATS, Conversation, LeftOut, detect, read

from ..common.files import one_line, print_left_out, progress_bar, read_file

__all__ = ["Drive", "ReplayedFile", "drive_files"]

DEFAULT = DriveOptions()
Drive: TypeAlias = Callable[..., Awaitable[DriveReport]]
"""A function with the parameters of ``replay_conversation``."""


class ReplayedFile(msgspec.Struct, kw_only=True):
    """The replay of one file.

    ``notes`` counts all notes of the reader, those on bookkeeping lines included. ``left_out`` is
    what the reader left out of the conversations. ``lacks`` names what the recording does not
    contain, because its format never does or because this file does not. ``error`` says why the
    file could not be read, or why nothing in it could be replayed; the other fields are then
    empty."""

    file: str
    format: str | None = None
    conversations: int = 0
    report: DriveReport = msgspec.field(default_factory=DriveReport)
    notes: Counter[str] = msgspec.field(default_factory=Counter)
    left_out: LeftOut = LeftOut({}, 0)
    lacks: tuple[str, ...] = ()
    seconds: float = 0.0
    error: str | None = None

    def figures(self) -> dict[str, Any]:
        """The result as one JSON object."""
        report = self.report
        counted = {
            name: value
            for name, value in msgspec.structs.asdict(report).items()
            if name != "history_equal" or value is not None
        }
        figures = {
            "file": self.file,
            "format": self.format,
            "conversations": self.conversations,
            "skipped": report.skipped,
            **counted,
            "notes": dict(self.notes),
            "left_out": self.left_out.reasons,
            "lacks": list(self.lacks),
            "seconds": round(self.seconds, 3),
        }
        return figures | ({"error": self.error} if self.error else {})


def drive_files(
    files: Iterable[Path],
    options: DriveOptions = DEFAULT,
    *,
    format: str | None = None,
    strict: bool = False,
    drive: Drive | None = None,
) -> Iterator[ReplayedFile]:
    """Replay each file, and show a progress bar on a terminal.

    *format* is detected if it is None. *drive* replays one conversation; by default it is
    ``replay_conversation``. A file that cannot be read is yielded with its ``error``, and the
    others are still replayed.
    """
    for path in files:
        how = drive or replay_conversation
        yield _replay_file(path, options, format=format, strict=strict, drive=how)


def _replay_file(
    path: Path, options: DriveOptions, *, format: str | None, strict: bool, drive: Drive
) -> ReplayedFile:
    file = ReplayedFile(file=str(path), format=format)
    started = time.perf_counter()
    try:
        written = read_file(path)
        file.format = format or detect(written)
        conversations = read(written, file.format, strict=strict)
    except (OSError, SessionError) as error:
        file.error = one_line(error)
        file.report.skipped_reasons["unreadable"] += 1
        return file
    file.conversations = len(conversations)
    for conversation in conversations:
        file.notes.update(note.what for note in conversation.notes)
    file.left_out = print_left_out(path, conversations)
    file.lacks = _lacking(conversations, file.format)
    try:
        _drive_all(conversations, options, file, drive)
    except InvalidInput as error:
        file.error = one_line(error)
        return file
    file.seconds = time.perf_counter() - started
    refused = file.report.skipped_reasons
    was_replayed = file.report.requests or file.report.is_broken
    if (
        refused
        and not was_replayed
        and any(conversation.messages for conversation in conversations)
    ):
        reasons = ", ".join(f"{reason} {count}" for reason, count in refused.most_common())
        file.error = f"nothing in it could be replayed: {reasons}"
    return file


def _lacking(conversations: Sequence[Conversation], format: str | None) -> tuple[str, ...]:
    """The names of what the format never contains, and of what no message of this file has."""
    messages = [message for conversation in conversations for message in conversation.messages]
    replies = [message for message in messages if message.is_assistant]
    missing = {
        "usage": not any(reply.usage for reply in replies),
        "times": not any(message.created_at for message in messages),
        "models": not any(reply.model for reply in replies),
    }
    lacks = FORMATS[format].lacks if format in FORMATS else ()
    return (*lacks, *(name for name, is_missing in missing.items() if messages and is_missing))


def _drive_all(
    conversations: Sequence[Conversation], options: DriveOptions, file: ReplayedFile, drive: Drive
) -> None:
    total = sum(len(conversation.messages) for conversation in conversations)
    rounds = 1 if options.interrupt_every is None else 2
    with progress_bar("{task.completed:.0f}/{task.total:.0f} messages") as progress:
        task = progress.add_task(Path(file.file).name, total=total * rounds)
        for conversation in conversations:
            replay = partial(drive, conversation, options, advanced=partial(progress.advance, task))
            file.report.add(anyio.run(replay))
