"""Events of a session for a sink of the caller's own, as a transport has one."""

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
    "is_cold",
    "newest_seq",
    "subscribe_sink",
    "subscriber_count",
]


def is_cold(session: LLMSession) -> bool:
    """Is the session no longer in memory? Then its next command loads it first."""
    return session.reference.actor.status == "cold"


def newest_seq(session: LLMSession) -> int:
    """The seq of the newest durable record."""
    return session.reference.actor.state.head


def subscriber_count(session: LLMSession) -> int:
    """How many subscribers the session has, of all clients and of the embedding program."""
    return session.reference.runtime.subscriptions.count(session.id)


def generation_of(session: LLMSession) -> int:
    """The generation of the history."""
    return session.reference.actor.state.generation


class SinkSubscription:
    """Where a sink began in a session's log, and what it reads there itself. Does not hold the
    session live."""

    def __init__(self, runtime: Runtime, session: str, after: int, head: int) -> None:
        self._runtime = runtime
        self.session = session
        self.after = after
        """The sink wants the durable records after this one."""
        self.head = head
        """The sink is offered the durable records after this one, and reads those before it."""

    async def read(self, after: int, limit: int) -> Sequence[StoredRecord]:
        """The next durable records with seq > *after*, as they are stored. Raises as the store."""
        return await self._runtime.store.read(self.session, after=after, limit=limit)

    def so_far(self) -> tuple[Preview, ...]:
        """What has come of the reply that streams now."""
        actor = self._runtime.find_live(self.session)
        return () if actor is None else actor.turns.runner.previews_so_far()

    def open_calls(self) -> tuple[ToolUse, ...]:
        """The calls that wait for their results."""
        return self._runtime.open_calls(self.session)

    def stop(self, sink: EventSink) -> None:
        """Offer *sink* nothing more."""
        self._runtime.subscriptions.remove(self.session, sink)


def subscribe_sink(
    session: LLMSession, sink: EventSink, *, after: int | None = None, turn: int | None = None
) -> SinkSubscription:
    """Offer *sink* what *session* publishes from now on. Without *after* it begins now; for
    *turn*, at its acceptance. Raises InvalidInput for a cursor or a turn that the log has not.
    """
    runtime, actor = session.reference.runtime, session.reference.actor
    head = actor.state.head
    if after is not None and not 0 <= after <= head:
        raise InvalidInput(f"cursor {after!r} is not in this log; its head is {head}")
    if turn is not None:
        accepted_at = actor.state.accepted_at.get(turn)
        if accepted_at is None:
            raise InvalidInput(f"session {session.id!r} has no turn {turn}")
        after = max(accepted_at - 1, after or 0)
    runtime.subscriptions.add(session.id, sink, head)
    if actor.status in ("closed", "moved"):
        sink.end()
    return SinkSubscription(runtime, session.id, head if after is None else after, head)
