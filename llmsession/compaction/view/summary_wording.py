"""How a summary is introduced in the context."""

from __future__ import annotations

__all__ = ["SUMMARY_TITLE", "introduced", "without_title"]

SUMMARY_TITLE = (
    "[Summary of the conversation up to here. The messages themselves are not shown any more;"
    " recall(id) still returns their tool results.]"
)
"""The first line of every prefix summary. It asks the model for nothing."""


def introduced(text: str) -> str:
    """The summary *text* as the context shows it: behind its title."""
    return f"{SUMMARY_TITLE}\n{text.strip()}"


def without_title(text: str) -> str:
    """The summary in *text*, which is as the context showed it."""
    return text.removeprefix(SUMMARY_TITLE).lstrip("\n")
