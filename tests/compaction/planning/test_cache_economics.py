"""Golden cases of the cost model: what a rewrite of the prefix costs, and when it is worth it."""

from __future__ import annotations

from typing import Any

import pytest

from llmsession.compaction.planning.cache_economics import (
    CacheState,
    Decision,
    ahead_tokens,
    decide,
    expected_requests,
    payback_requests,
    should_apply,
)
from llmsession.turns.records import Trigger
from tests.compaction.conversations import talk

WARM = CacheState(cached_tokens=90_000, idle_s=20)


def asked(**changes: Any) -> Any:
    """50,000 tokens cleared of 90,000, with 10,000 before the edit and 30,000 behind it."""
    case: dict[str, Any] = {
        "used_tokens": 90_000,
        "limit_tokens": 110_000,
        "cleared_tokens": 50_000,
        "kept_before_tokens": 10_000,
        "expected_requests": 20,
        "cache": WARM,
    }
    return decide(**{**case, **changes})


@pytest.mark.parametrize(
    ("cleared", "cached_after", "requests"),
    [
        (50_000, 30_000, 7),  # 11.5 S / C, rounded up: the example of the reference
        (1_000, 1_000, 12),
        (23_000, 2_000, 1),
        (1, 1_000_000, 11_500_000),
        (50_000, 0, 0),
    ],
)
def test_clearing_pays_back_after_11_5_times_what_is_written_again_by_what_is_cleared(
    cleared: int, cached_after: int, requests: int
) -> None:
    assert payback_requests(cleared, cached_after) == requests


@pytest.mark.parametrize("cleared", [0, -5])
def test_clearing_nothing_never_pays_back(cleared: int) -> None:
    assert payback_requests(cleared, 10) == 1 << 31
    assert not asked(cleared_tokens=cleared).act


def test_it_acts_if_the_conversation_goes_on_for_long_enough() -> None:
    decision = asked(expected_requests=7)
    assert (decision.act, decision.trigger) == (True, "pays_back")
    assert decision.figures == {
        "used_tokens": 90_000,
        "limit_tokens": 110_000,
        "cleared_tokens": 50_000,
        "cached_tokens": 90_000,
        "written_again_tokens": 30_000,
        "payback_requests": 7,
        "expected_requests": 7,
        "idle_s": 20,
    }
    assert not asked(expected_requests=6).act


def test_a_rewrite_that_pays_back_in_the_far_future_is_not_made() -> None:
    # 2,000 cleared, 78,000 written again: 449 requests.
    assert not asked(cleared_tokens=2_000, expected_requests=1_000).act


@pytest.mark.parametrize(
    ("cache", "trigger"),
    [
        (CacheState(), "cold_cache"),
        (CacheState(cached_tokens=90_000, idle_s=300), "cold_cache"),
        (CacheState(cached_tokens=90_000, idle_s=400, ttl_s=3_600), None),
        (CacheState(cached_tokens=90_000, is_broken=True), "prefix_broken"),
    ],
)
def test_where_nothing_can_be_read_from_the_cache_it_acts_at_once(
    cache: CacheState, trigger: str | None
) -> None:
    decision = asked(cache=cache, expected_requests=0)
    assert decision.act == (trigger is not None)
    assert decision.trigger == (trigger or "threshold")


@pytest.mark.parametrize(("used", "acts"), [(101_199, False), (101_200, True), (120_000, True)])
def test_at_92_percent_it_waits_no_more(used: int, acts: bool) -> None:
    decision = asked(used_tokens=used, expected_requests=0)
    assert decision.act == acts
    assert (decision.trigger == "window") == acts


def test_an_idle_session_compacts_before_its_cache_is_cold() -> None:
    decision = asked(timing="idle", expected_requests=0)
    assert (decision.act, decision.trigger) == (True, "idle")
    cold = CacheState(cached_tokens=90_000, idle_s=300)
    assert asked(timing="idle", cache=cold).trigger == "cold_cache"


def test_what_was_never_cached_is_not_written_again() -> None:
    half = CacheState(cached_tokens=65_000, idle_s=1)
    assert asked(cache=half).figures["written_again_tokens"] == 5_000
    little = CacheState(cached_tokens=8_000, idle_s=1)
    assert asked(cache=little).figures["written_again_tokens"] == 0


def test_a_plan_is_made_ahead_of_its_mark_and_further_ahead_for_an_idle_session() -> None:
    assert [ahead_tokens(100_009, timing) for timing in ("step", "turn_end", "idle")] == [
        10_000, 10_000, 30_002,
    ]  # fmt: skip


def test_as_many_more_requests_are_expected_as_were_made_within_bounds() -> None:
    made = [expected_requests(talk(turns).messages) for turns in (0, 2, 3, 19, 20, 21)]
    assert made == [5, 5, 6, 38, 40, 40]  # two requests a turn


@pytest.mark.parametrize(
    ("trigger", "cache", "free"),
    [
        ("window", WARM, False),
        ("pays_back", WARM, False),
        ("prefix_broken", CacheState(is_broken=True), True),
        ("idle", WARM, True),
        ("cold_cache", CacheState(cached_tokens=1, idle_s=300), True),
        ("cold_cache", CacheState(), False),  # a provider without a cache is always cold
    ],
)
def test_before_its_mark_a_plan_only_goes_where_the_prefix_is_written_anew_anyway(
    trigger: Trigger, cache: CacheState, free: bool
) -> None:
    decision = Decision(act=True, trigger=trigger, figures={})
    assert should_apply(decision, cache, is_due=True)
    assert should_apply(decision, cache, is_due=False) is free


def test_a_plan_that_is_due_waits_for_the_decision() -> None:
    assert not should_apply(Decision(act=False, trigger="threshold", figures={}), WARM, is_due=True)
