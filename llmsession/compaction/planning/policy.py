"""Policies: what one is asked, what it may know, and how its plan is made and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from llmsession.turns.messages import Message
from llmsession.turns.records import CompactionApplied, Trigger, decode_record, encode_record
from llmsession.turns.request import Profile

from ..tokens.messages import context_tokens
from ..view.plan import Plan, plan_of, record_of
from ..view.view import View

__all__ = ["Budget", "Policy", "checked_plan", "is_worthwhile", "measured", "planned"]


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy may know beside the messages."""

    used_tokens: int
    """The estimated size of the whole request, system text and tools included."""
    limit_tokens: int
    """What we allow ourselves, below the model's window."""
    window_tokens: int = 0
    """The model's window, the room for the reply included; 0 where nobody says."""
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
    """Why a plan is asked for: "threshold" where the policy itself is due, "injection" where it is
    not, but may have something to inject."""

    @property
    def window(self) -> int:
        """The model's window, or the limit where nobody says how large that is."""
        return self.window_tokens or self.limit_tokens

    def scaled(self, tokens: int) -> int:
        """*tokens* by characters, in the tokens of ``used_tokens``."""
        return tokens * self.scale_permille // 1000

    def size(self, messages: Sequence[Message], view: View) -> int:
        """The estimated tokens of *messages* as *view* shows them, frame not included."""
        return self.scaled(context_tokens(messages, view, self.profile))


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
    policy: str, view: View, messages: Sequence[Message], budget: Budget, did: str, **changes: Any
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


def checked_plan(plan: object, view: View, messages: Sequence[Message]) -> Plan | None:
    """*plan* of a policy, which may be anybody's, for *messages* as *view* shows them. It is as it
    comes back from the log, and can be applied. Raises an Exception that says why not."""
    if plan is None:
        return None
    if not isinstance(plan, Plan):
        raise TypeError(f"a plan is a Plan or None, not {type(plan).__name__}")
    record = record_of(plan)
    logged = decode_record(encode_record(record))
    if isinstance(logged, CompactionApplied) and logged != record:
        plan = msgspec.structs.replace(plan_of(logged), summary_request=plan.summary_request)
    view.applied(plan, len(messages))
    return plan


def is_worthwhile(plan: Plan, min_gain: float = 0.05) -> bool:
    """Does *plan* free at least *min_gain* of the tokens before it, and at least one?"""
    gain = plan.tokens_before - plan.tokens_after
    return gain > 0 and gain >= min_gain * plan.tokens_before
