"""A request that has to shrink now: which policies are tried, and whose plan is taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from llmsession.compaction.escalation import escalation_of, hardest_plan, plan_by_rules
from llmsession.compaction.planning.policy import Budget, planned
from llmsession.compaction.policies import Balanced, FullHistory, SwapToolResults
from llmsession.compaction.view.plan import Plan, SummaryRequest
from llmsession.compaction.view.view import View
from llmsession.turns.messages import Message
from tests.compaction.conversations import Talk, required
from tests.compaction.policies.plans import budget_for


class Frees(msgspec.Struct, frozen=True):
    """Leaves the first messages out; so many."""

    name: ClassVar[str] = "frees"
    count: int

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        return True

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        return planned(self.name, view, messages, budget, "", omitted=((0, self.count),))


class Raises(Frees, frozen=True):
    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        raise ValueError(f"not {self.count}")


class Wants(Frees, frozen=True):
    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        summary_request = SummaryRequest(first=0, upto=self.count, max_tokens=400)
        return planned(self.name, view, messages, budget, "", summary_request=summary_request)


def questions(count: int) -> list[Message]:
    """So many turns of two messages each, of 1,000 tokens and a few."""
    talked = Talk()
    for _ in range(count):
        talked.ask("a" * 1_000).reply("ok")
    return list(talked.messages)


def hardest(
    messages: Sequence[Message], limit: int, *escalation: Any
) -> tuple[int | None, list[str]]:
    """How many messages the plan leaves out, and what was raised."""
    budget = budget_for(messages, limit, trigger="window")
    plan, faults = hardest_plan(escalation, View(), messages, budget)
    return plan.omitted[0][1] if plan else None, [str(fault) for fault in faults]


def test_a_policy_says_itself_what_is_harder_else_it_is_balanced() -> None:
    swap = SwapToolResults()
    assert escalation_of(swap) == (swap, *swap.harder())
    assert escalation_of(FullHistory()) == (FullHistory(),)
    first, second, third = escalation_of(Frees(1))
    assert (first, second) == (Frees(1), Balanced())
    assert isinstance(third, Balanced)
    assert third.keep_recent_turns < Balanced().keep_recent_turns


def test_the_first_plan_that_is_enough_is_taken() -> None:
    messages = questions(8)
    assert hardest(messages, 5_000, Frees(2), Frees(8), Frees(12)) == (8, [])


def test_where_none_is_enough_it_is_the_one_that_frees_most() -> None:
    messages = questions(8)
    assert hardest(messages, 500, Frees(2), Frees(12), Frees(8)) == (12, [])
    assert hardest(messages, 500, FullHistory(), Frees(0)) == (None, [])


def test_what_a_policy_raises_is_told_and_the_next_one_is_tried() -> None:
    messages = questions(8)
    found = hardest(messages, 5_000, Raises(1), Frees(8), Raises(2))
    assert found == (8, ["not 1"])
    assert hardest(messages, 500, Raises(1), Raises(2)) == (None, ["not 1", "not 2"])


def test_the_plan_says_why_it_was_made() -> None:
    messages = questions(8)
    budget = budget_for(messages, 5_000, trigger="overflow")
    plan, _ = hardest_plan([Frees(8)], View(), messages, budget)
    assert plan is not None
    assert plan.trigger == "overflow"


def test_a_summary_that_is_wanted_is_made_by_rules() -> None:
    messages = questions(8)
    budget = budget_for(messages, 5_000)
    plan = required(plan_by_rules(Wants(12), View(), messages, budget))
    assert plan.summary_request is None
    assert plan.prefix_summary is not None
    assert (plan.prefix_summary.upto, plan.prefix_summary.by) == (12, "extractive")
    assert plan.tokens_after == budget.size(messages, View().applied(plan, len(messages)))
