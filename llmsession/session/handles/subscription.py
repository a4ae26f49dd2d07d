"""Subscriptions for a receiver that the caller implements itself (an ``EventSink``), as transports
do.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmsession.errors import InvalidInput
from llmsession.store.protocol import StoredRecord
from llmsession.turns.previews import Preview, ToolUse

from ..core.subscriptions import EventSink
from ..registry.runtime import Runtime
from .session import LLMSession

__all__ = [
    "SinkSubscription",
    "generation_of",
    "has_ended",
    "has_moved",
    "is_cold",
    "newest_seq",
    "subscribe_sink",
    "subscriber_count",
]


def is_cold(session: LLMSession) -> bool:
    """Is the session no longer in memory? Its next command loads it first."""
    return session.reference.actor.status == "cold"


def has_moved(session: LLMSession) -> bool:
    """Does another owner have the session, or may it take it? Commands to the handle fail."""
    return session.reference.actor.status == "moved"


def has_ended(session: LLMSession, turn: int) -> bool:
    """Has the turn with this number ended? Then its outcome is read from the log."""
    return turn in session.reference.actor.state.ended


def newest_seq(session: LLMSession) -> int:
    """The seq of the session's newest durable record."""
    return session.reference.actor.state.head


def subscriber_count(session: LLMSession) -> int:
    """How many subscribers the session has, remote clients and the embedding program together."""
    return session.reference.runtime.subscriptions.count(session.id)


def generation_of(session: LLMSession) -> int:
    """The number of the history's generation. ``clear``, ``rewind`` and ``forget`` begin a
    new one.
    """
    return session.reference.actor.state.generation


class SinkSubscription:
    """The position at which a sink subscribed, and the log that it reads older records from.

    It does not keep the session in memory.
    """

    def __init__(self, runtime: Runtime, session: str, after: int, head: int) -> None:
        self._runtime = runtime
        self.session = session
        self.after = after
        """The sink wants the durable records with a seq greater than this."""
        self.head = head
        """Records with a seq greater than this are offered to the sink. It reads older ones itself.
        """

    async def read(self, after: int, limit: int) -> Sequence[StoredRecord]:
        """At most *limit* durable records with seq > *after*, as they are stored.

        Raises the errors of ``Store.read``.
        """
        return await self._runtime.store.read(self.session, after=after, limit=limit)

    def so_far(self) -> tuple[Preview, ...]:
        """The previews of the reply that is streaming now, as far as it has arrived."""
        actor = self._runtime.find_live(self.session)
        return () if actor is None else actor.turns.runner.previews_so_far()

    def open_calls(self) -> tuple[ToolUse, ...]:
        """The tool calls that wait for their results."""
        return self._runtime.open_calls(self.session)

    def stop(self, sink: EventSink) -> None:
        """Remove *sink*: nothing more is offered to it."""
        self._runtime.subscriptions.remove(self.session, sink)


def subscribe_sink(
    session: LLMSession, sink: EventSink, *, after: int | None = None, turn: int | None = None
) -> SinkSubscription:
    """Offer *sink* everything that *session* publishes from now on.

    *after* is the cursor that the sink has reached; without it the subscription begins now. With
    *turn*, it begins at that turn's acceptance. Raises InvalidInput if the log does not reach the
    cursor or does not have the turn.
    """
    runtime, actor = session.reference.runtime, session.reference.actor
    head = actor.state.head
    if after is not None and not 0 <= after <= head:
        raise InvalidInput(
            f"cursor {after!r} is not in the log of session {session.id!r}; its head is {head}"
        )
    if turn is not None:
        accepted_at = actor.state.accepted_at.get(turn)
        if accepted_at is None:
            raise InvalidInput(f"session {session.id!r} has no turn {turn}")
        after = max(accepted_at - 1, after or 0)
    runtime.subscriptions.add(session.id, sink, head)
    if actor.status in ("closed", "moved"):
        sink.end(moved=actor.status == "moved")
    return SinkSubscription(runtime, session.id, head if after is None else after, head)
