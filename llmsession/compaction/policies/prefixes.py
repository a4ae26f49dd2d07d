"""A summary in place of a prefix: where it may end, and the plan that asks for it."""

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
"""The default size of a summary in tokens, that of ``llm_summary``, where the catalogue names
none.
"""
MIN_SUMMARY_TOKENS = 250
"""A prefix of less than twice this many tokens is not worth a summary: the title and the digest
need this much.
"""


def beside_tokens(sizes: Sequence[int], view: View, budget: Budget) -> int:
    """The tokens of a request beside messages of *sizes* and the summary: system text, tools and
    injected texts.
    """
    return max(rest_tokens(sizes, budget) - told_tokens(view, budget), budget.frame_tokens)


def told_tokens(view: View, budget: Budget) -> int:
    """The tokens of the summary that *view* shows; 0 without one."""
    if view.prefix_summary is None:
        return 0
    tokens = text_tokens_for(view.prefix_summary.text, budget.profile) + MESSAGE_OVERHEAD_TOKENS
    return budget.scaled(tokens)


def note_behind_earlier(view: View, mark: str, note: Callable[[int], str]) -> str:
    """A policy's own text for the case that no summary can be written.

    *note* makes the text, given the first position that it must cover. It follows the newest
    summary that is not such a text itself; *mark* is how such texts are recognised. So one failure
    of a model does not lose a summary that was written before.
    """
    earlier = next((s for s in reversed(view.prefix_summaries) if mark not in s.text), None)
    if earlier is None:
        return note(0)
    return f"{without_title(earlier.text)}\n\n{note(earlier.upto)}"


def cut_at_most(messages: Sequence[Message], at: int) -> int:
    """The last safe cut up to *at*. 0 is always safe."""
    while at > 0 and not is_safe_cut(messages, at):
        at -= 1
    return max(0, at)


def cut_at_least(messages: Sequence[Message], at: int) -> int:
    """The first safe cut from *at* on; the end if there is no other."""
    while at < len(messages) and not is_safe_cut(messages, at):
        at += 1
    return at


def latest_cut(
    view: View, messages: Sequence[Message], budget: Budget, *, pins: bool = False
) -> int:
    """The last position up to which messages may be left out now; 0 if nothing may be edited.

    It stands before the user's newest message, and before the last message. With *pins* it may
    stand further on, if the user's newest message holds only text, because that text is then
    repeated behind the summary.
    """
    profile = budget.profile
    if not messages or must_wait(view, messages, profile, budget.committed):
        return 0
    end = len(messages) - 1
    if profile.thinking_opens_tool_loop and not profile.binds_thinking:
        end = min(end, budget.committed)  # the thinking that opens the loop stays
    newest = newest_request(messages)
    is_visible = newest is not None and view.start <= newest < end
    if newest is not None and is_visible and not (pins and pin_of(messages, end)):
        end = newest
    return cut_at_most(messages, end)


def pin_of(messages: Sequence[Message], upto: int) -> Injected | None:
    """The text of the user's newest message, to repeat behind a summary. None unless that message
    stands before *upto* and holds nothing but text.
    """
    newest = newest_request(messages)
    if newest is None or newest >= upto:
        return None
    message = messages[newest]
    if not all(isinstance(block, TextBlock) for block in message.content):
        return None
    return Injected(upto, message.text)


def request_starts(messages: Sequence[Message], start: int = 0) -> list[int]:
    """The positions from *start* on at which a user's request opens a turn."""
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
    """The plan of the policy *name* that asks for a summary of everything before *upto*.

    The summary has at most *max_tokens* (as ``used_tokens`` counts), and at most half of the tokens
    that it replaces. Messages in *omitted*, behind it, are left out if the summary is written. The
    previous summary is part of the source of the next one. Returns None if there is too little to
    summarise.
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
    """A policy that replaces old messages by summaries of at most ``summary_tokens`` tokens."""

    name: ClassVar[str]
    summary_tokens: Count = SUMMARY_TOKENS

    def summary(
        self, view: View, messages: Sequence[Message], budget: Budget, upto: int, **more: Any
    ) -> Plan | None:
        """The ``summary_plan`` for everything before *upto*; *more* are its other arguments."""
        return summary_plan(
            self.name, view, messages, budget, upto=upto, max_tokens=self.summary_tokens, **more
        )
