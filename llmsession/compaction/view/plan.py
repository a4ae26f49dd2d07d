"""Plans: what a compaction would do, as a value, before anything is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from llmsession.turns.messages import Message
from llmsession.turns.records import CompactionApplied, Injected, PrefixSummary, Trigger
from llmsession.turns.request import Profile

from ..tokens.messages import context_tokens
from .view import View

__all__ = [
    "Budget",
    "Plan",
    "Policy",
    "SummaryRequest",
    "is_worthwhile",
    "measured",
    "plan_of",
    "planned",
    "record_of",
]


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy may know beside the messages."""

    used_tokens: int
    """The estimated size of the whole request, system text and tools included."""
    limit_tokens: int
    """What we allow ourselves, below the model's window."""
    summaries: Mapping[str, str] = {}
    """Call id -> its precomputed summary, without a header."""
    profile: Profile
    committed: int
    """How many messages are committed; those after them are the open turn's staged ones."""
    frame_tokens: int = 0
    """How much of ``used_tokens`` is the system text and the tools."""
    scale_permille: int = 1000
    """What a thousand tokens by characters are in the tokens of ``used_tokens``: how far this
    model's reported usage is from the estimate."""
    trigger: Trigger = "threshold"
    """Why a plan is asked for."""

    def scaled(self, tokens: int) -> int:
        """*tokens* by characters, in the tokens of ``used_tokens``."""
        return tokens * self.scale_permille // 1000

    def size(self, messages: Sequence[Message], view: View) -> int:
        """The estimated tokens of *messages* as *view* shows them, frame not included."""
        return self.scaled(context_tokens(messages, view, self.profile))


class SummaryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A summary that a plan would have in place of a prefix: of the messages from position
    ``first`` up to ``upto``, with ``earlier``, the text that stands for those before, in at most
    ``max_tokens``."""

    first: int
    upto: int
    max_tokens: int
    earlier: str = ""
    instructions: str = ""
    appendix: str = ""
    """What stands behind the summary, whoever writes it: what rules can say for certain."""
    fallback: str = ""
    """What stands instead where no summary comes, or none that is shorter than its source; the
    policy's own text by rules, without a title."""
    omitted: tuple[tuple[int, int], ...] = ()
    """The ranges that are left out together with it, or not at all."""
    pinned: Injected | None = None
    """What of the messages up to ``upto`` is said once more behind the summary, word for word:
    injected together with it, or not at all."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to show from now on: only what is new. Tokens are estimates of the messages.

    ``summary_request`` is a summary that somebody has to write first; the plan with its text is
    ``prefix_summary``. The other fields are as in ``compaction.applied``.
    """

    policy: str
    compacted_before: int
    shown_results: dict[str, str] = {}
    reason: str
    tokens_before: int
    tokens_after: int
    results_summarised: int = 0
    results_redacted: int = 0
    turns_compacted: int = 0
    voids_thinking: bool = True
    """Does an edit void the signed thinking made so far (the profile's ``binds_thinking``)?"""
    inputs: dict[str, msgspec.Raw] = {}
    texts: dict[str, str] = {}
    prefix_summary: PrefixSummary | None = None
    omitted: tuple[tuple[int, int], ...] = ()
    injected: tuple[Injected, ...] | None = None
    """All that is injected from now on; None leaves it as it is."""
    drops_thinking: bool = False
    """Leave out all thinking made so far, for its size."""
    trigger: Trigger = "threshold"
    figures: dict[str, int] = {}
    summary_request: SummaryRequest | None = None


_SHARED = tuple(
    name
    for name in Plan.__struct_fields__
    if name in CompactionApplied.__struct_fields__ and name != "injected"
)


def plan_of(record: CompactionApplied) -> Plan:
    """The plan that *record* says was applied."""
    fields = {name: getattr(record, name) for name in _SHARED}
    return Plan(**fields, injected=record.injected if record.sets_injected else None)


def record_of(plan: Plan) -> CompactionApplied:
    """The record of *plan*'s having been applied."""
    fields = {name: getattr(plan, name) for name in _SHARED}
    injected = plan.injected
    return CompactionApplied(**fields, injected=injected or (), sets_injected=injected is not None)


class Policy(Protocol):
    """A named way to compact. Pure: equal inputs give an equal plan."""

    @property
    def name(self) -> str:
        """What plans and records call it."""
        ...

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Is it time to ask for a plan, with so much of the limit used? Asked before each
        request, so it costs nothing that grows with the conversation."""
        ...

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """What to change, None if there is nothing. *messages* is history and staged."""
        ...


def planned(
    policy: str,
    view: View,
    messages: Sequence[Message],
    budget: Budget,
    did: str,
    **changes: Any,
) -> Plan:
    """The plan of *policy* that makes *changes*, by the names of the fields of a ``Plan``; *did*
    says in words what they are. What every plan says beside them is filled in, and its tokens are
    counted, unless *changes* give them."""
    fields = {
        "compacted_before": view.compacted_before,
        "reason": f"{budget.used_tokens:,} of {budget.limit_tokens:,} tokens used; {did}",
        "voids_thinking": budget.profile.binds_thinking,
        "trigger": budget.trigger,
        "tokens_before": 0,
        "tokens_after": 0,
        **changes,
    }
    plan = Plan(policy=policy, **fields)
    return plan if "tokens_after" in changes else measured(plan, view, messages, budget)


def measured(plan: Plan, view: View, messages: Sequence[Message], budget: Budget) -> Plan:
    """*plan* with the tokens of *messages* before and after it counted."""
    return msgspec.structs.replace(
        plan,
        tokens_before=budget.size(messages, view),
        tokens_after=budget.size(messages, view.applied(plan, len(messages))),
    )


def is_worthwhile(plan: Plan, min_gain: float = 0.05) -> bool:
    """Does *plan* free at least *min_gain* of the tokens before it, and at least one?"""
    gain = plan.tokens_before - plan.tokens_after
    return gain > 0 and gain >= min_gain * plan.tokens_before
