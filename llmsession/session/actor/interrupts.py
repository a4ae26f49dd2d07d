"""Pending interrupts: the turns that each one waits for, and the outcome for its callers."""

from __future__ import annotations

from llmsession.turns.ids import TurnId

from ..core.turn_run import Run
from ..values.commands import InterruptCaller
from ..values.outcome import InterruptOutcome, InterruptResult, TurnOutcome

__all__ = ["PendingInterrupt"]


class PendingInterrupt:
    """One interrupt with all its callers. It is answered when every turn that it ends has durably
    ended.

    ``main`` is the run that the result is about: the turn that was named, or the running one.
    """

    def __init__(self, callers: list[InterruptCaller], main: Run | None) -> None:
        self.callers = callers
        self.main = main
        self.too_late = False
        self.turns: list[TurnOutcome] = []
        self._open: set[int] = set()

    def wait_for(self, run: Run) -> None:
        """Wait for the end of *run* before answering."""
        self._open.add(run.number)

    def ended(self, run: Run, outcome: TurnOutcome) -> None:
        """*run* has durably ended with *outcome*. Has no effect if the interrupt does not wait for
        it.
        """
        if run.number in self._open:
            self._open.discard(run.number)
            self.turns.append(outcome)

    @property
    def is_complete(self) -> bool:
        """Has every turn that it waits for ended?"""
        return not self._open

    def outcome(self) -> InterruptOutcome:
        """The answer to the callers. Valid only once the interrupt is complete."""
        turn = TurnId("u", self.main.number) if self.main else None
        return InterruptOutcome(result=self._result(), turn=turn, turns=tuple(self.turns))

    def _result(self) -> InterruptResult:
        if self.too_late:
            return InterruptResult.TOO_LATE
        if self.main is None:
            return InterruptResult.ABORTED if self.turns else InterruptResult.NOT_RUNNING
        own = [outcome for outcome in self.turns if outcome.turn.number == self.main.number]
        if own and own[0].status == "committed":
            return InterruptResult.KEPT
        return InterruptResult.ABORTED
