"""``pointer_summary``: a summary, and a pointer to the last message that it covers.

NeuroLink writes nothing but these two. Here the pointer is the end of the view's prefix summary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from llmsession.compaction.planning.boundaries import must_wait, newest_that_fit
from llmsession.compaction.planning.policy import Budget
from llmsession.compaction.summaries.cap import cap_content
from llmsession.compaction.summaries.shorten import shorten_text
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.view import View
from llmsession.turns.blocks import TextBlock, ToolResultBlock
from llmsession.turns.messages import Message

from ..base import CheckedPolicy
from ..counting import sizes_in_budget
from ..drafts import Draft
from ..limits import Count, Fraction, portion
from ..prefixes import (
    beside_tokens,
    cut_at_least,
    latest_cut,
    note_behind_earlier,
    summary_plan,
)
from ..registry import register

__all__ = ["PointerSummary", "threshold_of"]

UNKNOWN_THRESHOLD_TOKENS = 50_000
_EMERGENCY = "[Emergency compression:"
EMERGENCY_NOTE = f"{_EMERGENCY} {{count}} messages archived due to size]"

_RULES_SURVIVE = (
    "End with a part 'Constraints and Established Rules': whatever the user laid down for the rest"
    " of the conversation stays in it, word for word, through every later summary."
)


def threshold_of(available: int, override_tokens: int | None = None) -> int:
    """The number of tokens from which on a summary is made: *override_tokens*, else 80 % of what is
    *available*; 50,000 if that is unknown.
    """
    if override_tokens is not None and override_tokens > 0:
        return override_tokens
    return available * 8 // 10 if available > 0 else UNKNOWN_THRESHOLD_TOKENS


@register
class PointerSummary(CheckedPolicy, frozen=True, kw_only=True):
    """NeuroLink: from the threshold on, folds all but the newest messages into the summary.

    The sizes are shares of the threshold: ``recent`` of the newest messages stay, the summary has
    at most ``cap``, and no message is longer than ``message_cap``. If the context is not within
    ``safe`` then, half as much is kept, at most ``max_iterations`` times. The user's newest message
    always stays. The limit is what the window leaves beside a reply. If the request has to fit now
    and no summary can be written, NeuroLink's emergency note takes its place, behind an earlier
    summary.

    Not copied: if everything was within ``recent``, all was summarised and no message remained; its
    hard cap at 90 % of the threshold lies below where it begins. A pointer to a missing message
    cannot occur here, because views are clamped.
    """

    name: ClassVar[str] = "pointer_summary"

    threshold_tokens: int | None = None
    """Replaces the 80 % of the limit; it comes from the session or from the environment."""
    recent: Fraction = 0.30
    cap: Fraction = 0.20
    safe: Fraction = 0.70
    max_iterations: Count = 10
    message_cap: Fraction = 0.80
    """The largest size of a message, as a share of the threshold. A longer one is cut to head and
    tail.
    """

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Is the threshold reached?"""
        return used_tokens >= threshold_of(limit_tokens, self.threshold_tokens)

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """The pointer moved on; None if it cannot move. It never moves back, and never past the
        user's newest message.
        """
        threshold = threshold_of(budget.limit_tokens, self.threshold_tokens)
        sizes = sizes_in_budget(view, messages, budget)
        latest = latest_cut(view, messages, budget)
        cap, safe = portion(threshold, self.cap), portion(threshold, self.safe)
        beside = beside_tokens(sizes, view, budget) + cap
        keep, upto, iterations = portion(threshold, self.recent), 0, 0
        while iterations < self.max_iterations and upto < latest:
            iterations += 1
            upto = min(cut_at_least(messages, newest_that_fit(sizes, keep)), latest)
            keep //= 2
            if beside + sum(sizes[upto:]) <= safe:
                break
        forced = budget.trigger in ("window", "overflow")
        note = note_behind_earlier(
            view, _EMERGENCY, lambda first: EMERGENCY_NOTE.format(count=max(0, upto - first))
        )
        plan = summary_plan(
            self.name,
            view,
            messages,
            budget,
            upto=upto,
            max_tokens=cap,
            instructions=_RULES_SURVIVE,
            fallback=note if forced else "",
            figures={"iterations": iterations},
        )
        if must_wait(view, messages, budget.profile, budget.committed):
            return None
        first = view.start if plan is None else upto
        cut = self._cut(view, messages, budget, portion(threshold, self.message_cap), first)
        return cut if plan is None else _both(plan, cut)

    def _cut(
        self, view: View, messages: Sequence[Message], budget: Budget, limit: int, first: int
    ) -> Plan | None:
        """Cut the messages from *first* on that have more than *limit* tokens to head and tail."""
        draft = Draft(view, messages, budget)
        for index in range(first, len(messages)):
            size = draft.sizes[index]
            if size <= limit:
                continue
            for number, block in enumerate(messages[index].content):
                if isinstance(block, TextBlock):
                    text = draft.text(index, number)
                    draft.shorten(index, number, shorten_text(text, len(text) * limit // size))
                elif isinstance(block, ToolResultBlock):
                    chars = len(draft.result(index, block)) * limit // size
                    call_id = block.tool_use_id
                    capped = cap_content(block.content, max_chars=chars, call_id=call_id)
                    if capped is not None:
                        draft.show_result(index, block, capped)
        return draft.plan(self.name, f"messages of over {limit:,} tokens are cut")


def _both(plan: Plan, cut: Plan | None) -> Plan:
    if cut is None:
        return plan
    return msgspec.structs.replace(
        plan,
        compacted_before=max(plan.compacted_before, cut.compacted_before),
        shown_results=cut.shown_results,
        texts=cut.texts,
        results_summarised=cut.results_summarised,
        tokens_after=plan.tokens_after - (cut.tokens_before - cut.tokens_after),
    )
