"""The protocol of policies, the budget that a policy is given, and how its plan is made and
measured.
"""

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
    """What a policy is given beside the messages."""

    used_tokens: int
    """The estimated size of the whole request, including system text and tools, in tokens."""
    limit_tokens: int
    """The size that we allow a request, below the model's window, in tokens."""
    window_tokens: int = 0
    """The model's window in tokens, including the room for the reply; 0 if it is unknown."""
    summaries: Mapping[str, str] = {}
    """Precomputed summaries of tool results, without a header, by call id."""
    profile: Profile
    committed: int
    """How many messages are committed. The messages after them belong to the open turn."""
    frame_tokens: int = 0
    """How many of ``used_tokens`` are system text and tools."""
    scale_permille: int = 1000
    """Converts tokens that are estimated by characters into those of ``used_tokens``: a thousand of
    the former are this many of the latter. It shows how far this model's reported usage is from the
    estimate.
    """
    trigger: Trigger = "threshold"
    """Why a plan is asked for. "threshold": the policy is due. "injection": it is not due, but may
    have something to inject.
    """

    @property
    def window(self) -> int:
        """The model's window in tokens, or the limit if the window is unknown."""
        return self.window_tokens or self.limit_tokens

    def scaled(self, tokens: int) -> int:
        """*tokens*, estimated by characters, in the tokens of ``used_tokens``."""
        return tokens * self.scale_permille // 1000

    def size(self, messages: Sequence[Message], view: View, *, end: int | None = None) -> int:
        """The estimated tokens of *messages*, or of those before position *end*, as *view* shows
        them, without system text and tools.
        """
        return self.scaled(context_tokens(messages, view, self.profile, end=end))


class Policy(Protocol):
    """A named way to compact. Pure: equal inputs give an equal plan."""

    @property
    def name(self) -> str:
        """The name in plans and records."""
        ...

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Is it time to ask for a plan, given how much of the limit is used?

        Asked before each request, so its cost must not grow with the conversation.
        """
        ...

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """What to change; None if there is nothing to change. *messages* are the committed messages
        and those of the open turn.
        """
        ...


def planned(
    policy: str, view: View, messages: Sequence[Message], budget: Budget, did: str, **changes: Any
) -> Plan:
    """The plan of *policy* that makes *changes*.

    The names of *changes* are fields of a ``Plan``. *did* describes them in words. The other fields
    are filled in, and the tokens are counted unless *changes* give them.
    """
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
    """*plan*, with the tokens of *messages* before and after it counted."""
    return msgspec.structs.replace(
        plan,
        tokens_before=budget.size(messages, view),
        tokens_after=budget.size(messages, view.applied(plan, len(messages))),
    )


def checked_plan(plan: object, view: View, messages: Sequence[Message]) -> Plan | None:
    """*plan* of a policy, after a check that it can be applied to *messages* as *view* shows them.

    The policy may be anybody's code. The plan is returned as it would come back from the log.
    Raises an Exception that says what is wrong.
    """
    if plan is None:
        return None
    if not isinstance(plan, Plan):
        raise TypeError(f"a policy must return a Plan or None, not {type(plan).__name__}")
    # Encode and decode the plan, so that a live session and a reloaded one apply the same.
    record = record_of(plan)
    logged = decode_record(encode_record(record))
    if isinstance(logged, CompactionApplied) and logged != record:
        plan = msgspec.structs.replace(plan_of(logged), summary_request=plan.summary_request)
    view.applied(plan, len(messages))
    return plan


def is_worthwhile(plan: Plan, min_gain: float = 0.05) -> bool:
    """Does *plan* free at least the share *min_gain* of the tokens before it, and at least one
    token?
    """
    gain = plan.tokens_before - plan.tokens_after
    return gain > 0 and gain >= min_gain * plan.tokens_before
