"""Windows: the newest messages are shown, and all older ones are left out.

``spans`` explains where a window may begin.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import ClassVar

from msgspec.structs import replace

from llmsession.compaction.planning.boundaries import newest_that_fit
from llmsession.compaction.planning.policy import Budget, planned
from llmsession.compaction.planning.schedule import Fill
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.view import View, text_key
from llmsession.turns.blocks import TextBlock, is_thinking
from llmsession.turns.messages import Message

from ..base import WaitingPolicy
from ..counting import kept_before_tokens, rest_tokens, sizes_in_budget, sizes_in_quarters
from ..limits import Amount, Count, Whole
from ..registry import register
from ..spans import Span, beside_pins, left_out, pinned

__all__ = [
    "AgeCountToken",
    "CleanAndBudget30k",
    "KeepLastSequence",
    "LastNMessages",
    "ReverseBudget",
    "clean_text",
    "input_budget_tokens",
]


def _window_plan(
    name: str,
    view: View,
    messages: Sequence[Message],
    budget: Budget,
    *,
    spans: tuple[Span, ...],
    texts: dict[str, str] | None = None,
    figures: dict[str, int] | None = None,
) -> Plan | None:
    """The plan that leaves *spans* out and shows *texts*; None if that changes nothing."""
    shown = chain.from_iterable(view.shown_ranges(end, first) for first, end in spans)
    gone = [index for first, end in shown for index in range(first, end)]
    if not gone and not texts:
        return None
    edited: int | None = None
    if texts:
        cleaned = {key.rpartition("#")[0] for key in texts}
        edited = next(index for index, message in enumerate(messages) if message.id in cleaned)
    first = min([*gone[:1], *([] if edited is None else [edited])])
    edits = [f"{len(gone)} messages left out"] * bool(gone)
    edits += [f"{len(texts)} texts cleaned"] if texts else []
    return planned(
        name,
        view,
        messages,
        budget,
        ", ".join(edits),
        omitted=spans,
        texts=texts or {},
        turns_compacted=len({messages[index].turn for index in gone}),
        figures={
            "messages_left_out": len(gone),
            "kept_before_tokens": kept_before_tokens(first, view, messages, budget),
            **(figures or {}),
        },
    )


@register
class ReverseBudget(WaitingPolicy, frozen=True, kw_only=True):
    """LibreChat's classic budget: as many of the newest messages as fit. Chatbot UI, ChainReview,
    MiniSearch and Jan trim in the same way.

    The limit without ``reserve_out_tokens``, the system text, the tools and ``reply_primer_tokens``
    is filled from the newest message back, up to the first message that does not fit.

    Not copied: Chatbot UI sends only the system text if the newest message does not fit, and a
    context may begin with an answer there.

    Raises InvalidConfig for an invalid setting.
    """

    name: ClassVar[str] = "reverse_budget"

    reply_primer_tokens: Amount = 3
    reserve_out_tokens: Amount = 0
    """Room for the reply in tokens, beside what the limit leaves already. Chatbot UI v1: 1,000."""

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Is more used than fits?"""
        return limit_tokens > 0 and used_tokens > self._most(limit_tokens)

    def _most(self, limit_tokens: int) -> int:
        return limit_tokens - self.reserve_out_tokens - self.reply_primer_tokens

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """What to leave out; None if everything fits, or nothing more can be left out."""
        sizes = sizes_in_budget(view, messages, budget)
        room = self._most(budget.limit_tokens) - rest_tokens(sizes, budget)
        start = newest_that_fit(*beside_pins(sizes, pinned(messages), room))
        spans = left_out(messages, start, shown_from=view.start)
        return _window_plan(self.name, view, messages, budget, spans=spans)


@register
class LastNMessages(WaitingPolicy, frozen=True, kw_only=True):
    """LobeChat: the newest ``n`` messages.

    The window begins earlier if it would begin with a result or an answer. With ``n`` of 0 or less,
    only the newest request and the open step are shown. Not copied: LobeChat sends nothing then,
    and leaves orphans to a later repair.

    Raises InvalidConfig if ``n`` is not a whole number.
    """

    name: ClassVar[str] = "last_n_messages"

    n: Whole = 8

    def due_for(self, fill: Fill) -> bool:
        """Are more messages shown than ``n``?"""
        return fill.messages > max(0, self.n)

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """What to leave out; None if there are no more than ``n``, or nothing more can be left
        out.
        """
        count = len(messages)
        if self.n <= 0:
            spans = left_out(messages, count, shown_from=view.start)
        else:
            start = max(0, count - self.n)
            spans = left_out(messages, start, shown_from=view.start, back=True)
        return _window_plan(self.name, view, messages, budget, spans=spans)


