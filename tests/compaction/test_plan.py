from __future__ import annotations

import pytest

from llmsession.compaction.plan import Plan, Policy, worth
from llmsession.compaction.policies import SwapToolResults


def plan(before: int, after: int) -> Plan:
    return Plan(
        policy="p", frontier=1, frozen={}, reason="r", tokens_before=before, tokens_after=after
    )


@pytest.mark.parametrize(
    ("before", "after", "is_worth"),
    [(1000, 950, True), (1000, 951, False), (1000, 0, True), (0, 0, False), (1000, 1200, False)],
)
def test_a_plan_is_worth_it_from_five_percent_on(before: int, after: int, is_worth: bool) -> None:
    assert worth(plan(before, after)) is is_worth


def test_the_least_gain_can_be_chosen_but_never_be_nothing() -> None:
    assert worth(plan(1000, 999), min_gain=0.0)
    assert not worth(plan(1000, 1000), min_gain=0.0)


def test_swapping_is_a_policy() -> None:
    policy: Policy = SwapToolResults()
    assert policy.name == "swap_tool_results"
