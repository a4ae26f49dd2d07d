"""Policies that shorten old tool results in place, and leave nothing out.

Source: LibreChat's agents. There the originals are kept aside for the summariser, up to two million
characters. Here the history holds them, and ``recall`` returns them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import msgspec

from llmsession.compaction.planning.policy import Budget
from llmsession.compaction.summaries.cap import other_blocks
from llmsession.compaction.summaries.extractive import compact_text
from llmsession.compaction.summaries.shorten import shorten_input
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.view import View
from llmsession.errors import InvalidConfig
from llmsession.turns.blocks import TextBlock, ToolResultBlock
from llmsession.turns.messages import Message

from ..base import ThresholdPolicy, WaitingPolicy
from ..drafts import Draft
from ..limits import Count, Fraction, portion, reached
from ..registry import register

__all__ = [
    "CLEARED",
    "MaskConsumed",
    "PositionClear",
    "PressureFading",
    "fading_chars",
    "fading_tokens",
    "head_and_tail",
    "masked_chars",
]

CLEARED = "[Old tool result content cleared]"
CHARS_PER_TOKEN = 4
HEAD_PERCENT = 70
SNAP_CHARS = 200
"""A cut moves to the end of a line that is at most this many characters away."""
BANDS = ((800, 1_000), (850, 500), (900, 200), (990, 50))
"""From this many thousandths of the budget on, that many thousandths of it are left for results."""
_LOWEST_PRESSURE = BANDS[0][0] / 1_000
MIN_BAND_TOKENS = 1_024
RESULT_PERCENT, MAX_RESULT_CHARS, MIN_RESULT_CHARS = 30, 400_000, 200
INPUT_PERCENT, MAX_INPUT_CHARS = 15, 200_000


class _Result(NamedTuple):
    at: int
    block: ToolResultBlock


def head_and_tail(text: str, head_chars: int, tail_chars: int, limit_chars: int) -> str:
    """About *head_chars* of the beginning and *tail_chars* of the end of *text*, with its length
    between them. The cuts move to line ends, if there are any close by.
    """
    head = text.rfind("\n", max(0, head_chars - SNAP_CHARS), head_chars) + 1 or head_chars
    start = max(head, len(text) - tail_chars)
    line = text.find("\n", start, start + min(SNAP_CHARS, tail_chars))
    tail = text[start if line < 0 else line + 1 :]
    marker = f"\n\n… [truncated: {len(text)} chars exceeded {limit_chars} limit] …\n\n"
    return f"{text[:head]}{marker}{tail}"


def _within(text: str, max_chars: int) -> str:
    """*text* as a head of 70 % and a tail, in about *max_chars* characters including the marker."""
    room = max(0, max_chars - 60)
    head = room * HEAD_PERCENT // 100
    return head_and_tail(text, head, room - head, max_chars)


def masked_chars(number: int, count: int, budget_tokens: int, min_chars: int = 300) -> int:
    """The characters left for result *number*, counted from 0, of *count* masked results: its share
    of *budget_tokens*, weighted from 0.2 for the oldest to 1.0 for the newest.
    """
    chars = max(0, budget_tokens) * CHARS_PER_TOKEN
    if count <= 1:
        return max(min_chars, chars)
    # (0.2 + 0.8 p) / (0.6 n), with p = number / (count - 1).
    weight = 2 * (count - 1) + 8 * number
    return max(min_chars, chars * weight // (6 * count * (count - 1)))


def fading_tokens(budget_tokens: int, used_tokens: int, limit_tokens: int) -> int:
    """How many of *budget_tokens* results are measured by at this pressure: all at 80 %, half at 85
    %, a fifth at 90 %, a twentieth at 99 %, but at least 1,024.
    """
    share = 1_000
    for pressure, left in BANDS:
        if used_tokens * 1_000 >= limit_tokens * pressure:
            share = left
    return max(MIN_BAND_TOKENS, budget_tokens * share // 1_000)


def fading_chars(number: int, count: int, tokens: int) -> int:
    """The characters left for result *number* of *count*, counted from 0 and measured by *tokens*:
    30 % of them for the newest, a fifth of that for the oldest.
    """
    # In tenths of a percent and of a weight, so that rounding happens only at the end.
    limit = min(tokens * CHARS_PER_TOKEN * RESULT_PERCENT, MAX_RESULT_CHARS * 100)
    last = max(1, count - 1)
    weight = 2 * last + 8 * (number if count > 1 else 1)
    return max(MIN_RESULT_CHARS, limit * weight // (1_000 * last))


def _effective(budget: Budget, reserve: float) -> int:
    """How many tokens the messages may take: the limit without a reserve, the system text and the
    tools.
    """
    limit = budget.limit_tokens
    return max(0, limit - portion(limit, reserve) - budget.frame_tokens)


def _has_pressure(budget: Budget, reserve: float, threshold: float) -> bool:
    """Do the messages take at least the share *threshold* of what they may take?"""
    used_tokens = budget.used_tokens - budget.frame_tokens
    return reached(used_tokens, _effective(budget, reserve), threshold)


def _results(draft: Draft, end: int) -> list[_Result]:
    return [
        _Result(index, result)
        for index in range(draft.start, end)
        if draft.shows(index)
        for result in draft.messages[index].tool_results
    ]


def _read_until(messages: Sequence[Message]) -> int:
    """The position up to which the model has read and reacted: that of its newest message with
    text.
    """
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.is_assistant and any(
            isinstance(block, TextBlock) and block.text.strip() for block in message.content
        ):
            return index
    return 0


@register
class MaskConsumed(ThresholdPolicy, frozen=True, kw_only=True):
    """``mask_consumed``: shortens results that the model has read, and written something after, to
    head and tail. Older ones become shorter. A result with a summary is replaced by it.

    It begins at ``threshold`` of what the messages may take: the limit without ``reserve``, the
    system text and the tools. A result is never touched before the model has written something
    after it. Marker: ``[truncated: N chars exceeded M limit]``. It frees what it can.

    Not copied: masking the same result again to another length, which rewrites the prompt's prefix
    each time.

    Raises InvalidConfig for an invalid setting.
    """

    name: ClassVar[str] = "mask_consumed"

    reserve: Fraction = 0.05
    min_chars: Count = 300

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Could the threshold be reached? The plan knows the size of the system text and
        decides.
        """
        return reached(
            used_tokens, limit_tokens - portion(limit_tokens, self.reserve), self.threshold
        )

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """What to shorten now; None if everything that was read is short, or the pressure is
        low.
        """
        if not _has_pressure(budget, self.reserve, self.threshold):
            return None
        draft = Draft(view, messages, budget)
        consumed = _results(draft, _read_until(messages))
        tokens = _effective(budget, self.reserve)
        masked = 0
        for number, (index, result) in enumerate(consumed):
            max_chars = masked_chars(number, len(consumed), tokens, self.min_chars)
            text = draft.result(index, result)
            if len(text) <= max_chars or other_blocks(result.content):
                continue
            summary = budget.summaries.get(result.tool_use_id, "").strip()
            if summary:
                compact = compact_text(summary, call_id=result.tool_use_id, chars=len(text))
                masked += draft.show_result(index, result, compact)
            else:
                masked += draft.show_result(index, result, _within(text, max_chars))
        return draft.plan(self.name, f"{masked} results that were read are shortened")


