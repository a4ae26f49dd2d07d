"""How a summary is introduced in the context."""

from __future__ import annotations

__all__ = ["SEGMENT_TITLE", "introduced", "without_title"]

SEGMENT_TITLE = (
    "[Summary of the conversation up to here. The messages themselves are not shown any more;"
    " recall(id) still returns their tool results.]"
)
"""What every segment begins with. The same words for all, and none that ask for anything."""


def introduced(text: str) -> str:
    """A summary as the context shows it."""
    return f"{SEGMENT_TITLE}\n{text.strip()}"


def without_title(text: str) -> str:
    """The summary in a text that the context showed."""
    return text.removeprefix(SEGMENT_TITLE).lstrip("\n")
