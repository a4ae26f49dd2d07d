"""``balanced``: our own policy. Cheapest first, in one batch down to the low mark, no further.

Old tool results become their summaries, the oldest first; then long inputs of old calls are
shortened; then a summary stands for a prefix, with the recent steps verbatim. Only where the
next request would not fit does it go into what is recent, and cuts head and tail of what is
longest. Each stage is one rewrite of the prompt's prefix, so they happen together.
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
"""A summary's share of the limit, and its bounds. In a small window a longer summary holds more
than the messages that make room for it (docs/explanation/policies.md); in a large one the bound
decides."""
PINNED_PERCENT = 20
"""So much of the limit may the newest request take that is said again behind a summary."""
LONG_INPUT_CHARS = 2_000
RESULT_SUMMARY_CHARS = 600
FOLD_CHARS = 1_500
"""What a file of code declares. Of two sources of recordings twice as much of what is needed later
is in that as in a summary of 600 characters (8 and 9 % of it, not 3 and 4), for 1 to 2 % more of
the file's size. Over whole conversations it makes no difference that could be told: what is held
differs by at most 0.4 points, the cost by 0.7 %, in either direction. So it is off."""
MIN_SHOWN_CHARS = 600
"""What a message that has to be cut is left with, at least: about 200 tokens."""


@register
class Balanced(WaitingPolicy, frozen=True, kw_only=True):
    """Swap, shorten, summarise, cut: in that order, and only as far as needed.

    It begins above ``threshold`` of the limit and goes down to ``low``. Recent is what belongs
    to the newest ``keep_recent_turns`` turns and, of them, to the newest ``keep_recent_steps``
    steps, as long as that is at most ``recent_share`` of the limit. With ``fold_code`` what was
    read of a file of code becomes its signatures, where nobody gave a summary of it.

    Exempt from G5 where the newest request alone takes over a fifth of the limit: it is shown by
    head and tail then, which is better than not to go on.

    Raises InvalidConfig, naming what cannot be.
    """

    name: ClassVar[str] = "balanced"
    waits_for_cache: ClassVar[bool] = True
    exempt: ClassVar[frozenset[str]] = frozenset({"G5"})
    shares: ClassVar[tuple[str, ...]] = (
        "threshold", "low", "keep_recent_turns", "keep_recent_steps",
    )  # fmt: skip
    """The settings of a ``CompactionConfig`` that it takes."""

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
        """What to change now, None if nothing can be.

        Asked because the next request does not fit (``window``, ``overflow``) it also cuts into
        what is recent, until the limit holds or nothing is left to cut.
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
        )
        is_manual = budget.trigger == "asked"
        draft.swap(recent, 0 if is_manual else target)
        if draft.used > target:
            draft.shorten_inputs(recent, target)
        if draft.used > target:
            draft.summarise(recent, target, forced=forced)
        if forced and draft.used > budget.limit_tokens:
            draft.swap(len(messages) - 1, budget.limit_tokens)
            # What was refused all the same is larger than we think, and is not cut a second time.
            draft.cut(target if budget.trigger == "overflow" else budget.limit_tokens)
        return draft.finished(self.name)


