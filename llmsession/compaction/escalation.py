"""A request that has to shrink now: policies from the gentlest to the hardest, and what they give.

Nothing here waits, so a summary that one of them wants is made by rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from llmsession.turns.messages import Message

from .planning.policy import Budget, Policy, is_worthwhile
from .planning.prefix_summaries import extracted_summary, with_summary
from .policies.balanced import Balanced
from .view.plan import Plan
from .view.view import View

__all__ = ["escalation_of", "hardest_plan", "plan_by_rules"]


def escalation_of(policy: Policy) -> tuple[Policy, ...]:
    """*policy*, and what is tried where it is not enough: its own ``harder()``, if it has that."""
    harder: Callable[[], tuple[Policy, ...]] | None = getattr(policy, "harder", None)
    if harder is not None:
        return (policy, *harder())
    return (policy, Balanced(), Balanced(keep_recent_turns=1, keep_recent_steps=2))


def plan_by_rules(
    policy: Policy, view: View, messages: Sequence[Message], budget: Budget
) -> Plan | None:
    """The plan of *policy*, with the summary that it wants made by rules. Raises what it raises."""
    plan = policy.plan(view, messages, budget)
    if plan is None or plan.summary_request is None:
        return plan
    prefix_summary = extracted_summary(plan.summary_request, messages, budget.profile)
    return with_summary(plan, prefix_summary, view, messages, budget)


def hardest_plan(
    escalation: Sequence[Policy], view: View, messages: Sequence[Message], budget: Budget
) -> tuple[Plan | None, tuple[Exception, ...]]:
    """The first plan of *ladder* that brings the request within the limit, else the one that frees
    most, None if nothing frees anything; and what was raised by policies that were passed over."""
    best: Plan | None = None
    faults: list[Exception] = []
    for policy in escalation:
        try:
            made = plan_by_rules(policy, view, messages, budget)
        except Exception as error:  # a policy may be anybody's code, the next is ours
            faults.append(error)
            continue
        if made is None or not is_worthwhile(made, 0.0):
            continue
        if best is None or made.tokens_after < best.tokens_after:
            best = replace(made, trigger=budget.trigger)
        if made.tokens_before - made.tokens_after >= budget.used_tokens - budget.limit_tokens:
            break
    return best, tuple(faults)
