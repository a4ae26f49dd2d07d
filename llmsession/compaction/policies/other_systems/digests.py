"""Policies that put one summary in place of what is old, and keep the recent part verbatim.

They differ in when they are due, and in what is recent: turns, a share of the tokens, or four
messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from llmsession.compaction.planning.boundaries import has_own_words, newest_that_fit, turns_from
from llmsession.compaction.planning.policy import Budget, planned
from llmsession.compaction.planning.schedule import Fill
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.view import View
from llmsession.turns.messages import Message

from ..counting import rest_tokens, sizes_in_budget
from ..limits import Amount, Count, Fraction, portion, reached
from ..prefixes import (
    SummaryPolicy,
    beside_tokens,
    cut_at_least,
    cut_at_most,
    latest_cut,
    note_behind_earlier,
    request_starts,
)
from ..registry import register
from ..spans import Span, left_out

__all__ = [
    "LlmSummary",
    "RecencyTurnSummary",
    "SummaryKeepLast4",
    "UnionPreserveCompress",
    "compress_threshold",
    "is_triggered",
    "kept_tokens",
    "metadata_stub",
    "tool_failures",
]


@register
class LlmSummary(SummaryPolicy, frozen=True, kw_only=True):
    """LLMSession of agent-air, its LLM compactor: above ``threshold`` of the limit one summary
    replaces all but the newest ``keep_recent_turns`` turns.

    Turns are counted by their number. Not copied: the result of a compaction took effect only with
    the request after the next one. Raises InvalidConfig for an invalid setting.
    """

    name: ClassVar[str] = "llm_summary"
    shares: ClassVar[tuple[str, ...]] = ("threshold", "keep_recent_turns")
    """The settings of a ``CompactionConfig`` that this policy uses."""

    threshold: Fraction = 0.75
    keep_recent_turns: Count = 5

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Is strictly more than the threshold of the limit used? Always False without a limit."""
        return limit_tokens > 0 and used_tokens > portion(limit_tokens, self.threshold)

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """A summary of all older turns; None if there are none, or no new ones."""
        first = turns_from(messages, self.keep_recent_turns)
        upto = cut_at_most(messages, min(first, latest_cut(view, messages, budget)))
        return self.summary(view, messages, budget, upto)


FAILURES_TITLE = "## Tool Failures"
_MAX_FAILURES, _FAILURE_CHARS = 8, 240

_CHECKPOINT = (
    "Write it under these headings, in this order, and leave out one that has nothing to say:"
    " Goal; Constraints & Preferences; Progress, with what is done and what is in progress; Key"
    " Decisions; Next Steps; Critical Context. Tool failures are listed behind your summary: do"
    " not list them."
)


def is_triggered(trigger: str, value: float | None, used_tokens: int, limit_tokens: int) -> bool:
    """Is LibreChat's *trigger* reached?

    - ``pruned``: more is used than the limit less a reserve of 5 %.
    - ``token_ratio``: at least the share *value* of the limit is used.
    - ``remaining_tokens``: at most *value* tokens are left.
    - ``messages_to_refine``: as ``pruned``; the plan counts the messages.

    An unknown trigger, or one without the value that it needs, is never reached.
    """
    if limit_tokens <= 0:
        return False
    if trigger == "pruned" or (trigger == "messages_to_refine" and value is not None):
        return used_tokens > limit_tokens * 95 // 100
    if value is None:
        return False
    if trigger == "token_ratio":
        return reached(used_tokens, limit_tokens, value)
    return trigger == "remaining_tokens" and limit_tokens - used_tokens <= int(value)


_STUB = "[Metadata summary:"


def metadata_stub(messages: Sequence[Message]) -> str:
    """What can be said of *messages* without a summariser: how many, whose, and which tools."""
    kinds = Counter(
        "ai" if m.is_assistant else "human" if has_own_words(m) else "tool" for m in messages
    )
    counted = ", ".join(f"{kinds[kind]} {kind}" for kind in ("human", "ai", "tool") if kinds[kind])
    stub = f"{_STUB} {len(messages)} messages ({counted})]"
    tools = list(dict.fromkeys(call.name for m in messages for call in m.tool_calls))
    return f"{stub}\n[Tools used: {', '.join(tools)}]" if tools else stub