@register
class PressureFading(WaitingPolicy, frozen=True, kw_only=True):
    """``pressure_fading``: the fuller the context, the shorter each tool result, above all the
    oldest; also long inputs of calls.

    The pressure is the share that the messages use of what they may take, as for ``mask_consumed``.
    Every result counts, including the newest, which keeps the most. Marker: ``[truncated: N chars
    exceeded M limit]``. It frees what it can.

    Not copied: fading a result a second time when the pressure rises. The shown text is fixed when
    a result fades, so that the prompt's prefix stays.

    Raises InvalidConfig for an invalid reserve.
    """

    name: ClassVar[str] = "pressure_fading"

    reserve: Fraction = 0.05

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Could the lowest pressure be reached? The plan knows the size of the system text and
        decides.
        """
        left_tokens = limit_tokens - portion(limit_tokens, self.reserve)
        return reached(used_tokens, left_tokens, _LOWEST_PRESSURE)

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """What fades now; None if everything is short enough for this pressure."""
        if not _has_pressure(budget, self.reserve, _LOWEST_PRESSURE):
            return None
        draft = Draft(view, messages, budget)
        effective = _effective(budget, self.reserve)
        used_tokens = budget.used_tokens - budget.frame_tokens
        tokens = fading_tokens(effective, used_tokens, effective)
        results = _results(draft, len(messages))
        faded = 0
        for number, (index, result) in enumerate(results):
            max_chars = fading_chars(number, len(results), tokens)
            text = draft.result(index, result)
            if len(text) > max_chars and not other_blocks(result.content):
                faded += draft.show_result(index, result, _within(text, max_chars))
        max_chars = min(tokens * CHARS_PER_TOKEN * INPUT_PERCENT // 100, MAX_INPUT_CHARS)
        inputs = _shorten_inputs(draft, max_chars)
        return draft.plan(self.name, f"{faded} results and {inputs} inputs faded")


def _shorten_inputs(draft: Draft, max_chars: int) -> int:
    shortened = 0
    for index, message in enumerate(draft.messages):
        for call in message.tool_calls if draft.shows(index) else ():
            if len(msgspec.json.encode(call.input)) > max_chars:
                shorter = shorten_input(call.input, string_chars=max(100, max_chars // 4))
                if shorter is not None:
                    shortened += draft.shorten_input(index, call, shorter)
    return shortened


@register
class PositionClear(ThresholdPolicy, frozen=True, kw_only=True):
    """``position_clear``: trims long results in the older 70 % of the conversation to head and
    tail, and clears those in its older half. The newest three turns stay unchanged.

    The age of a message is its distance from the end. Markers: ``[Old tool result content
    cleared]`` and ``[truncated: N chars exceeded M limit]``. In LibreChat it is off by default and
    runs at any pressure; here it runs from the threshold on. It frees what it can.

    Raises InvalidConfig for an invalid setting.
    """

    name: ClassVar[str] = "position_clear"

    keep_turns: Count = 3
    long_chars: Count = 50_000
    trim_age: Fraction = 0.30
    clear_age: Fraction = 0.50
    kept_chars: Count = 1_500

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clear_age < self.trim_age:
            raise InvalidConfig(
                f"clear_age {self.clear_age} must not be below trim_age {self.trim_age}"
            )

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """What to trim and to clear now; None if nothing long is old."""
        draft = Draft(view, messages, budget)
        count, trimmed, cleared = len(messages), 0, 0
        for index, result in _results(draft, self._old_until(messages)):
            text = draft.result(index, result)
            age = count - index
            if len(text) < self.long_chars or age < portion(count, self.trim_age):
                continue
            if age >= portion(count, self.clear_age):
                cleared += draft.show_result(index, result, CLEARED)
            elif not other_blocks(result.content):
                side_chars = self.kept_chars
                shorter = head_and_tail(text, side_chars, side_chars, 2 * side_chars)
                trimmed += draft.show_result(index, result, shorter)
        reason = f"{cleared} old results cleared, {trimmed} trimmed"
        return draft.plan(self.name, reason, cleared=cleared, trimmed=trimmed)

    def _old_until(self, messages: Sequence[Message]) -> int:
        """Where the newest turns begin in which an assistant spoke."""
        reply = dict.fromkeys(
            message.turn for message in reversed(messages) if message.is_assistant
        )
        newest_turns = set(list(reply)[: self.keep_turns])
        return next(
            (index for index, message in enumerate(messages) if message.turn in newest_turns), 0
        )
