"""Named ways to compact, as values; ``balanced`` is the default.

In: a view, messages, a budget. Out: a plan, or None. Absent: models, clocks, and doing it.
"""

from .anchors import AppendOnlyProjection, AutoCompactThreshold, CheckpointOnFirstKept
from .balanced import Balanced
from .baseline import FullHistory
from .digests import LlmSummary, RecencyTurnSummary, SummaryKeepLast4, UnionPreserveCompress
from .folding import BasicFold, BudgetProjection
from .hybrid import Hybrid7060, Hybrid608090
from .injection import ContextItem, ContextProviders, FocusChain, MemoryInjection
from .masking import MaskConsumed, PositionClear, PressureFading
from .pointer import PointerSummary
from .reads import FileReadDedupe, StaleReadBatching
from .registry import make_policy, policy_names, register, settings_of
from .rolling import RollingSummary75
from .sidecar import SidecarProjection
from .stages import FourStage, MiddlewarePipeline, Stage
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
    "BasicFold",
    "BudgetProjection",
    "CheckpointOnFirstKept",
    "CleanAndBudget30k",
    "ContextItem",
    "ContextProviders",
    "FileReadDedupe",
    "FocusChain",
    "FourStage",
    "FullHistory",
    "Hybrid7060",
    "Hybrid608090",
    "KeepLastSequence",
    "LastNMessages",
    "LlmSummary",
    "MaskConsumed",
    "MemoryInjection",
    "MiddlewarePipeline",
    "NondestructiveCondense",
    "NondestructiveTruncate",
    "PointerSummary",
    "PositionClear",
    "PressureFading",
    "RecencyTurnSummary",
    "ReverseBudget",
    "RollingSummary75",
    "SidecarProjection",
    "Stage",
    "StaleReadBatching",
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
    MaskConsumed,
    PressureFading,
    PositionClear,
    FileReadDedupe,
    StaleReadBatching,
    FourStage,
    Hybrid608090,
    Hybrid7060,
    BudgetProjection,
    BasicFold,
    MemoryInjection,
    FocusChain,
    ContextProviders,
    MiddlewarePipeline,
):
    register(_policy)
