"""Text that several commands print: the context bar and costs."""

from __future__ import annotations

from llmsession.session.values.outcome import SessionUsage
from llmsession.turns.spending.prices import dollars

__all__ = ["bar", "cost_line"]

BAR_CELLS = 20


def bar(share: float, width: int = BAR_CELLS) -> str:
    """A bar of *width* cells, of which *share* (0 to 1) is filled. A larger share fills it."""
    filled = min(width, round(share * width))
    return "█" * filled + "░" * (width - filled)


def cost_line(usage: SessionUsage) -> str:
    """What a session cost by the list prices. Models without a price are named: their cost is not
    counted as 0."""
    if usage.cost_nano_usd is not None:
        return f"cost {dollars(usage.cost_nano_usd)}"
    models = ", ".join(name or "(model not known)" for name in usage.unpriced)
    known = f"at least {dollars(usage.priced_nano_usd)}; " if usage.priced_nano_usd else ""
    return f"cost {known}unknown for {models}"
