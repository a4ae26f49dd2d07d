"""``balanced``: our own policy. Cheapest first, in one batch down to the low mark, no further.

Old tool results become their summaries, the oldest first; then long inputs of old calls are
shortened; then a summary stands for a prefix, with the recent steps verbatim. Only where the
next request would not fit does it go into what is recent, and cuts head and tail of what is
longest. Each stage is one rewrite of the prompt's prefix, so they happen together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar

import msgspec

from llmsession.compaction.boundaries import is_turn_start, recent_from, safe_cuts
from llmsession.compaction.cap import cap_text, other_blocks, result_text
from llmsession.compaction.extractive import compact_text, is_worth, summarise
from llmsession.compaction.plan import Budget, Plan, Wanted
from llmsession.compaction.shorten import shorten_input, shorten_text
from llmsession.compaction.tokens import shown_tokens
from llmsession.compaction.view import View, text_key
from llmsession.errors import InvalidConfig
from llmsession.turns.blocks import TextBlock, ToolResultBlock, ToolUseBlock
from llmsession.turns.messages import Message

__all__ = ["Balanced"]

SUMMARY_PERCENT, LEAST_SUMMARY_TOKENS, MOST_SUMMARY_TOKENS = 6, 250, 6_000
"""A segment's share of the limit, and its bounds."""
LONG_INPUT_CHARS = 2_000
RESULT_SUMMARY_CHARS = 600
LEAST_SHOWN_CHARS = 600
"""What a message that has to be cut is left with, at least: about 200 tokens."""
_MILLION = 1_000_000


