"""What the policies share that put texts into requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec.structs import replace

from llmsession.compaction.planning.boundaries import injection_voids
from llmsession.compaction.planning.policy import Budget, Policy, planned
from llmsession.compaction.planning.schedule import Fill, injects, is_due, waits_for_cache
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.view import View
from llmsession.turns.messages import Message
from llmsession.turns.records import Injected

from .base import WaitingPolicy
from .registry import policy_kinds

__all__ = ["InjectingPolicy", "WithoutStale", "outside_of", "with_stale_left_out"]


class InjectingPolicy(WaitingPolicy, frozen=True, kw_only=True):
    """A policy that puts texts into requests and leaves nothing out. Exempt from G7, because it
    adds.
    """

    name: ClassVar[str]
    exempt: ClassVar[frozenset[str]] = frozenset({"G7"})
    injects: ClassVar[bool] = True
    marks: ClassVar[tuple[str, ...]] = ()
    """The beginnings of its texts, by which it recognises them in a view."""

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Always False: it frees nothing. It is asked before each request nevertheless."""
        return False

    def injected(
        self,
        view: View,
        messages: Sequence[Message],
        budget: Budget,
        items: Sequence[Injected],
        did: str,
    ) -> Plan | None:
        """The plan that injects *items* in place of its own earlier texts; None if nothing changes.
        *did* says in words what changes.
        """
        others = outside_of(view.injected, self.marks)
        after = tuple(sorted([*others, *items], key=lambda item: item.at))
        if after == view.injected:
            return None
        voids = budget.profile.binds_thinking and injection_voids(view, messages, after)
        return planned(self.name, view, messages, budget, did, injected=after, voids_thinking=voids)


def outside_of(injected: Sequence[Injected], marks: tuple[str, ...]) -> tuple[Injected, ...]:
    """Those of *injected* that begin with none of *marks*."""
    return tuple(item for item in injected if not item.text.startswith(marks))


def with_stale_left_out(policy: Policy, view: View) -> Policy:
    """*policy*, wrapped if *view* still holds texts of a policy that is not in use any more. The
    wrapper removes these texts, too.
    """
    if not view.injected:  # true for nearly every session, and this is asked before each request
        return policy
    stale = tuple(_marks_known() - set(getattr(policy, "marks", ())))
    return WithoutStale(policy, stale) if _has(view.injected, stale) else policy


def _marks_known() -> set[str]:
    # A pipeline's marks are those of its stages; its class has none.
    marks = (getattr(kind, "marks", ()) for kind in policy_kinds())
    return {mark for own in marks if isinstance(own, tuple) for mark in own}


def _has(injected: Sequence[Injected], marks: tuple[str, ...]) -> bool:
    return any(item.text.startswith(marks) for item in injected)


class WithoutStale:
    """Runs *policy*, and removes the texts that begin with *marks* as well."""

    injects = True

    def __init__(self, policy: Policy, marks: tuple[str, ...]) -> None:
        self.name = policy.name
        self.waits_for_cache = waits_for_cache(policy, None)
        self._policy = policy
        self._marks = marks

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """As the wrapped policy."""
        return self._policy.due(used_tokens, limit_tokens)

    def due_for(self, fill: Fill) -> bool:
        """As the wrapped policy."""
        return is_due(self._policy, fill)

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """The wrapped policy's plan, without the stale texts."""
        left = outside_of(view.injected, self._marks)
        before = replace(view, injected=left)
        asks = budget.trigger != "injection" or injects(self._policy)
        plan = self._policy.plan(before, messages, budget) if asks else None
        voids = budget.profile.binds_thinking and injection_voids(view, messages, left)
        if plan is None:
            did = "what another policy injected goes"
            return planned(
                self.name, view, messages, budget, did, injected=left, voids_thinking=voids
            )
        injected = left if plan.injected is None else plan.injected
        return replace(plan, injected=injected, voids_thinking=plan.voids_thinking or voids)
