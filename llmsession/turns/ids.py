"""Turn ids: ``u7`` is the user's side of turn 7, ``a7`` the assistant's side."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

import msgspec

from llmsession.errors import InvalidInput, refusing

from .blocks import plain_number

__all__ = ["TurnCounter", "TurnId", "turn_number"]

Owner: TypeAlias = Literal["u", "a"]
MAX_TURNS = 10**18
"""More than any session can have."""
_PRINTED = re.compile(r"([ua])([1-9][0-9]{0,17})", re.ASCII)


class TurnId(msgspec.Struct, frozen=True, order=True):
    """One side of a turn, and the turn's number, which starts at 1.

    The user's message and the tool results of turn 7 are ``u7``, the assistant's messages are
    ``a7``. Where an argument names a turn, only the number counts.
    """

    owner: Owner
    number: int

    def __str__(self) -> str:
        return f"{self.owner}{self.number}"

    @classmethod
    def parse(cls, printed: str) -> TurnId:
        """The id that prints as *printed*. Raises InvalidInput for anything else."""
        match = _PRINTED.fullmatch(printed) if isinstance(printed, str) else None
        if match is None:
            raise InvalidInput(f"{printed!r} is not a turn id; use u1, a1, u2, ...")
        return cls("u" if match[1] == "u" else "a", int(match[2]))


class TurnCounter:
    """Assigns turn numbers. They grow and are never used twice, not even after a dropped turn."""

    __slots__ = ("last", "seen")

    def __init__(self, last: int = 0) -> None:
        self.last = last
        """The newest number that was assigned."""
        self.seen = last
        """The newest number that is in the log."""

    def next(self) -> int:
        """The next number; the first is 1."""
        self.last += 1
        return self.last

    def saw(self, number: int) -> None:
        """Note *number*, which was read from the log and is in use."""
        self.seen = max(self.seen, number)
        self.last = max(self.last, self.seen)


@refusing
def turn_number(turn: TurnId | str | int) -> int:
    """The number of *turn*, in any of its forms. Raises InvalidInput if it is not a turn."""
    if isinstance(turn, str):
        turn = TurnId.parse(str.__str__(turn))
    named: object = turn.number if isinstance(turn, TurnId) else turn
    number = plain_number(named)
    if number is None or not 1 <= number < MAX_TURNS:
        raise InvalidInput(f"{named!r} is not a turn; use u1, a1, or a number from 1 on")
    return number
