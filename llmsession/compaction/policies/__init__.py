"""The compaction policies, as values with a name. ``balanced`` is the default.

In: a view, messages and a budget. Out: a plan, or None. A policy calls no model, reads no clock,
and does not apply its plan.
"""

from .balanced import Balanced
from .baseline import FullHistory
from .composing import Pipeline, Stage, pipeline
from .other_systems.anchors import AppendOnlyProjection, AutoCompactThreshold, CheckpointOnFirstKept
from .other_systems.digests import (
    LlmSummary,
    RecencyTurnSummary,
    SummaryKeepLast4,
    UnionPreserveCompress,
)
from .other_systems.folding import BasicFold, BudgetProjection, SidecarProjection
from .other_systems.hybrid import Hybrid7060, Hybrid608090
from .other_systems.injection import (
    ContextItem,
    ContextProviders,
    FocusChain,
    Memory,
    MemoryInjection,
)
from .other_systems.masking import MaskConsumed, PositionClear, PressureFading
from .other_systems.pointer import PointerSummary
from .other_systems.reads import FileReadDedupe, StaleReadBatching
from .other_systems.rolling import RollingSummary75
from .other_systems.stages import FourStage, MiddlewarePipeline
from .other_systems.truncation import (
    AdaptiveWindowTruncate,
    NondestructiveCondense,
    NondestructiveTruncate,
)
from .other_systems.windows import (
    AgeCountToken,
    CleanAndBudget30k,
    KeepLastSequence,
    LastNMessages,
    ReverseBudget,
)
from .registry import make_policy, policy_names, register, settings_of
from .strip_thinking import StripThinking
from .swap_tool_results import SwapToolResults

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
    "Memory",
    "MemoryInjection",
    "MiddlewarePipeline",
    "NondestructiveCondense",
    "NondestructiveTruncate",
    "Pipeline",
    "PointerSummary",
    "PositionClear",
    "PressureFading",
    "RecencyTurnSummary",
    "ReverseBudget",
    "RollingSummary75",
    "SidecarProjection",
    "Stage",
    "StaleReadBatching",
    "StripThinking",
    "SummaryKeepLast4",
    "SwapToolResults",
    "UnionPreserveCompress",
    "make_policy",
    "pipeline",
    "policy_names",
    "register",
    "settings_of",
]
