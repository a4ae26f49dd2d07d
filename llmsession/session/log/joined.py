"""Sequences of messages: a history with the open turn's messages behind it, and the part of a
history that is decoded when it is used.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, groupby
from operator import attrgetter
from threading import Lock
from typing import cast, overload

from llmsession.turns.messages import Message

__all__ = [
    "Joined",
    "StoredMessages",
    "StoredTurns",
    "appended",
    "place_of",
    "turn_lengths",
    "turns_between",
    "turns_of",
]


TOGETHER = 16
"""So many successive turns are decoded at once, in about a millisecond. The records of a turn that
waited in a queue have those of other turns between them, which are looked through once for all.
"""


def appended(history: tuple[Message, ...], messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """*history* with *messages* behind it: the one copy that a turn makes of the history, at its
    commit, so that every tuple that was handed out stays as it is.
    """
    return history + messages


def turn_lengths(history: Sequence[Message]) -> tuple[list[int], list[int]]:
    """The turns of *history* in order, and how many messages each has. Decodes nothing."""
    if isinstance(history, StoredMessages):
        return list(history.turns), list(history.counts)
    if isinstance(history, Joined):  # no turn has messages in both parts
        turns, counts = turn_lengths(history.first)
        more_turns, more_counts = turn_lengths(history.second)
        return turns + more_turns, counts + more_counts
    groups = [(turn, len(list(group))) for turn, group in groupby(history, attrgetter("turn"))]
    return [turn for turn, _ in groups], [count for _, count in groups]


def turns_between(history: Sequence[Message], first: int, end: int) -> list[int]:
    """The turns of the messages from position *first* to *end* of *history*, where turns begin, in
    order. Decodes nothing.
    """
    stored, rest = _parts(history)
    count = len(stored or ())
    turns = stored.part(min(first, count), min(end, count)).turns if stored else ()
    others = rest[max(0, first - count) : max(0, end - count)]
    return [*turns, *dict.fromkeys(message.turn for message in others)]


def turns_of(history: Sequence[Message]) -> Iterator[int]:
    """The turns of *history*, in order. Looks only at those that are taken, and decodes nothing."""
    stored, rest = _parts(history)
    yield from stored.turns if stored else ()
    for turn, _ in groupby(message.turn for message in rest):
        yield turn


def place_of(history: Sequence[Message], turn: int) -> tuple[int, int]:
    """The position of the first message of *turn* in *history*, and the position after its last
    one. Decodes nothing. Raises ValueError if the turn is not in it.
    """
    stored, rest = _parts(history)
    if stored and turn in stored.turns:
        return stored.place_of(turn)
    # Turns are nearly always in the order of their numbers. Else a rewind looks for one near the
    # end, and who forgets for one near the beginning.
    last = len(rest) - 1
    likely = bisect_left(rest, turn, key=attrgetter("turn"))
    both_ends = chain.from_iterable(zip(range(last + 1), range(last, -1, -1), strict=True))
    places = chain((likely,) if likely <= last else (), both_ends)
    first = next((at for at in places if rest[at].turn == turn), None)
    if first is None:
        raise ValueError(f"turn {turn} is not in the history")
    end = first + 1
    while first and rest[first - 1].turn == turn:
        first -= 1
    while end <= last and rest[end].turn == turn:
        end += 1
    count = len(stored or ())
    return count + first, count + end


def _parts(history: Sequence[Message]) -> tuple[StoredMessages | None, Sequence[Message]]:
    """The part of *history* that is decoded when it is used, if any, and the rest."""
    if isinstance(history, StoredMessages):
        return history, ()
    if isinstance(history, Joined) and isinstance(history.first, StoredMessages):
        return history.first, history.second
    return None, history


class Joined(Sequence[Message]):
    """*first* and then *second*, without a copy of either: it is made for each request.

    Immutable, as its two parts are. A slice is a tuple, and costs as much as it is long.
    """

    __slots__ = ("_count", "first", "second")

    def __init__(self, first: Sequence[Message], second: tuple[Message, ...]) -> None:
        self.first = first
        self.second = second
        self._count = len(first)

    def __len__(self) -> int:
        return self._count + len(self.second)

    def __iter__(self) -> Iterator[Message]:
        return chain(self.first, self.second)

    @overload
    def __getitem__(self, at: int) -> Message: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, at: int | slice) -> Message | tuple[Message, ...]:
        count = self._count
        if not isinstance(at, slice):
            index = at + len(self) if at < 0 else at
            if index < 0:
                raise IndexError("no message at this position")
            return self.first[index] if index < count else self.second[index - count]
        start, stop, step = at.indices(count + len(self.second))
        if step != 1:
            return tuple(self[index] for index in range(start, stop, step))
        second = self.second[max(0, start - count) : max(0, stop - count)]
        return tuple(self.first[start : min(stop, count)]) + second


class StoredTurns:
    """Successive turns of a history. The messages of each are decoded once, when they are needed.

    *counts* is the number of messages of each of *turns*, which is above 0. *decode* returns the
    messages of some of them. May be used in several threads: requests of long conversations are
    built in one.
    """

    def __init__(
        self,
        turns: Sequence[int],
        counts: Sequence[int],
        decode: Callable[[Sequence[int]], Sequence[Message]],
    ) -> None:
        self.turns = list(turns)
        self.starts = [0, *accumulate(counts)]
        """The position of the first message of each turn, and at the end the number of messages."""
        self.messages: list[Message | None] = [None] * self.starts[-1]
        self._missing = len(self.turns)
        self._decode: Callable[[Sequence[int]], Sequence[Message]] | None = decode
        self._lock = Lock()

    def need(self, first: int, end: int) -> None:
        """Decode those of the messages from position *first* to *end* that are not decoded yet,
        and what stands beside them.
        """
        if None not in self.messages[first:end]:
            return
        with self._lock:
            turn, count = bisect_right(self.starts, first) - 1, len(self.turns)
            turn -= turn % TOGETHER  # all turns of such a block are decoded, or none
            while turn < count and self.starts[turn] < end:
                last = turn
                while last < count and self.starts[last] < end and self._is_missing(last):
                    last += TOGETHER
                if last > turn:
                    self._make(turn, min(last, count))
                turn = max(last, turn + TOGETHER)

    def _is_missing(self, turn: int) -> bool:
        return self.messages[self.starts[turn]] is None

    def _make(self, turn: int, last: int) -> None:
        assert self._decode is not None  # a message is missing
        made = self._decode(self.turns[turn:last])
        first, end = self.starts[turn], self.starts[last]
        assert len(made) == end - first  # the checksum was right
        self.messages[first:end] = made
        self._missing -= last - turn
        if not self._missing:
            self._decode = None  # with it go the bytes of the records


class StoredMessages(Sequence[Message]):
    """The messages of *stored* from position *first* to *end*, where turns begin.

    Immutable, as far as its users can see: a message is decoded when it is used. A slice is a
    tuple.
    """

    __slots__ = ("_end", "_first", "_stored")

    def __init__(self, stored: StoredTurns, first: int = 0, end: int | None = None) -> None:
        self._stored = stored
        self._first, self._end = first, stored.starts[-1] if end is None else end

    def part(self, first: int, end: int) -> StoredMessages:
        """Those from position *first* to *end*, where turns begin. Decodes nothing."""
        return StoredMessages(self._stored, self._first + first, self._first + end)

    @property
    def turns(self) -> Sequence[int]:
        """The turns of the messages, in order. Decodes nothing."""
        starts = self._stored.starts
        return self._stored.turns[bisect_left(starts, self._first) : bisect_left(starts, self._end)]

    @property
    def counts(self) -> Sequence[int]:
        """How many messages each of the turns has. Decodes nothing."""
        starts = self._stored.starts
        first, end = bisect_left(starts, self._first), bisect_left(starts, self._end)
        return [starts[turn + 1] - starts[turn] for turn in range(first, end)]

    def place_of(self, turn: int) -> tuple[int, int]:
        """Where the messages of *turn*, which is in it, begin and end. Decodes nothing."""
        index = self._stored.turns.index(turn)
        starts = self._stored.starts
        return starts[index] - self._first, starts[index + 1] - self._first

    def __len__(self) -> int:
        return self._end - self._first

    def __iter__(self) -> Iterator[Message]:
        # Who looks only at the first messages decodes few; who wants all gets them at once.
        position, step = 0, 64
        while position < len(self):
            yield from self[position : position + step]
            position, step = position + step, step * 4

    @overload
    def __getitem__(self, at: int) -> Message: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, at: int | slice) -> Message | tuple[Message, ...]:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step != 1:
                return tuple(self[index] for index in range(start, stop, step))
            return self._decoded_from(start, max(start, stop))
        index = at + len(self) if at < 0 else at
        if not 0 <= index < len(self):
            raise IndexError("no message at this position")
        return self._decoded_from(index, index + 1)[0]

    def _decoded_from(self, start: int, stop: int) -> tuple[Message, ...]:
        first, end = self._first + start, self._first + stop
        if first < end:
            self._stored.need(first, end)
        found = self._stored.messages[first:end]
        return tuple(cast("list[Message]", found))
