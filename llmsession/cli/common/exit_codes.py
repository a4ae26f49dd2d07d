"""The exit codes of the command. 0 is success."""

from __future__ import annotations

__all__ = ["BROKEN_PROMISE", "FAILED", "HUNG_UP", "INTERRUPTED", "USAGE"]

BROKEN_PROMISE = 1
"""A check failed, for example an invariant is violated."""
FAILED = 1
"""The command could not do its work: a turn of ``chat`` failed whose prompt came from a pipe."""
INTERRUPTED = 130
"""Ctrl-C. A shell reports this code for a program that SIGINT ended."""
USAGE = 2
"""Bad usage or bad input."""
HUNG_UP = 141
"""The reader of our output has closed the pipe. A shell reports this code for SIGPIPE."""
