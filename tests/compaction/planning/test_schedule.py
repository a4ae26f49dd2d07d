"""Who waits for what: the rules that a session and a replay share."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from llmsession.compaction.planning.cache_economics import is_outgrown
from llmsession.compaction.planning.schedule import (
    Fill,
    Schedule,
    fill_of,
    is_due,
    keeps_own_limit,
    need_of,
    trigger_before_request,
    waits_for_cache,
)
from llmsession.compaction.policies import Balanced, LastNMessages, make_policy, policy_names
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.view import View
from llmsession.turns.records import Injected, PrefixSummary
from tests.compaction.conversations import a_plan

FULL = Fill(used_tokens=90, limit_tokens=100, messages=20)


class Undeclared:
    """A policy of somebody else, which says nothing of when its plans are applied."""

    name = "undeclared"

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        return used_tokens > limit_tokens // 2

    def plan(self, *_: Any) -> None:
        return None


class Injecting(Undeclared):
    injects: ClassVar[bool] = True


@pytest.mark.parametrize(
    ("policy", "schedule", "waits", "keeps"),
    [
        (Undeclared(), None, True, False),
        (Balanced(), None, True, False),
        (Balanced(), "cache", True, False),
        (Balanced(), "at_once", False, False),
        (LastNMessages(), None, False, True),
        (LastNMessages(), "cache", True, False),
        (LastNMessages(), "at_once", False, True),
    ],
)
def test_a_policy_waits_as_it_declares_unless_the_schedule_is_forced(
    policy: Any, schedule: Schedule | None, waits: bool, keeps: bool
) -> None:
    assert waits_for_cache(policy, schedule) is waits
    assert keeps_own_limit(policy, schedule) is keeps


def test_of_the_registered_policies_only_those_made_for_the_cache_wait_for_it() -> None:
    waiting = {name for name in policy_names() if waits_for_cache(make_policy(name), None)}
    assert waiting == {"balanced", "swap_tool_results", "full_history"}


def test_a_limit_in_messages_counts_those_that_are_shown() -> None:
    summary = PrefixSummary(4, "what was", "extractive")
    view = View(prefix_summaries=(summary,), omitted=((2, 6), (8, 9)))
    fill = fill_of(view, 12, used_tokens=10, limit_tokens=100)
    # Of twelve, four are summarised, two of four that are left out with them, and one more.
    assert fill.messages == 12 - 4 - 2 - 1
    assert is_due(LastNMessages(n=4), fill)
    assert not is_due(LastNMessages(n=5), fill)


def test_a_request_waits_for_a_limit_and_else_for_what_is_injected() -> None:
    assert need_of(LastNMessages(), None, FULL) == "threshold"
    assert need_of(LastNMessages(), "cache", FULL) is None
    assert need_of(LastNMessages(n=20), None, FULL) is None
    assert need_of(Undeclared(), None, FULL) is None
    assert need_of(Injecting(), None, FULL) == "injection"
    assert need_of(Injecting(), "cache", FULL) == "injection"


def plan(gain: int, *texts: str) -> Plan:
    items = tuple(Injected(0, text) for text in texts) if texts else None
    return a_plan(tokens_before=1_000, tokens_after=1_000 - gain, injected=items)


@pytest.mark.parametrize(
    ("made", "asked", "trigger"),
    [
        (None, "threshold", None),
        (plan(1), "threshold", "policy_limit"),
        (plan(0), "threshold", None),
        (plan(-5, "new"), "threshold", "injection"),
        (plan(5, "new"), "threshold", "policy_limit"),
        (plan(5, "new"), "injection", "injection"),
        (plan(-5, "there"), "injection", None),
        (plan(5), "injection", None),
    ],
)
def test_a_plan_is_applied_if_it_frees_or_changes_what_is_injected(
    made: Plan | None, asked: Any, trigger: str | None
) -> None:
    view = View(injected=(Injected(0, "there"),))
    assert trigger_before_request(made, Injecting(), view, asked) == trigger


def test_what_a_policy_that_declares_nothing_injects_is_no_reason() -> None:
    assert trigger_before_request(plan(-5, "new"), Undeclared(), View(), "threshold") is None


def test_a_plan_is_outgrown_a_tenth_later() -> None:
    assert [is_outgrown(1_000, used) for used in (900, 1_000, 1_100, 1_101)] == [
        False, False, False, True,
    ]  # fmt: skip
