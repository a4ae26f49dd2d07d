"""What the command leaves with; 0 is done."""

from __future__ import annotations

__all__ = ["BROKEN_PROMISE", "FAILED", "HUNG_UP", "INTERRUPTED", "USAGE"]

BROKEN_PROMISE = 1
"""A checked promise was broken."""
FAILED = 1
"""What was to be done failed: a turn of ``chat`` whose prompt came through a pipe."""
INTERRUPTED = 130
"""Ctrl-C: what a shell shows for a program that SIGINT ended."""
USAGE = 2
"""Bad usage or bad input."""
HUNG_UP = 141
"""Nobody reads our output any more: what a shell shows for a program that SIGPIPE ended."""
