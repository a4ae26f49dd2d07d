"""Turn: the handle of one accepted turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmsession.errors import TurnAborted, TurnFailed
from llmsession.turns.ids import TurnId
from llmsession.turns.spending.spending import exhausted

from ..core.subscriptions import Subscription
from ..tasks.promise import Promise
from ..values.outcome import TurnOutcome

if TYPE_CHECKING:
    from .session import LLMSession

__all__ = ["Turn", "text_or_raise"]


class Turn:
    """An accepted turn: its id, its events, its outcome. Holding it keeps the session live.

    Iterating gives this turn's events from its acceptance on, previews included, and ends after
    its terminal event. Several iterations at once are independent of each other. Dropping a Turn
    interrupts nothing.
    """

    def __init__(self, session: LLMSession, number: int, promise: Promise[TurnOutcome] | None):
        self._session = session
        self._promise = promise
        self.id = TurnId("u", number)

    def __repr__(self) -> str:
        return f"<Turn {self.id} of {self._session.id}>"

    def _named(self) -> str:
        return f"turn {self.id.number} of session {self._session.id!r}"

    def __aiter__(self) -> Subscription:
        return self._session.events_of(self.id.number)

    async def outcome(self) -> TurnOutcome:
        """How the turn ended, once it has, durably. Cancelling the wait changes nothing.

        Raises SessionMoved, SessionClosed or StoreError if this owner lost the session first:
        the turn's end is then in the log, written by whoever recovers it; where it was resumed,
        ``LLMSession.turn`` gives a handle that waits for it.
        """
        if self._promise is not None:
            return await self._promise.wait()
        return await self._session.outcome_from_log(self.id.number)

    async def text(self) -> str:
        """What the assistant said last in this turn.

        Raises TurnAborted or TurnFailed, with the outcome, if the turn was not committed, and
        BudgetExhausted if a budget ended it before anything was complete.
        """
        return text_or_raise(await self.outcome(), self._named())


def text_or_raise(outcome: TurnOutcome, named: str) -> str:
    """What the assistant said last in a turn that was committed. *named* is the turn, in errors.

    Raises TurnAborted, TurnFailed or, where a budget ended it, BudgetExhausted for any other.
    """
    if outcome.status == "aborted":
        raise TurnAborted(
            f"{named} was aborted ({outcome.stop_reason})",
            turn=outcome.turn.number,
            outcome=outcome,
        )
    if outcome.status == "failed" and outcome.exceeded is not None:
        raise exhausted(outcome.exceeded)
    if outcome.status == "failed":
        raise TurnFailed(
            f"{named} failed ({outcome.stop_reason}): {outcome.error}",
            turn=outcome.turn.number,
            cause_kind=outcome.stop_reason,
            outcome=outcome,
        )
    return outcome.text
