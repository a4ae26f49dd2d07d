"""``strip_thinking``: leaves out the thinking made so far, and nothing else."""

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
    """From ``threshold`` of the limit on, the thinking made so far is left out. Later thinking is
    sent again, until the next time.

    Meant as a stage of pipelines: it is cheaper than anything that leaves out text. If tool loops
    must begin with thinking, nothing is left out. Raises InvalidConfig for an invalid threshold.
    """

    name: ClassVar[str] = "strip_thinking"

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """Leave out all thinking; None if that saves nothing."""
        draft = Draft(view, messages, budget)
        saved = draft.strip_thinking()
        did = f"{saved:,} tokens of thinking left out"
        return draft.plan(self.name, did, thinking_tokens=saved)
