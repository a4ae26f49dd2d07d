"""``balanced``: our own policy. Does the cheapest things first, and only as much as needed.

Old tool results are replaced by their summaries, the oldest first. Then long inputs of old calls
are shortened. Then a summary replaces a prefix, with the recent steps verbatim. Only if the next
request would not fit does it edit the recent part, and cut the middle out of the longest texts.
Each stage is a rewrite of the prompt's prefix, so all stages are done in one plan, down to the low
mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar, NamedTuple

import msgspec

from llmsession.compaction.planning.boundaries import (
    is_turn_start,
    recent_from,
    safe_cuts,
)
from llmsession.compaction.planning.policy import Budget, planned
from llmsession.compaction.summaries.cap import cap_text, other_blocks, result_text
from llmsession.compaction.summaries.code_outline import folded_read
from llmsession.compaction.summaries.extractive import (
    compact_text,
    is_extracted,
    is_worth,
    summarise,
)
from llmsession.compaction.summaries.shorten import KEPT_STRING_CHARS, shorten_input, shorten_text
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.view import View, text_key
from llmsession.errors import InvalidConfig
from llmsession.turns.blocks import TextBlock, ToolResultBlock, ToolUseBlock
from llmsession.turns.messages import Message
from llmsession.turns.records import Injected

from .base import WaitingPolicy
from .drafts import Draft
from .limits import Count, Fraction, portion
from .prefixes import pin_of
from .registry import register

__all__ = ["Balanced"]

SUMMARY_PERCENT, MIN_SUMMARY_TOKENS, MAX_SUMMARY_TOKENS = 20, 250, 6_000
"""The size of a summary: its percentage of the limit, and its bounds in tokens. In a small window a
longer summary would hold more than the messages that make room for it
(docs/explanation/policies.md). In a large window the upper bound decides.
"""
PINNED_PERCENT = 20
"""The newest request, when it is repeated behind a summary, may take at most this percentage of the
limit.
"""
LONG_INPUT_CHARS = 2_000
RESULT_SUMMARY_CHARS = 600
FOLD_CHARS = 1_500
"""The size of an outline of a source file's declarations, in characters. In two sources of
recordings it holds twice as much of what is needed later as a summary of 600 characters (8 and 9 %
of it, not 3 and 4), for 1 to 2 % more of the file's size. Over whole conversations there is no
clear difference: what is retained differs by at most 0.4 points, and the cost by 0.7 %, in either
direction. So ``fold_code`` is off by default.
"""
MIN_SHOWN_CHARS = 600
"""A message that has to be cut keeps at least this many characters, about 200 tokens."""


@register
class Balanced(WaitingPolicy, frozen=True, kw_only=True):
    """Swap, shorten, summarise, cut: in that order, and only as far as needed.

    - ``threshold`` is the share of the limit above which it acts, and ``low`` the share that it
      goes down to.
    - ``keep_recent_turns`` and ``keep_recent_steps`` define what is recent: the newest turns, and
      of them the newest steps. None keeps these turns whole.
    - ``recent_share`` bounds the recent part, as a share of the limit.
    - ``fold_code`` replaces a source file that was read by the signatures in it, if nobody gave a
      summary.

    Exempt from G5 if the newest request alone takes more than a fifth of the limit: then only its
    head and tail are shown, which is better than being unable to continue.

    Raises InvalidConfig for an invalid setting.
    """

    name: ClassVar[str] = "balanced"
    waits_for_cache: ClassVar[bool] = True
    exempt: ClassVar[frozenset[str]] = frozenset({"G5"})
    shares: ClassVar[tuple[str, ...]] = (
        "threshold", "low", "keep_recent_turns", "keep_recent_steps",
    )  # fmt: skip
    """The settings of a ``CompactionConfig`` that this policy uses."""

    threshold: Fraction = 0.80
    low: Fraction = 0.40
    keep_recent_turns: Count = 5
    keep_recent_steps: Count | None = 20
    recent_share: Fraction = 0.30
    fold_code: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low >= self.threshold:
            raise InvalidConfig(f"low {self.low} must be below threshold {self.threshold}")

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Is strictly more than the threshold of the limit used?"""
        return limit_tokens > 0 and used_tokens > portion(limit_tokens, self.threshold)

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """What to change now; None if nothing can be changed.

        If the next request does not fit (triggers ``window`` and ``overflow``), it also edits the
        recent part, until the request is within the limit or nothing is left to cut.
        """
        draft = _Draft(view, messages, budget, folds_code=self.fold_code)
        forced = budget.trigger in ("window", "overflow")
        target = portion(budget.limit_tokens, self.low)
        recent = recent_from(
            messages,
            draft.sizes,
            keep_turns=self.keep_recent_turns,
            keep_steps=self.keep_recent_steps,
            max_tokens=portion(budget.limit_tokens, self.recent_share),
            start=view.start,
        )
        is_manual = budget.trigger == "asked"
        draft.swap(recent, 0 if is_manual else target)
        if draft.used > target:
            draft.shorten_inputs(recent, target)
        if draft.used > target:
            draft.summarise(recent, target, forced=forced)
        if forced and draft.used > budget.limit_tokens:
            draft.swap(len(messages) - 1, budget.limit_tokens)
            # A request that the provider refused as too large is larger than our estimate. So cut
            # down to the low mark, to avoid a second refusal. Otherwise down to the threshold: a
            # text is cut once, and what is left of a long one is estimated from samples.
            if budget.trigger == "overflow":
                draft.cut(target)
            elif draft.used > budget.limit_tokens:
                draft.cut(portion(budget.limit_tokens, self.threshold))
        return draft.finished(self.name)


