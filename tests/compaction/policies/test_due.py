"""From how many used tokens on each policy is due."""

from __future__ import annotations

import pytest

from llmsession.compaction.planning.policy import Policy
from llmsession.compaction.policies import (
    AdaptiveWindowTruncate,
    AppendOnlyProjection,
    AutoCompactThreshold,
    Balanced,
    BasicFold,
    BudgetProjection,
    CheckpointOnFirstKept,
    KeepLastSequence,
    LlmSummary,
    MaskConsumed,
    NondestructiveCondense,
    NondestructiveTruncate,
    PointerSummary,
    PositionClear,
    PressureFading,
    RecencyTurnSummary,
    ReverseBudget,
    RollingSummary75,
    SidecarProjection,
    StaleReadBatching,
    SummaryKeepLast4,
    SwapToolResults,
    UnionPreserveCompress,
)


def recency(trigger: str, value: float | None = None) -> RecencyTurnSummary:
    return RecencyTurnSummary(trigger=trigger, trigger_value=value)


# The policy, the limit, and the first number of used tokens at which it is due.
DUE: list[tuple[Policy, int, int]] = [
    (SwapToolResults(), 10_000, 7_501),
    # 0.57 * 100 is 56.99999999999999 in floats, and 0.00013 * 10**9 is 129999.99999999999.
    (SwapToolResults(threshold=0.57), 100, 58),
    (SwapToolResults(threshold=0.00013), 100_000, 14),
    (Balanced(threshold=0.57, low=0.2), 100, 58),
    (AdaptiveWindowTruncate(), 64_000, 37_000),
    (AdaptiveWindowTruncate(), 128_000, 98_000),
    (AdaptiveWindowTruncate(), 200_000, 160_000),
    (AdaptiveWindowTruncate(), 100_000, 80_000),
    (AdaptiveWindowTruncate(), 32_768, 26_214),
    (AdaptiveWindowTruncate(), 400_000, 360_000),
    (AdaptiveWindowTruncate(window_tokens=64_000), 10, 37_000),
    (NondestructiveTruncate(), 200_000, 171_809),
    (NondestructiveTruncate(max_tokens=4_096), 128_000, 111_105),
    (NondestructiveCondense(max_tokens=1), 100_000, 90_000),
    (NondestructiveCondense(percent=50), 100_000, 50_000),
    (NondestructiveCondense(percent=50, profile_percent=20), 100_000, 20_000),
    (ReverseBudget(), 100, 98),
    (ReverseBudget(reserve_out_tokens=20), 100, 78),
    (KeepLastSequence(), 200_000, 198_001),
    (KeepLastSequence(max_tokens=500), 200_000, 198_501),
    (KeepLastSequence(max_tokens=4_096), 8_192, 8_192 - 163 - 1_000 + 1),
    (KeepLastSequence(), 0, 126_001),
    (BasicFold(), 10_000, 9_000),
    (BudgetProjection(), 10_000, 9_000),
    (SidecarProjection(), 200_000, 180_000),
    (SidecarProjection(), 128_000, 115_200),
    (PositionClear(), 10_000, 8_000),
    (PositionClear(), 10_001, 8_001),
    # Four fifths of what a reserve of 5 % leaves.
    *[(kind(), 10_000, 7_600) for kind in (MaskConsumed, PressureFading)],
    *[(kind(), 10_001, 7_601) for kind in (MaskConsumed, PressureFading)],
    (StaleReadBatching(), 10, 4_096),
    (LlmSummary(), 10_000, 7_501),
    (recency("pruned"), 10_000, 9_501),
    (recency("token_ratio", 0.8), 10_000, 8_000),
    (recency("remaining_tokens", 1_000), 10_000, 9_000),
    (recency("messages_to_refine", 4), 10_000, 9_501),
    (UnionPreserveCompress(), 128_000, 96_001),
    (UnionPreserveCompress(), 1_000_000, 750_001),
    (UnionPreserveCompress(), 8_192, 6_145),
    (UnionPreserveCompress(), 0, 96_001),  # an unknown window is taken for 128,000
    (SummaryKeepLast4(), 1_000, 1_001),
    (CheckpointOnFirstKept(), 200_000, 80_001),
    (CheckpointOnFirstKept(), 32_000, 32_001),
    # The limit is what a reply leaves of windows of 200,000, 128,000, 32,768 and 200,000.
    (AutoCompactThreshold(max_tokens=64_000), 136_000, 121_000),
    (AutoCompactThreshold(max_tokens=8_192), 119_808, 104_808),
    (AutoCompactThreshold(), 21_299, 9_830),
    (AutoCompactThreshold(), 136_000, 121_000),
    (AppendOnlyProjection(ratio=0.80), 100_000, 80_000),
    (AppendOnlyProjection(ratio=0.05), 100_000, 10_000),
    (AppendOnlyProjection(ratio=2.0), 100_000, 99_000),
    (AppendOnlyProjection(ratio=0.57), 100_000, 57_000),
    (AppendOnlyProjection(reserve_tokens=30_000), 100_000, 70_000),
    (PointerSummary(), 83_200, 66_560),
    (PointerSummary(), 136_000, 108_800),
    (PointerSummary(), 984_576, 787_660),
    (PointerSummary(), 5_324, 4_259),
    (PointerSummary(threshold_tokens=30_000), 83_200, 30_000),
    (PointerSummary(), 0, 50_000),  # an unknown window
    (RollingSummary75(), 100_000, 3_073),
    (RollingSummary75(), 2_000, 2_001),
    (RollingSummary75(window_tokens=None), 100_000, 75_001),
]


@pytest.mark.parametrize(("policy", "limit", "first"), DUE)
def test_a_policy_is_due_from_its_threshold_on(policy: Policy, limit: int, first: int) -> None:
    assert [policy.due(used, limit) for used in (first - 1, first)] == [False, True]


HAVE_THEIR_OWN = (
    KeepLastSequence,
    PointerSummary,
    RollingSummary75,
    StaleReadBatching,
    UnionPreserveCompress,
)
"""Policies that are due without a limit, too."""

NEVER: list[tuple[Policy, int]] = [
    # A trigger without its value, and an unknown one.
    (recency("token_ratio"), 10_000),
    (recency("remaining_tokens"), 10_000),
    (recency("messages_to_refine"), 10_000),
    (recency("when_it_rains", 1), 10_000),
    # A window that leaves nothing.
    (AutoCompactThreshold(max_tokens=4_096), 4_096),
    # No limit.
    *[(policy, 0) for policy, limit, _ in DUE if limit and not isinstance(policy, HAVE_THEIR_OWN)],
]


@pytest.mark.parametrize(("policy", "limit"), NEVER)
def test_a_policy_without_what_it_needs_is_never_due(policy: Policy, limit: int) -> None:
    assert not any(policy.due(used, limit) for used in (1, 9_999, 100_000, 10**9))
