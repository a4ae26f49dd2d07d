"""Turn: the handle of one accepted turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from llmsession.errors import TurnAborted, TurnFailed
from llmsession.turns.ids import TurnId
from llmsession.turns.spending.spending import exhausted

from ..core.subscriptions import Subscription
from ..values.outcome import TurnOutcome
from .reply_text import TextStream

__all__ = ["Turn", "text_or_raise"]


class Turn:
    """An accepted turn: its id, its events, its outcome. Holding it keeps the session live.

    Iterating gives this turn's events from its acceptance on, previews included, and ends after
    its terminal event. Events of the session, such as ``compaction.applied``, come by
    ``LLMSession.subscribe`` only. Several iterations at once are independent of each other.
    Dropping a Turn interrupts nothing.
    """

    def __init__(
        self,
        session: str,
        number: int,
        *,
        events: Callable[[int], Subscription],
        outcome: Callable[[int], Awaitable[TurnOutcome]],
    ) -> None:
        self._session = session
        # Methods of the session's handle: they hold it, and so keep the session live.
        self._events = events
        self._outcome = outcome
        self.id = TurnId("u", number)

    def __repr__(self) -> str:
        return f"<Turn {self.id} of {self._session}>"

    def __aiter__(self) -> Subscription:
        return self._events(self.id.number)

    def stream_text(self) -> TextStream:
        """The text of the turn's replies as it comes, in pieces of any length.

        Every character comes once, also if the turn has ended before: ``str`` pieces, joined, are
        the text of its replies, one step after the other. ``StepRestarted`` comes before text that
        begins anew, after a broken stream for example: forget the pieces of that step. Raises
        TurnAborted, TurnFailed or BudgetExhausted at the end, as ``text`` does, and what
        ``outcome`` raises. Cancelling it, or leaving the loop, interrupts nothing.
        """
        return TextStream(self)

    async def outcome(self) -> TurnOutcome:
        """Wait until the turn has ended durably; how it ended. Cancelling the wait changes nothing.

        Raises SessionMoved, SessionClosed or StoreError if this owner lost the session first. Then
        the next owner writes the turn's end to the log. If it resumed the turn,
        ``LLMSession.turn`` there gives a handle that waits for it.
        """
        return await self._outcome(self.id.number)

    async def text(self) -> str:
        """The text of the assistant's last message in this turn.

        Raises TurnAborted or TurnFailed, with the outcome, if the turn was not committed, and
        BudgetExhausted if a budget ended it before anything was complete.
        """
        name = f"turn {self.id.number} of session {self._session!r}"
        return text_or_raise(await self.outcome(), name)


def text_or_raise(outcome: TurnOutcome, name: str) -> str:
    """The text of the assistant's last message in a committed turn. *name* is for errors.

    Raises TurnAborted, TurnFailed or, where a budget ended it, BudgetExhausted for any other.
    """
    if outcome.status == "aborted":
        raise TurnAborted(
            f"{name} was aborted ({outcome.stop_reason})", turn=outcome.turn.number, outcome=outcome
        )
    if outcome.status == "failed" and outcome.exceeded is not None:
        raise exhausted(outcome.exceeded)
    if outcome.status == "failed":
        failure = outcome.failure
        raise TurnFailed(
            f"{name} failed ({outcome.stop_reason}): {outcome.error}",
            turn=outcome.turn.number,
            cause_kind=outcome.stop_reason,
            outcome=outcome,
            status=failure.status if failure else None,
            provider_message=failure.message if failure else None,
            retry_after_s=failure.retry_after_s if failure else None,
        )
    return outcome.text
