"""When a policy is asked for a plan, and what of its plan is applied: one set of rules, for a live
session and for a replay.

A policy that waits for the provider's cache is planned ahead, and its plan is applied where a new
prompt costs little: ``cache_economics``. Any other keeps a limit of its own: where it is due,
the request waits for its plan, and is built from what the plan leaves. A policy that injects is
asked before each request.
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
"""What a configuration may force on every policy; None leaves it to the policy."""


class Fill(msgspec.Struct, frozen=True, kw_only=True):
    """How full a context is, as a policy with a limit of its own may ask."""

    used_tokens: int
    """The estimated size of the whole request, system text and tools included."""
    limit_tokens: int
    """What we allow ourselves, below the model's window."""
    window_tokens: int = 0
    """The model's window, the room for the reply included; 0 where nobody says."""
    messages: int
    """How many messages are shown themselves; a summary is none."""

    @property
    def window(self) -> int:
        """The model's window, or the limit where nobody says how large that is."""
        return self.window_tokens or self.limit_tokens

    @property
    def is_over(self) -> bool:
        """Is more used than the limit?"""
        return self.used_tokens > self.limit_tokens > 0


def fill_of(
    view: View, count: int, *, used_tokens: int, limit_tokens: int, window_tokens: int = 0
) -> Fill:
    """How full a context of *count* messages is that *view* shows. It costs nothing that grows with
    the conversation but the ranges that are left out."""
    start = view.start
    omitted = sum(max(0, end - max(first, start)) for first, end in view.omitted)
    return Fill(
        used_tokens=used_tokens,
        limit_tokens=limit_tokens,
        window_tokens=window_tokens,
        messages=max(0, count - start - omitted),
    )


def is_due(policy: Policy, fill: Fill) -> bool:
    """Is it time to ask *policy* for a plan? By its ``due_for`` where it has one, else by ``due``.
    Raises what the policy raises."""
    due_for = getattr(policy, "due_for", None)
    if due_for is not None:
        return bool(due_for(fill))
    return bool(policy.due(fill.used_tokens, fill.limit_tokens))


def _declared_waiting(policy: Policy) -> bool:
    return bool(getattr(policy, "waits_for_cache", True))


def waits_for_cache(policy: Policy, schedule: Schedule | None) -> bool:
    """Is a plan of *policy* held until the provider's cache makes a new prompt cheap? A policy that
    declares nothing waits."""
    return schedule == "cache" or (schedule is None and _declared_waiting(policy))


def keeps_own_limit(policy: Policy, schedule: Schedule | None) -> bool:
    """Does a request wait for the plan of *policy* where that is due? A policy that would wait for
    the cache is only planned beside the reply, also where the schedule is "at_once"."""
    return schedule != "cache" and not _declared_waiting(policy)


def injects(policy: Policy) -> bool:
    """Does *policy* put texts into requests, so that it is asked before each of them?"""
    return bool(getattr(policy, "injects", False))


class Asking(msgspec.Struct, frozen=True):
    """When one policy is asked for plans. It is read once for a configuration, not at each
    request."""

    waits_for_cache: bool
    keeps_own_limit: bool
    injects: bool
    """All three as the functions of these names say."""
    is_by_tokens: bool
    """Does ``due`` alone say when it is due? Then nobody has to count messages for a ``Fill``."""

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
    """Why the next request waits for a plan of *policy*: "threshold" where the policy's own limit
    is reached, "injection" where only what it injects may be due; None: the request does not
    wait. Raises what the policy raises."""
    if keeps_own_limit(policy, schedule) and is_due(policy, fill):
        return "threshold"
    return "injection" if injects(policy) else None


def trigger_before_request(
    plan: Plan | None, policy: Policy, view: View, asked: Trigger
) -> Trigger | None:
    """Why *plan*, which the next request waits for, is applied: it frees something
    ("policy_limit"), or changes what is injected ("injection"). None: it does neither, and is
    not applied. How much it frees does not matter: a window that rolls frees little each time.
    *asked* is why it was made; a text may only become shorter."""
    if plan is None:
        return None
    adds = injects(policy) and plan.injected is not None and plan.injected != view.injected
    # Where only an injection was asked for, nothing else is a reason.
    if asked != "injection" and is_worthwhile(plan, 0.0):
        return "policy_limit"
    return "injection" if adds else None
