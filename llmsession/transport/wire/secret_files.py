"""Files that hold secrets: who else may read them, or write to them.

Who may write to a file of tokens lets himself in; who may write to a key decides what it protects.
Such a file is refused. Who may read it has the secret already, which is a warning: some systems
mount secrets so, where nobody else is.
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
    """The bytes of the file at *path*; *what* it is stands in messages ("token file").

    Raises InvalidConfig for a file that cannot be read, and for one that its group or everybody may
    write to. *warn* is called with one line for a file that everybody may read; by default it is
    logged. A pipe is read to its end.
    """
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            # Of the file that is open: the name may belong to another one a moment later.
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
    """Why a file with *status* is no place for a secret; None where it is one."""
    if not stat.S_ISREG(status.st_mode):
        return None  # a pipe that a shell made, for example: it has no other reader
    for bit, who in ((stat.S_IWOTH, "every user of this machine"), (stat.S_IWGRP, "its group")):
        if status.st_mode & bit:
            return f"can be written by {who}, not by its owner alone: chmod go-w it"
    return None


def _log(text: str) -> None:
    default_logger().warning("secret.readable_by_others", why=text)
