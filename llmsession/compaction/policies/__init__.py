"""Named ways to compact, as values; ``balanced`` is the default.

In: a view, messages, a budget. Out: a plan, or None. Absent: models, clocks, and doing it.
"""

from .anchors import AppendOnlyProjection, AutoCompactThreshold, CheckpointOnFirstKept
from .balanced import Balanced
from .baseline import FullHistory
from .digests import LlmSummary, RecencyTurnSummary, SummaryKeepLast4, UnionPreserveCompress
from .pointer import PointerSummary
from .registry import make_policy, policy_names, register, settings_of
from .rolling import RollingSummary75
from .sidecar import SidecarProjection
from .swap_tool_results import SwapToolResults
from .truncation import AdaptiveWindowTruncate, NondestructiveCondense, NondestructiveTruncate
from .windows import (
    AgeCountToken,
    CleanAndBudget30k,
    KeepLastSequence,
    LastNMessages,
    ReverseBudget,
)

__all__ = [
    "AdaptiveWindowTruncate",
    "AgeCountToken",
    "AppendOnlyProjection",
    "AutoCompactThreshold",
    "Balanced",
    "CheckpointOnFirstKept",
    "CleanAndBudget30k",
    "FullHistory",
    "KeepLastSequence",
    "LastNMessages",
    "LlmSummary",
    "NondestructiveCondense",
    "NondestructiveTruncate",
    "PointerSummary",
    "RecencyTurnSummary",
    "ReverseBudget",
    "RollingSummary75",
    "SidecarProjection",
    "SummaryKeepLast4",
    "SwapToolResults",
    "UnionPreserveCompress",
    "make_policy",
    "policy_names",
    "register",
    "settings_of",
]

for _policy in (
    Balanced,
    SwapToolResults,
    FullHistory,
    ReverseBudget,
    LastNMessages,
    AgeCountToken,
    KeepLastSequence,
    CleanAndBudget30k,
    AdaptiveWindowTruncate,
    NondestructiveTruncate,
    NondestructiveCondense,
    LlmSummary,
    RecencyTurnSummary,
    RollingSummary75,
    PointerSummary,
    SummaryKeepLast4,
    UnionPreserveCompress,
    CheckpointOnFirstKept,
    AutoCompactThreshold,
    AppendOnlyProjection,
    SidecarProjection,
):
    register(_policy)
