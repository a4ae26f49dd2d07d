"""What may become of a history: it grows; or it is cleared, rewound or forgotten, and says so."""

from __future__ import annotations

from collections.abc import Mapping

from llmsession.session.log.redaction import Redaction
from llmsession.session.log.state import SessionState
from llmsession.turns import records as r
from llmsession.turns.messages import Message

from ..recording.fingerprints import state_parts
from ..recording.violation import Violations, of_record
from .rules import Rules

__all__ = ["HistoryRules"]


class HistoryRules(Rules):
    """Invariant 1 along a log, and 12 for what was taken out of it: *rewritten* are the records
    that the store has now in place of others. Nothing that was to be forgotten is in them, and
    the log that they are part of folds to the same state."""

    def __init__(self, violations: Violations, rewritten: Mapping[int, r.Record]) -> None:
        self._violations = violations
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
