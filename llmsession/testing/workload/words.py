"""Text at random."""

from __future__ import annotations

from random import Random

__all__ = ["words"]

_WORDS = (
    "lorem", "ipsum", "dolor", "sit", "amet", "consectetur", "adipiscing", "elit", "sed", "do",
    "eiusmod", "tempor",
)  # fmt: skip


def words(random: Random, chars: int) -> str:
    """Text of about *chars* characters, in lines."""
    line = " ".join(random.choices(_WORDS, k=8))
    return "\n".join(f"{number} {line}" for number in range(max(1, chars // len(line))))