@register
class AgeCountToken(WaitingPolicy, frozen=True, kw_only=True):
    """CodeBuddy's history pruning: messages that are not too old, not too far back, and not too
    much.

    There are three rules, and the latest start that they give counts: no older than ``max_age_h``
    hours before the newest message; at most ``max_messages``; at most ``max_tokens`` of four
    characters, with system text and tools charged first. A rule whose limit is 0 or less does not
    apply. A message without a time is not old.

    Not copied: moving and losing system texts, treating messages without a time as the oldest, and
    cutting calls from their results.

    Raises InvalidConfig if a limit is not a whole number.
    """

    name: ClassVar[str] = "age_count_token"

    max_age_h: Whole = 720
    max_messages: Whole = 50
    max_tokens: Whole = 32_000

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """What to leave out, with how many messages each rule alone would leave out; None if that
        is nothing more.

        Raises TypeError for a message whose time is not a number.
        """
        starts = {
            "dropped_by_age": self.start_by_age(messages),
            "dropped_by_count": self.start_by_count(messages),
            "dropped_by_tokens": self.start_by_tokens(view, messages, budget),
        }
        spans = left_out(messages, max(starts.values()), shown_from=view.start)
        return _window_plan(self.name, view, messages, budget, spans=spans, figures=starts)

    def start_by_age(self, messages: Sequence[Message]) -> int:
        """The position after the newest message that is too old. "Now" is the newest time of
        *messages*.
        """
        # This is asked before each request, and nearly always nothing is too old.
        times = [*map(attrgetter("created_at"), messages)]
        if str in {*map(type, times)}:
            # Compared as text, "2026" would be above any number or below it: everything would be
            # old, or nothing.
            text = next(message.id for message in messages if isinstance(message.created_at, str))
            raise TypeError(f"created_at of message {text} is text: it must be seconds")
        if self.max_age_h <= 0 or not times:
            return 0
        oldest = _milliseconds(max(times)) - self.max_age_h * 3_600_000
        if _milliseconds(min(filter(None, times), default=0.0)) > oldest:
            return 0
        newest_first = range(len(times), 0, -1)
        return next((at for at in newest_first if _is_old(times[at - 1], oldest)), 0)

    def start_by_count(self, messages: Sequence[Message]) -> int:
        """Where the newest ``max_messages`` begin."""
        return max(0, len(messages) - self.max_messages) if self.max_messages > 0 else 0

    def start_by_tokens(self, view: View, messages: Sequence[Message], budget: Budget) -> int:
        """Where the newest ``max_tokens`` begin."""
        if self.max_tokens <= 0:
            return 0
        sizes = sizes_in_quarters(view, messages, budget.profile)
        room = self.max_tokens - budget.frame_tokens
        return newest_that_fit(*beside_pins(sizes, pinned(messages), room))


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1_000)


def _is_old(seconds: float, oldest: int) -> bool:
    """Is this time, if it is one, *oldest* milliseconds or earlier?"""
    time = _milliseconds(seconds)
    return time != 0 and time <= oldest


UNKNOWN_WINDOW_TOKENS = 128_000
"""The window that Continue assumes if it is unknown."""


