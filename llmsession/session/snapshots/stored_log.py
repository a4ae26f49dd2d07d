"""The records that a snapshot covers, as bytes: the messages of a turn are decoded when needed."""

from __future__ import annotations

from collections.abc import Sequence

from llmsession.turns.messages import Message
from llmsession.turns.records import decode_record, turn_of

from ..log.state import SessionState

__all__ = ["StoredLog"]


class StoredLog:
    """The records 1, 2, 3, ... of a log, which *state* is the fold of.

    They were folded before, so they can be decoded: whoever makes this has compared their checksum.
    """

    def __init__(self, state: SessionState, bodies: Sequence[bytes]) -> None:
        self._bodies = bodies
        # The state goes on, and forgets what it says of these.
        self._first = dict(state.accepted_at)
        self._last = dict(state.committed_at)
        self._id_ranges = state.id_ranges

    def messages_of(self, turns: Sequence[int]) -> tuple[Message, ...]:
        """The messages of *turns*, successive turns of the history."""
        # A turn that is erased already, and is forgotten by a later record, has no commit here.
        last = max(self._last.get(turn, len(self._bodies)) for turn in turns)
        first = min(self._first[turn] for turn in turns)
        wanted, part = frozenset(turns), SessionState("")
        with part.whole_log():
            for body in self._bodies[first - 1 : last]:
                record = decode_record(body)
                # Other records change no message of these turns.
                if turn_of(record) in wanted:
                    part.session = self._session_at(record.seq)
                    part.head = record.seq - 1
                    part.apply(record)
        return part.history

    def _session_at(self, seq: int) -> str:
        return next(session for first, session in reversed(self._id_ranges) if first < seq)
