"""``llmsession stress``: many sessions at once, checked."""

from __future__ import annotations

__all__ = ["stress"]


def stress() -> None:
    """Drive real sessions through recorded conversations."""
    raise NotImplementedError
