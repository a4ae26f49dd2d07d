"""Policies that want summaries, taken through conversations of a known size by the tests here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from llmsession.compaction.planning.policy import Budget, Policy
from llmsession.compaction.planning.prefix_summaries import extracted_summary, with_summary
from llmsession.compaction.view.plan import Plan, SummaryRequest
from llmsession.compaction.view.summary_wording import introduced
from llmsession.compaction.view.view import View
from llmsession.turns.messages import Message
from llmsession.turns.records import PrefixSummary
from llmsession.turns.request import Profile
from tests.compaction.conversations import Talk, required
from tests.compaction.policies import plans

PROFILE = Profile(chars_per_token=4.0)
"""Texts of ``4 * n`` characters are n tokens, and a message has 4 more."""


class After(NamedTuple):
    """A plan, filled, and the view after it."""

    plan: Plan
    view: View

    @property
    def summary_request(self) -> SummaryRequest:
        return required(self.plan.summary_request)


def said(tokens: int, word: str = "w") -> str:
    """A text of so many tokens: with its message's overhead, ``tokens``."""
    return (word * (4 * tokens))[: 4 * (tokens - 4)]


def chat(*tokens: int) -> Talk:
    """A user's and the model's words in turn, messages of so many tokens."""
    built = Talk()
    for at, each in enumerate(tokens):
        if at % 2 == 0:
            built.ask(said(each, "u"))
        else:
            built.reply(said(each, "a"))
    return built


def loop(steps: int, tokens: int = 1_000) -> Talk:
    """One open turn: a request, and so many steps with results of so many tokens."""
    return Talk().ask("look at all of it").step(said(tokens), times=steps)


def budget_for(
    messages: Sequence[Message], limit: int, *, view: View | None = None, **fields: Any
) -> Budget:
    """A budget of *limit* in the tokens of ``PROFILE``."""
    return plans.budget_for(messages, limit, view, **{"profile": PROFILE, **fields})


def planned(
    policy: Policy, messages: Sequence[Message], limit: int, view: View | None = None, **fields: Any
) -> Plan | None:
    """The plan of *policy* in the tokens of ``PROFILE``."""
    return plans.plan_of(policy, messages, limit, view, **{"profile": PROFILE, **fields})


def applied(
    policy: Policy,
    messages: Sequence[Message],
    limit: int,
    view: View | None = None,
    *,
    text: str | None = None,
    **fields: Any,
) -> After:
    """The plan of *policy*, with *text* as its summary, else one by rules, and what is shown."""
    view = view or View()
    budget = budget_for(messages, limit, view=view, **fields)
    plan = required(policy.plan(view, messages, budget))
    if plan.summary_request is None:
        return After(plan, view.applied(plan, len(messages)))
    prefix_summary = extracted_summary(plan.summary_request, messages, budget.profile)
    if text is not None:
        prefix_summary = PrefixSummary(plan.summary_request.upto, introduced(text), "model")
    filled = required(with_summary(plan, prefix_summary, view, messages, budget))
    return After(plan, view.applied(filled, len(messages)))


def left_without_summary(
    policy: Policy, messages: Sequence[Message], limit: int, **fields: Any
) -> Plan | None:
    """What is left of the plan where no summary came."""
    budget = budget_for(messages, limit, **fields)
    plan = required(policy.plan(View(), messages, budget))
    return with_summary(plan, None, View(), messages, budget)
