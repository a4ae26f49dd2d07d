"""Makes an error's message begin with the option that the error is about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llmsession.errors import InvalidInput, SessionError

__all__ = ["message_of", "option"]


@contextmanager
def option(name: str) -> Iterator[None]:
    """Errors that the body raises are about the option *name*. Turns a SessionError or an OSError
    into an InvalidInput whose message begins with *name*, as the user typed it."""
    try:
        yield
    except (SessionError, OSError) as error:
        message = message_of(error)
        if message.startswith(name):
            raise
        raise InvalidInput(f"{name}: {message}") from error


def message_of(error: Exception) -> str:
    """The message of *error* on one line. That of an OSError begins with the file's name."""
    message = str(error)
    if isinstance(error, OSError) and error.strerror:
        reason = error.strerror
        message = reason if error.filename is None else f"{error.filename}: {reason}"
    return " ".join(message.split()) or type(error).__name__