class _Draft(Draft):
    """A plan in the making that knows where its first edit is. Injected texts are part of ``rest``,
    because they stay.
    """

    def __init__(
        self, view: View, messages: Sequence[Message], budget: Budget, *, folds_code: bool
    ) -> None:
        super().__init__(view, messages, budget)
        self._folds_code = folds_code
        self._compacted_before = view.compacted_before
        self._turns: set[int] = set()
        self._first_edit = len(messages)
        shown = messages[view.start :]
        self._calls = {call.id: call for message in shown for call in message.tool_calls}

    def _size_before(self) -> int:
        return sum(self.sizes[self.start :]) + self._summary_tokens

    def measure(self, at: int) -> None:
        """Measure the message at *at* again after an edit, and remember the first edit."""
        super().measure(at)
        self._first_edit = min(self._first_edit, at)
        self._turns.add(self.messages[at].turn)

    def swap(self, end: int, target: int) -> None:
        """Replace results before position *end* by their summaries, until *target* is reached."""
        for index in range(self.start, end):
            if self.used <= target:
                break
            if self.shows(index):
                swapped = [
                    self._swap(index, result) for result in self.messages[index].tool_results
                ]
                if any(swapped):
                    self.measure(index)
            self._compacted_before = max(self._compacted_before, index + 1)

    def _swap(self, index: int, result: ToolResultBlock) -> bool:
        call_id = result.tool_use_id
        if call_id in self.shown.shown_results:
            return False
        text = result_text(result.content)
        visible_text = self.view.text_for(call_id, index)
        others = other_blocks(result.content)
        flat_chars = 0
        if visible_text is None and others:
            profile = self.budget.profile
            flat_chars = int(profile.image_tokens * profile.chars_per_token)
        summary = self._summary(result, text)
        if summary is None and not others:
            return False
        if others:
            summary = f"{summary or ''}\n[{others} left out]".lstrip("\n")
        compact = compact_text(summary or "", call_id=call_id, chars=len(text))
        if not is_worth(compact, len(text if visible_text is None else visible_text) + flat_chars):
            return False
        self.shown.shown_results[call_id] = compact
        return True

    def _summary(self, result: ToolResultBlock, text: str) -> str | None:
        """The summary of a result: the given one; else signatures, if it is code; else one by
        rules.
        """
        summary = self.budget.summaries.get(result.tool_use_id)
        call = self._calls.get(result.tool_use_id)
        if (
            self._folds_code
            and not result.is_error
            and (not summary or is_extracted(summary, text))
        ):
            folded = folded_read(text, call, max_chars=FOLD_CHARS)
            if folded is not None:
                return folded
        return summary or summarise(
            text,
            tool=call.name if call else None,
            is_error=bool(result.is_error),
            max_chars=RESULT_SUMMARY_CHARS,
        )

    def shorten_inputs(self, end: int, target: int) -> None:
        """Shorten long strings in the inputs of calls before *end*, the oldest first."""
        for index in range(self.start, end):
            if self.used <= target:
                break
            if self.shows(index) and self.messages[index].is_assistant:
                self._shorten(index, LONG_INPUT_CHARS)

    def _shorten(self, index: int, min_chars: int, string_chars: int = KEPT_STRING_CHARS) -> None:
        shortened = False
        for call in self.messages[index].content:
            if not isinstance(call, ToolUseBlock) or call.id in self.view.inputs:
                continue
            before = len(self.shown.inputs.get(call.id) or msgspec.json.encode(call.input))
            if before < min_chars:
                continue
            shorter = shorten_input(call.input, string_chars=string_chars)
            if shorter is not None and len(shorter) < before:
                self.shown.inputs[call.id] = shorter
                shortened = True
        if shortened:
            self.measure(index)

    def summarise(self, recent: int, target: int, *, forced: bool) -> None:
        """Ask for a summary in place of a prefix.

        The prefix is the shortest one that reaches *target*, preferably one that ends with a turn.
        The recent part stays, unless *forced* and the limit cannot be reached otherwise.
        """
        limit = self.budget.limit_tokens
        room = min(MAX_SUMMARY_TOKENS, max(MIN_SUMMARY_TOKENS, limit * SUMMARY_PERCENT // 100))
        cut = self._cut_for(recent, target, room)
        if forced and (cut is None or self._after(cut, room) > limit):
            cut = self._cut_for(len(self.messages) - 1, limit, room) or cut
        if cut is None:
            return
        pinned = self._pinned(cut)
        if sum(self.sizes[self.start : cut]) <= room + self.pinned_tokens(pinned):
            return
        self._turns.update(message.turn for message in self.messages[self.start : cut])
        self._first_edit = 0
        self.want(cut, room, pinned=pinned)

    def _pinned(self, cut: int) -> Injected | None:
        """The newest request, if it stands before *cut*: it is repeated behind the summary, or only
        its head and tail if it is long.
        """
        pinned = pin_of(self.messages, cut)
        if pinned is None:
            return None
        room = self.budget.limit_tokens * PINNED_PERCENT // 100
        chars = int(room * self.budget.profile.chars_per_token)
        while True:
            shorter = Injected(pinned.at, shorten_text(pinned.text, max(MIN_SHOWN_CHARS, chars)))
            tokens = self.pinned_tokens(shorter)
            if tokens <= room or chars <= MIN_SHOWN_CHARS:
                return shorter
            # A text may have more tokens per character than the profile says. A tenth less, because
            # a notice says what is left out.
            chars = chars * room * 9 // (tokens * 10)

    def _after(self, cut: int, room: int) -> int:
        """The size with a summary of *room* tokens in place of everything before *cut*."""
        return self.used - self._summary_tokens - sum(self.sizes[self.start : cut]) + room

    def _cut_for(self, end: int, target: int, room: int) -> int | None:
        """The first safe cut up to *end* that reaches *target*, else the last safe one."""
        cuts = list(safe_cuts(self.messages, self.start + 1, end))
        if not cuts:
            return None
        sums = accumulate(self.sizes[self.start :], initial=0)
        gone = dict(enumerate(sums, self.start))
        left = self.used - self._summary_tokens + room
        reaching = [index for index in cuts if left - gone[index] <= target]
        if not reaching:
            return cuts[-1]
        first = reaching[0]
        # The start of a turn a little later is better than the middle of a turn.
        spare = self.budget.limit_tokens // 20
        for index in reaching:
            if gone[index] - gone[first] > spare:
                break
            if is_turn_start(self.messages, index):
                return index
        return first

    def cut(self, limit: int) -> None:
        """Cut the middle out of the longest messages, until the request fits *limit*.

        Each message gets at most an equal share. The result of a cut is measured, and cut again if
        it is still too large, because the number of tokens per character differs from text to text.
        """
        for min_chars in (MIN_SHOWN_CHARS, MIN_SHOWN_CHARS // 2, MIN_SHOWN_CHARS // 4):
            indexes = [index for index in range(self.start, len(self.sizes)) if self.sizes[index]]
            room = max(0, limit - (self.used - sum(self.sizes[index] for index in indexes)))
            share = _fair_share([self.sizes[index] for index in indexes], room)
            for index in indexes:
                if self.used <= limit:
                    return
                if self.sizes[index] > share:
                    self._cut_message(index, share, min_chars)

    def _cut_message(self, index: int, share: int, min_chars: int) -> None:
        """Cut the message at *index* to about *share* tokens, but none of its parts below
        *min_chars* characters. Parts that an earlier plan has cut stay as they are.
        """
        if self.messages[index].is_assistant:
            self._shorten(index, 0, min_chars * KEPT_STRING_CHARS // MIN_SHOWN_CHARS)
        parts = self._parts(index)
        lengths = [len(part.shown) for part in parts]
        # A tenth less, because a notice says what is left out.
        chars = sum(lengths) * share * 9 // (10 * max(1, self.sizes[index]))
        item = max(min_chars, _fair_share(lengths, chars))
        cut = False
        for part in parts:
            if len(part.shown) > item and (shorter := part.cut(item)) is not None:
                if part.is_result:
                    self.shown.shown_results[part.key] = shorter
                    self._compacted_before = max(self._compacted_before, index + 1)
                else:
                    self.shown.texts[part.key] = shorter
                cut = True
        if cut:
            self.measure(index)

    def _parts(self, index: int) -> list[_Part]:
        """The texts and the results of the message at *index* that this plan may cut."""
        parts: list[_Part] = []
        message = self.messages[index]
        for number, block in enumerate(message.content):
            if isinstance(block, TextBlock):
                key = text_key(message, number)
                if key not in self.view.texts:
                    visible_text = self.text(index, number)
                    parts.append(_Part(key, block.text, visible_text, is_result=False))
            elif isinstance(block, ToolResultBlock) and self.is_open(block):
                text, visible_text = result_text(block.content), self.result(index, block)
                parts.append(_Part(block.tool_use_id, text, visible_text, is_result=True))
        return parts

    def finished(self, name: str) -> Plan | None:
        """The plan; None if nothing is changed."""
        shown_results, inputs, texts = self.changed()
        summary_request = self.summary_request
        if not (shown_results or inputs or texts or summary_request):
            return None
        parts = [
            f"{len(shown_results)} results shown in compact form" if shown_results else "",
            f"{len(inputs)} inputs shortened" if inputs else "",
            f"{len(texts)} texts cut" if texts else "",
            f"a summary for the first {summary_request.upto} messages" if summary_request else "",
        ]
        kept_before = sum(self.sizes[self.start : self._first_edit]) + (
            self._summary_tokens if self._first_edit else 0
        )
        return planned(
            name,
            self.view,
            self.messages,
            self.budget,
            ", ".join(part for part in parts if part),
            compacted_before=self._compacted_before,
            shown_results=shown_results,
            inputs=inputs,
            texts=texts,
            summary_request=summary_request,
            tokens_before=self._before,
            tokens_after=max(0, self.used - self.rest),
            results_summarised=len(shown_results),
            turns_compacted=len(self._turns),
            figures={"kept_before_tokens": self.budget.frame_tokens + kept_before},
        )


class _Part(NamedTuple):
    """A part of a message that can be cut: a text, or a result."""

    key: str
    text: str
    shown: str
    is_result: bool

    def cut(self, chars: int) -> str | None:
        """Its head and tail, shorter than what is shown now; None if that is not possible."""
        if self.is_result:
            shorter = cap_text(self.text, max_chars=chars, call_id=self.key)
        else:
            shorter = shorten_text(self.text, chars)
        return shorter if shorter is not None and len(shorter) < len(self.shown) else None


def _fair_share(sizes: Sequence[int], room: int) -> int:
    """The largest limit for each of *sizes* that keeps their sum within *room*."""
    share, left = room, sorted(sizes)
    total = sum(left)
    if total <= room:
        return max(left, default=0)
    for number, size in enumerate(left):
        share = room // (len(left) - number)
        if size > share:
            return share
        room -= size
    return share
