"""What the command leaves with; 0 is done."""

from __future__ import annotations

__all__ = ["BROKEN_PROMISE", "HUNG_UP", "USAGE"]

BROKEN_PROMISE = 1
"""A checked promise was broken."""
USAGE = 2
"""Bad usage or bad input."""
HUNG_UP = 141
"""Nobody reads our output any more: what a shell shows for a program that SIGPIPE ended."""
