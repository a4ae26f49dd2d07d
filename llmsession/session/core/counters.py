"""How often certain things happened in a session since it was loaded."""

from __future__ import annotations

from llmsession.turns import records as r

__all__ = ["Counters"]


class Counters:
    """``interrupts`` counts the turns that an interrupt ended, dropped or kept. ``compactions``
    counts the compactions that were applied.
    """

    __slots__ = ("compactions", "interrupts")

    def __init__(self) -> None:
        self.interrupts = 0
        self.compactions = 0

    def count(self, record: r.Record) -> None:
        """Count a durable record."""
        match record:
            case r.TurnAborted(reason="interrupt" | "replaced"):
                self.interrupts += 1
            case r.TurnCommitted(stop_reason="cancelled"):
                self.interrupts += 1
            case r.CompactionApplied():
                self.compactions += 1
