"""Policies whose summary is attached to a place: it replaces everything before that place.

The messages behind the place are shown themselves, and removing the summary shows everything again.
Here the summary is the view's prefix summary. Rewinds and forks clamp the view, so a branch that
does not reach the place has no summary of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from llmsession.compaction.planning.policy import Budget
from llmsession.compaction.planning.schedule import Fill
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.view import View
from llmsession.turns.messages import Message

from ..counting import sizes_in_budget
from ..limits import Amount, Count, portion
from ..prefixes import (
    SummaryPolicy,
    beside_tokens,
    cut_at_least,
    cut_at_most,
    latest_cut,
    note_behind_earlier,
    request_starts,
)
from ..registry import register

__all__ = [
    "AppendOnlyProjection",
    "AutoCompactThreshold",
    "CheckpointOnFirstKept",
    "compaction_buffer",
    "keep_recent_messages",
    "preflight_threshold",
    "tail_start",
]


@register
class CheckpointOnFirstKept(SummaryPolicy, frozen=True, kw_only=True):
    """Open WebUI: keeps the newest ``retain_percent`` of the messages, from a user's turn on, and
    summarises the rest.

    It is due past ``threshold_tokens`` (or the limit). The percentage is bounded to 10 to 50, and
    up to three messages are left alone. If the context would still be past the threshold, the place
    moves on by whole turns until it is not, or until only the last turn is left. A compaction on
    request keeps only the last turn. The summary stands first, not in the system text.

    Not copied: retention by count alone, which compacted again with every turn; places within a
    turn; failed summaries that stood there as cut lines.
    """

    name: ClassVar[str] = "checkpoint_on_first_kept"

    threshold_tokens: Count = 80_000
    retain_percent: int = 20
    min_messages: Count = 4
    summary_tokens: Count = 1_000

    def _threshold(self, limit_tokens: int) -> int:
        return min(self.threshold_tokens, limit_tokens) if limit_tokens > 0 else 0

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Is the threshold exceeded?"""
        threshold = self._threshold(limit_tokens)
        return threshold > 0 and used_tokens > threshold

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """The summary and its place; None without a user's turn to begin at."""
        path = len(messages) - view.start
        if path < self.min_messages:
            return None
        percent = max(10, min(self.retain_percent, 50))
        keep = max(2, path * percent // 100)
        latest = latest_cut(view, messages, budget)
        starts = [index for index in request_starts(messages, view.start + 1) if index <= latest]
        # A compaction on request keeps only the last turn.
        last = len(messages) if budget.trigger == "asked" else len(messages) - keep
        early = [index for index in starts if index <= last]
        upto = early[-1] if early else 0
        sizes = sizes_in_budget(view, messages, budget)
        beside = beside_tokens(sizes, view, budget) + self.summary_tokens
        threshold = self._threshold(budget.limit_tokens)
        for index in starts:
            if upto and index > upto and beside + sum(sizes[upto:]) > threshold:
                upto = index
        return self.summary(view, messages, budget, upto)


def compaction_buffer(left_tokens: int, max_tokens: int) -> int:
    """The room in tokens that Continue keeps for the compaction itself, if *left_tokens* are left
    beside a reply.
    """
    return min(max(max_tokens, -(-left_tokens * 20 // 100)), 15_000)


def _is_reached(used_tokens: int, left_tokens: int, max_tokens: int) -> bool:
    threshold = left_tokens - compaction_buffer(left_tokens, max_tokens)
    return threshold > 0 and used_tokens >= threshold


@register
class AutoCompactThreshold(SummaryPolicy, frozen=True, kw_only=True):
    """Continue's command line: from the threshold on everything becomes one summary, except the
    user's newest message and what has just arrived.

    A reply takes ``max_tokens``, or the room that the session keeps for it; if that is unknown, 35
    % of the window. It is never due if no threshold is left. A newest message of the user that
    stands before the last one is repeated verbatim behind the summary (an injected text). If it has
    images or documents, the summary ends before it instead.

    Not copied: the newest messages were dropped from the source of the summary, and the user's own
    was lost with the rest.
    """

    name: ClassVar[str] = "auto_compact_threshold"

    max_tokens: int | None = None

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Is the threshold of a window reached that leaves *limit_tokens* beside its reply?"""
        # A reply of 35 % of the window leaves 65 %.
        reply = self.max_tokens or min(-(-limit_tokens * 35 // 65), 64_000)
        return _is_reached(used_tokens, limit_tokens, reply)

    def due_for(self, fill: Fill) -> bool:
        """Is the threshold reached?"""
        if not fill.window_tokens:
            return self.due(fill.used_tokens, fill.limit_tokens)
        reply = self.max_tokens or fill.window_tokens - fill.limit_tokens
        left_tokens = min(fill.limit_tokens, fill.window_tokens - reply)
        return _is_reached(fill.used_tokens, left_tokens, reply)

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """One summary of everything that may be replaced."""
        upto = latest_cut(view, messages, budget, pins=True)
        return self.summary(view, messages, budget, upto, pins=True)


OMISSION_NOTE = "[Earlier conversation was omitted to fit the model's context window.]"


def preflight_threshold(
    window_tokens: int, ratio: float = 0.80, reserve_tokens: int | None = None
) -> int:
    """The number of tokens from which on Jan compacts: a share between 10 % and 99 % of the window,
    or what a fixed reserve leaves of it.
    """
    if reserve_tokens is not None:
        return window_tokens - reserve_tokens
    return portion(window_tokens, max(0.10, min(ratio, 0.99)))


def tail_start(messages: Sequence[Message], at: int) -> int:
    """Where a tail begins that should begin at *at*: behind the results there, or, if nothing
    stands behind them, at the calls that they answer.
    """
    start = max(0, min(at, len(messages)))
    forward = cut_at_least(messages, start)
    return forward if forward < len(messages) else cut_at_most(messages, start)


def keep_recent_messages(messages: Sequence[Message], keep: int = 8, start: int = 0) -> int | None:
    """The position up to which messages from *start* on are dropped, so that about *keep* remain.

    None if fewer than two would be dropped, because that is not worth a summary.
    """
    if len(messages) - start <= keep:
        return None
    cut = tail_start(messages, len(messages) - max(0, keep))
    return cut if cut - start >= 2 else None


@register
class AppendOnlyProjection(SummaryPolicy, frozen=True, kw_only=True):
    """Jan's agent: an append-only record and a pure projection of it.

    Above ``ratio`` of the window a summary covers all but the newest ``keep_messages``; on request
    it covers all but ``keep_asked``. Jan's events are our log and view: a compaction is a prefix
    summary, a prompt or reminder is an injected text, and the projection's prefix keeps its bytes
    until the next compaction.

    If the user's newest message is covered, it is repeated verbatim behind the summary. A message
    with images or documents is not covered. With ``notes_omission``, a note replaces a summary that
    cannot be written, behind an earlier summary if there is one.
    """

    name: ClassVar[str] = "append_only_projection"

    ratio: float = 0.80
    reserve_tokens: int | None = None
    keep_messages: Amount = 8
    keep_asked: Amount = 2
    notes_omission: bool = False

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Is the threshold of a window of *limit_tokens* reached?"""
        threshold = preflight_threshold(limit_tokens, self.ratio, self.reserve_tokens)
        return limit_tokens > 0 and used_tokens >= threshold

    def due_for(self, fill: Fill) -> bool:
        """Is the threshold reached, or the limit exceeded?"""
        return self.due(fill.used_tokens, fill.window) or fill.is_over

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """A summary of all but the newest messages; None for fewer than two."""
        keep = self.keep_asked if budget.trigger == "asked" else self.keep_messages
        cut = keep_recent_messages(messages, keep, view.start)
        latest = latest_cut(view, messages, budget, pins=True)
        upto = 0 if cut is None else min(cut, latest)
        note = note_behind_earlier(view, OMISSION_NOTE, lambda _: OMISSION_NOTE)
        fallback = note if self.notes_omission else ""
        return self.summary(view, messages, budget, upto, fallback=fallback, pins=True)
