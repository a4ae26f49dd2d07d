"""Reads files with secrets, and checks who else may read or write them.

A file that other users can write is refused: they could add a token of their own, or replace the
key. A file that other users can read only causes a warning, because some systems mount secrets
this way in containers that have no other users.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import TypeAlias

from llmsession.errors import InvalidConfig
from llmsession.session.core.session_log import default_logger

__all__ = ["FilePath", "read_secret"]

FilePath: TypeAlias = str | os.PathLike[str]


def read_secret(path: FilePath, what: str, *, warn: Callable[[str], None] | None = None) -> bytes:
    """The bytes of the file at *path*. *what* names the kind of file in messages ("token file").

    If every user of the machine can read the file, *warn* is called with a line of text; by default
    the line is logged. A pipe is read to its end. Raises InvalidConfig if the file cannot be read,
    or if its group or every user can write to it.
    """
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            # Check the open file, not its path: the path could name another file by now.
            status = os.fstat(file.fileno())
            fault = _fault(status)
            secret = file.read() if fault is None else b""
    except OSError as error:
        raise InvalidConfig(f"{what} {name!r} cannot be read: {error.strerror}") from error
    if fault is not None:
        raise InvalidConfig(f"{what} {name!r} {fault}")
    if stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IROTH:
        text = f"{what} {name!r} can be read by every user of this machine: chmod o-r {name}"
        (warn or _log)(text)
    return secret


def _fault(status: os.stat_result) -> str | None:
    """Why a file with *status* is unsafe for a secret. None if it is safe."""
    if not stat.S_ISREG(status.st_mode):
        return None  # for example a pipe from a shell, which has no other reader
    for bit, who in ((stat.S_IWOTH, "every user of this machine"), (stat.S_IWGRP, "its group")):
        if status.st_mode & bit:
            return f"can be written by {who}, not by its owner alone: chmod go-w it"
    return None


def _log(text: str) -> None:
    default_logger().warning("secret.readable_by_others", why=text)
