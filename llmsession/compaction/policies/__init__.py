"""Named ways to compact, as values; ``balanced`` is the default.

In: a view, messages, a budget. Out: a plan, or None. Absent: models, clocks, and doing it.
"""

from .balanced import Balanced
from .registry import make_policy, policy_names, register, settings_of
from .swap_tool_results import SwapToolResults

__all__ = [
    "Balanced",
    "SwapToolResults",
    "make_policy",
    "policy_names",
    "register",
    "settings_of",
]

for _policy in (Balanced, SwapToolResults):
    register(_policy)
