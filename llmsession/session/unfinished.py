"""Recover the sessions that were left with an open turn. The documented path."""

from .operations.unfinished import RecoveryReport, recover_unfinished

__all__ = ["RecoveryReport", "recover_unfinished"]
