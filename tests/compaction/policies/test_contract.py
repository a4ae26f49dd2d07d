"""Every registered policy keeps the contract: G1 to G12 of ``contract.py``, over random lives."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings

from llmsession.compaction.policies import make_policy, policy_names
from tests.compaction.policies.contract import RULES, Depth, exempt_from, live
from tests.compaction.policies.transcripts import Talked, transcripts

LIMIT_PERCENTS = (30, 60, 90)
"""The limit of a life, in hundredths of what the whole conversation is."""

NEVER_PLANS = {"full_history"}
"""The baseline: it shows everything, and that is all it does."""


def lived(name: str, examples: int, *, at_random: bool = False) -> Depth:
    """How deep *examples* random lives under each limit went."""
    depth: Depth = Counter()

    @settings(
        derandomize=not at_random,
        database=None,
        max_examples=examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(transcripts())
    def lives(talked: Talked) -> None:
        policy = make_policy(name)
        for percent in LIMIT_PERCENTS:
            live(policy, talked, percent, depth)

    lives()
    return depth


def has_planned(name: str, depth: Depth) -> None:
    told = ", ".join(f"{count} {what}" for what, count in depth.items() if count)
    print(f"{name}: {told}")
    if name in NEVER_PLANS:
        assert not depth["plans"]
    else:
        assert depth["plans"] >= 5, f"hardly ever planned: {told}"


@pytest.mark.parametrize("name", policy_names())
def test_a_policy_keeps_the_contract(name: str) -> None:
    has_planned(name, lived(name, 20))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", policy_names())
def test_a_policy_keeps_the_contract_for_long(name: str) -> None:
    has_planned(name, lived(name, 400, at_random=True))


@pytest.mark.parametrize("name", policy_names())
def test_an_exemption_is_of_a_rule_and_the_docstring_says_why(name: str) -> None:
    policy = make_policy(name)
    assert exempt_from(policy) <= RULES.keys()
    for rule in exempt_from(policy):
        assert rule in (type(policy).__doc__ or "")
