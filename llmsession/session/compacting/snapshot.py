"""The conversation that a plan was made for, and how it is compared with the present one."""

from __future__ import annotations

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
    messages: tuple[Message, ...]

    def is_current(self, now: Snapshot) -> bool:
        """Does *now* still have the same messages under the same view?

        Messages that were appended in the meantime do not matter: the plan is about the messages
        before them.
        """
        if (now.generation, now.view.version) != (self.generation, self.view.version):
            return False
        if len(now.messages) < len(self.messages):
            return False
        # Messages are compared by identity, because a dropped turn and the next one may have equal
        # messages.
        return all(a is b for a, b in zip(self.messages, now.messages, strict=False))


def snapshot_of(state: SessionState) -> Snapshot:
    """The present conversation of *state*."""
    return Snapshot(state.generation, state.view, state.context_messages())


class PlanRequest(Snapshot, frozen=True):
    """The input of a policy: a conversation, its budget and its configuration."""

    budget: Budget
    config: CompactionConfig

    def is_configured(self, limit_tokens: int, config: CompactionConfig) -> bool:
        """Was it made for the limit *limit_tokens* and for *config*?"""
        return self.budget.limit_tokens == limit_tokens and self.config == config