def tool_failures(messages: Sequence[Message]) -> str:
    """The newest failures of tools under their title, one for each call, at most 8 of 240
    characters; "" if there are none.
    """
    tools = {call.id: call.name for message in messages for call in message.tool_calls}
    failures: dict[str, str] = {}
    for message in messages:
        for result in message.tool_results:
            if result.is_error and result.tool_use_id not in failures:
                why = " ".join(result.text.split())
                name = tools.get(result.tool_use_id, "tool")
                failures[result.tool_use_id] = f"- {name}: {why}"[:_FAILURE_CHARS].rstrip()
    newest = list(failures.values())[-_MAX_FAILURES:]
    return "\n".join([FAILURES_TITLE, *newest]) if newest else ""


def _without_failures(text: str) -> str:
    """*text* without the list of failures of an earlier summary, because they are listed anew
    behind it.
    """
    lines = text.split("\n")
    if FAILURES_TITLE not in lines:
        return text
    first = lines.index(FAILURES_TITLE)
    rest = next((at for at in range(first + 1, len(lines)) if not lines[at].startswith("- ")), None)
    return "\n".join(lines[:first] + ([] if rest is None else lines[rest:])).strip()


@register
class RecencyTurnSummary(SummaryPolicy, frozen=True, kw_only=True):
    """LibreChat agents: keeps the newest ``keep_turns`` turns, and folds older ones into a
    checkpoint, followed by a list of tool failures.

    ``trigger`` and ``trigger_value`` are explained at ``is_triggered``. With ``max_recent_tokens``
    whole turns are recent as long as they have at most that many tokens together. The latest turn
    is always recent, even with ``keep_turns`` 0. If no summary can be written, a line says how many
    messages there were, behind an earlier summary if there is one.

    Not copied: an empty summary counted as progress and was asked for until the recursion limit.
    """

    name: ClassVar[str] = "recency_turn_summary"

    trigger: str = "pruned"
    trigger_value: float | None = None
    keep_turns: Amount = 2
    max_recent_tokens: int | None = None

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Does the trigger say so?"""
        return is_triggered(self.trigger, self.trigger_value, used_tokens, limit_tokens)

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """A summary of all turns before the recent ones. It ends at the first message that is
        kept.
        """
        upto = self._first_kept(view, messages, budget)
        pruned = upto - view.start
        min_messages = self.trigger_value or 0
        if self.trigger == "messages_to_refine" and 0 < pruned < min_messages:
            return None
        stub = note_behind_earlier(
            view, _STUB, lambda first: metadata_stub(messages[first : max(first, upto)])
        )
        return self.summary(
            view,
            messages,
            budget,
            upto,
            instructions=_CHECKPOINT,
            appendix=tool_failures(messages[:upto]),
            fallback=_without_failures(stub),
        )

    def _first_kept(self, view: View, messages: Sequence[Message], budget: Budget) -> int:
        latest = latest_cut(view, messages, budget)
        starts = request_starts(messages)[-max(1, self.keep_turns) :]
        if not starts:
            return 0
        max_tokens, sizes = self.max_recent_tokens, sizes_in_budget(view, messages, budget)
        fitting = [
            index for index in starts if max_tokens is None or sum(sizes[index:]) <= max_tokens
        ]
        return cut_at_most(messages, min(latest, (fitting or starts[-1:])[0]))


def compress_threshold(window_tokens: int, ratio: float = 0.75) -> int:
    """The number of tokens above which LobeChat compresses."""
    return portion(window_tokens, ratio)


def kept_tokens(
    window_tokens: int, ratio: float = 0.75, keep_ratio: float = 0.2, keep_cap: int = 32_000
) -> int:
    """The most tokens of the newest messages that LobeChat keeps."""
    return min(portion(compress_threshold(window_tokens, ratio), keep_ratio), keep_cap)


@register
class UnionPreserveCompress(SummaryPolicy, frozen=True, kw_only=True):
    """LobeChat: keeps the user's newest message and a suffix of at most ``keep_ratio`` of the
    threshold, and puts one summary in place of everything else.

    A newest message of the user that stands before the suffix is repeated verbatim behind the
    summary (an injected text). If it has images or documents, the summary ends before it instead.
    An unknown window is taken for 128,000 tokens.

    Not copied: earlier summaries were joined to the next one each time, and an empty one replaced
    what was there.
    """

    name: ClassVar[str] = "union_preserve_compress"

    ratio: Fraction = 0.75
    keep_ratio: Fraction = 0.2
    keep_cap: Count = 32_000
    default_window_tokens: Count = 128_000

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Is strictly more than the threshold of a window of *limit_tokens* used?"""
        return used_tokens > compress_threshold(self._window(limit_tokens), self.ratio)

    def due_for(self, fill: Fill) -> bool:
        """Is strictly more used than the threshold, or than the limit?"""
        return self.due(fill.used_tokens, fill.window) or fill.is_over

    def _window(self, window_tokens: int) -> int:
        return window_tokens if window_tokens > 0 else self.default_window_tokens

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """A summary of the group, which holds at least the first message."""
        sizes = sizes_in_budget(view, messages, budget)
        window = self._window(budget.window)
        keep = kept_tokens(window, self.ratio, self.keep_ratio, self.keep_cap)
        suffix = cut_at_least(messages, max(1, newest_that_fit(sizes, keep)))
        latest = latest_cut(view, messages, budget, pins=True)
        return self.summary(view, messages, budget, min(suffix, latest), pins=True)


