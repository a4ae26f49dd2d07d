"""The records that a snapshot covers, as bytes: the messages of a turn are decoded when needed."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain, islice

from llmsession.turns.messages import Message
from llmsession.turns.records import decode_record, turn_of

from ..log.state import SessionState

__all__ = ["LogBytes", "StoredLog"]


class LogBytes:
    """The bodies of the records 1, 2, 3, ... of a log, joined by the page that they are read in.

    An object for each of them would take half as long again to keep as to read.
    """

    def __init__(self) -> None:
        self._ends: list[int] = []
        """How many records there are up to the end of each page."""
        self._pages: list[bytes] = []
        self._lengths: list[array[int]] = []
        """The lengths of the bodies of each page."""

    def __len__(self) -> int:
        """The number of records."""
        return self._ends[-1] if self._ends else 0

    def add(self, bodies: Sequence[bytes]) -> bytes:
        """Add the next records, a page of them. Returns their bytes."""
        joined = b"".join(bodies)
        self._ends.append(len(self) + len(bodies))
        self._pages.append(joined)
        self._lengths.append(array("L", map(len, bodies)))
        return joined

    def between(self, first: int, last: int) -> Iterator[bytes]:
        """The bodies of the records *first* to *last*."""
        page = bisect_right(self._ends, first - 1)
        before = self._ends[page - 1] if page else 0
        pages = (self._bodies(at) for at in range(page, len(self._pages)))
        skipped = first - 1 - before
        return islice(chain.from_iterable(pages), skipped, skipped + last - first + 1)

    def _bodies(self, page: int) -> Iterator[bytes]:
        start, joined = 0, self._pages[page]
        for length in self._lengths[page]:
            yield joined[start : start + length]
            start += length


class StoredLog:
    """The records of *log*, which *state* is the fold of.

    They were folded before, so they can be decoded: whoever makes this has compared their checksum.
    """

    def __init__(self, state: SessionState, log: LogBytes) -> None:
        self._log = log
        # The state goes on, and forgets what it says of these.
        self._first = state.accepted_at.copy()
        self._last = state.committed_at.copy()
        self._id_ranges = state.id_ranges

    def messages_of(self, turns: Sequence[int]) -> tuple[Message, ...]:
        """The messages of *turns*, successive turns of the history."""
        # A turn that is erased already, and is forgotten by a later record, has no commit here.
        last = max(self._last.get(turn, len(self._log)) for turn in turns)
        first = min(self._first[turn] for turn in turns)
        wanted, part = frozenset(turns), SessionState("")
        with part.whole_log():
            for body in self._log.between(first, last):
                record = decode_record(body)
                # Other records change no message of these turns.
                if turn_of(record) in wanted:
                    part.session = self._session_at(record.seq)
                    part.head = record.seq - 1
                    part.apply(record)
        return part.history

    def _session_at(self, seq: int) -> str:
        return next(session for first, session in reversed(self._id_ranges) if first < seq)
