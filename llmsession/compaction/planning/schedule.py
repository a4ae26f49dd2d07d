"""When a policy is asked for a plan, and which of its plans are applied.

A live session and a replay follow the same rules:

- A policy that waits for the provider's cache is planned ahead. Its plan is applied when a new
  prompt costs little: see ``cache_economics``.
- Any other policy has a limit of its own. When it is due, the request waits for its plan and is
  built from the result.
- A policy that injects texts is asked before each request.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from llmsession.turns.records import Trigger

from ..view.plan import Plan
from ..view.view import View
from .policy import Policy, is_worthwhile

__all__ = [
    "Asking",
    "Fill",
    "Schedule",
    "asking_of",
    "fill_of",
    "injects",
    "is_due",
    "keeps_own_limit",
    "need_of",
    "trigger_before_request",
    "waits_for_cache",
]

Schedule: TypeAlias = Literal["cache", "at_once"]
"""The schedule that a configuration may force on every policy; None leaves it to the policy."""


class Fill(msgspec.Struct, frozen=True, kw_only=True):
    """How full a context is, for a policy with a limit of its own."""

    used_tokens: int
    """The estimated size of the whole request, including system text and tools, in tokens."""
    limit_tokens: int
    """The size that we allow a request, below the model's window, in tokens."""
    window_tokens: int = 0
    """The model's window in tokens, including the room for the reply; 0 if it is unknown."""
    messages: int
    """How many messages are shown. A summary is not a message."""

    @property
    def window(self) -> int:
        """The model's window in tokens, or the limit if the window is unknown."""
        return self.window_tokens or self.limit_tokens

    @property
    def is_over(self) -> bool:
        """Is more used than the limit?"""
        return self.used_tokens > self.limit_tokens > 0


def fill_of(
    view: View, count: int, *, used_tokens: int, limit_tokens: int, window_tokens: int = 0
) -> Fill:
    """How full a context of *count* messages is, as *view* shows them.

    The cost grows with the number of ranges that are left out, not with the conversation.
    """
    start = view.start
    omitted = sum(max(0, end - max(first, start)) for first, end in view.omitted)
    return Fill(
        used_tokens=used_tokens,
        limit_tokens=limit_tokens,
        window_tokens=window_tokens,
        messages=max(0, count - start - omitted),
    )


def is_due(policy: Policy, fill: Fill) -> bool:
    """Is it time to ask *policy* for a plan?

    Calls its ``due_for`` if it has one, else its ``due``. Raises what the policy raises.
    """
    due_for = getattr(policy, "due_for", None)
    if due_for is not None:
        return bool(due_for(fill))
    return bool(policy.due(fill.used_tokens, fill.limit_tokens))


def _declared_waiting(policy: Policy) -> bool:
    return bool(getattr(policy, "waits_for_cache", True))


def waits_for_cache(policy: Policy, schedule: Schedule | None) -> bool:
    """Is a plan of *policy* held until the provider's cache makes a new prompt cheap? A policy that
    declares nothing waits.
    """
    return schedule == "cache" or (schedule is None and _declared_waiting(policy))


def keeps_own_limit(policy: Policy, schedule: Schedule | None) -> bool:
    """Does a request wait for the plan of *policy* when the policy is due?

    A policy that would wait for the cache never makes a request wait: under "at_once", too, it is
    only planned while the reply is streaming.
    """
    return schedule != "cache" and not _declared_waiting(policy)


def injects(policy: Policy) -> bool:
    """Does *policy* put texts into requests, so that it must be asked before each of them?"""
    return bool(getattr(policy, "injects", False))


class Asking(msgspec.Struct, frozen=True):
    """When one policy is asked for plans. Read once for a configuration, not at each request."""

    waits_for_cache: bool
    keeps_own_limit: bool
    injects: bool
    """The results of the three functions with these names."""
    is_by_tokens: bool
    """Does ``due`` alone decide whether it is due? Then no messages have to be counted for a
    ``Fill``.
    """

    @property
    def is_before_requests(self) -> bool:
        """May a request have to wait for a plan?"""
        return self.keeps_own_limit or self.injects


def asking_of(policy: Policy, schedule: Schedule | None) -> Asking:
    """When *policy* is asked under *schedule*. Raises what the policy raises."""
    return Asking(
        waits_for_cache(policy, schedule),
        keeps_own_limit(policy, schedule),
        injects(policy),
        getattr(policy, "due_for", None) is None,
    )


def need_of(policy: Policy, schedule: Schedule | None, fill: Fill) -> Trigger | None:
    """Why the next request waits for a plan of *policy*; None if it does not wait.

    "threshold": the policy's own limit is reached. "injection": only its injected texts may change.
    Raises what the policy raises.
    """
    if keeps_own_limit(policy, schedule) and is_due(policy, fill):
        return "threshold"
    return "injection" if injects(policy) else None


def trigger_before_request(
    plan: Plan | None, policy: Policy, view: View, asked: Trigger
) -> Trigger | None:
    """Why *plan*, which the next request waits for, is applied; None if it is not applied.

    "policy_limit": it frees something. "injection": it changes what is injected. How much it frees
    does not matter, because a rolling window frees little each time. *asked* says why the plan was
    made. An injection that only makes a text shorter is still an "injection".
    """
    if plan is None:
        return None
    adds = injects(policy) and plan.injected is not None and plan.injected != view.injected
    # If only an injection was asked for, nothing else is a reason to apply the plan.
    if asked != "injection" and is_worthwhile(plan, 0.0):
        return "policy_limit"
    return "injection" if adds else None
