"""Named ways to compact, as values.

In: a view, messages, a budget. Out: a plan, or None. Absent: models, clocks, and doing it.
"""

from .swap_tool_results import SwapToolResults

__all__ = ["SwapToolResults"]
