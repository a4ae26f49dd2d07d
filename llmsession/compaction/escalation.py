"""Shrinks a request that does not fit: policies are tried from the gentlest to the hardest.

Nothing here waits, so a summary that a policy asks for is made by rules and not by a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from llmsession.errors import contained
from llmsession.turns.messages import Message
from llmsession.turns.records import PrefixSummary
from llmsession.turns.request import Profile

from .planning.policy import Budget, Policy, checked_plan, is_worthwhile
from .planning.prefix_summaries import summary_by_rules, with_summary
from .policies.balanced import Balanced
from .view.plan import Plan, SummaryRequest
from .view.view import View

__all__ = ["escalation_of", "hardest_plan", "plan_by_rules"]


def escalation_of(policy: Policy) -> tuple[Policy, ...]:
    """*policy*, and the policies to try if it frees too little.

    These are the ones that its ``harder()`` names; without that method, two forms of ``Balanced``.
    """
    harder: Callable[[], tuple[Policy, ...]] | None = getattr(policy, "harder", None)
    if harder is not None:
        return (policy, *harder())
    return (policy, Balanced(), Balanced(keep_recent_turns=1, keep_recent_steps=2))


def plan_by_rules(
    policy: Policy,
    view: View,
    messages: Sequence[Message],
    budget: Budget,
    write: Callable[[SummaryRequest, Sequence[Message], Profile], PrefixSummary | None] = (
        summary_by_rules
    ),
) -> Plan | None:
    """The plan of *policy*, with its summary made by the rules *write*; None if it changes nothing.

    Raises what the policy raises.
    """
    plan = checked_plan(policy.plan(view, messages, budget), view, messages)
    if plan is None or plan.summary_request is None:
        return plan
    prefix_summary = write(plan.summary_request, messages, budget.profile)
    filled = with_summary(plan, prefix_summary, view, messages, budget)
    return checked_plan(filled, view, messages)


def hardest_plan(
    escalation: Sequence[Policy], view: View, messages: Sequence[Message], budget: Budget
) -> tuple[Plan | None, tuple[Exception, ...]]:
    """The first plan of *escalation* that brings the request within the limit.

    If none does, the plan that frees most is returned, or None if none frees anything. The second
    value holds the errors of policies that failed.
    """
    best: Plan | None = None
    errors: list[Exception] = []
    for policy in escalation:
        try:
            plan = plan_by_rules(policy, view, messages, budget)
        # a policy may be the user's code; go on to the next one, which is ours
        except BaseException as error:
            errors.append(contained(error))
            continue
        if plan is None or not is_worthwhile(plan, 0.0):
            continue
        if best is None or plan.tokens_after < best.tokens_after:
            best = replace(plan, trigger=budget.trigger)
        if plan.tokens_before - plan.tokens_after >= budget.used_tokens - budget.limit_tokens:
            break
    return best, tuple(errors)
