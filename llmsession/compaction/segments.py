"""Texts that stand for a prefix of the conversation: made by rules, and how they are introduced."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from llmsession.turns.messages import Message
from llmsession.turns.records import Segment

from .digest import digest
from .plan import Budget, Plan, Wanted, measured
from .tokens import estimate_text_tokens
from .view import View

__all__ = ["SEGMENT_TITLE", "extracted_segment", "introduced", "with_segment", "without_title"]

SEGMENT_TITLE = (
    "[Summary of the conversation up to here. The messages themselves are not shown any more;"
    " recall(id) still returns their tool results.]"
)
"""What every segment begins with. The same words for all, and none that ask for anything."""


def introduced(text: str) -> str:
    """A summary as the context shows it."""
    return f"{SEGMENT_TITLE}\n{text.strip()}"


def without_title(text: str) -> str:
    """The summary in a text that the context showed."""
    return text.removeprefix(SEGMENT_TITLE).lstrip("\n")


def extracted_segment(
    wanted: Wanted, messages: Sequence[Message], chars_per_token: float
) -> Segment | None:
    """The segment that *wanted* asks for, picked by rules from *messages*, the whole context;
    None if there is nothing to say."""
    room = int(wanted.most_tokens * chars_per_token) - len(SEGMENT_TITLE) - 1
    source = messages[wanted.first : wanted.upto]
    text = digest(source, without_title(wanted.earlier), max_chars=room)
    return Segment(wanted.upto, introduced(text), "extractive") if text.strip() else None


def with_segment(
    plan: Plan,
    segment: Segment | None,
    view: View,
    messages: Sequence[Message],
    budget: Budget,
) -> Plan | None:
    """*plan* with *segment* in place of the summary that it wants, its sizes counted anew.

    Without one, or with one that is no shorter than what it stands for, what is left of the plan;
    None if that is nothing.
    """
    wanted = plan.wanted
    if wanted is None:
        return plan
    if segment is not None and segment.text.strip():
        source = budget.size(messages[: wanted.upto], view)
        if budget.scaled(estimate_text_tokens(len(segment.text), budget.profile)) < source:
            filled = replace(plan, wanted=None, segment=segment)
            return measured(filled, view, messages, budget)
    if not (plan.frozen or plan.inputs or plan.texts or plan.omitted or plan.injected):
        return None
    return measured(replace(plan, wanted=None), view, messages, budget)
