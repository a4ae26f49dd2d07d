"""What the model is sent, and how it is kept inside the window.

In: history, a view of it, and a profile. Out: a request, its size, its faults, and plans.
Absent: async and I/O; history is never changed here.
"""

from llmsession.turns.request import Frame

from .planning.policy import Budget, Policy
from .policies import SwapToolResults
from .provider_side import (
    ClearThinking,
    ClearToolUses,
    CompactAtThreshold,
    ProviderSideConfig,
    ProviderSummaries,
)
from .recall import RECALL_TOOL_NAME
from .rules.check import RuleViolation, check_request, require_valid
from .rules.repair import PairingError, Repair, tool_pair_repair
from .tokens.messages import context_tokens, message_tokens
from .view.plan import Plan
from .view.projection import project
from .view.view import View

__all__ = [
    "RECALL_TOOL_NAME",
    "Budget",
    "ClearThinking",
    "ClearToolUses",
    "CompactAtThreshold",
    "Frame",
    "PairingError",
    "Plan",
    "Policy",
    "ProviderSideConfig",
    "ProviderSummaries",
    "Repair",
    "RuleViolation",
    "SwapToolResults",
    "View",
    "check_request",
    "context_tokens",
    "message_tokens",
    "project",
    "require_valid",
    "tool_pair_repair",
]
