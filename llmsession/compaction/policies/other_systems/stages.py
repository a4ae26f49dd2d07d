"""Policies made of stages: each one continues from the result of the one before, all in one
plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from llmsession.compaction.planning.boundaries import newest_request, newest_that_fit
from llmsession.compaction.planning.policy import Budget
from llmsession.compaction.summaries.cap import cap_text, other_blocks, result_text
from llmsession.compaction.summaries.shorten import shorten_text
from llmsession.compaction.tokens.messages import text_tokens_for
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.view import View
from llmsession.turns.blocks import TextBlock, ToolResultBlock
from llmsession.turns.messages import Message
from llmsession.turns.records import Injected

from ..base import ThresholdPolicy
from ..composing import Pipeline, Stage
from ..drafts import Draft, cut_ranges, live_tail, never_left_out, summary_cut
from ..limits import Amount, Fraction, check_fraction, portion
from ..registry import register
from .reads import drop_duplicate_reads, saved_enough

__all__ = ["FourStage", "MiddlewarePipeline", "window_fractions"]

RESULT_CLEARED = "[Tool result cleared]"
READ_BELOW = "[File {path} - refer to latest read below]"
TRUNCATED = "[Earlier conversation history was truncated to fit within context limits]"
KEPT_FIRST, FEW_MESSAGES = 2, 4
SUMMARY_TOKENS = 2_000
MIN_CUT_CHARS = 200
_CUT_ROUNDS = 8


def window_fractions(over_tokens: int, current_tokens: int) -> tuple[int, ...]:
    """The percentages of the messages to leave out, one after the other until it is enough.

    The first is the percentage that is over plus 15, between 10 and 90. The next ones grow by ten,
    up to 95.
    """
    first = -(-over_tokens * 100 // max(1, current_tokens)) + 15
    index = min(90, max(10, first))
    tries = [index]
    while len(tries) < 6 and index < 95:
        index = min(95, index + 10)
        tries.append(index)
    return tuple(tries)


@register
class FourStage(ThresholdPolicy, frozen=True, kw_only=True):
    """``four_stage``: clears old tool results, drops files that were read again, summarises, and
    leaves messages out; each only while the request is over the target.

    - Stage 1 clears all results before the newest 40,000 tokens of results, if that saves 500. It
      leaves results of ``protected_tools``, and those that the model has not read.
    - Stage 2 runs if it saves 30 % of the characters.
    - Stage 3 summarises all but what fits into 30 % of the target, if there are more than four
      messages.
    - Stage 4 leaves out all but the first two messages and a tail. If that is not enough, the
      longest texts are cut, down to 200 characters each.

    ``target`` is the share of the limit to come down to. In the original it is all of the limit, so
    a plan before the limit is reached finds nothing to do. The figures name the stages that were
    used.

    Markers: ``[Tool result cleared]`` and ``[File X - refer to latest read below]``. It injects
    ``[Earlier conversation history was truncated to fit within context limits]``.

    Not copied: files found in prose, and repairing pairs after the cut instead of cutting between
    them. Raises InvalidConfig for an invalid setting.
    """

    name: ClassVar[str] = "four_stage"

    target: float = 1.0
    protected_tokens: Amount = 40_000
    min_saved_tokens: Amount = 500
    protected_tools: tuple[str, ...] = ("skill",)
    min_saving: Fraction = 0.30
    recent_share: Fraction = 0.30

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target != 1:
            check_fraction("target", self.target)

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """The stages that are needed; None if none is, or none finds anything."""
        draft = Draft(view, messages, budget)
        target = portion(budget.limit_tokens, self.target)
        figures: dict[str, int] = {}
        if draft.used > target:
            figures["results_cleared"] = self._clear(draft)
        if draft.used > target:
            tried = draft.fork()
            figures["characters_deduplicated"] = saved = drop_duplicate_reads(tried, READ_BELOW)
            if saved_enough(saved, _shown_chars(draft), self.min_saving):
                draft = tried
            else:
                figures["characters_deduplicated"] = 0
        if draft.used > target:
            figures["messages_summarised"] = self._summarise(draft, target)
        if draft.used > target:
            figures["messages_left_out"] = _leave_out(draft, target)
        if draft.used > target:
            figures["texts_cut"] = _cut_longest(draft, target)
        used = [name.replace("_", " ") for name, count in figures.items() if count]
        return draft.plan(self.name, f"stages used: {', '.join(used)}", **figures)

    def _clear(self, draft: Draft) -> int:
        tools = {call.id: call.name for message in draft.messages for call in message.tool_calls}
        budget, room = draft.budget, self.protected_tokens
        old: list[tuple[int, ToolResultBlock]] = []
        saved = -1
        unread = live_tail(draft.messages)
        for index in range(len(draft.messages) - 1, draft.start - 1, -1):
            for result in reversed(
                draft.messages[index].tool_results if draft.shows(index) else ()
            ):
                text = draft.result(index, result)
                tokens = budget.scaled(text_tokens_for(text, budget.profile))
                room -= tokens
                is_protected = tools.get(result.tool_use_id) in self.protected_tools
                if room >= 0 or index > unread or is_protected or not draft.is_open(result):
                    continue
                old.append((index, result))
                saved += tokens
        if saved < self.min_saved_tokens:
            return 0
        return sum(draft.show_result(index, result, RESULT_CLEARED) for index, result in old)

    def _summarise(self, draft: Draft, target: int) -> int:
        """Ask for a summary of all but the recent messages. Returns how many it covers."""
        visible_count = sum(draft.shows(index) for index in range(len(draft.messages)))
        if visible_count + bool(draft.start) <= FEW_MESSAGES:
            return 0
        recent = newest_that_fit(draft.sizes, portion(target, self.recent_share))
        upto = summary_cut(draft, recent)
        count = sum(draft.shows(index) for index in range(draft.start, upto))
        return count if draft.condense(upto, SUMMARY_TOKENS) else 0


def _shown_chars(draft: Draft) -> int:
    chars = 0
    for index, message in enumerate(draft.messages):
        for number, block in enumerate(message.content if draft.shows(index) else ()):
            if isinstance(block, TextBlock):
                chars += len(draft.text(index, number))
            elif isinstance(block, ToolResultBlock):
                chars += len(draft.result(index, block))
    return chars


def _leave_out(draft: Draft, target: int) -> int:
    """Keep the first two messages, and as much of the tail as fits. Returns how many are left
    out.
    """
    messages = draft.messages
    indexes = [index for index in range(draft.start, len(messages)) if draft.shows(index)]
    first = KEPT_FIRST - bool(draft.start)
    if len(indexes) <= FEW_MESSAGES:
        return 0
    fixed_indexes = never_left_out(messages)
    tail = live_tail(messages)
    marker = draft.text_tokens(TRUNCATED)
    ranges: tuple[tuple[int, int], ...] = ()
    over = draft.used - target
    for percent in (*window_fractions(over, draft.used), 100):
        count = (len(indexes) - first) * percent // 100 // 2 * 2
        end = min(tail, [*indexes, len(messages)][min(first + count, len(indexes))])
        ranges = cut_ranges(draft, indexes[first], end, fixed_indexes)
        if ranges and draft.without(ranges) + marker <= target:
            break
    if not ranges or draft.used - draft.without(ranges) <= marker:
        return 0
    draft.omit(ranges)
    draft.inject([Injected(ranges[-1][1], TRUNCATED)], instead_of=TRUNCATED)
    return sum(end - start for start, end in ranges)


class _Part(NamedTuple):
    chars: int
    at: int
    block: int


def _cut_longest(draft: Draft, target: int) -> int:
    """Cut results and texts, the longest first, until the request fits. Returns how many were cut.
    The user's newest message is not changed.
    """
    cut: set[tuple[int, int]] = set()
    request = newest_request(draft.messages)
    for _ in range(_CUT_ROUNDS):
        over = draft.used - target
        if over <= 0:
            break
        keep = max(50, 950 - over * 1_000 // max(1, draft.used))
        changed = False
        for part in _parts(draft, request):
            if draft.used <= target:
                break
            if _cut(draft, part, max(MIN_CUT_CHARS, part.chars * keep // 1_000)):
                cut.add((part.at, part.block))
                changed = True
        if not changed:
            break
    return len(cut)


def _parts(draft: Draft, request: int | None) -> list[_Part]:
    parts: list[_Part] = []
    for index in range(draft.start, len(draft.messages)):
        for number, block in enumerate(draft.messages[index].content if draft.shows(index) else ()):
            if isinstance(block, ToolResultBlock):
                chars = len(draft.result(index, block))
            elif isinstance(block, TextBlock) and index != request:
                chars = len(draft.text(index, number))
            else:
                continue
            if chars > MIN_CUT_CHARS:
                parts.append(_Part(chars, index, number))
    return sorted(parts, key=lambda part: (-part.chars, part.at, part.block))


def _cut(draft: Draft, part: _Part, max_chars: int) -> bool:
    block = draft.messages[part.at].content[part.block]
    if isinstance(block, ToolResultBlock):
        text = result_text(block.content)
        if other_blocks(block.content):
            return False
        shorter = cap_text(text, max_chars=max_chars, call_id=block.tool_use_id)
        return shorter is not None and draft.show_result(part.at, block, shorter)
    if isinstance(block, TextBlock):
        return draft.shorten(part.at, part.block, shorten_text(block.text, max_chars))
    return False


@register
class MiddlewarePipeline(Pipeline, frozen=True, kw_only=True):
    """``middleware_pipeline`` (Open WebUI): a ``pipeline`` that injects memories, drops older reads
    of a file, masks consumed results, and folds spans.

    As in Open WebUI, the stages and their order are data. ``pipeline`` explains what stages may be,
    when they are due, and what a failure means. It is exempt from G3 and G7 for the same reasons.
    ``plan`` raises what a required stage raises.
    """

    name: ClassVar[str] = "middleware_pipeline"

    stages: tuple[Stage, ...] = (
        Stage(policy="memory_injection"),
        Stage(policy="file_read_dedupe"),
        Stage(policy="mask_consumed"),
        Stage(policy="basic_fold", required=True),
    )
