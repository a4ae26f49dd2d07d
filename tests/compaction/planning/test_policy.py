from __future__ import annotations

from typing import Any

import pytest

from llmsession.compaction.planning.policy import Budget, Policy, is_worthwhile, planned
from llmsession.compaction.policies import SwapToolResults
from llmsession.compaction.view.view import View
from llmsession.turns.request import Profile
from tests.compaction.conversations import a_plan, talk


@pytest.mark.parametrize(
    ("before", "after", "worthwhile"),
    [(1000, 950, True), (1000, 951, False), (1000, 0, True), (0, 0, False), (1000, 1200, False)],
)
def test_a_plan_is_worth_it_from_five_percent_on(before: int, after: int, worthwhile: bool) -> None:
    assert is_worthwhile(a_plan(tokens_before=before, tokens_after=after)) is worthwhile


def test_the_least_gain_can_be_chosen_but_never_be_nothing() -> None:
    assert is_worthwhile(a_plan(tokens_before=1000, tokens_after=999), min_gain=0.0)
    assert not is_worthwhile(a_plan(tokens_before=1000, tokens_after=1000), min_gain=0.0)


def test_swapping_is_a_policy() -> None:
    policy: Policy = SwapToolResults()
    assert policy.name == "swap_tool_results"


def asked(**changes: Any) -> Budget:
    profile = Profile(binds_thinking=False)
    return Budget(
        used_tokens=12_345, limit_tokens=20_000, profile=profile, committed=4, trigger="asked",
        **changes,
    )  # fmt: skip


def test_a_planned_one_says_why_and_counts_what_it_frees() -> None:
    messages = talk(1).messages
    view, budget = View(compacted_before=2), asked()
    made = planned("p", view, messages, budget, "two go", omitted=((1, 3),), turns_compacted=1)
    assert (made.policy, made.compacted_before, made.trigger) == ("p", 2, "asked")
    assert not made.voids_thinking  # this profile binds none
    assert made.reason == "12,345 of 20,000 tokens used; two go"
    assert (made.omitted, made.turns_compacted) == (((1, 3),), 1)
    assert made.tokens_before == budget.size(messages, view)
    assert made.tokens_after == budget.size([messages[0], messages[3]], view)


def test_a_planned_one_keeps_what_is_given() -> None:
    changes = {"compacted_before": 4, "tokens_before": 9, "tokens_after": 8, "voids_thinking": True}
    made = planned("p", View(), talk(1).messages, asked(), "", **changes)
    assert {name: getattr(made, name) for name in changes} == changes
