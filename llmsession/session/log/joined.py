"""A history and the messages of the open turn behind it, as one sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import overload

from llmsession.turns.messages import Message

__all__ = ["Joined", "appended"]


def appended(history: tuple[Message, ...], messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """*history* with *messages* behind it: the one copy that a turn makes of the history, at its
    commit, so that every tuple that was handed out stays as it is.
    """
    return history + messages


class Joined(Sequence[Message]):
    """*history* and then *staged*, without a copy of either: it is made for each request.

    Immutable, as its two parts are. A slice is a tuple, and costs as much as it is long.
    """

    __slots__ = ("_count", "_history", "_staged")

    def __init__(self, history: tuple[Message, ...], staged: tuple[Message, ...]) -> None:
        self._history = history
        self._staged = staged
        self._count = len(history)

    def __len__(self) -> int:
        return self._count + len(self._staged)

    def __iter__(self) -> Iterator[Message]:
        return chain(self._history, self._staged)

    @overload
    def __getitem__(self, at: int) -> Message: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, at: int | slice) -> Message | tuple[Message, ...]:
        if not isinstance(at, slice):
            index = at + len(self) if at < 0 else at
            if index < 0:
                raise IndexError("no message at this position")
            count = self._count
            return self._history[index] if index < count else self._staged[index - count]
        start, stop, step = at.indices(len(self))
        if step != 1:
            return tuple(self[index] for index in range(start, stop, step))
        count = self._count
        staged = self._staged[max(0, start - count) : max(0, stop - count)]
        return self._history[start : min(stop, count)] + staged
