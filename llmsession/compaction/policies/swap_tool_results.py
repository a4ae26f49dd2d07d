"""``swap_tool_results``: replaces old tool results by their summaries, and changes nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec

from llmsession.compaction.planning.boundaries import shows_open_thinking, steps_from, turns_from
from llmsession.compaction.planning.policy import Budget, planned
from llmsession.compaction.summaries.cap import other_blocks, result_text
from llmsession.compaction.summaries.extractive import compact_text, is_worth
from llmsession.compaction.tokens.messages import content_weight
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.view import View
from llmsession.errors import InvalidConfig
from llmsession.turns.blocks import ToolResultBlock
from llmsession.turns.messages import Message
from llmsession.turns.request import Profile

from .base import CheckedPolicy
from .limits import Count
from .registry import register

__all__ = ["SwapToolResults"]

_BILLION = 1_000_000_000


@register
class SwapToolResults(CheckedPolicy, frozen=True, kw_only=True):
    """Replaces each tool result that is older than the newest turns and steps.

    - ``threshold`` is the share of the limit above which it is due. A compaction on request ignores
      it.
    - ``keep_recent_turns`` and ``keep_recent_steps`` say what is recent. ``keep_recent_steps``
      makes results old in a long turn that is itself recent; None keeps recent turns whole.
    - ``mode``: ``summarize`` shows a result's summary, and leaves a result without one as it is.
      ``redact`` shows a notice.

    It frees what it can, and does not promise that the context fits. Raises InvalidConfig for a
    threshold that is not between 0 and 1, a number to keep below 1, or another mode.
    """

    name: ClassVar[str] = "swap_tool_results"
    waits_for_cache: ClassVar[bool] = True
    """Its plans are made while replies are streaming, and no request waits for them."""
    shares: ClassVar[tuple[str, ...]] = (
        "threshold", "keep_recent_turns", "keep_recent_steps", "mode",
    )  # fmt: skip
    """The settings of a ``CompactionConfig`` that this policy uses."""

    threshold: float = 0.75
    keep_recent_turns: Count = 5
    keep_recent_steps: Count | None = None
    mode: Literal["summarize", "redact"] = "summarize"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.threshold, bool) or not isinstance(self.threshold, float | int):
            raise InvalidConfig(f"threshold must be a number, got {self.threshold!r}")
        if not 0 < self.threshold < 1:
            raise InvalidConfig(f"threshold must be between 0 and 1, got {self.threshold}")
        if self.mode not in ("summarize", "redact"):
            raise InvalidConfig(f"mode must be 'summarize' or 'redact', got {self.mode!r}")

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Is strictly more than the threshold of the limit used? Always False without a limit."""
        # Compared in whole numbers, because 0.57 * 100 is below 57 in floats.
        threshold = round(self.threshold * _BILLION)
        return limit_tokens > 0 and used_tokens * _BILLION > threshold * limit_tokens

    def harder(self) -> tuple[SwapToolResults, ...]:
        """What to try if this frees too little: the same policy, with less and less kept as
        recent.
        """
        steps = self.keep_recent_steps or 20
        fewer = msgspec.structs.replace(
            self, keep_recent_turns=1, keep_recent_steps=max(1, steps // 4)
        )
        last = msgspec.structs.replace(self, keep_recent_turns=1, keep_recent_steps=1)
        return fewer, last, msgspec.structs.replace(last, mode="redact")

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """What to replace now; None if no old result is left to replace.

        ``compacted_before`` never moves back. If a tool loop must begin with thinking, nothing is
        replaced while that would make the open turn's thinking invalid.
        """
        profile = budget.profile
        compacted_before = max(
            turns_from(messages, self.keep_recent_turns),
            steps_from(messages, self.keep_recent_steps),
        )
        opens = profile.thinking_opens_tool_loop
        if opens and shows_open_thinking(view, messages, budget.committed):
            if profile.binds_thinking:
                return None
            compacted_before = min(compacted_before, budget.committed)
        compacted_before = max(compacted_before, view.compacted_before)
        shown_results: dict[str, str] = {}
        turns: set[int] = set()
        for position in view.shown_positions(compacted_before):
            message = messages[position]
            for result in message.tool_results:
                compact = self._compact(view, position, result, budget)
                if compact is not None:
                    shown_results[result.tool_use_id] = compact
                    turns.add(message.turn)
        if not shown_results:
            return None
        exempt_part = f"{self.keep_recent_turns} newest turns"
        if self.keep_recent_steps is not None:
            exempt_part = f"{self.keep_recent_steps} newest steps of the {exempt_part}"
        return planned(
            self.name,
            view,
            messages,
            budget,
            f"results before the {exempt_part} are swapped",
            compacted_before=compacted_before,
            shown_results=shown_results,
            results_summarised=len(shown_results) if self.mode == "summarize" else 0,
            results_redacted=len(shown_results) if self.mode == "redact" else 0,
            turns_compacted=len(turns),
            trigger="threshold",  # the records say "threshold", whatever the plan was asked for
        )

    def _compact(
        self, view: View, position: int, result: ToolResultBlock, budget: Budget
    ) -> str | None:
        """The text to show for *result* from now on; None if it has one already, or none that is
        shorter.
        """
        call_id = result.tool_use_id
        if call_id in view.shown_results:
            return None
        summary = ""
        if self.mode == "summarize":
            summary = budget.summaries.get(call_id, "")
            if not summary.strip():
                return None
        others = other_blocks(result.content)
        if others:
            summary = f"{summary}\n[{others} left out]".lstrip("\n")
        chars = len(result_text(result.content))
        compact = compact_text(summary, call_id=call_id, chars=chars)
        shown_chars = _shown_chars(view.text_for(call_id, position), result, budget.profile)
        return compact if is_worth(compact, shown_chars) else None


def _shown_chars(text: str | None, result: ToolResultBlock, profile: Profile) -> int:
    """The size in characters of what is shown for *result* now. An image counts as text of its
    cost.
    """
    if text is not None:
        return len(text)
    chars, flats = content_weight(result.content)
    return chars + int(flats * profile.image_tokens * profile.chars_per_token)
