"""``full_history``: never compacts. The baseline that other policies are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from llmsession.compaction.planning.policy import Budget
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.view import View
from llmsession.turns.messages import Message

from .registry import register

__all__ = ["FullHistory"]


@register
class FullHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing is ever left out. When the window is exceeded, the turn ends with
    ``ContextTooLarge``.
    """

    name: ClassVar[str] = "full_history"

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Always False."""
        return False

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """Always None."""
        return None

    def harder(self) -> tuple[FullHistory, ...]:
        """Empty: no other policy is tried if a request does not fit."""
        return ()
