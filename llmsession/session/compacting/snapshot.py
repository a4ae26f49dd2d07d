"""The conversation that a plan was made for, and how it is compared with the present one."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_

import msgspec

from llmsession.compaction.planning.policy import Budget
from llmsession.compaction.view.view import View
from llmsession.turns.messages import Message

from ..log.state import SessionState
from ..values.config import CompactionConfig

__all__ = ["PlanRequest", "Snapshot", "snapshot_of"]


class Snapshot(msgspec.Struct, frozen=True):
    """A conversation as the plan saw it."""

    generation: int
    view: View
    messages: Sequence[Message]
    committed: int = 0
    """How many of the messages are known to stay in this generation: they are the history's."""

    def is_current(self, now: Snapshot) -> bool:
        """Does *now* still have the same messages under the same view?

        Messages that were appended in the meantime do not matter: the plan is about the messages
        before them.
        """
        if (now.generation, now.view.version) != (self.generation, self.view.version):
            return False
        if len(now.messages) < len(self.messages):
            return False
        # Within a generation the history only grows, so only messages of the open turn may have
        # changed. They are compared by identity, because a dropped turn and the next one may have
        # equal messages.
        first, end = self.committed, len(self.messages)
        return all(map(is_, self.messages[first:], now.messages[first:end]))


def snapshot_of(state: SessionState) -> Snapshot:
    """The present conversation of *state*."""
    messages = state.context_messages()
    return Snapshot(state.generation, state.view, messages, state.message_count)


class PlanRequest(Snapshot, frozen=True, kw_only=True):
    """The input of a policy: a conversation, its budget and its configuration."""

    budget: Budget
    config: CompactionConfig

    def is_configured(self, limit_tokens: int, config: CompactionConfig) -> bool:
        """Was it made for the limit *limit_tokens* and for *config*?"""
        return self.budget.limit_tokens == limit_tokens and self.config == config