class Balanced(msgspec.Struct, frozen=True, kw_only=True):
    """Swap, shorten, summarise, cut: in that order, and only as far as needed.

    It begins above ``threshold`` of the limit and goes down to ``low``. Recent is what belongs
    to the newest ``keep_recent_turns`` turns and, of them, to the newest ``keep_recent_steps``
    steps, as long as that is at most ``recent_share`` of the limit.

    Raises InvalidConfig, naming what cannot be.
    """

    name: ClassVar[str] = "balanced"
    shares: ClassVar[tuple[str, ...]] = (
        "threshold", "low", "keep_recent_turns", "keep_recent_steps",
    )  # fmt: skip
    """The settings of a ``CompactionConfig`` that it takes."""

    threshold: float = 0.80
    low: float = 0.50
    keep_recent_turns: int = 5
    keep_recent_steps: int | None = 20
    recent_share: float = 0.30

    def __post_init__(self) -> None:
        for name in ("threshold", "low", "recent_share"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, float | int) or not 0 < value < 1:
                raise InvalidConfig(f"{name} must be between 0 and 1, got {value!r}")
        if self.low >= self.threshold:
            raise InvalidConfig(f"low {self.low} must be below threshold {self.threshold}")
        for name in ("keep_recent_turns", "keep_recent_steps"):
            value = getattr(self, name)
            if name == "keep_recent_steps" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidConfig(f"{name} must be a whole number from 1, got {value!r}")

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Is strictly more than the threshold of the limit used?"""
        return limit_tokens > 0 and used_tokens > _share(limit_tokens, self.threshold)

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """What to change now, None if nothing can be.

        Asked because the next request does not fit (``window``, ``overflow``) it also cuts into
        what is recent, until the limit holds or nothing is left to cut.
        """
        profile = budget.profile
        opens = profile.thinking_opens_tool_loop and profile.binds_thinking
        if opens and len(messages) > budget.committed:
            # Thinking has to open the loop, and an edit would take it away: between turns only.
            return None
        draft = _Draft(view, messages, budget)
        forced = budget.trigger in ("window", "overflow")
        target = _share(budget.limit_tokens, self.low)
        recent = recent_from(
            messages,
            draft.sizes,
            keep_turns=self.keep_recent_turns,
            keep_steps=self.keep_recent_steps,
            most_tokens=_share(budget.limit_tokens, self.recent_share),
        )
        asked = budget.trigger == "asked"
        draft.swap(recent, 0 if asked else target)
        if draft.used > target:
            draft.shorten_inputs(recent, target)
        if draft.used > target:
            draft.summarise(recent, target, forced=forced)
        if forced and draft.used > budget.limit_tokens:
            draft.swap(max(0, len(messages) - 1), budget.limit_tokens)
            draft.cut(budget.limit_tokens)
        return draft.plan(self.name)


def _share(limit: int, share: float) -> int:
    # In whole numbers, so that equal settings give equal plans everywhere.
    return limit * round(share * _MILLION) // _MILLION


class _Draft:
    """A plan while it is made. ``used`` is the request's size with all that is in it so far."""

    def __init__(self, view: View, messages: Sequence[Message], budget: Budget) -> None:
        self._view = view
        self._messages = messages
        self._budget = budget
        self.sizes = [
            budget.scaled(shown_tokens(message, at, view, budget.profile)) if view.shows(at) else 0
            for at, message in enumerate(messages)
        ]
        self._before = sum(self.sizes)
        # What the request has beside the messages: system text, tools, a segment, what is injected.
        self._rest = max(budget.used_tokens - self._before, budget.frame_tokens)
        self.used = self._before + self._rest
        self._frontier = view.frontier
        self._frozen: dict[str, str] = {}
        self._inputs: dict[str, msgspec.Raw] = {}
        self._texts: dict[str, str] = {}
        self._turns: set[int] = set()
        self._wanted: Wanted | None = None
        self._first_edit = len(messages)
        self._tools = {call.id: call.name for message in messages for call in message.tool_calls}

    def _tokens(self, chars: int) -> int:
        return self._budget.scaled(int(chars / self._budget.profile.chars_per_token))

    def _saved(self, at: int, tokens: int) -> None:
        tokens = max(0, min(tokens, self.sizes[at]))
        self.sizes[at] -= tokens
        self.used -= tokens
        self._first_edit = min(self._first_edit, at)
        self._turns.add(self._messages[at].turn)

    def swap(self, end: int, target: int) -> None:
        """Results before position *end* become their summaries, until *target* is reached."""
        for at in range(self._view.start, end):
            if self.used <= target:
                break
            for result in self._messages[at].tool_results if self._view.shows(at) else ():
                self._swap(at, result)
            self._frontier = max(self._frontier, at + 1)

    def _swap(self, at: int, result: ToolResultBlock) -> None:
        call_id = result.tool_use_id
        if call_id in self._view.frozen or call_id in self._frozen:
            return
        text = result_text(result.content)
        shown = self._view.text_for(call_id, at)
        flats = 0
        others = other_blocks(result.content)
        if shown is None and others:
            flats = self._budget.profile.image_tokens
        summary = self._budget.summaries.get(call_id) or summarise(
            text,
            tool=self._tools.get(call_id),
            is_error=bool(result.is_error),
            max_chars=RESULT_SUMMARY_CHARS,
        )
        if summary is None and not others:
            return
        if others:
            summary = f"{summary or ''}\n[{others} left out]".lstrip("\n")
        compact = compact_text(summary or "", call_id=call_id, chars=len(text))
        chars = len(text if shown is None else shown)
        if not is_worth(compact, chars + flats * 3):
            return
        self._frozen[call_id] = compact
        self._saved(at, self._tokens(chars - len(compact)) + flats)

    def shorten_inputs(self, end: int, target: int) -> None:
        """Long strings in the inputs of calls before *end* are shortened, the oldest first."""
        for at in range(self._view.start, end):
            if self.used <= target:
                break
            if not self._view.shows(at) or not self._messages[at].is_assistant:
                continue
            for block in self._messages[at].content:
                if isinstance(block, ToolUseBlock) and block.id not in self._view.inputs:
                    self._shorten(at, block)

    def _shorten(self, at: int, call: ToolUseBlock) -> None:
        before = len(msgspec.json.encode(call.input))
        if before < LONG_INPUT_CHARS:
            return
        shown = shorten_input(call.input)
        if shown is not None and len(shown) < before:
            self._inputs[call.id] = shown
            self._saved(at, self._tokens(before - len(shown)))

    def summarise(self, recent: int, target: int, *, forced: bool) -> None:
        """A summary in place of a prefix: the shortest one that reaches *target*, preferably one
        that ends with a turn; what is recent stays, unless it has to go for the limit."""
        room = min(
            MOST_SUMMARY_TOKENS,
            max(LEAST_SUMMARY_TOKENS, self._budget.limit_tokens * SUMMARY_PERCENT // 100),
        )
        cut = self._cut_for(recent, target, room)
        if forced and (cut is None or self._after(cut, room) > self._budget.limit_tokens):
            cut = self._cut_for(len(self._messages) - 1, self._budget.limit_tokens, room) or cut
        if cut is None or sum(self.sizes[self._view.start : cut]) <= room:
            return
        earlier = self._view.segment.text if self._view.segment else ""
        self._wanted = Wanted(first=self._view.start, upto=cut, most_tokens=room, earlier=earlier)
        gone = sum(self.sizes[:cut])
        self._turns.update(message.turn for message in self._messages[self._view.start : cut])
        for at in range(cut):
            self.sizes[at] = 0
        self.used += room - gone
        self._first_edit = 0

    def _after(self, cut: int, room: int) -> int:
        return self.used - sum(self.sizes[:cut]) + room

    def _cut_for(self, end: int, target: int, room: int) -> int | None:
        """The first safe cut up to *end* that reaches *target*, else the last one."""
        cuts = list(safe_cuts(self._messages, self._view.start + 1, end))
        if not cuts:
            return None
        gone = list(accumulate(self.sizes, initial=0))
        reaching = [at for at in cuts if self.used - gone[at] + room <= target]
        if not reaching:
            return cuts[-1]
        first, last = reaching[0], len(self._messages)
        # A turn's start a little later is better than the middle of a turn.
        spare = self._budget.limit_tokens // 20
        for at in reaching:
            if gone[at] - gone[first] > spare:
                break
            if at < last and is_turn_start(self._messages, at):
                return at
        return first

    def cut(self, limit: int) -> None:
        """Head and tail of what is longest, until the request fits *limit*: each message gets at
        most an equal share."""
        shown = [at for at, size in enumerate(self.sizes) if size]
        room = max(0, limit - (self.used - sum(self.sizes[at] for at in shown)))
        share = _fair_share([self.sizes[at] for at in shown], room)
        chars = max(
            LEAST_SHOWN_CHARS,
            int(share * self._budget.profile.chars_per_token * 1000)
            // max(1, self._budget.scale_permille)
            * 9
            // 10,
        )
        for at in shown:
            if self.used <= limit:
                break
            if self.sizes[at] > share:
                self._cut_message(at, chars)

    def _cut_message(self, at: int, chars: int) -> None:
        message = self._messages[at]
        parts = max(1, sum(isinstance(b, TextBlock | ToolResultBlock) for b in message.content))
        each = max(LEAST_SHOWN_CHARS // 2, chars // parts)
        for number, block in enumerate(message.content):
            if isinstance(block, TextBlock):
                key = text_key(message, number)
                before = self._view.texts.get(key, block.text)
                shown = shorten_text(before, each)
                if len(shown) < len(before) and key not in self._view.texts:
                    self._texts[key] = shown
                    self._saved(at, self._tokens(len(before) - len(shown)))
            elif isinstance(block, ToolResultBlock):
                self._cut_result(at, block, each)
            elif isinstance(block, ToolUseBlock) and block.id not in self._view.inputs:
                self._shorten(at, block)

    def _cut_result(self, at: int, result: ToolResultBlock, chars: int) -> None:
        call_id = result.tool_use_id
        if call_id in self._view.frozen or call_id in self._frozen:
            return
        text = result_text(result.content)
        before = self._view.text_for(call_id, at) or text
        shown = cap_text(text, max_chars=chars, call_id=call_id)
        if shown is not None and len(shown) < len(before):
            self._frozen[call_id] = shown
            self._frontier = max(self._frontier, at + 1)
            self._saved(at, self._tokens(len(before) - len(shown)))

    def plan(self, name: str) -> Plan | None:
        """The plan, None if nothing is changed."""
        if not (self._frozen or self._inputs or self._texts or self._wanted):
            return None
        budget, wanted = self._budget, self._wanted
        parts = [
            f"{len(self._frozen)} results shown in compact form" if self._frozen else "",
            f"{len(self._inputs)} inputs shortened" if self._inputs else "",
            f"{len(self._texts)} texts cut" if self._texts else "",
            f"a summary for the first {wanted.upto} messages" if wanted else "",
        ]
        figures = {
            "kept_before_tokens": budget.frame_tokens + sum(self.sizes[: self._first_edit]),
        }
        return Plan(
            policy=name,
            frontier=self._frontier,
            frozen=self._frozen,
            inputs=self._inputs,
            texts=self._texts,
            wanted=wanted,
            reason=f"{budget.used_tokens:,} of {budget.limit_tokens:,} tokens used; "
            + ", ".join(part for part in parts if part),
            tokens_before=self._before,
            tokens_after=max(0, self.used - self._rest),
            results_summarised=len(self._frozen),
            turns_compacted=len(self._turns),
            voids_thinking=budget.profile.binds_thinking,
            trigger=budget.trigger,
            figures=figures,
        )


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
