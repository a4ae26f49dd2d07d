"""Texts that stand for a prefix of the conversation: made by rules, and how they are introduced."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from llmsession.turns.messages import Message
from llmsession.turns.records import Segment
from llmsession.turns.request import Profile

from .digest import digest
from .plan import Budget, Plan, Wanted, measured
from .segment_text import SEGMENT_TITLE, introduced, without_title
from .tokens import text_tokens_for
from .view import View

__all__ = ["SEGMENT_TITLE", "extracted_segment", "introduced", "with_segment", "without_title"]

_MOST_TRIES = 4
"""How many tokens a text has by its characters differs with the text: it is tried again."""


def extracted_segment(
    wanted: Wanted, messages: Sequence[Message], profile: Profile
) -> Segment | None:
    """The segment that *wanted* asks for, picked by rules from *messages*, the whole context;
    None if there is nothing to stand for."""
    source = messages[wanted.first : wanted.upto]
    if not source:
        return None
    earlier = without_title(wanted.earlier)
    chars = int(wanted.most_tokens * profile.chars_per_token)
    for _ in range(_MOST_TRIES):
        text = digest(
            source, earlier, max_chars=chars - len(SEGMENT_TITLE) - 1, recallable=True
        )
        # Without a word in it, as images alone are, it still has to stand for what was there.
        text = introduced(text if text.strip() else _count(source))
        tokens = text_tokens_for(text, profile)
        if tokens <= wanted.most_tokens:
            break
        chars = chars * wanted.most_tokens // tokens
    return Segment(wanted.upto, text, "extractive")


def _count(messages: Sequence[Message]) -> str:
    return f"{len(messages):,} {'message' if len(messages) == 1 else 'messages'} without words."


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
    if segment is not None and segment.by == "provider":
        plan = _undisturbed(plan, segment, view, messages)
    if segment is not None and segment.text.strip():
        source = budget.size(messages[: wanted.upto], view)
        if budget.scaled(text_tokens_for(segment.text, budget.profile)) < source:
            filled = replace(plan, wanted=None, segment=segment)
            return measured(filled, view, messages, budget)
    if not (plan.frozen or plan.inputs or plan.texts or plan.omitted or plan.injected):
        return None
    return measured(replace(plan, wanted=None), view, messages, budget)


def _undisturbed(
    plan: Plan, segment: Segment, view: View, messages: Sequence[Message]
) -> Plan:
    """*plan* without its edits behind the provider's own summary: thinking in what follows such a
    summary stays valid as long as all of it is sent as it was. What follows has to be of the other
    side than what was summarised last, or the provider reads both as one message."""
    upto = segment.upto
    joins = upto < len(messages) and messages[upto].role == messages[upto - 1].role
    return replace(
        plan,
        frontier=max(view.frontier, min(plan.frontier, upto)),
        frozen={},
        inputs={},
        texts={},
        omitted=(),
        injected=None,
        voids_thinking=plan.voids_thinking and joins,
    )
