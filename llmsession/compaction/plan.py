"""Plans: what a compaction would do, as a value, before anything is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from llmsession.turns.messages import Message
from llmsession.turns.records import CompactionApplied
from llmsession.turns.request import Profile

from .view import View

__all__ = ["Budget", "Plan", "Policy", "plan_of", "worth"]


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy may know beside the messages."""

    used_tokens: int
    """The estimated size of the whole request, system text and tools included."""
    limit_tokens: int
    """What we allow ourselves, below the model's window."""
    summaries: Mapping[str, str]
    """Call id -> its precomputed summary, without a header."""
    profile: Profile
    committed: int
    """How many messages are committed; those after them are the open turn's staged ones."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to show from now on. Tokens are character estimates of the messages."""

    policy: str
    frontier: int
    """Tool results of messages before this position are shown in compact form."""
    frozen: dict[str, str]
    """New entries only: call id -> the whole compact text as it is shown."""
    reason: str
    tokens_before: int
    tokens_after: int
    results_summarised: int = 0
    results_redacted: int = 0
    turns_compacted: int = 0
    voids_thinking: bool = True
    """Does an edit void the signed thinking made so far (the profile's ``binds_thinking``)?"""


def plan_of(record: CompactionApplied) -> Plan:
    """The plan that *record* says was applied."""
    return Plan(
        policy=record.policy,
        frontier=record.frontier,
        frozen=record.frozen,
        reason=record.reason,
        tokens_before=record.tokens_before,
        tokens_after=record.tokens_after,
        results_summarised=record.results_summarised,
        results_redacted=record.results_redacted,
        turns_compacted=record.turns_compacted,
        voids_thinking=record.voids_thinking,
    )


class Policy(Protocol):
    """A named way to compact. Pure: equal inputs give an equal plan."""

    @property
    def name(self) -> str:
        """What plans and records call it."""
        ...

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """What to change, None if there is nothing. *messages* is history and staged."""
        ...


def worth(plan: Plan, min_gain: float = 0.05) -> bool:
    """Does *plan* free at least *min_gain* of the tokens before it, and at least one?"""
    gain = plan.tokens_before - plan.tokens_after
    return gain > 0 and gain >= min_gain * plan.tokens_before