class _Draft(Draft):
    """A plan while it is made, which knows where its first edit is. What is injected is a part of
    ``rest``: it stays."""

    def __init__(
        self, view: View, messages: Sequence[Message], budget: Budget, *, folds_code: bool
    ) -> None:
        super().__init__(view, messages, budget)
        self._folds_code = folds_code
        self._compacted_before = view.compacted_before
        self._turns: set[int] = set()
        self._first_edit = len(messages)
        self._calls = {call.id: call for message in messages for call in message.tool_calls}

    def _size_before(self) -> int:
        return sum(self.sizes) + self._summary_tokens

    def measure(self, at: int) -> None:
        """The message at *at* is edited: it is measured again."""
        super().measure(at)
        self._first_edit = min(self._first_edit, at)
        self._turns.add(self.messages[at].turn)

    def swap(self, end: int, target: int) -> None:
        """Results before position *end* become their summaries, until *target* is reached."""
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
        """The summary that was given; else signatures, if it is code; else one by rules."""
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
        """Long strings in the inputs of calls before *end* are shortened, the oldest first."""
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
        """A summary in place of a prefix: the shortest one that reaches *target*, preferably one
        that ends with a turn; what is recent stays, unless it has to go for the limit."""
        limit = self.budget.limit_tokens
        room = min(MAX_SUMMARY_TOKENS, max(MIN_SUMMARY_TOKENS, limit * SUMMARY_PERCENT // 100))
        cut = self._cut_for(recent, target, room)
        if forced and (cut is None or self._after(cut, room) > limit):
            cut = self._cut_for(len(self.messages) - 1, limit, room) or cut
        if cut is None or sum(self.sizes[self.start : cut]) <= room:
            return
        self._turns.update(message.turn for message in self.messages[self.start : cut])
        self._first_edit = 0
        self.want(cut, room, pinned=self._pinned(cut))

    def _pinned(self, cut: int) -> Injected | None:
        """The newest request, if it stands before *cut*: said once more behind the summary, or its
        head and tail where it is long."""
        pinned = pin_of(self.messages, cut)
        if pinned is None:
            return None
        chars_per_token = self.budget.profile.chars_per_token
        max_chars = int(self.budget.limit_tokens * PINNED_PERCENT // 100 * chars_per_token)
        return Injected(pinned.at, shorten_text(pinned.text, max(MIN_SHOWN_CHARS, max_chars)))

    def _after(self, cut: int, room: int) -> int:
        """The size with a summary of *room* tokens in place of what stands before *cut*."""
        return self.used - self._summary_tokens - sum(self.sizes[:cut]) + room

    def _cut_for(self, end: int, target: int, room: int) -> int | None:
        """The first safe cut up to *end* that reaches *target*, else the last one."""
        cuts = list(safe_cuts(self.messages, self.start + 1, end))
        if not cuts:
            return None
        gone = list(accumulate(self.sizes, initial=0))
        left = self.used - self._summary_tokens + room
        reaching = [index for index in cuts if left - gone[index] <= target]
        if not reaching:
            return cuts[-1]
        first = reaching[0]
        # A turn's start a little later is better than the middle of a turn.
        spare = self.budget.limit_tokens // 20
        for index in reaching:
            if gone[index] - gone[first] > spare:
                break
            if is_turn_start(self.messages, index):
                return index
        return first

    def cut(self, limit: int) -> None:
        """Head and tail of what is longest, until the request fits *limit*: each message gets at
        most an equal share. What a cut leaves is measured, and cut again where it is too much:
        how many tokens a text has by its characters differs with the text."""
        for min_chars in (MIN_SHOWN_CHARS, MIN_SHOWN_CHARS // 2, MIN_SHOWN_CHARS // 4):
            indexes = [index for index, size in enumerate(self.sizes) if size]
            room = max(0, limit - (self.used - sum(self.sizes[index] for index in indexes)))
            share = _fair_share([self.sizes[index] for index in indexes], room)
            for index in indexes:
                if self.used <= limit:
                    return
                if self.sizes[index] > share:
                    self._cut_message(index, share, min_chars)

    def _cut_message(self, index: int, share: int, min_chars: int) -> None:
        """Cut the message at *index* to about *share* tokens, none of its parts below
        *min_chars*. Parts that an earlier plan has cut stay as they are."""
        if self.messages[index].is_assistant:
            self._shorten(index, 0, min_chars * KEPT_STRING_CHARS // MIN_SHOWN_CHARS)
        parts = self._parts(index)
        lengths = [len(part.shown) for part in parts]
        # A little less: what is left out has to be told.
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
        """The plan, None if nothing is changed."""
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
        kept_before = sum(self.sizes[: self._first_edit]) + (
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
        """Head and tail of it, shorter than what is shown now; None if there is no such."""
        if self.is_result:
            shorter = cap_text(self.text, max_chars=chars, call_id=self.key)
        else:
            shorter = shorten_text(self.text, chars)
        return shorter if shorter is not None and len(shorter) < len(self.shown) else None


def _fair_share(sizes: Sequence[int], room: int) -> int:
    """The largest share that, as a limit of each of *sizes*, keeps their sum within *room*."""
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
