"""Asking a policy for a plan, in the tests of policies: one token a character, four a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from llmsession.compaction.planning.policy import Budget, Policy
from llmsession.compaction.planning.prefix_summaries import extracted_summary, with_summary
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.projection import project
from llmsession.compaction.view.view import View
from llmsession.turns.messages import Message
from llmsession.turns.request import Profile
from tests.compaction.conversations import FRAME, Talk, required, sent

PLAIN = Profile(chars_per_token=1.0)


def plain(*tokens: int) -> Talk:
    """A user's and the model's words in turn, messages of so many tokens."""
    built = Talk()
    for index, count in enumerate(tokens):
        words = "x" * (count - 4)
        built = built.reply(words) if index % 2 else built.ask(words)
    return built


def second_turn(steps: int, size: int = 100) -> Talk:
    """A request, an answer, a request, and steps of about *size* tokens each."""
    return Talk().ask("first").reply().ask("second").step("x" * size, times=steps)


def budget_for(
    messages: Sequence[Message], limit: int, view: View | None = None, **fields: Any
) -> Budget:
    """A budget of *limit*, with what *messages* are used."""
    fields = {"profile": PLAIN, "committed": len(messages), **fields}
    used = fields.pop("used", None)
    budget = Budget(used_tokens=0, limit_tokens=limit, **fields)
    if used is None:
        used = budget.size(messages, view or View())
    return replace(budget, used_tokens=used)


def plan_of(
    policy: Policy, messages: Sequence[Message], limit: int, view: View | None = None, **fields: Any
) -> Plan | None:
    """The plan of *policy* for *messages*."""
    budget = budget_for(messages, limit, view, **fields)
    return policy.plan(view or View(), messages, budget)


def visible(plan: Plan | None, messages: Sequence[Message], view: View | None = None) -> list[int]:
    """The positions that are shown after *plan*."""
    after = view or View()
    if plan is not None:
        after = after.applied(plan, len(messages))
    return [at for at in range(len(messages)) if after.shows(at)]


def texts_sent(messages: Sequence[Message], view: View) -> list[list[str]]:
    """The texts of each message that is sent."""
    request = project(messages, view, PLAIN, FRAME)
    return [[block["text"] for block in blocks if "text" in block] for blocks in sent(request)]


def filled(
    plan: Plan | None, messages: Sequence[Message], view: View | None = None,
    profile: Profile = PLAIN,
) -> View:  # fmt: skip
    """The view after *plan*; if it asks for a summary, that is one by rules."""
    view, plan = view or View(), required(plan)
    if plan.summary_request is not None:
        prefix_summary = extracted_summary(plan.summary_request, messages, profile)
        budget = budget_for(messages, 1, view)
        plan = required(with_summary(plan, prefix_summary, view, messages, budget))
        assert plan.prefix_summary is not None
    return view.applied(plan, len(messages))
