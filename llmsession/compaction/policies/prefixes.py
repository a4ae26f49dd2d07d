"""A summary in place of a prefix: where it may end, and the plan that wants it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from llmsession.compaction.planning.boundaries import (
    is_safe_cut,
    is_turn_start,
    must_wait,
    newest_request,
)
from llmsession.compaction.planning.policy import Budget, planned
from llmsession.compaction.tokens.messages import MESSAGE_OVERHEAD_TOKENS, text_tokens_for
from llmsession.compaction.view.plan import Plan, SummaryRequest
from llmsession.compaction.view.summary_wording import without_title
from llmsession.compaction.view.view import View
from llmsession.turns.blocks import TextBlock
from llmsession.turns.messages import Message, count_turns
from llmsession.turns.records import Injected

from .base import CheckedPolicy
from .counting import rest_tokens, sizes_in_budget
from .limits import Count
from .spans import begins_turn

__all__ = [
    "MIN_SUMMARY_TOKENS",
    "SUMMARY_TOKENS",
    "SummaryPolicy",
    "beside_tokens",
    "cut_at_least",
    "cut_at_most",
    "latest_cut",
    "note_behind_earlier",
    "pin_of",
    "request_starts",
    "summary_plan",
    "told_tokens",
]

SUMMARY_TOKENS = 2_048
"""The most tokens of a summary where the catalogue names none: those of ``llm_summary``."""
MIN_SUMMARY_TOKENS = 250
"""What is under twice that is not worth a summary: title and digest need so much."""


def beside_tokens(sizes: Sequence[int], view: View, budget: Budget) -> int:
    """The tokens of a request beside messages of *sizes* and the summary: system text, tools,
    what is injected."""
    return max(rest_tokens(sizes, budget) - told_tokens(view, budget), budget.frame_tokens)


def told_tokens(view: View, budget: Budget) -> int:
    """The tokens of the summary that *view* shows; 0 without one."""
    if view.prefix_summary is None:
        return 0
    tokens = text_tokens_for(view.prefix_summary.text, budget.profile) + MESSAGE_OVERHEAD_TOKENS
    return budget.scaled(tokens)


def note_behind_earlier(view: View, mark: str, note: Callable[[int], str]) -> str:
    """A policy's own text where no summary comes: *note* of the first position that it speaks
    for, behind the newest summary that is no such text itself. *mark* is how these are known.

    So a model that fails once does not take away what it, or anybody, has written before.
    """
    earlier = next((s for s in reversed(view.prefix_summaries) if mark not in s.text), None)
    if earlier is None:
        return note(0)
    return f"{without_title(earlier.text)}\n\n{note(earlier.upto)}"


def cut_at_most(messages: Sequence[Message], at: int) -> int:
    """The last safe cut up to *at*; 0 always is one."""
    while at > 0 and not is_safe_cut(messages, at):
        at -= 1
    return max(0, at)


def cut_at_least(messages: Sequence[Message], at: int) -> int:
    """The first safe cut from *at* on; there may be none but the end."""
    while at < len(messages) and not is_safe_cut(messages, at):
        at += 1
    return at


def latest_cut(
    view: View, messages: Sequence[Message], budget: Budget, *, pins: bool = False
) -> int:
    """The last position up to which anything may be left out now: before the user's newest words,
    and before the last message; 0 if nothing may be edited.

    A policy that *pins* may go further, where words are all that the user's newest message has:
    they are then said once more behind the summary.
    """
    profile = budget.profile
    if not messages or must_wait(view, messages, profile, budget.committed):
        return 0
    end = len(messages) - 1
    if profile.thinking_opens_tool_loop and not profile.binds_thinking:
        end = min(end, budget.committed)  # what opens the loop stays
    newest = newest_request(messages)
    is_visible = newest is not None and view.start <= newest < end
    if newest is not None and is_visible and not (pins and pin_of(messages, end)):
        end = newest
    return cut_at_most(messages, end)


def pin_of(messages: Sequence[Message], upto: int) -> Injected | None:
    """The user's newest words, if they stand before *upto* and are all there is."""
    newest = newest_request(messages)
    if newest is None or newest >= upto:
        return None
    message = messages[newest]
    if not all(isinstance(block, TextBlock) for block in message.content):
        return None
    return Injected(upto, message.text)


def request_starts(messages: Sequence[Message], start: int = 0) -> list[int]:
    """The positions from *start* on at which a person's request opens a turn."""
    places = range(start, len(messages))
    return [
        index for index in places if is_turn_start(messages, index) and begins_turn(messages[index])
    ]


def summary_plan(
    name: str,
    view: View,
    messages: Sequence[Message],
    budget: Budget,
    *,
    upto: int,
    max_tokens: int = SUMMARY_TOKENS,
    instructions: str = "",
    appendix: str = "",
    fallback: str = "",
    pins: bool = False,
    omitted: tuple[tuple[int, int], ...] = (),
    figures: Mapping[str, int] | None = None,
) -> Plan | None:
    """The plan of the policy *name* that wants a summary of what stands before *upto*, in at most
    *max_tokens* (as ``used_tokens`` counts) and half of what it stands for; None if too little
    stands there. Behind it *omitted* is left out, if the summary comes.

    The summary so far is folded in: it is the first thing that the next one is made of.
    """
    start = view.start
    if upto <= start:
        return None
    sizes = sizes_in_budget(view, messages, budget)
    source = sum(sizes[:upto]) + told_tokens(view, budget)
    pinned = pin_of(messages, upto) if pins else None
    twice = text_tokens_for(pinned.text, budget.profile) if pinned else 0
    room = min(max_tokens, (source - budget.scaled(twice)) // 2)
    max_tokens = room * 1000 // max(1, budget.scale_permille)
    if max_tokens < MIN_SUMMARY_TOKENS or not sum(sizes[start:upto]):
        return None
    summary_request = SummaryRequest(
        first=start,
        upto=upto,
        max_tokens=max_tokens,
        earlier=view.prefix_summary.text if view.prefix_summary else "",
        instructions=instructions,
        appendix=appendix,
        fallback=fallback,
        omitted=omitted,
        pinned=pinned,
    )
    before = sum(sizes) + told_tokens(view, budget)
    gone = source + sum(sum(sizes[max(first, upto) : end]) for first, end in omitted)
    return planned(
        name,
        view,
        messages,
        budget,
        f"a summary for the first {upto} messages",
        tokens_before=before,
        tokens_after=before - gone + room + budget.scaled(twice),
        turns_compacted=count_turns(messages[start:upto]),
        summary_request=summary_request,
        figures={
            "kept_before_tokens": budget.frame_tokens,
            "turns_kept": count_turns(messages[upto:]),
            **(figures or {}),
        },
    )


class SummaryPolicy(CheckedPolicy, frozen=True, kw_only=True):
    """A policy that puts summaries of at most ``summary_tokens`` in place of what is old."""

    name: ClassVar[str]
    summary_tokens: Count = SUMMARY_TOKENS

    def summary(
        self, view: View, messages: Sequence[Message], budget: Budget, upto: int, **more: Any
    ) -> Plan | None:
        """The ``summary_plan`` of what stands before *upto*; *more* is as there."""
        return summary_plan(
            self.name, view, messages, budget, upto=upto, max_tokens=self.summary_tokens, **more
        )
