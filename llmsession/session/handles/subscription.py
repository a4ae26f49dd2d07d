"""Listening to a session with a listener of one's own, as a transport does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmsession.errors import InvalidInput
from llmsession.store.protocol import StoredRecord
from llmsession.turns.machine import tag_of
from llmsession.turns.previews import Preview, ToolUse

from ..core.reply_reader import previews_so_far
from ..core.subscriptions import EventSink
from .session import LLMSession

if TYPE_CHECKING:
    from ..manager import SessionManager

__all__ = ["Listening", "generation_of", "is_cold", "listen", "newest_seq"]


def is_cold(session: LLMSession) -> bool:
    """Was it let go under this handle? Then its next command loads it first."""
    return session._actor.status == "cold"


def newest_seq(session: LLMSession) -> int:
    """The seq of the newest durable record."""
    return session._actor.state.head


def generation_of(session: LLMSession) -> int:
    """The generation of the history."""
    return session._actor.state.generation


class Listening:
    """A listener's place at a session. It does not hold the session live."""

    def __init__(self, manager: SessionManager, session: str, after: int, head: int) -> None:
        self._manager = manager
        self.session = session
        self.after = after
        """Durable records after this one are wanted."""
        self.head = head
        """Durable records after this one are offered; those before it are read."""

    async def read(self, after: int, limit: int) -> Sequence[StoredRecord]:
        """The next durable records with seq > *after*, as they are stored. Raises as the store."""
        return await self._manager.store.read(self.session, after=after, limit=limit)

    def so_far(self) -> tuple[Preview, ...]:
        """What the step that streams now has said up to now."""
        actor = self._manager.find_live(self.session)
        run = actor.turns.current if actor is not None else None
        if run is None or run.builder is None:
            return ()
        return previews_so_far(run.builder, tag_of(run.turn))

    def open_calls(self) -> tuple[ToolUse, ...]:
        """The calls that wait for their results."""
        return self._manager.open_calls(self.session)

    def stop(self, listener: EventSink) -> None:
        """Tell *listener* nothing more."""
        self._manager._hub.remove(self.session, listener)


def listen(
    session: LLMSession, listener: EventSink, *, after: int | None = None, turn: int | None = None
) -> Listening:
    """Tell *listener* what *session* publishes from now on. Without *after* it begins now; for
    *turn*, at its acceptance. Raises InvalidInput for a cursor or a turn that the log has not.
    """
    manager, actor = session._manager, session._actor
    head = actor.state.head
    if after is not None and not 0 <= after <= head:
        raise InvalidInput(f"cursor {after!r} is not in this log; its head is {head}")
    if turn is not None:
        accepted_at = actor.state.accepted_at.get(turn)
        if accepted_at is None:
            raise InvalidInput(f"session {session.id!r} has no turn {turn}")
        after = max(accepted_at - 1, after or 0)
    manager._hub.add(session.id, listener, head)
    if actor.status in ("closed", "moved"):
        listener.end()
    return Listening(manager, session.id, head if after is None else after, head)
