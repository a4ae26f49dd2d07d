"""Errors that name the option that they are about, as a user of the command types it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llmsession.errors import InvalidInput, SessionError

__all__ = ["message_of", "option"]


@contextmanager
def option(name: str) -> Iterator[None]:
    """What the body raises is about the option *name*: an InvalidInput whose message begins with
    it. Raises that for a SessionError and for an OSError."""
    try:
        yield
    except (SessionError, OSError) as error:
        message = message_of(error)
        if message.startswith(name):
            raise
        raise InvalidInput(f"{name}: {message}") from error


def message_of(error: Exception) -> str:
    """The message of *error* on one line, and the file that it is about."""
    message = str(error)
    if isinstance(error, OSError) and error.strerror:
        reason = error.strerror
        message = reason if error.filename is None else f"{error.filename}: {reason}"
    return " ".join(message.split()) or type(error).__name__
