"""What was forgotten: its words are in no record that the store has, whoever took them out."""

from __future__ import annotations

import re
from collections.abc import Iterator

from llmsession.session.log.redaction import NOTHING_SAID
from llmsession.session.log.state import SessionState
from llmsession.turns import records as r

from ..recording.entries import SessionRecording
from ..recording.violation import Violations
from .callers import token_of
from .rules import Rules

__all__ = ["ForgottenRules"]

MIN_BYTES = 48
"""So long is what was said at least that is looked for: less may stand in a record by chance."""


class ForgottenRules(Rules):
    """Invariant 12, for words: of a turn that was forgotten neither what was sent is in the log as
    the store has it, nor what was said or answered in the record that said it. By the words
    themselves, not by the rule that takes them out."""

    def __init__(self, violations: Violations, session: SessionRecording) -> None:
        self._violations = violations
        self._bodies = {entry.seq: bytes(entry.body) for entry in session.log}
        self._bodies.update((entry.seq, bytes(entry.body)) for entry in session.rewrites)
        self._said: dict[int, list[tuple[int, bytes]]] = {}
        """By turn what was said in it, each with the seq of its record."""
        self._tokens: dict[int, list[str]] = {}
        self._owed: tuple[int, set[int]] | None = None
        """The record that asked for it, and the turns that have to go."""
        self._kept: set[int] = set()

    def before(self, state: SessionState, record: r.Record) -> None:
        self._kept = {message.turn for message in state.history}

    def after(self, state: SessionState, record: r.Record) -> None:
        turn = r.turn_of(record)
        if turn is not None:
            text = [raw for raw in _words(record) if len(raw) >= MIN_BYTES]
            self._said.setdefault(turn, []).extend((record.seq, raw) for raw in text)
        match record:
            case r.TurnAccepted() | r.SteerAccepted() if record.body != NOTHING_SAID:
                self._tokens.setdefault(record.turn, []).append(token_of(record))
            case r.ConversationCleared(purge=True):
                self._forget(record.seq, set(self._said) - set(state.open))
            case r.ConversationForgotten():
                self._forget(record.seq, self._kept - {item.turn for item in state.history})
            case r.RecordsRedacted() if self._owed is not None:
                self._check(*self._owed)
                self._owed = None
            case _:
                pass

    def _forget(self, seq: int, turns: set[int]) -> None:
        self._owed = seq, turns | (self._owed[1] if self._owed else set())

    def _check(self, seq: int, turns: set[int]) -> None:
        astray = {
            body_seq
            for turn in turns
            for body_seq, raw in self._said.pop(turn, ())
            if raw in self._bodies.get(body_seq, b"")
        }
        tokens = [token for turn in turns for token in self._tokens.pop(turn, ()) if "#" in token]
        if tokens:
            sent = re.compile(b"|".join(re.escape(f'"{token}: '.encode()) for token in tokens))
            before = (body_seq for body_seq in self._bodies if body_seq < seq)
            astray.update(body_seq for body_seq in before if sent.search(self._bodies[body_seq]))
        if astray:
            text = f"record {min(astray)} has words that were forgotten by record {seq}"
            self._violations.add(12, text, seqs=[min(astray), seq])


def _words(record: r.Record) -> Iterator[bytes]:
    """What the record itself says: as JSON, as it stands in the log."""
    if isinstance(record, r.TurnAccepted | r.SteerAccepted):
        yield bytes(record.body)
    elif isinstance(record, r.ToolsAnswered):
        yield from (bytes(answer.content) for answer in record.answers if answer.settled is None)
    reply = getattr(record, "reply", None)
    if reply is not None:
        yield bytes(reply.body)
