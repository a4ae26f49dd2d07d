"""Truncation in the middle: shows the first task and the newest steps, and leaves out what is
between.

Cline's classic manager keeps one range that only grows. Roo hides messages under a marker, and
folds messages older than the newest request into a summary. Neither changes the history: after a
rewind to an earlier turn everything is shown again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, TypeAlias

from msgspec.structs import replace

from llmsession.compaction.planning.boundaries import is_safe_cut
from llmsession.compaction.planning.policy import Budget, planned
from llmsession.compaction.planning.schedule import Fill
from llmsession.compaction.tokens.messages import text_tokens_for
from llmsession.compaction.view.plan import Plan, SummaryRequest
from llmsession.compaction.view.view import View
from llmsession.errors import InvalidConfig
from llmsession.turns.messages import Message
from llmsession.turns.records import Injected

from ..base import WaitingPolicy
from ..counting import kept_before_tokens, sizes_in_budget, sizes_in_quarters
from ..drafts import Draft
from ..limits import Count, Fraction, Whole, portion
from ..prefixes import cut_at_most, latest_cut, pin_of
from ..registry import register
from ..spans import Span, pinned, spans_between
from .reads import drop_duplicate_reads, saved_enough

__all__ = [
    "AdaptiveWindowTruncate",
    "Keep",
    "NondestructiveCondense",
    "NondestructiveTruncate",
    "adaptive_limit_tokens",
    "condense_limit_tokens",
    "deleted_end",
    "effective_percent",
    "hidden_count",
]

Keep: TypeAlias = Literal["half", "quarter", "lastTwo", "none"]
"""What is kept of the messages behind the deleted range."""

NOTICE = (
    "[NOTE] Some previous conversation history has been left out here, to keep the context within"
    " the model's window. The first task is kept above; what follows is the newest part."
)

_ALLOWED_TOKENS = {64_000: 37_000, 128_000: 98_000, 200_000: 160_000}


def adaptive_limit_tokens(window_tokens: int) -> int:
    """The number of tokens from which on Cline truncates: a table for the usual windows; for others
    all but 40,000 tokens, or four fifths, whichever is more.
    """
    default = max(window_tokens - 40_000, window_tokens * 4 // 5)
    return _ALLOWED_TOKENS.get(window_tokens, default)


def deleted_end(count: int, start: int, keep: Keep, assistants: Sequence[int] = ()) -> int:
    """The last position to delete, if the messages from *start* of *count* are still there; below
    *start* if none is deleted. With the positions of *assistants* it is one of them, or one less.

    An even number is deleted, so that questions stay with their answers.
    """
    rest = count - start
    removed = {
        "half": rest // 4 * 2,
        "quarter": rest * 3 // 4 // 2 * 2,
        "lastTwo": max(rest - 2, 0),
        "none": rest,
    }[keep]
    end = start + removed - 1
    return end - 1 if assistants and end >= start and end not in assistants else end


@register
class AdaptiveWindowTruncate(WaitingPolicy, frozen=True, kw_only=True):
    """Cline's classic context management: keeps the first pair, and of the rest the newest half or
    quarter.

    It begins at ``adaptive_limit_tokens`` of the window. First all copies of a file except the
    newest are replaced; if that saves ``min_saving`` of the characters, nothing else is done. A
    quarter is kept if more than twice the allowed size is used, as after a switch to a much smaller
    model, or if the provider refused the request; otherwise half. The range only grows. Markers:
    one notice where the range begins, and that of ``file_read_dedupe``.

    Not copied: a range that begins or ends between a call and its result, and removing the newest
    request. Exempt from G3: like the original it takes one step for each request, so a second plan
    may remove a further half.

    Raises InvalidConfig for an invalid setting.
    """

    name: ClassVar[str] = "adaptive_window_truncate"
    exempt: ClassVar[frozenset[str]] = frozenset({"G3"})

    window_tokens: Count | None = None
    """The model's window in tokens. None: that of the session, or the limit."""
    min_saving: Fraction = 0.30

    def _allowed(self, window_tokens: int) -> int:
        return adaptive_limit_tokens(self.window_tokens or window_tokens)

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Is the allowed size of a window of *limit_tokens* reached?"""
        return limit_tokens > 0 and used_tokens >= self._allowed(limit_tokens)

    def due_for(self, fill: Fill) -> bool:
        """Is the allowed size reached, or the limit exceeded?"""
        return self.due(fill.used_tokens, fill.window) or fill.is_over

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """Which copies of files to replace, and what to leave out; None if there is too little."""
        draft = Draft(view, messages, budget)
        sizes = list(draft.sizes)
        whole_chars = 4 * sum(sizes_in_quarters(view, messages, budget.profile))
        saved_chars = drop_duplicate_reads(draft)
        done = "older reads of files read again left out"
        if not saved_enough(saved_chars, whole_chars, self.min_saving):
            crowded = budget.used_tokens > 2 * self._allowed(budget.window)
            keep: Keep = "quarter" if crowded or budget.trigger == "overflow" else "half"
            self._truncate(draft, keep)
            done = f"{keep} of the messages behind the first pair kept"
        first = next((index for index, size in enumerate(sizes) if draft.sizes[index] != size), 0)
        kept_tokens = kept_before_tokens(first, view, messages, budget)
        plan = draft.plan(self.name, done, saved_chars=saved_chars, kept_before_tokens=kept_tokens)
        return plan if plan is not None and plan.tokens_after < plan.tokens_before else None

    def _truncate(self, draft: Draft, keep: Keep) -> None:
        messages, view = draft.messages, draft.view
        first = max(_behind_first_pair(draft), view.start)
        start = max([first, *(end for _, end in view.omitted)])
        assistants = [index for index, message in enumerate(messages) if message.is_assistant]
        end = deleted_end(len(messages), start, keep, assistants) + 1
        spans = spans_between(first, cut_at_most(messages, end), pinned(messages))
        if any(view.shows(index) for begin, behind in spans for index in range(begin, behind)):
            draft.omit(spans)
            draft.inject([Injected(first, NOTICE)], instead_of=NOTICE)


def _behind_first_pair(draft: Draft) -> int:
    """Where the part begins that may be left out: behind the first pair, and the results that
    belong to it.
    """
    messages = draft.messages
    if draft.budget.profile.thinking_opens_tool_loop and messages[1:2] and messages[1].tool_calls:
        # If a later user message joins the first results, they are an open tool loop again. That
        # loop would have to begin with its thinking, which a truncation makes invalid. So the first
        # reply is not kept.
        return 1
    return next((index for index in range(2, len(messages)) if is_safe_cut(messages, index)), 2)


DEFAULT_REPLY_TOKENS = 8_192
"""The room in tokens that Roo keeps for a reply if nobody configures it."""
FORCED_FRACTION, FORCED_ROUNDS = 0.25, 3
"""After a refusal a quarter of the messages is hidden, up to three times."""
_MARKER = "[Sliding window truncation: "


def condense_limit_tokens(window_tokens: int, max_tokens: int | None = None) -> int:
    """The number of tokens above which Roo truncates: nine tenths of the window, without the room
    for the reply.
    """
    return window_tokens * 9 // 10 - (max_tokens or DEFAULT_REPLY_TOKENS)


def effective_percent(everywhere: int, profile: int) -> int:
    """The percentage of the window from which on Roo condenses: the profile's own if it is from 5
    to 100, else the one that applies *everywhere*.
    """
    return profile if 5 <= profile <= 100 else everywhere


def hidden_count(visible: int, fraction: float = 0.5) -> int:
    """How many of *visible* messages to hide: that fraction of all but the first, rounded down to
    an even number.
    """
    return portion(max(0, visible - 1), fraction) // 2 * 2


def _hidden(
    view: View, messages: Sequence[Message], fraction: float, folded: int = 0
) -> tuple[Span, ...]:
    """What to hide behind the first shown message. That may be a summary: the one in *view*, or one
    that will replace the first *folded* messages.
    """
    start = max(view.start, folded)
    rest = [index for index in range(start, len(messages)) if view.shows(index)]
    if start == 0:
        rest = rest[1:]
    count = hidden_count(len(rest) + 1, fraction)
    if count == 0:
        return ()
    return spans_between(rest[0], cut_at_most(messages, rest[count]), pinned(messages))


def _marked(
    view: View, messages: Sequence[Message], spans: tuple[Span, ...], folded: int = 0
) -> tuple[Injected, ...]:
    """All texts to inject: one marker at the beginning of what is left out by *view* and *spans*,
    behind the first *folded* messages.
    """
    after = replace(view, omitted=view.omitted + spans)
    others = tuple(item for item in view.injected if not item.text.startswith(_MARKER))
    start = max(view.start, folded)
    hidden = [index for index in range(start, len(messages)) if not after.shows(index)]
    if not hidden:
        return others
    text = f"{_MARKER}{len(hidden)} messages hidden to reduce context]"
    return (*others, Injected(hidden[0], text))


def _truncation(
    name: str,
    view: View,
    messages: Sequence[Message],
    budget: Budget,
    *,
    spans: tuple[Span, ...],
    what: str,
) -> Plan | None:
    """The plan that leaves *spans* out, with a marker where they begin; None if nothing more is
    left out, or nothing is freed.
    """
    gone = [index for first, end in spans for index in range(first, end) if view.shows(index)]
    if not gone:
        return None
    plan = planned(
        name,
        view,
        messages,
        budget,
        f"{len(gone)} messages left out, {what}",
        omitted=spans,
        injected=_marked(view, messages, spans),
        turns_compacted=len({messages[index].turn for index in gone}),
        figures={
            "messages_left_out": len(gone),
            "kept_before_tokens": kept_before_tokens(gone[0], view, messages, budget),
        },
    )
    return plan if plan.tokens_after < plan.tokens_before else None


@register
class NondestructiveTruncate(WaitingPolicy, frozen=True, kw_only=True):
    """Roo's sliding window: hides half of what is shown, behind the first message. One marker says
    how many messages are hidden.

    It begins above ``condense_limit_tokens``. If the provider refused the request, a quarter is
    hidden, up to three times.

    Not copied: a marker for each truncation, cutting calls from their results, and hiding the
    newest request. Exempt from G3: like the original, each plan hides one share.

    Raises InvalidConfig for an invalid setting.
    """

    name: ClassVar[str] = "nondestructive_truncate"
    exempt: ClassVar[frozenset[str]] = frozenset({"G3"})

    window_tokens: Count | None = None
    """The model's window in tokens. None: that of the session, or the limit."""
    max_tokens: Count | None = None
    """The room for the reply in tokens. None: that of the session, or 8,192."""
    fraction: Fraction = 0.5

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Is more used than is allowed in a window of *limit_tokens*?"""
        return self.due_for(Fill(used_tokens=used_tokens, limit_tokens=limit_tokens, messages=0))

    def due_for(self, fill: Fill) -> bool:
        """Is more used than is allowed?"""
        return fill.limit_tokens > 0 and fill.used_tokens > self.allowed(fill)

    def allowed(self, known: Fill | Budget) -> int:
        """How many tokens may be used."""
        reply = self.max_tokens or max(0, known.window - known.limit_tokens)
        return condense_limit_tokens(self.window_tokens or known.window, reply)

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """What to hide; None if there is too little."""
        spans = self.hidden(view, messages, budget)
        what = f"of {len(messages)}"
        return _truncation(self.name, view, messages, budget, spans=spans, what=what)

    def hidden(self, view: View, messages: Sequence[Message], budget: Budget) -> tuple[Span, ...]:
        """What is hidden: one share, or after a refusal as many quarters as needed to reach the
        limit.
        """
        if budget.trigger != "overflow":
            return _hidden(view, messages, self.fraction)
        spans: tuple[Span, ...] = ()
        before = budget.size(messages, view)
        for _ in range(FORCED_ROUNDS):
            now = replace(view, omitted=view.omitted + spans)
            freed = before - budget.size(messages, now)
            if budget.used_tokens - freed <= budget.limit_tokens:
                break
            spans += _hidden(now, messages, FORCED_FRACTION)
        return spans


SUMMARY_PERCENT, MIN_SUMMARY_TOKENS, MAX_SUMMARY_TOKENS = 6, 250, 6_000
"""The size of a summary: its percentage of the limit, and its bounds in tokens."""


@register
class NondestructiveCondense(WaitingPolicy, frozen=True, kw_only=True):
    """Roo's condensing: one summary replaces everything but the open step. The marker is that of
    ``nondestructive_truncate``.

    If the newest request stands before that step, it is repeated verbatim behind the summary (an
    injected text). A request with images or documents is not covered by the summary.

    It begins at ``percent`` of the window (or ``profile_percent``, if that is not -1), and above
    ``condense_limit_tokens`` in any case. If there is nothing to summarise, or that is not enough,
    half of the shown steps are hidden, too. A rewind to an earlier turn removes the summary and
    shows its messages again. Of several summaries the newest is shown.

    Not copied: folding the newest request and the open step; workflows and file signatures beside
    the summary; and using an empty summary. Exempt from G3: like the original, each plan hides one
    share.

    Raises InvalidConfig for an invalid setting.
    """

    name: ClassVar[str] = "nondestructive_condense"
    exempt: ClassVar[frozenset[str]] = frozenset({"G3"})

    window_tokens: int | None = None
    """The model's window in tokens. None: that of the session, or the limit."""
    max_tokens: int | None = None
    """The room for the reply in tokens. None: that of the session, or 8,192."""
    percent: Count = 100
    profile_percent: Whole = -1
    fraction: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self._truncate()  # check the settings that both policies have
        if self.profile_percent != -1 and not 5 <= self.profile_percent <= 100:
            raise InvalidConfig(
                f"profile_percent must be from 5 to 100, or -1, got {self.profile_percent}"
            )

    def _truncate(self) -> NondestructiveTruncate:
        return NondestructiveTruncate(
            window_tokens=self.window_tokens, max_tokens=self.max_tokens, fraction=self.fraction
        )

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Is the percentage of a window of *limit_tokens* reached, or more used than is allowed?"""
        return self.due_for(Fill(used_tokens=used_tokens, limit_tokens=limit_tokens, messages=0))

    def due_for(self, fill: Fill) -> bool:
        """Is the percentage reached, or more used than is allowed?"""
        window = self.window_tokens or fill.window
        percent = effective_percent(self.percent, self.profile_percent)
        reached = fill.limit_tokens > 0 and 100 * fill.used_tokens >= percent * window
        return reached or self._truncate().due_for(fill)

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """What to summarise and to hide; None if there is too little."""
        truncate = self._truncate()
        if budget.trigger == "overflow":
            plan = truncate.plan(view, messages, budget)
            return None if plan is None else replace(plan, policy=self.name)
        limit = min(
            MAX_SUMMARY_TOKENS,
            max(MIN_SUMMARY_TOKENS, budget.limit_tokens * SUMMARY_PERCENT // 100),
        )
        summary_request = self._wanted(view, messages, budget, limit)
        sizes = sizes_in_budget(view, messages, budget)
        gone = 0
        if summary_request is not None:
            repeated = summary_request.pinned
            again = text_tokens_for(repeated.text, budget.profile) if repeated else 0
            gone = sum(sizes[: summary_request.upto]) - limit - budget.scaled(again)
        if gone <= 0:
            summary_request, gone = None, 0
        spans: tuple[Span, ...] = ()
        if budget.used_tokens - gone > truncate.allowed(budget):
            spans = _hidden(
                view, messages, self.fraction, summary_request.upto if summary_request else 0
            )
        if summary_request is None:
            what = "none folded"
            return _truncation(self.name, view, messages, budget, spans=spans, what=what)
        return self._folded(
            view, messages, budget, summary_request=summary_request, spans=spans, gone=gone
        )

    def _wanted(
        self, view: View, messages: Sequence[Message], budget: Budget, limit: int
    ) -> SummaryRequest | None:
        """The request for a summary of everything before the open step; None for fewer than two
        messages.
        """
        upto = latest_cut(view, messages, budget, pins=True)
        if upto - view.start < 2:
            return None
        return SummaryRequest(
            first=view.start,
            upto=upto,
            max_tokens=limit,
            earlier=view.prefix_summary.text if view.prefix_summary else "",
            pinned=pin_of(messages, upto),
        )

    def _folded(
        self,
        view: View,
        messages: Sequence[Message],
        budget: Budget,
        *,
        summary_request: SummaryRequest,
        spans: tuple[Span, ...],
        gone: int,
    ) -> Plan:
        injected = _marked(view, messages, spans, summary_request.upto)
        plan = planned(
            self.name,
            view,
            messages,
            budget,
            f"a summary for the first {summary_request.upto} messages",
            summary_request=summary_request,
            omitted=spans,
            injected=None if injected == view.injected else injected,
            turns_compacted=len(
                {message.turn for message in messages[view.start : summary_request.upto]}
            ),
            figures={"kept_before_tokens": budget.frame_tokens},
        )
        return replace(plan, tokens_after=max(0, plan.tokens_after - gone))
