"""``llmsession replay``: recorded conversations, driven through real sessions."""

from __future__ import annotations

__all__ = ["replay"]


def replay() -> None:
    """Drive real sessions through recorded conversations."""
    raise NotImplementedError
