"""The view: what the projection needs beside the messages. Compaction changes the view, never the
history.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import TypeVar

import msgspec

from llmsession.turns.messages import Message
from llmsession.turns.records import Injected, PrefixSummary

from .plan import Plan

__all__ = ["View", "text_key"]

T = TypeVar("T")


class View(msgspec.Struct, frozen=True, kw_only=True):
    """How a history is shown. Positions count the messages of the history and the open turn, from
    0.

    The dictionaries are never changed after construction. Every method returns a new view, or this
    one if nothing changes. ``version`` grows with every change except a cap: a cap only concerns a
    result that has just arrived, so it must not outdate a compaction in progress.
    """

    version: int = 0
    compacted_before: int = 0
    """Tool results of messages before this position are shown in compact form."""
    shown_results: dict[str, str] = {}
    """The compact text for each call id, fixed when ``compacted_before`` passed the result."""
    capped: dict[str, str] = {}
    """The capped text for each call id, decided when the result arrived."""
    inputs: dict[str, msgspec.Raw] = {}
    """For each call id, the JSON that is shown instead of an input that is too long."""
    texts: dict[str, str] = {}
    """For each ``text_key`` of a text block, the text that is shown instead."""
    prefix_summaries: tuple[PrefixSummary, ...] = ()
    """Summaries, each for a longer prefix than the one before. The last one is shown; a rewind goes
    back to an earlier one.
    """
    omitted: tuple[tuple[int, int], ...] = ()
    """Ranges of positions that are left out, in order: the first one, and the first one that is
    shown again.
    """
    injected: tuple[Injected, ...] = ()
    """Texts that are not in the history, with their positions."""
    thinking_from: int = 0
    """Thinking blocks of messages before this position are left out."""

    def is_like(self, other: View | None) -> bool:
        """Does it show every history as *other* does?"""
        if other is self or other is None:
            return other is self
        return self.version == other.version and self == other

    @property
    def prefix_summary(self) -> PrefixSummary | None:
        """The summary that replaces the first messages; None if there is none."""
        return self.prefix_summaries[-1] if self.prefix_summaries else None

    @property
    def start(self) -> int:
        """The position of the first message that is shown itself."""
        return self.prefix_summaries[-1].upto if self.prefix_summaries else 0

    def shows(self, position: int) -> bool:
        """Is the message at *position* shown, in whatever form?"""
        return position >= self.start and not any(
            first <= position < end for first, end in self.omitted
        )

    def shown_messages(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Those of *messages* that are shown, in whatever form, in order."""
        if not self.omitted:
            return tuple(messages[self.start :])
        return tuple(
            chain.from_iterable(messages[a:b] for a, b in self.shown_ranges(len(messages)))
        )

    def shown_ranges(self, length: int, start: int = 0) -> Iterator[tuple[int, int]]:
        """The ranges of positions that are shown, of those from *start* to *length*.

        The cost grows with the number of ranges that are left out, not with the conversation.
        """
        position = max(start, self.start)
        for first, end in self.omitted:
            if position < min(first, length):
                yield position, min(first, length)
            position = max(position, end)
        if position < length:
            yield position, length

    def shown_from(self, end: int) -> int:
        """The first position from which on all messages up to *end* are shown: *end* itself, if the
        message before it is not.
        """
        # The ranges are in order and do not touch, so the last one that begins before *end* counts.
        last = next((upto for first, upto in reversed(self.omitted) if first < end), 0)
        return min(max(self.start, last), end)

    def shown_positions(self, length: int) -> Iterator[int]:
        """The positions of ``shown_ranges``."""
        return chain.from_iterable(range(*span) for span in self.shown_ranges(length))

    def text_for(self, call_id: str, position: int) -> str | None:
        """The text that replaces the result of *call_id* in the message at *position*; None if the
        result is shown itself.
        """
        if position < self.compacted_before:
            compact = self.shown_results.get(call_id)
            if compact is not None:
                return compact
        return self.capped.get(call_id)

    def edited_from(self, messages: Sequence[Message]) -> int | None:
        """The position of the first of *messages* that is shown changed or left out; None if there
        is none.

        A cap is not an edit, because no request ever had the result without it. The provider's own
        summary is not an edit either; only the messages behind it are looked at.
        """
        if self._edits_everything:
            return 0
        for position in self.where_edited(len(messages)):
            if self._changes(position, messages[position]):
                return position
        return min(self._gaps, default=None)

    def where_edited(self, length: int) -> range:
        """The positions of the messages that ``edited_from`` looks at, of *length* messages: those
        before the first place where something is left out or injected.
        """
        if not (self.shown_results or self.thinking_from or self.inputs or self.texts):
            return range(0)  # no message is shown changed
        if self._edits_everything:
            return range(0)
        end = max(self.thinking_from, self.compacted_before if self.shown_results else 0)
        if self.inputs or self.texts:
            end = length
        return range(self.start, min(end, length, *self._gaps))

    @property
    def _edits_everything(self) -> bool:
        prefix_summary = self.prefix_summary
        if prefix_summary is not None and prefix_summary.by != "provider":
            return True
        # A text behind the system text changes the prefix of every message.
        return any(item.at < 0 for item in self.injected)

    @property
    def _gaps(self) -> list[int]:
        """Where something is left out or injected."""
        start = self.start
        gaps = [max(first, start) for first, end in self.omitted if end > start]
        return gaps + [max(item.at, start) for item in self.injected]

    def _changes(self, position: int, message: Message) -> bool:
        if message.is_assistant:
            if position < self.thinking_from and b"thinking" in bytes(message.body):
                return True
            if self.inputs and any(call.id in self.inputs for call in message.tool_calls):
                return True
        elif position < self.compacted_before and any(
            result.tool_use_id in self.shown_results for result in message.tool_results
        ):
            return True
        return bool(self.texts) and any(
            text_key(message, number) in self.texts for number in range(len(message.content))
        )

    def with_cap(self, call_id: str, text: str) -> View:
        """This view with *text* shown for *call_id*. The first cap of a call stays."""
        if call_id in self.capped:
            return self
        return msgspec.structs.replace(self, capped={**self.capped, call_id: text})

    def with_provider_summary(self, prefix_summary: PrefixSummary) -> View:
        """This view after a reply that holds *prefix_summary*, the provider's own summary of
        everything before it.

        The summarised messages are hidden, and so is their thinking.
        """
        if prefix_summary.upto < self.start:
            return self
        return msgspec.structs.replace(
            self,
            version=self.version + 1,
            prefix_summaries=(*self.prefix_summaries, prefix_summary),
            thinking_from=max(self.thinking_from, prefix_summary.upto),
        )

    def applied(self, plan: Plan, position_now: int) -> View:
        """This view after *plan*.

        ``compacted_before`` never moves back, no shown result changes, and what is left out stays
        left out. Only a longer prefix summary can follow, or the caller's own of the same length.

        *position_now* is the number of messages that exist. If the plan edits anything and the
        profile binds thinking, all thinking so far is left out from now on, because an edit breaks
        every signature after it. A plan may also leave thinking out to make the request smaller.
        """
        # Existing entries win: what an earlier plan chose stays, so that the prompt's prefix stays.
        shown_results = _with_new(self.shown_results, plan.shown_results)
        inputs = _with_new(self.inputs, plan.inputs)
        texts = _with_new(self.texts, plan.texts)
        prefix_summaries = self.prefix_summaries
        if plan.prefix_summary is not None and _follows(plan.prefix_summary, self.start):
            shorter = self._count_shorter(plan.prefix_summary.upto)
            prefix_summaries = (*prefix_summaries[:shorter], plan.prefix_summary)
        omitted = _joined(self.omitted + plan.omitted)
        injected = self.injected if plan.injected is None else plan.injected
        edits = (shown_results, inputs, texts, prefix_summaries, omitted, injected) != (
            self.shown_results,
            self.inputs,
            self.texts,
            self.prefix_summaries,
            self.omitted,
            self.injected,
        )
        voids = plan.drops_thinking or (edits and plan.voids_thinking)
        return msgspec.structs.replace(
            self,
            version=self.version + 1,
            compacted_before=max(self.compacted_before, plan.compacted_before),
            shown_results=shown_results,
            inputs=inputs,
            texts=texts,
            prefix_summaries=prefix_summaries,
            omitted=omitted,
            injected=injected,
            thinking_from=max(self.thinking_from, position_now) if voids else self.thinking_from,
        )

    def clamped(self, length: int) -> View:
        """This view for a history that was cut to *length* messages, by an abort, a rewind or a
        fork.

        A prefix summary of more messages than are left is removed, and its messages are shown
        again. A range that was left out up to the new end or beyond is shown again, too. What it
        made room for is gone, and without it the context would lack its newest messages.
        """
        prefix_summaries = self.prefix_summaries
        shorter = self._count_shorter(length)
        if shorter < len(prefix_summaries):
            left = (summary for summary in prefix_summaries[shorter:] if _needs(summary) <= length)
            prefix_summaries = (*prefix_summaries[:shorter], *left)
        omitted = tuple((first, end) for first, end in self.omitted if end < length)
        injected = tuple(item for item in self.injected if item.at <= length)
        if (
            self.compacted_before <= length
            and self.thinking_from <= length
            and (prefix_summaries, omitted, injected)
            == (self.prefix_summaries, self.omitted, self.injected)
        ):
            return self
        return msgspec.structs.replace(
            self,
            version=self.version + 1,
            compacted_before=min(self.compacted_before, length),
            thinking_from=min(self.thinking_from, length),
            prefix_summaries=prefix_summaries,
            omitted=omitted,
            injected=injected,
        )

    def _count_shorter(self, length: int) -> int:
        """How many summaries at the beginning of the stack are for fewer than *length* messages."""
        # Each is for more messages than the one below it, and there is one for each compaction, so
        # the search begins with the newest one.
        count = len(self.prefix_summaries)
        while count and self.prefix_summaries[count - 1].upto >= length:
            count -= 1
        return count

    def without_head(self, count: int, length: int, calls: Collection[str]) -> View:
        """This view after the first *count* messages, which made *calls*, were forgotten and
        *length* are left.

        Their texts are removed. Every prefix summary and injected text is removed, too, because it
        may quote them, unless it is part of a message that is left. The remaining thinking was
        bound to the forgotten messages, so it is not sent again.
        """
        moved = [(max(0, first - count), end - count) for first, end in self.omitted]
        return msgspec.structs.replace(
            self,
            version=self.version + 1,
            compacted_before=max(0, self.compacted_before - count),
            shown_results={
                call: text for call, text in self.shown_results.items() if call not in calls
            },
            capped={call: text for call, text in self.capped.items() if call not in calls},
            inputs={call: raw for call, raw in self.inputs.items() if call not in calls},
            texts={},
            prefix_summaries=tuple(
                msgspec.structs.replace(summary, upto=summary.upto - count)
                for summary in self.prefix_summaries
                if summary.inside is not None and summary.upto >= count
            ),
            omitted=tuple((first, end) for first, end in moved if end > 0),
            injected=(),
            thinking_from=length,
        )

    def voided(self, length: int) -> View:
        """This view after a change of model, system text or tools: no thinking of the first
        *length* messages is sent again, because its signatures are broken.
        """
        if self.thinking_from == length:
            return self
        return msgspec.structs.replace(self, version=self.version + 1, thinking_from=length)


def _with_new(old: dict[str, T], new: dict[str, T]) -> dict[str, T]:
    """*old* and those of *new* that it does not have."""
    # Copied first: that takes an eighth of the time of entries that are added one by one.
    return {**old, **{key: new[key] for key in new if key not in old}} if new else old


def _needs(prefix_summary: PrefixSummary) -> int:
    """How many messages a history must have for *prefix_summary* to be valid: with the message that
    holds it.
    """
    return prefix_summary.upto + (prefix_summary.inside is not None)


def text_key(message: Message, block: int) -> str:
    """The key in ``View.texts`` of the text block number *block* of *message*."""
    return f"{message.id}#{block}"


def _follows(prefix_summary: PrefixSummary, start: int) -> bool:
    return prefix_summary.upto > start or (
        prefix_summary.by == "caller" and prefix_summary.upto == start
    )


def _joined(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """*ranges* in order. Ranges that touch or overlap become one."""
    joined: list[tuple[int, int]] = []
    for first, end in sorted(pair for pair in ranges if pair[0] < pair[1]):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return tuple(joined)
