from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from llmsession.compaction.policies import Hybrid7060, Hybrid608090
from llmsession.compaction.policies.other_systems.hybrid import hybrid_action, hybrid_budget
from llmsession.compaction.view.plan import Plan
from llmsession.turns.messages import Message
from tests.compaction.conversations import Talk, required, text, thinking_block
from tests.compaction.policies.plans import PLAIN, budget_for, filled, plan_of, visible

WIDE = replace(PLAIN, window_tokens=1_000_000)
"""A window whose own budget is above every limit of these tests, which then counts."""


# The golden vectors.


@pytest.mark.parametrize(
    ("window", "budget"), [(200_000, 141_500), (128_000, 83_900), (32_000, 7_100), (16_000, None)]
)
def test_the_vectors_of_the_budget(window: int, budget: int | None) -> None:
    assert hybrid_budget(window, 2_000, 500) == budget


@pytest.mark.parametrize(
    ("used", "action", "warns"),
    [
        (599, "none", False),
        (600, "truncate", False),
        (799, "truncate", False),
        (800, "condense", False),
        (899, "condense", False),
        (900, "condense", True),
        (2_000, "condense", True),
    ],
)
def test_the_action_grows_with_the_share(used: int, action: str, warns: bool) -> None:
    assert hybrid_action(used, 1_000) == (action, warns)


# Plans.


def turns(count: int, size: int = 1_000) -> list[Message]:
    """So many turns of a request and an answer, of *size* tokens together."""
    built = Talk()
    for _ in range(count):
        built.ask("x" * (size // 2 - 4)).reply("y" * (size // 2 - 4))
    return built.messages


def at_share(policy: Any, messages: list[Message], percent: int, **fields: Any) -> Plan | None:
    whole = budget_for(messages, 1).used_tokens
    return plan_of(policy, messages, whole * 100 // percent, profile=WIDE, **fields)


def test_below_60_percent_nothing_changes() -> None:
    assert at_share(Hybrid608090(), turns(10), 59) is None


def test_from_60_percent_on_the_newest_70_percent_stay_back_to_a_request() -> None:
    messages = turns(10)
    plan = required(at_share(Hybrid608090(), messages, 65))
    assert plan.summary_request is None
    assert "truncate" in plan.reason
    assert visible(plan, messages) == list(range(6, 20))
    plan = required(
        at_share(Hybrid608090(), turns(11), 65)
    )  # 22 messages: 6.6 is in the fourth turn
    assert plan.omitted == ((0, 6),)


def test_from_80_percent_on_all_but_five_turns_become_a_summary() -> None:
    messages = turns(10)
    plan = required(at_share(Hybrid608090(), messages, 85))
    assert plan.summary_request is not None
    assert (plan.summary_request.first, plan.summary_request.upto) == (0, 10)
    assert plan.omitted == ()
    assert plan.figures == {}


def test_from_90_percent_on_a_new_session_is_suggested_too() -> None:
    plan = required(at_share(Hybrid608090(), turns(10), 91))
    assert plan.summary_request is not None
    assert plan.figures == {"suggest_new_session": 1}
    assert "new session" in plan.reason


def test_what_is_over_the_budget_after_a_summary_is_left_out_the_oldest_first() -> None:
    messages = turns(10)
    plan = required(at_share(Hybrid608090(), messages, 300))
    assert required(plan.summary_request).upto == 10
    view = filled(plan, messages, profile=WIDE)
    visible = [at for at in range(20) if view.shows(at)]
    assert visible == list(range(visible[0], 20))
    assert visible[0] > 10
    limit = budget_for(messages, 1).used_tokens * 100 // 300
    assert budget_for(messages, limit, view).used_tokens <= limit


def test_where_no_summary_can_be_made_the_oldest_go() -> None:
    messages = turns(4)
    plan = required(at_share(Hybrid608090(), messages, 120))
    assert plan.summary_request is None
    assert visible(plan, messages)[-1] == 7
    assert 0 not in visible(plan, messages)


def test_a_window_without_room_for_a_history_gives_no_plan() -> None:
    messages = turns(10)
    small = replace(PLAIN, window_tokens=16_000)
    assert plan_of(Hybrid608090(), messages, 11_000, profile=small) is None


def test_its_own_budget_counts_where_it_is_below_the_limit() -> None:
    messages = turns(10)  # 10,000 tokens; a window of 32,000 leaves 32,000 * 8 / 10 - 16,000
    window = replace(PLAIN, window_tokens=32_000)
    plan = required(plan_of(Hybrid608090(), messages, 25_000, profile=window))
    assert "10,000 of 9,600" in plan.reason


def test_the_rival_changes_nothing_below_70_percent() -> None:
    assert at_share(Hybrid7060(), turns(10), 69) is None


def test_the_rival_folds_the_oldest_60_percent_and_the_next_fold_takes_the_summary_in() -> None:
    messages = turns(10)
    plan = required(at_share(Hybrid7060(), messages, 71))
    first = required(plan.summary_request)
    view = filled(plan, messages, profile=WIDE)
    assert (first.first, first.upto, visible(None, messages, view)) == (0, 12, [*range(12, 20)])
    more = turns(20)
    again = required(plan_of(Hybrid7060(), more, 10_000, view, profile=WIDE))
    assert again.summary_request is not None
    # Three fifths of the 28 messages that are shown.
    assert (again.summary_request.first, again.summary_request.upto) == (12, 28)
    assert again.summary_request.earlier == required(view.prefix_summary).text


# What costs nothing goes first.


def reads(count: int, size: int = 1_000) -> list[Message]:
    """So many turns that read the same file."""
    built = Talk()
    for number in range(count):
        built.ask().call("read_file", f"{number}" + "x" * size, path="a.py")
    return built.messages


def test_reads_of_a_file_that_was_read_again_go_before_messages_do() -> None:
    messages = reads(10)
    plan = required(at_share(Hybrid608090(), messages, 85))
    assert len(plan.shown_results) == 9
    assert (plan.omitted, plan.summary_request) == ((), None)
    assert plan.reason.split("; ")[1].startswith("file_read_dedupe at ")


def test_thinking_goes_before_messages_do() -> None:
    built = Talk()
    for _ in range(8):
        built.ask("x" * 100)
        built.add("assistant", [thinking_block("t" * 2_000), text("y" * 100)])
    plan = required(at_share(Hybrid608090(), built.messages, 85))
    assert plan.drops_thinking
    assert (plan.omitted, plan.summary_request) == ((), None)
    assert "strip_thinking at " in plan.reason


def test_what_is_left_at_60_or_80_percent_still_is_cut_or_summarised() -> None:
    messages = [*reads(2, 300), *turns(10)]
    plan = required(at_share(Hybrid608090(), messages, 85))
    assert len(plan.shown_results) == 1
    assert plan.summary_request is not None
    plan = required(at_share(Hybrid608090(), [*reads(3, 600), *turns(10)], 85))
    assert plan.summary_request is None
    assert plan.omitted != ()


def test_a_new_session_is_suggested_by_what_there_was_before_reads_went() -> None:
    plan = required(at_share(Hybrid608090(), reads(10), 95))
    assert plan.summary_request is None
    assert plan.figures == {"suggest_new_session": 1}