@register
class SummaryKeepLast4(SummaryPolicy, frozen=True, kw_only=True):
    """CodeBuddy's provider path: past the limit a summary replaces all but the last
    ``keep_messages``. If that is not enough, the oldest pairs behind it are left out.

    With fewer than ``min_messages`` there is no summary, and only the oldest pairs are left out.

    Not copied: the fresh summary was the first thing to be evicted, a missing summary was shown as
    the word "undefined", and two user messages could follow each other.
    """

    name: ClassVar[str] = "summary_keep_last_4"

    min_messages: Count = 6
    keep_messages: Count = 4

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Is more used than the limit?"""
        return limit_tokens > 0 and used_tokens > limit_tokens

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """A summary and what is left out behind it, or only what is left out; None if nothing can
        be.
        """
        latest = latest_cut(view, messages, budget)
        indexes = [*view.shown_positions(len(messages))]
        count = len(indexes) + (view.prefix_summary is not None)
        if not latest or budget.used_tokens <= budget.limit_tokens:
            return None
        if count >= self.min_messages and len(indexes) > self.keep_messages:
            cut = cut_at_most(messages, min(latest, indexes[-self.keep_messages]))
            plan = self._with_summary(view, messages, budget, cut)
            if plan is not None:
                return plan
        return self._without_summary(view, messages, budget)

    def _with_summary(
        self, view: View, messages: Sequence[Message], budget: Budget, cut: int
    ) -> Plan | None:
        sizes = sizes_in_budget(view, messages, budget)
        room = budget.limit_tokens - beside_tokens(sizes, view, budget) - self.summary_tokens
        omitted = _oldest_pairs(messages, sizes, cut, room, budget)
        return self.summary(view, messages, budget, cut, omitted=omitted)

    def _without_summary(
        self, view: View, messages: Sequence[Message], budget: Budget
    ) -> Plan | None:
        sizes = sizes_in_budget(view, messages, budget)
        room = budget.limit_tokens - rest_tokens(sizes, budget)
        spans = _oldest_pairs(messages, sizes, view.start, room, budget)
        if not any(sum(sizes[first:end]) for first, end in spans):
            return None
        did = "the oldest messages are left out"
        return planned(self.name, view, messages, budget, did, omitted=spans)


def _oldest_pairs(
    messages: Sequence[Message], sizes: Sequence[int], start: int, room: int, budget: Budget
) -> tuple[Span, ...]:
    """The oldest pairs from *start* on that do not fit into *room*. The rest begins with a user
    message, and the newest one stays.
    """
    end = start
    while end < len(messages) and sum(sizes[end:]) > room:
        end = min(end + 2, len(messages))
    if end == start:
        return ()
    spans = left_out(messages, end, shown_from=start)
    profile = budget.profile
    if profile.thinking_opens_tool_loop and not profile.binds_thinking:
        return tuple(span for span in spans if span[1] <= budget.committed)
    return spans
