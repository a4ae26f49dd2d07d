"""What the readers of files left out of their conversations, counted by reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from llmsession.turns.blocks import block_type, split_blocks
from llmsession.turns.messages import Message

from .conversation import Conversation

__all__ = ["MAX_SHARE", "LeftOut", "left_out"]

MAX_SHARE = 0.01
"""A file of which a larger share is left out is not read as it was recorded."""

_NOTHING_LEFT_OUT = frozenset(
    {
        "attachment_without_text",  # its words are not in the file
        "branch_summary",
        "compact_summary",  # the messages that a summary stands for are there
        "compacted",
        "compaction",
        "held_by_provider",  # the provider kept it: the file does not have it
        "interrupt_marker",  # the turn is marked
        "missing_parent",  # a broken link; what it leads to is not in the file
    }
)
"""Visible notes on what is in the messages in another form, or was never in the file."""


class LeftOut(msgspec.Struct, frozen=True):
    """Calls, results and messages with content that a reader left out: ``reasons`` counts them by
    the kind of their note, the most frequent first. ``parts`` are all that the file holds, those
    left out among them."""

    reasons: dict[str, int]
    parts: int

    @property
    def count(self) -> int:
        """How many are left out."""
        return sum(self.reasons.values())

    @property
    def is_too_much(self) -> bool:
        """Is it more than ``MAX_SHARE`` of the file?"""
        return self.count > MAX_SHARE * self.parts

    def __str__(self) -> str:
        reasons = ", ".join(f"{reason} {count}" for reason, count in self.reasons.items())
        share = f"{self.count / max(1, self.parts):.1%}"
        whole = f"{self.parts} calls, results and messages"
        return f"{self.count} of {whole} ({share}) left out: {reasons}"


def left_out(conversations: Iterable[Conversation]) -> LeftOut:
    """What is left out of the *conversations* of one file. A message that several branches share
    counts once."""
    known: set[int] = set()
    parts = 0
    reasons: Counter[str] = Counter()
    for conversation in conversations:
        for message in conversation.messages:
            if id(message) not in known:
                known.add(id(message))
                parts += _parts_of(message)
        reasons.update(
            note.what
            for note in conversation.notes
            if note.visible and note.what not in _NOTHING_LEFT_OUT
        )
    return LeftOut(dict(reasons.most_common()), parts + reasons.total())


def _parts_of(message: Message) -> int:
    """Its calls and results, and the message itself if it holds anything else."""
    kinds = [block_type(raw) for raw in split_blocks(message.body)]
    pairs = sum(kind in ("tool_use", "tool_result") for kind in kinds)
    return pairs + (len(kinds) > pairs)
