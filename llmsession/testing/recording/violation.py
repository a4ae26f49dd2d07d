"""A violation: the invariant, the session, one sentence, and the entries that prove it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from llmsession.turns.records import Record

from .entries import Entry, SessionRecording

__all__ = ["INVARIANTS", "Violation", "Violations", "of_record"]

INVARIANTS: dict[int, str] = {
    1: "within a generation history only grows, by identity",
    2: "one terminal event per accepted turn, and nothing of the turn after it",
    3: "after a dropped turn the history is the one before it, the same object",
    4: "every request is valid, and no tool_use is left without its result",
    5: "what was published as durable is in the store",
    6: "epochs never decrease along the log",
    7: "an interrupt never cancels a send that was enqueued after it, and covers those before",
    8: "an interrupt is answered within the grace period plus a margin",
    9: "a compaction applies only if it frees tokens, and never goes back",
    10: "equal inputs give a byte-identical request; its prefix changes only where an event says",
    11: "nothing is left behind, but what ignores cancellation, and that is named",
    12: "folding the log gives the state in memory",
    13: "ids and seqs are never reused, results stand in call order, every caller is answered",
}
"""What every recording is checked for."""

MAX_PROOF_ENTRIES = 12


class Violation(msgspec.Struct, frozen=True):
    """An invariant that does not hold. *proof* is the shortest part of the recording that shows
    it."""

    invariant: int
    session: str
    text: str
    proof: tuple[Entry, ...] = ()

    def __str__(self) -> str:
        where = f" in session {self.session}" if self.session else ""
        return f"invariant {self.invariant}{where}: {self.text}"


class Violations:
    """Collects the violations of one session."""

    def __init__(self, recording: SessionRecording) -> None:
        self._recording = recording
        self.items: list[Violation] = []

    def add(self, invariant: int, text: str, *proof: Entry, seqs: Sequence[int] = ()) -> None:
        """Add a violation. *proof* and the log's records *seqs* prove it."""
        numbers = set(seqs)
        logged = [entry for entry in self._recording.log if entry.seq in numbers]
        entries = (*logged, *proof)[:MAX_PROOF_ENTRIES]
        self.items.append(Violation(invariant, self._recording.session, text, entries))

    def add_of_turn(self, invariant: int, text: str, turn: int, *proof: Entry) -> None:
        """Add a violation that the log's records about *turn* prove."""
        seqs = [r.seq for r in self._recording.records if getattr(r, "turn", None) == turn]
        self.add(invariant, text, *proof, seqs=seqs)


def of_record(record: Record) -> str:
    """The record's kind, as the log names it."""
    return str(record.__struct_config__.tag)
