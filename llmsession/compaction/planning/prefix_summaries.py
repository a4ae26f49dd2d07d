"""Texts that stand for a prefix of the conversation: made by rules, and how they are introduced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from llmsession.turns.messages import Message
from llmsession.turns.records import Injected, PrefixSummary
from llmsession.turns.request import Profile

from ..planning.policy import Budget, measured
from ..summaries.digest import MIN_DIGEST_CHARS, digest
from ..summaries.shorten import shorten_text
from ..tokens.messages import text_tokens_for
from ..view.plan import Plan, SummaryRequest
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

_MAX_TRIES = 4
"""How many tokens a text has by its characters differs with the text: it is tried again."""


def extracted_segment(
    summary_request: SummaryRequest, messages: Sequence[Message], profile: Profile
) -> PrefixSummary | None:
    """The segment that *wanted* asks for, picked by rules from *messages*, the whole context;
    None if there is nothing to stand for."""
    source = messages[summary_request.first : summary_request.upto]
    if not source:
        return None
    earlier = without_title(summary_request.earlier)
    chars = int(summary_request.max_tokens * profile.chars_per_token)
    for _ in range(_MAX_TRIES):
        text = digest(source, earlier, max_chars=chars - len(SEGMENT_TITLE) - 1, recallable=True)
        # Without a word in it, as images alone are, it still has to stand for what was there.
        text = introduced(text if text.strip() else _count(source))
        tokens = text_tokens_for(text, profile)
        if tokens <= summary_request.max_tokens:
            break
        chars = chars * summary_request.max_tokens // tokens
    return PrefixSummary(summary_request.upto, text, "extractive")


def _count(messages: Sequence[Message]) -> str:
    return f"{len(messages):,} {'message' if len(messages) == 1 else 'messages'} without words."


PIN_CHARS = 100


def with_segment(
    plan: Plan,
    prefix_summary: PrefixSummary | None,
    view: View,
    messages: Sequence[Message],
    budget: Budget,
) -> Plan | None:
    """*plan* with *segment* in place of the summary that it wants, its sizes counted anew.

    Without one, or with one that is no shorter than what it stands for, what is left of the plan;
    None if that is nothing.
    """
    summary_request = plan.summary_request
    if summary_request is None:
        return plan
    if prefix_summary is not None and prefix_summary.by == "provider":
        plan = _undisturbed(plan, prefix_summary, view, messages)
    source = budget.size(messages[: summary_request.upto], view)
    for each in _offered(summary_request, prefix_summary):
        pinned = None if each.by == "provider" else summary_request.pinned
        told = text_tokens_for(each.text, budget.profile)
        told += text_tokens_for(pinned.text, budget.profile) if pinned else 0
        if budget.scaled(told) < source:
            filled = replace(plan, summary_request=None, prefix_summary=each)
            if each.by != "provider":
                injected = _with_pin(plan, pinned, view, messages, each.upto)
                omitted = (*plan.omitted, *summary_request.omitted)
                filled = replace(filled, injected=injected, omitted=omitted)
            return measured(filled, view, messages, budget)
    if not (plan.shown_results or plan.inputs or plan.texts or plan.omitted or plan.injected):
        return None
    return measured(replace(plan, summary_request=None), view, messages, budget)


def _offered(
    summary_request: SummaryRequest, prefix_summary: PrefixSummary | None
) -> Iterator[PrefixSummary]:
    """What may stand for the prefix, the best first."""
    behind = f"\n\n{summary_request.appendix}" if summary_request.appendix else ""
    if prefix_summary is not None and prefix_summary.text.strip():
        own = prefix_summary.by == "provider"
        yield (
            prefix_summary
            if own or not behind
            else replace(prefix_summary, text=prefix_summary.text + behind)
        )
    if summary_request.fallback.strip():
        yield PrefixSummary(
            summary_request.upto, introduced(summary_request.fallback) + behind, "extractive"
        )


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


def _undisturbed(
    plan: Plan, prefix_summary: PrefixSummary, view: View, messages: Sequence[Message]
) -> Plan:
    """*plan* without its edits behind the provider's own summary: thinking in what follows such a
    summary stays valid as long as all of it is sent as it was. What follows has to be of the other
    side than what was summarised last, or the provider reads both as one message."""
    upto = prefix_summary.upto
    reason = f"the provider's own summary for the first {upto} messages"
    if lost := lost_media(messages[view.start : upto]):
        reason += f", without the {lost} images and documents in them"
    joins = upto < len(messages) and messages[upto].role == messages[upto - 1].role
    return replace(
        plan,
        reason=reason,
        results_summarised=0,
        results_redacted=0,
        compacted_before=max(view.compacted_before, min(plan.compacted_before, upto)),
        shown_results={},
        inputs={},
        texts={},
        omitted=(),
        injected=None,
        voids_thinking=plan.voids_thinking and joins,
    )


def digest_of(
    history: Sequence[Message],
    prefix_summary: PrefixSummary | None,
    earlier: str,
    *,
    max_chars: int,
) -> str:
    """What *history* was about, for another session to begin with: *segment*, where it stands for
    all of it; a digest of what came after it, behind it; or, without one, of all, behind
    *earlier*, what the conversation began with. At most *max_chars* characters, at least 200."""
    if prefix_summary is None or prefix_summary.upto > len(history):
        return digest(history, earlier, max_chars=max_chars)
    told, later = without_title(prefix_summary.text), history[prefix_summary.upto :]
    if later:
        return digest(later, told, max_chars=max_chars)
    return shorten_text(told, max(max_chars, MIN_DIGEST_CHARS))
