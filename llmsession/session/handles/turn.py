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
    """The handle of an accepted turn: its id, its events and its outcome.

    Iterate it to get the turn's events, previews included, from its acceptance to its terminal
    event. Several iterations at once are independent of each other. Events of the whole session,
    such as ``compaction.applied``, come only from ``LLMSession.subscribe``. While you hold a Turn,
    its session stays in memory. Dropping it does not interrupt the turn.
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
        # These are methods of the session's handle. They refer to the handle, so the turn keeps its
        # session in memory.
        self._events = events
        self._outcome = outcome
        self.id = TurnId("u", number)
        """The turn's id, for example ``u7``."""

    def __repr__(self) -> str:
        return f"<Turn {self.id} of {self._session}>"

    def __aiter__(self) -> Subscription:
        return self._events(self.id.number)

    def stream_text(self) -> TextStream:
        """Iterate over the text of the turn's replies as it arrives, in pieces of any length.

        Every character comes once, also if the turn has already ended. The ``str`` pieces, joined,
        are the text of the turn's replies, one step after the other. Between them a
        ``StepRestarted`` says that a step's text begins again, for example after a broken stream:
        discard that step's pieces. The stream's ``text`` is what is left then.

        At its end it raises TurnAborted, TurnFailed or BudgetExhausted, as ``text`` does, and the
        errors of ``outcome``. Cancelling it, or leaving the loop, does not interrupt the turn.
        """
        return TextStream(self)

    async def outcome(self) -> TurnOutcome:
        """Wait until the turn's end is durable, and return how it ended.

        Cancelling the wait does not cancel the turn. Raises SessionMoved, SessionClosed or
        StoreError if this process lost the session first. Then the next owner writes the turn's end
        to the log. If that owner resumed the turn, ``LLMSession.turn`` returns a handle there that
        waits for its outcome.
        """
        return await self._outcome(self.id.number)

    async def text(self) -> str:
        """Wait for the turn's end, and return the text of the assistant's last message in it.

        Raises TurnAborted or TurnFailed, with the outcome, if the turn was not committed. Raises
        BudgetExhausted if a budget ended the turn before anything was complete, and the errors of
        ``outcome``.
        """
        name = f"turn {self.id.number} of session {self._session!r}"
        return text_or_raise(await self.outcome(), name)


def text_or_raise(outcome: TurnOutcome, name: str) -> str:
    """The text of the assistant's last message, if *outcome* is that of a committed turn.

    Otherwise raises TurnAborted, TurnFailed or, if a budget ended the turn, BudgetExhausted. *name*
    names the turn in the message.
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
