"""What a connection does with one answer, step by step. The values; nothing is decided here."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

__all__ = ["Break", "End", "Head", "Pause", "Send", "Step"]


class Head(msgspec.Struct, frozen=True):
    """The status line and the headers go out."""

    status: int
    headers: tuple[tuple[str, str], ...]


class Send(msgspec.Struct, frozen=True):
    """These bytes of the body go out, by themselves."""

    body: bytes


class Pause(msgspec.Struct, frozen=True):
    """Nothing happens for so long; for ever, if it is infinite."""

    seconds: float


class End(msgspec.Struct, frozen=True):
    """The body is whole; the connection stays."""


class Break(msgspec.Struct, frozen=True):
    """The connection ends here: closed, or reset."""

    reset: bool


Step: TypeAlias = Head | Send | Pause | End | Break
