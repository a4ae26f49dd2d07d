"""What may become of a history: it grows; or it is cleared, rewound or forgotten, and says so."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from llmsession.session.log.redaction import NOTHING_SAID, Redaction
from llmsession.session.log.state import SessionState
from llmsession.turns import records as r
from llmsession.turns.messages import Message

from ..recording.entries import SessionRecording
from ..recording.fingerprints import state_parts
from ..recording.violation import Violations, of_record
from .callers import token_of
from .log import Rules

__all__ = ["ForgottenRules", "HistoryRules"]


class HistoryRules(Rules):
    """Invariant 1 along a log, and 12 for what was taken out of it: *rewritten* are the records
    that the store has now in place of others. Nothing that was to be forgotten is in them, and
    the log that they are part of folds to the same state."""

    def __init__(self, violations: Violations, rewritten: Mapping[int, r.Record]) -> None:
        super().__init__(violations)
        self._rewritten = rewritten
        self._history: tuple[Message, ...] = ()
        self._generation = 1
        self._records: list[r.Record] = []
        self._owed: Redaction | None = None
        self._paid: list[Redaction] = []

    def before(self, state: SessionState, record: r.Record) -> None:
        self._history, self._generation = state.history, state.generation
        self._owed = state.pending_redaction

    def after(self, state: SessionState, record: r.Record) -> None:
        self._records.append(record)
        if isinstance(record, r.RecordsRedacted) and self._owed is not None:
            self._paid.append(self._owed)
        text = self._fault(state, record)
        if text:
            self._violations.add(1, f"{of_record(record)}: {text}", seqs=[record.seq])

    def _fault(self, state: SessionState, record: r.Record) -> str:
        old, new = self._history, state.history
        if state.generation == self._generation:
            grew = len(new) >= len(old) and _same(old, new[: len(old)])
            return "" if grew else "the history did not only grow"
        if state.generation != self._generation + 1:
            return f"generation {state.generation} follows generation {self._generation}"
        match record:
            case r.ConversationCleared():
                return "" if not new else "something is left of the history"
            case r.ConversationRewound():
                if not _same(old[: len(new)], new):
                    return "what is left is not its beginning"
                return (
                    "" if _ends_with(new, old, record.to) else f"it does not end with {record.to}"
                )
            case _:
                # A kept message may have lost what it said of a forgotten turn, not its place.
                remaining = [message.id for message in old[len(old) - len(new) :]]
                end = [message.id for message in new] == remaining
                return "" if end else "what is left is not its end"

    def end(self, state: SessionState) -> None:
        for pending_redaction in self._paid:
            for record in self._records:
                now = self._rewritten.get(record.seq, record)
                if pending_redaction.apply(now) != now:
                    text = f"record {record.seq} says what was to be forgotten"
                    self._violations.add(12, text, seqs=[record.seq])
        if self._rewritten:
            self._compare(state)

    def _compare(self, state: SessionState) -> None:
        folded = SessionState(state.session)
        try:
            for record in self._records:
                folded.apply(self._rewritten.get(record.seq, record))
        except (KeyError, ValueError) as error:
            self._violations.add(12, f"what is left of the log cannot be folded: {error!r}")
            return
        mine, theirs = state_parts(state), state_parts(folded)
        differ = sorted(part for part in mine if mine[part] != theirs[part])
        if differ:
            text = f"what is left of the log differs in {', '.join(differ)}"
            self._violations.add(12, text, seqs=sorted(self._rewritten)[:3])


def _ends_with(new: tuple[Message, ...], old: tuple[Message, ...], turn: int) -> bool:
    """Is *new* what *old* was up to the end of *turn*? Turn 0 is before the first."""
    last = new[-1].turn if new else 0
    return last == turn and (len(new) == len(old) or old[len(new)].turn != turn)


def _same(one: tuple[Message, ...], other: tuple[Message, ...]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


MIN_BYTES = 48
"""So long is what was said at least that is looked for: less may stand in a record by chance."""


class ForgottenRules(Rules):
    """Invariant 12, for words: of a turn that was forgotten neither what was sent is in the log as
    the store has it, nor what was said or answered in the record that said it. By the words
    themselves, not by the rule that takes them out."""

    def __init__(self, violations: Violations, session: SessionRecording) -> None:
        super().__init__(violations)
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
