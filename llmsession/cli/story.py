"""``llmsession story``: what a session does, told in a minute."""

from __future__ import annotations

__all__ = ["story"]


def story() -> None:
    """Drive real sessions through recorded conversations."""
    raise NotImplementedError
