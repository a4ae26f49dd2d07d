"""The view: what the projection needs beside the messages. It decides, the history never moves."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from .plan import Plan

__all__ = ["View"]


class View(msgspec.Struct, frozen=True, kw_only=True):
    """How a history is shown. Positions count the messages of history and staged, from 0.

    The dicts are never changed after construction; every method returns a new view, or this
    one where nothing changes. ``version`` grows with every decision but a cap: a cap only
    concerns a result that has just arrived, so it must not discard a compaction under way.
    """

    version: int = 0
    frontier: int = 0
    """Tool results of messages before this position are shown in compact form."""
    frozen: dict[str, str] = {}
    """Call id -> the compact text that is shown, fixed when the frontier passed it."""
    capped: dict[str, str] = {}
    """Call id -> the text that the cap decided at arrival."""
    thinking_from: int = 0
    """Thinking blocks of messages before this position are left out."""

    def text_for(self, call_id: str, position: int) -> str | None:
        """What stands for the result of *call_id* in the message at *position*; None: itself."""
        if position < self.frontier:
            compact = self.frozen.get(call_id)
            if compact is not None:
                return compact
        return self.capped.get(call_id)

    def with_cap(self, call_id: str, text: str) -> View:
        """This view with *text* shown for *call_id*. The first cap of a call stays."""
        if call_id in self.capped:
            return self
        return msgspec.structs.replace(self, capped={**self.capped, call_id: text})

    def applied(self, plan: Plan, position_now: int) -> View:
        """This view after *plan*. The frontier never goes back and no frozen text changes.

        *position_now* is the number of messages that exist. If the plan edits anything and the
        profile binds thinking, all thinking made so far is left out from now on: an edit voids
        every signature after it.
        """
        frozen = {**self.frozen}
        for call_id, text in plan.frozen.items():
            frozen.setdefault(call_id, text)
        edits = len(frozen) > len(self.frozen)
        return msgspec.structs.replace(
            self,
            version=self.version + 1,
            frontier=max(self.frontier, plan.frontier),
            frozen=frozen,
            thinking_from=(
                max(self.thinking_from, position_now)
                if edits and plan.voids_thinking
                else self.thinking_from
            ),
        )

    def clamped(self, length: int) -> View:
        """This view for a history cut to *length* messages, after an abort, rewind or fork."""
        if self.frontier <= length and self.thinking_from <= length:
            return self
        return msgspec.structs.replace(
            self,
            version=self.version + 1,
            frontier=min(self.frontier, length),
            thinking_from=min(self.thinking_from, length),
        )

    def without_head(self, count: int, length: int, calls: Collection[str]) -> View:
        """This view after the first *count* messages, which made *calls*, are gone and *length*
        are left. Their texts go with them; thinking in what is left was bound to them, so none
        of it is sent again."""
        return msgspec.structs.replace(
            self,
            version=self.version + 1,
            frontier=max(0, self.frontier - count),
            frozen={call: text for call, text in self.frozen.items() if call not in calls},
            capped={call: text for call, text in self.capped.items() if call not in calls},
            thinking_from=length,
        )

    def voided(self, length: int) -> View:
        """This view after a change of model, system or tools: no thinking of the *length*
        messages so far is sent again."""
        if self.thinking_from == length:
            return self
        return msgspec.structs.replace(self, version=self.version + 1, thinking_from=length)
