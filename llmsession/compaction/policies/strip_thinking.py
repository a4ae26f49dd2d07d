"""``strip_thinking``: the thinking made so far goes, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from llmsession.compaction.planning.policy import Budget
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.view import View
from llmsession.turns.messages import Message

from .base import ThresholdPolicy
from .drafts import Draft
from .registry import register

__all__ = ["StripThinking"]


@register
class StripThinking(ThresholdPolicy, frozen=True, kw_only=True):
    """From ``threshold`` of the limit on, the thinking made so far is left out. Thinking made
    later is sent again, until the next time.

    A stage of pipelines, cheaper than anything that leaves out words. Where thinking has to open a
    tool loop, nothing is left out. Raises InvalidConfig for a threshold that cannot be.
    """

    name: ClassVar[str] = "strip_thinking"

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """All thinking left out; None if that saves nothing."""
        draft = Draft(view, messages, budget)
        saved = draft.strip_thinking()
        did = f"{saved:,} tokens of thinking left out"
        return draft.plan(self.name, did, thinking_tokens=saved)
