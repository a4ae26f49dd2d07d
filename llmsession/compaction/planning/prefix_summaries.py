"""Texts that stand for a prefix of the conversation: made by rules, and how they are introduced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from llmsession.turns.messages import Message
from llmsession.turns.records import Injected, Segment
from llmsession.turns.request import Profile

from ..summaries.digest import LEAST_DIGEST_CHARS, digest
from ..summaries.shorten import shorten_text
from ..tokens.messages import text_tokens_for
from ..view.plan import Budget, Plan, Wanted, measured
from ..view.provider_blocks import lost_media
from ..view.summary_wording import SEGMENT_TITLE, introduced, without_title
from ..view.view import View
from .boundaries import newest_request

__all__ = [
    "SEGMENT_TITLE",
    "digest_of",
    "extracted_segment",
    "introduced",
    "with_segment",
    "without_pins",
    "without_title",
]

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
        text = digest(source, earlier, max_chars=chars - len(SEGMENT_TITLE) - 1, recallable=True)
        # Without a word in it, as images alone are, it still has to stand for what was there.
        text = introduced(text if text.strip() else _count(source))
        tokens = text_tokens_for(text, profile)
        if tokens <= wanted.most_tokens:
            break
        chars = chars * wanted.most_tokens // tokens
    return Segment(wanted.upto, text, "extractive")


def _count(messages: Sequence[Message]) -> str:
    return f"{len(messages):,} {'message' if len(messages) == 1 else 'messages'} without words."


PIN_CHARS = 100


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
    source = budget.size(messages[: wanted.upto], view)
    for each in _offered(wanted, segment):
        pinned = None if each.by == "provider" else wanted.pinned
        told = text_tokens_for(each.text, budget.profile)
        told += text_tokens_for(pinned.text, budget.profile) if pinned else 0
        if budget.scaled(told) < source:
            filled = replace(plan, wanted=None, segment=each)
            if each.by != "provider":
                injected = _with_pin(plan, pinned, view, messages, each.upto)
                omitted = (*plan.omitted, *wanted.omitted)
                filled = replace(filled, injected=injected, omitted=omitted)
            return measured(filled, view, messages, budget)
    if not (plan.frozen or plan.inputs or plan.texts or plan.omitted or plan.injected):
        return None
    return measured(replace(plan, wanted=None), view, messages, budget)


def _offered(wanted: Wanted, segment: Segment | None) -> Iterator[Segment]:
    """What may stand for the prefix, the best first."""
    behind = f"\n\n{wanted.appendix}" if wanted.appendix else ""
    if segment is not None and segment.text.strip():
        own = segment.by == "provider"
        yield segment if own or not behind else replace(segment, text=segment.text + behind)
    if wanted.fallback.strip():
        yield Segment(wanted.upto, introduced(wanted.fallback) + behind, "extractive")


def _with_pin(
    plan: Plan, pinned: Injected | None, view: View, messages: Sequence[Message], upto: int
) -> tuple[Injected, ...] | None:
    """All that is injected beside a new summary up to *upto*. An earlier pin goes with the earlier
    summary; what it says of a request that is still the newest is said on."""
    before = view.injected if plan.injected is None else plan.injected
    pins = _pins(before, messages[: view.start])
    newest = newest_request(messages)
    if pins and pinned is None and newest is not None and newest < view.start:
        words = messages[newest].text
        same = (each.text for each in pins if each.text[:PIN_CHARS] == words[:PIN_CHARS])
        pinned = next((Injected(upto, text) for text in same), None)
    after = tuple(each for each in before if each not in pins)
    after += (pinned,) if pinned else ()
    return plan.injected if after == before else after


def without_pins(view: View, messages: Sequence[Message], upto: int) -> tuple[Injected, ...] | None:
    """All that *view* injects but the requests among the first *upto* messages that are said once
    more: whoever summarises whole turns has them in it. None if that leaves all as it is."""
    pins = _pins(view.injected, messages[:upto])
    return tuple(each for each in view.injected if each not in pins) if pins else None


def _pins(injected: Sequence[Injected], messages: Sequence[Message]) -> list[Injected]:
    """Those of *injected* that say once more what *messages* say."""
    # A long one may be shortened: its head says whose it is.
    said = {message.text[:PIN_CHARS] for message in messages if message.is_user}
    return [each for each in injected if each.at >= 0 and each.text[:PIN_CHARS] in said]


def _undisturbed(plan: Plan, segment: Segment, view: View, messages: Sequence[Message]) -> Plan:
    """*plan* without its edits behind the provider's own summary: thinking in what follows such a
    summary stays valid as long as all of it is sent as it was. What follows has to be of the other
    side than what was summarised last, or the provider reads both as one message."""
    upto = segment.upto
    reason = f"the provider's own summary for the first {upto} messages"
    if lost := lost_media(messages[view.start : upto]):
        reason += f", without the {lost} images and documents in them"
    joins = upto < len(messages) and messages[upto].role == messages[upto - 1].role
    return replace(
        plan,
        reason=reason,
        results_summarised=0,
        results_redacted=0,
        frontier=max(view.frontier, min(plan.frontier, upto)),
        frozen={},
        inputs={},
        texts={},
        omitted=(),
        injected=None,
        voids_thinking=plan.voids_thinking and joins,
    )


def digest_of(
    history: Sequence[Message], segment: Segment | None, earlier: str, *, max_chars: int
) -> str:
    """What *history* was about, for another session to begin with: *segment*, where it stands for
    all of it; a digest of what came after it, behind it; or, without one, of all, behind
    *earlier*, what the conversation began with. At most *max_chars* characters, at least 200."""
    if segment is None or segment.upto > len(history):
        return digest(history, earlier, max_chars=max_chars)
    told, later = without_title(segment.text), history[segment.upto :]
    if later:
        return digest(later, told, max_chars=max_chars)
    return shorten_text(told, max(max_chars, LEAST_DIGEST_CHARS))
