from __future__ import annotations

from llmsession.compaction.policies import FullHistory, make_policy
from tests.compaction.conversations import talk
from tests.compaction.policies.plans import plan_of


def test_the_whole_history_is_shown_however_much_is_used() -> None:
    policy = make_policy("full_history")
    assert policy == FullHistory()
    assert not policy.due(10**9, 100)
    assert plan_of(policy, talk(5).messages, 10, trigger="overflow") is None


def test_nothing_harder_is_tried_so_that_the_turn_ends_with_context_too_large() -> None:
    assert FullHistory().harder() == ()
