"""``rolling_summary_75``: a suffix that fits, and a running summary of everything before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from llmsession.compaction.planning.boundaries import newest_that_fit
from llmsession.compaction.planning.policy import Budget
from llmsession.compaction.summaries.shorten import shorten_text
from llmsession.compaction.tokens.messages import text_tokens_for
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.summary_wording import without_title
from llmsession.compaction.view.view import View
from llmsession.turns.messages import Message

from ..counting import sizes_in_budget
from ..limits import Count, Fraction, portion
from ..prefixes import SummaryPolicy, beside_tokens, latest_cut, told_tokens
from ..registry import register
from ..spans import begins_turn

__all__ = ["RollingSummary75", "extracted_lines", "history_room"]

_MEMORY = (
    "It is a running summary: facts, ids, addresses, numbers, decisions and constraints stay in it,"
    " and so do preferences and open tasks. What external documents say does not belong into it."
)


def history_room(
    window_tokens: int, system_tokens: int, primer_tokens: int = 0, ratio: float = 0.75
) -> int:
    """The tokens that are left for messages: a share of the window, without the system text and the
    fixed answer to it that some systems send.
    """
    return portion(window_tokens, ratio) - system_tokens - primer_tokens


def extracted_lines(
    messages: Sequence[Message], earlier: str, max_tokens: int, count: Callable[[str], int]
) -> str:
    """MiniSearch's summary by rules: the earlier one, and ``ROLE: text`` of each message.

    The newest parts are taken that have at most *max_tokens* together. If the newest one alone is
    longer, it is cut to head and tail; in MiniSearch nothing was left then.
    """
    parts = [earlier] if earlier.strip() else []
    parts += [
        f"{message.role.upper()}: {text}" for message in messages if (text := message.text.strip())
    ]
    extract: list[str] = []
    for part in reversed(parts):
        if count("\n\n".join([part, *extract])) > max_tokens:
            break
        extract.insert(0, part)
    if extract or not parts:
        return "\n\n".join(extract)
    newest, chars = parts[-1], len(parts[-1])
    while chars and count(newest) > max_tokens:
        chars = chars * 9 // 10
        newest = shorten_text(parts[-1], chars) if chars > 100 else parts[-1][:chars]
    return newest


@register
class RollingSummary75(SummaryPolicy, frozen=True, kw_only=True):
    """MiniSearch: shows the newest messages that fit into three quarters of ``window_tokens``,
    beginning with a user's, and a summary of at most ``summary_tokens`` of everything before.

    MiniSearch's window is a constant; None takes the limit. The summary's room is set aside before
    the suffix is chosen, so both fit. If no summary can be written, ``extracted_lines`` take its
    place.

    Not copied: the summary's place in the system text, which was sent as a user message before a
    fixed ``Ok!`` (docs/explanation/policies.md); the user's own message was dropped if nothing
    fitted; everything before the suffix was folded in again with every turn; and an empty summary
    replaced the one before.
    """

    name: ClassVar[str] = "rolling_summary_75"

    window_tokens: int | None = 4_096
    ratio: Fraction = 0.75
    summary_tokens: Count = 800

    def _whole(self, limit_tokens: int) -> int:
        window = limit_tokens if self.window_tokens is None else self.window_tokens
        whole = history_room(window, 0, ratio=self.ratio)
        return min(whole, limit_tokens) if limit_tokens > 0 else whole

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Is the share of the window exceeded?"""
        return used_tokens > self._whole(limit_tokens)

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """A summary of what does not fit and is in no earlier summary; None if everything fits, or
        nothing more can be replaced.
        """
        sizes = sizes_in_budget(view, messages, budget)
        room = self._whole(budget.limit_tokens) - beside_tokens(sizes, view, budget)
        if sum(sizes) + told_tokens(view, budget) <= room:
            return None
        latest = latest_cut(view, messages, budget)
        upto = newest_that_fit(sizes, room - self.summary_tokens)
        while upto < latest and not begins_turn(messages[upto]):
            upto += 1
        upto = min(upto, latest)
        profile = budget.profile
        lines = extracted_lines(
            messages[view.start : upto],
            without_title(view.prefix_summary.text) if view.prefix_summary else "",
            self.summary_tokens,
            lambda text: budget.scaled(text_tokens_for(text, profile)),
        )
        return self.summary(view, messages, budget, upto, instructions=_MEMORY, fallback=lines)
