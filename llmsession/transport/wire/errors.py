"""Converts errors to wire messages and back. The code of a SessionError is its class name."""

from __future__ import annotations

from typing import Any

import msgspec

from llmsession import errors
from llmsession.errors import SessionError
from llmsession.session import TurnOutcome

from . import messages as w

__all__ = ["ERRORS", "from_wire", "is_retryable", "to_wire"]

ERRORS: dict[str, type[SessionError]] = {
    name: kind
    for name in errors.__all__
    if isinstance(kind := getattr(errors, name), type) and issubclass(kind, SessionError)
}
"""The class of each error that can be sent, by its code."""
_RETRYABLE = (errors.Overloaded, errors.SessionBusy, errors.SessionInUse)


def to_wire(error: SessionError, *, id: int | None = None) -> w.Error:
    """*error* as a message. An error of a class outside this library gets the code of its nearest
    base class."""
    code = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in ERRORS)
    details = {
        name: msgspec.Raw(msgspec.json.encode(value, enc_hook=str))
        for name, value in vars(error).items()
        if not name.startswith("_")
    }
    return w.Error(
        id=id,
        code=code,
        message=str(error),
        retryable=is_retryable(error),
        retry_after_s=_retry_after_s(error),
        details=details,
    )


def is_retryable(error: SessionError) -> bool:
    """Whether the same command may succeed later without being changed."""
    if isinstance(error, errors.ProviderError):
        return error.kind == "retryable"
    if isinstance(error, errors.StoreDamaged | errors.RecordDamaged):
        return False
    if isinstance(error, errors.StoreError):
        return error.committed is False
    if isinstance(error, errors.SessionMoved):
        return error.address is not None
    return isinstance(error, _RETRYABLE)


def _retry_after_s(error: SessionError) -> float | None:
    if isinstance(error, errors.ProviderError) and error.kind == "retryable":
        return error.delay_s
    return error.retry_after_s if isinstance(error, errors.Overloaded) else None


def from_wire(message: w.Error) -> SessionError:
    """The error in *message*, with the class, text and attributes of the original. For an unknown
    code it is a plain SessionError whose text begins with the code."""
    kind = ERRORS.get(message.code)
    if kind is None:
        return SessionError(f"{message.code}: {message.message}")
    # Bypass the constructor: it would build the text again, and the message already has it.
    error = kind.__new__(kind, message.message)
    for name, value in message.details.items():
        vars(error)[name] = _attribute(name, value)
    return error


def _attribute(name: str, value: msgspec.Raw) -> Any:
    if name == "outcome":
        return msgspec.json.decode(value, type=TurnOutcome | None)
    value = msgspec.json.decode(value)
    # Sequences in attributes of errors are tuples. JSON has only lists, so convert them back.
    return tuple(value) if isinstance(value, list) else value
