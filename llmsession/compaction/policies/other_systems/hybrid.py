"""``hybrid_60_80_90`` and its rival: first leave out, then summarise, then warn.

Source: a research note of ChainReview, which never shipped it. Its two versions contradict each
other; the second one is the rival preset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, TypeAlias

from llmsession.compaction.planning.boundaries import has_own_words, turns_from
from llmsession.compaction.planning.policy import Budget
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.view import View
from llmsession.errors import InvalidConfig
from llmsession.turns.messages import Message

from ..base import WaitingPolicy
from ..composing import absorb_all, pipeline
from ..drafts import Draft, summary_cut
from ..limits import Count, Fraction, portion, reached
from ..prefixes import request_starts
from ..registry import register
from ..spans import spans_between
from ..strip_thinking import StripThinking
from .reads import FileReadDedupe

__all__ = ["Action", "Hybrid7060", "Hybrid608090", "hybrid_action", "hybrid_budget"]

MAX_OUT_TOKENS = 16_000
RESERVE_TOKENS = 40_000
SUMMARY_TOKENS = 2_000
_DUE_SHARE = 0.20

_CHEAPER = pipeline(FileReadDedupe(), StripThinking())
"""What is left out before any messages are."""

Action: TypeAlias = Literal["none", "truncate", "condense"]


def hybrid_budget(
    window_tokens: int, system_tokens: int, query_tokens: int, max_out_tokens: int = MAX_OUT_TOKENS
) -> int | None:
    """How many tokens of a window the history may take; None if nothing is left for it."""
    room = max(window_tokens - RESERVE_TOKENS, window_tokens * 8 // 10)
    left = room - system_tokens - query_tokens - max_out_tokens
    return left if left > 0 else None


def hybrid_action(
    history_tokens: int, budget_tokens: int, shares: tuple[float, float, float] = (0.60, 0.80, 0.90)
) -> tuple[Action, bool]:
    """What to do with a history of *history_tokens*, and whether to warn."""
    truncates, condenses, warns = (
        reached(history_tokens, budget_tokens, share) for share in shares
    )
    return "condense" if condenses else "truncate" if truncates else "none", warns


def _budget_of(draft: Draft) -> tuple[int, int] | None:
    """How many tokens the history may take, and how many it takes; None if there is no room at all.

    The question is the newest message, if it is the user's. The result is never more than the
    session allows.
    """
    messages, budget = draft.messages, draft.budget
    is_request = bool(messages) and has_own_words(messages[-1]) and draft.shows(len(messages) - 1)
    query = draft.sizes[-1] if is_request else 0
    window_tokens = budget.window_tokens or budget.profile.window_tokens
    room = hybrid_budget(window_tokens, draft.rest, query)
    allowed = budget.limit_tokens - draft.rest - query
    if room is None or allowed <= 0:
        return None
    return min(room, allowed), draft.used - draft.rest - query


@register
class Hybrid608090(WaitingPolicy, frozen=True, kw_only=True):
    """``hybrid_60_80_90``: leaves out the oldest 30 % of the messages from 60 % on, summarises all
    but the newest five turns from 80 % on, and suggests a new session from 90 % on.

    Cheaper things are left out first: older reads of a file that was read again, and thinking.
    Messages are only left out if the rest is still at 60 %, and summarised if it is still at 80 %.
    A new session is suggested by the size before all this: with ``suggest_new_session`` in the
    figures of the record, and ``context.warning`` of the next request.

    The shares refer to a budget of its own for the history, ``hybrid_budget``, and to what is
    shown. How much to cut is counted over all messages, so nothing is cut twice without new ones.
    After a summary the size is measured again: what is still at 60 % is cut, too, and what is over
    the budget loses its oldest messages. If no model writes a summary, rules do.

    Raises InvalidConfig for an invalid setting.
    """

    name: ClassVar[str] = "hybrid_60_80_90"
    due_from: ClassVar[float] = _DUE_SHARE

    truncate_at: Fraction = 0.60
    condense_at: Fraction = 0.80
    warn_at: Fraction = 0.90
    keep_share: Fraction = 0.70
    keep_turns: Count = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.truncate_at <= self.condense_at <= self.warn_at:
            raise InvalidConfig(
                "truncate_at, condense_at and warn_at must grow in this order, got"
                f" {self.truncate_at}, {self.condense_at}, {self.warn_at}"
            )

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """What to do at this share of the budget; None below 60 %, and without any room."""
        draft = Draft(view, messages, budget)
        known = _budget_of(draft)
        if known is None:
            return None
        room, history = known
        shares = (self.truncate_at, self.condense_at, self.warn_at)
        action, warns = hybrid_action(history, room, shares)
        if action == "none":
            return None
        ran = absorb_all(draft, _CHEAPER.policies)
        action, _ = hybrid_action(draft.used - (budget.used_tokens - history), room, shares)
        if action == "condense" and not draft.condense(self._turns_cut(draft), SUMMARY_TOKENS):
            action = "truncate"
        left = draft.used - (budget.used_tokens - history)
        if reached(left, room, self.truncate_at):
            draft.omit(spans_between(draft.start, self._share_cut(messages), ()))
        limit = budget.used_tokens - history + room
        if draft.used > limit:
            draft.keep_newest(limit)
        did = ", ".join([*ran, *([] if action == "none" else [action])])
        text = "; a new session is suggested" if warns else ""
        return draft.plan(
            self.name, f"{did} at {history:,} of {room:,} tokens{text}",
            suggest_new_session=int(warns),
        )  # fmt: skip

    def _turns_cut(self, draft: Draft) -> int:
        return summary_cut(draft, turns_from(draft.messages, self.keep_turns))

    def _share_cut(self, messages: Sequence[Message]) -> int:
        """Where the newest 70 % begin, or the request that they belong to."""
        index = portion(len(messages), 1 - self.keep_share)
        return max((start for start in request_starts(messages) if start <= index), default=0)


@register
class Hybrid7060(WaitingPolicy, frozen=True, kw_only=True):
    """``hybrid_70_60``, the rival preset: from 70 % on a summary replaces the oldest 60 % of the
    messages, and the newest 40 % stay unchanged.

    The budget is that of ``hybrid_60_80_90``, and what is still over it is left out, too. If no
    model writes a summary, rules do. Raises InvalidConfig for an invalid setting.
    """

    name: ClassVar[str] = "hybrid_70_60"
    due_from: ClassVar[float] = _DUE_SHARE

    condense_at: Fraction = 0.70
    fold_share: Fraction = 0.60

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """The summary; None below 70 %, and without any room."""
        draft = Draft(view, messages, budget)
        known = _budget_of(draft)
        if known is None or not reached(known[1], known[0], self.condense_at):
            return None
        room, history = known
        folds = draft.condense(self._cut(draft), SUMMARY_TOKENS)
        limit = budget.used_tokens - history + room
        if draft.used > limit:
            draft.keep_newest(limit)
        action = "condense" if folds else "truncate"
        return draft.plan(self.name, f"{action} at {history:,} of {room:,} tokens")

    def _cut(self, draft: Draft) -> int:
        """Where three fifths of the shown messages end. It is the beginning if no messages came
        since the last summary.
        """
        summaries, count = draft.view.prefix_summaries, len(draft.messages)
        folded_from = summaries[-2].upto if len(summaries) > 1 else 0
        last = folded_from + portion(count - folded_from, self.fold_share)
        if summary_cut(draft, last) <= draft.start:
            return draft.start
        return summary_cut(draft, draft.start + portion(count - draft.start, self.fold_share))