def input_budget_tokens(window_tokens: int | None, max_tokens: int | None = None) -> int:
    """How many tokens a request may hold by Continue's rule.

    From the window, 2 % are taken off for safety, but at most 1,000; and 1,000 for a reply, or
    ``max_tokens`` if that is less.
    """
    window = window_tokens or UNKNOWN_WINDOW_TOKENS
    return window - min(1_000, window * 2 // 100) - min(1_000, max_tokens or 1_000)


@register
class KeepLastSequence(WaitingPolicy, frozen=True, kw_only=True):
    """Continue's pruning: the oldest messages are left out until the rest fits.

    The last sequence always stays: the newest request, or a reply with the results of its calls. An
    unknown window is taken for the limit, or for ``UNKNOWN_WINDOW_TOKENS``. Not copied: Continue
    may send a context that begins with an answer, and leaves at most 1,000 tokens to the reply.

    Raises InvalidConfig for a ``max_tokens`` below 1.
    """

    name: ClassVar[str] = "keep_last_sequence"

    max_tokens: Count | None = None
    """The longest reply in tokens, if it is less than 1,000. None: that of the session."""

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Is more used than fits into a window of *limit_tokens*?"""
        return used_tokens > input_budget_tokens(max(0, limit_tokens), self.max_tokens)

    def due_for(self, fill: Fill) -> bool:
        """Is more used than fits?"""
        return fill.used_tokens > self._most(fill)

    def _most(self, known: Fill | Budget) -> int:
        """How many tokens a request may hold: by Continue's rule, and never more than the limit."""
        if not known.window_tokens:
            return input_budget_tokens(max(0, known.limit_tokens), self.max_tokens)
        reply = self.max_tokens or max(1, known.window_tokens - known.limit_tokens)
        return min(known.limit_tokens, input_budget_tokens(known.window_tokens, reply))

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """What to leave out, and the percentage of the room that is used then; None if everything
        fits, or nothing more can be left out.
        """
        sizes = sizes_in_budget(view, messages, budget)
        rest = rest_tokens(sizes, budget)
        limit = self._most(budget)
        start = newest_that_fit(*beside_pins(sizes, pinned(messages), limit - rest))
        spans = left_out(messages, start, shown_from=view.start)
        window_tokens = rest + sum(sizes) - sum(sum(sizes[first:end]) for first, end in spans)
        figures = {"used_percent": window_tokens * 100 // max(1, limit)}
        return _window_plan(self.name, view, messages, budget, spans=spans, figures=figures)


_THOUGHTS = re.compile(r"<thinking>.*?</thinking>", re.DOTALL)
_FENCED = re.compile(r"(```(?:json|text|typescript|javascript)?\n)(.*?)(```)", re.DOTALL)
_CUT = "\n... [truncated]"
_FENCE_CHARS, _FENCE_HEAD_CHARS, _FENCE_TAIL_CHARS = 2_000, 800, 400
_MESSAGE_CHARS = 6_000


def clean_text(text: str) -> str:
    """*text* as ChainReview sends it: without thinking in tags, with long fenced blocks cut, cut at
    6,000 characters, and trimmed. A clean text stays unchanged.
    """
    while (without := _THOUGHTS.sub("", text)) != text:
        text = without  # the rest may form a tag again
    text = _FENCED.sub(lambda match: match[1] + _shorter_fence(match[2]) + match[3], text)
    if len(text) > _MESSAGE_CHARS + len(_CUT) * text.endswith(_CUT):
        text = text[:_MESSAGE_CHARS] + _CUT
    return text.strip()


def _shorter_fence(body: str) -> str:
    if len(body) < _FENCE_CHARS:
        return body
    gone = len(body) - _FENCE_HEAD_CHARS - _FENCE_TAIL_CHARS
    marker = f"\n... [truncated {gone} chars] ...\n"
    return body[:_FENCE_HEAD_CHARS] + marker + body[-_FENCE_TAIL_CHARS:]


@register
class CleanAndBudget30k(WaitingPolicy, frozen=True, kw_only=True):
    """ChainReview as it ships: cleaned texts, and the newest 30,000 tokens of them.

    Each text is shown as ``clean_text`` returns it, with its markers. A message without any text
    left is left out. Then the newest messages are shown, up to ``budget_tokens`` of four characters
    each. Not copied: cutting a cut text again, and a request of which nothing is left.

    Raises InvalidConfig for a budget below 1.
    """

    name: ClassVar[str] = "clean_and_budget_30k"

    budget_tokens: Count = 30_000

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """What to clean and to leave out; None if that is nothing more."""
        texts: dict[str, str] = {}
        empty: list[Span] = []
        for index in view.shown_positions(len(messages)):
            message = messages[index]
            cleaned = _cleaned(view, message)
            if cleaned and _leaves_nothing(message, {**view.texts, **cleaned}):
                empty.append((index, index + 1))
            else:
                texts |= cleaned
        cleaner = replace(view, texts={**view.texts, **texts})
        sizes = sizes_in_quarters(cleaner, messages, budget.profile)
        for index, _ in empty:
            sizes[index] = 0
        start = newest_that_fit(*beside_pins(sizes, pinned(messages), self.budget_tokens))
        spans = (*empty, *left_out(messages, start, shown_from=view.start))
        return _window_plan(self.name, view, messages, budget, spans=spans, texts=texts)


def _cleaned(view: View, message: Message) -> dict[str, str]:
    """The texts of *message* that are shown differently when they are clean. A user's text stays if
    nothing would be left of it.
    """
    texts: dict[str, str] = {}
    for number, block in enumerate(message.content):
        key = text_key(message, number)
        if isinstance(block, TextBlock) and key not in view.texts:
            cleaned = clean_text(block.text)
            if len(cleaned) < len(block.text.strip()) and (cleaned or message.is_assistant):
                texts[key] = cleaned
    return texts


def _leaves_nothing(message: Message, texts: dict[str, str]) -> bool:
    """Is *message* an answer that has no text left when *texts* are shown, and does nothing
    else?
    """
    return message.is_assistant and not any(
        texts.get(text_key(message, number), block.text).strip()
        if isinstance(block, TextBlock)
        else not is_thinking(block)
        for number, block in enumerate(message.content)
    )
