"""Golden cases of the cost model: what a rewrite of the prefix costs, and when it is worth it."""

from __future__ import annotations

from typing import Any

import pytest

from llmsession.compaction.economy import CacheState, decide, payback_requests

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
