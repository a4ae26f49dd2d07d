"""What the model is sent, and how it is kept inside the context window.

In: the history, a view of it, and a model's profile. Out: a request, its size, the validity rules
that it breaks, and compaction plans. Pure: nothing here waits or does I/O, and the history is never
changed.
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
