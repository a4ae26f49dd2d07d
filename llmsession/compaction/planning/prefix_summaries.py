"""Prefix summaries: made by rules, put into a plan, and handed on to another session."""

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
from ..view.summary_wording import SUMMARY_TITLE, introduced, without_title
from ..view.view import View
from .boundaries import newest_request

__all__ = [
    "SUMMARY_TITLE",
    "digest_of",
    "extracted_summary",
    "introduced",
    "summary_by_rules",
    "with_summary",
    "without_pins",
    "without_title",
]

_MAX_TRIES = 4
"""How many tokens a character is differs from text to text, so a text that is too long is made
again.
"""


def summary_by_rules(
    summary_request: SummaryRequest, messages: Sequence[Message], profile: Profile
) -> PrefixSummary | None:
    """The summary for the case that no model writes one.

    It is the policy's own text (``fallback``) if there is one, else ``extracted_summary``.
    """
    if summary_request.fallback.strip():
        text = introduced(summary_request.fallback)
        return PrefixSummary(summary_request.upto, text, "extractive")
    return extracted_summary(summary_request, messages, profile)


def extracted_summary(
    summary_request: SummaryRequest, messages: Sequence[Message], profile: Profile
) -> PrefixSummary | None:
    """The summary that *summary_request* asks for, made by rules.

    *messages* are the whole context. Returns None if there are no messages to summarise.
    """
    source = messages[summary_request.first : summary_request.upto]
    if not source:
        return None
    earlier = without_title(summary_request.earlier)
    chars = int(summary_request.max_tokens * profile.chars_per_token)
    for _ in range(_MAX_TRIES):
        text = digest(source, earlier, max_chars=chars - len(SUMMARY_TITLE) - 1, recallable=True)
        # Images alone give an empty digest, but the summary must still say that something was
        # there.
        text = introduced(text if text.strip() else _count(source))
        tokens = text_tokens_for(text, profile)
        if tokens <= summary_request.max_tokens:
            break
        chars = chars * summary_request.max_tokens // tokens
    return PrefixSummary(summary_request.upto, text, "extractive")


def _count(messages: Sequence[Message]) -> str:
    return f"{len(messages):,} {'message' if len(messages) == 1 else 'messages'} without words."


PIN_CHARS = 100


def with_summary(
    plan: Plan,
    prefix_summary: PrefixSummary | None,
    view: View,
    messages: Sequence[Message],
    budget: Budget,
) -> Plan | None:
    """*plan* with *prefix_summary* in place of its request for one, and its sizes counted anew.

    If there is no summary, or it is not shorter than its source, the rest of the plan is returned;
    None if there is no rest.
    """
    summary_request = plan.summary_request
    if summary_request is None:
        return plan
    if prefix_summary is not None and prefix_summary.by == "provider":
        plan = _undisturbed(plan, prefix_summary, view, messages)
    source_tokens = budget.size(messages, view, end=summary_request.upto)
    for summary in _candidates(summary_request, prefix_summary):
        pinned = None if summary.by == "provider" else summary_request.pinned
        tokens = text_tokens_for(summary.text, budget.profile)
        tokens += text_tokens_for(pinned.text, budget.profile) if pinned else 0
        if budget.scaled(tokens) < source_tokens:
            filled = replace(plan, summary_request=None, prefix_summary=summary)
            if summary.by != "provider":
                injected = _with_pin(plan, pinned, view, messages, summary.upto)
                omitted = (*plan.omitted, *summary_request.omitted)
                filled = replace(filled, injected=injected, omitted=omitted)
            return measured(filled, view, messages, budget)
    if not (plan.shown_results or plan.inputs or plan.texts or plan.omitted or plan.injected):
        return None
    return measured(replace(plan, summary_request=None), view, messages, budget)


def _candidates(
    summary_request: SummaryRequest, prefix_summary: PrefixSummary | None
) -> Iterator[PrefixSummary]:
    """The summaries that may replace the prefix, the best first."""
    appendix = f"\n\n{summary_request.appendix}" if summary_request.appendix else ""
    if prefix_summary is not None and prefix_summary.text.strip():
        if appendix and prefix_summary.by != "provider":
            prefix_summary = replace(prefix_summary, text=prefix_summary.text + appendix)
        yield prefix_summary
    if summary_request.fallback.strip():
        text = introduced(summary_request.fallback) + appendix
        yield PrefixSummary(summary_request.upto, text, "extractive")


def _with_pin(
    plan: Plan, pinned: Injected | None, view: View, messages: Sequence[Message], upto: int
) -> tuple[Injected, ...] | None:
    """All texts to inject beside a new summary up to *upto*; None if nothing changes.

    A pin repeats the user's newest request behind a summary. A pin of the earlier summary is
    removed together with it, unless it repeats the request that is still the newest.
    """
    before = view.injected if plan.injected is None else plan.injected
    pins = _pins(before, messages, view.start)
    newest = newest_request(messages)
    if pins and pinned is None and newest is not None and newest < view.start:
        words = messages[newest].text
        same = (pin.text for pin in pins if pin.text[:PIN_CHARS] == words[:PIN_CHARS])
        pinned = next((Injected(upto, text) for text in same), None)
    after = tuple(item for item in before if item not in pins)
    after += (pinned,) if pinned else ()
    return plan.injected if after == before else after


def without_pins(view: View, messages: Sequence[Message], upto: int) -> tuple[Injected, ...] | None:
    """All that *view* injects, without the pins for requests in the first *upto* messages.

    A summary of whole turns contains these requests. Returns None if nothing changes.
    """
    pins = _pins(view.injected, messages, upto)
    return tuple(item for item in view.injected if item not in pins) if pins else None


def _pins(injected: Sequence[Injected], messages: Sequence[Message], end: int) -> list[Injected]:
    """Those of *injected* that repeat a user message of the first *end* of *messages*."""
    # A long message may have been shortened, so only the beginnings are compared.
    sought = {item.text[:PIN_CHARS] for item in injected if item.at >= 0}
    missing = set(sought)
    # From the newest one back, because a pin repeats what was the newest request not long ago.
    for position in range(end - 1, -1, -1):
        if not missing:
            break
        if messages[position].is_user:
            missing.discard(messages[position].text[:PIN_CHARS])
    return [i for i in injected if i.at >= 0 and i.text[:PIN_CHARS] in sought - missing]


def _undisturbed(
    plan: Plan, prefix_summary: PrefixSummary, view: View, messages: Sequence[Message]
) -> Plan:
    """*plan* without its edits behind the provider's own summary.

    Thinking behind such a summary stays valid as long as everything there is sent unchanged. The
    next message must also have another role than the last summarised one, because the provider
    reads two neighbours of one role as one message.
    """
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
    """What *history* was about, for another session to begin with.

    If *prefix_summary* covers the whole history, that is the result; if it covers a part, a digest
    of the later messages follows it. Without it the result is *earlier*, the seed of the
    conversation, with a digest of all messages. It has at most *max_chars* characters, but never
    fewer than 200 are allowed.
    """
    if prefix_summary is None or prefix_summary.upto > len(history):
        return digest(history, earlier, max_chars=max_chars)
    text, later = without_title(prefix_summary.text), history[prefix_summary.upto :]
    if later:
        return digest(later, text, max_chars=max_chars)
    return shorten_text(text, max(max_chars, MIN_DIGEST_CHARS))
