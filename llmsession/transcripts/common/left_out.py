"""Counts what the readers of files left out of their conversations, by reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from llmsession.turns.blocks import block_type, split_blocks
from llmsession.turns.messages import Message

from .conversation import Conversation

__all__ = ["MAX_SHARE", "LeftOut", "left_out"]

MAX_SHARE = 0.01
"""If more than this share of a file is left out, it was not read as it was recorded."""

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
"""Kinds of visible notes on content that is in the messages in another form, or was never in the
file.
"""


class LeftOut(msgspec.Struct, frozen=True):
    """Calls, results and messages with content that a reader left out.

    ``reasons`` counts them by the kind of their note, the most frequent first. ``parts`` is the
    number of all that the file contains, including those left out.
    """

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
    counts once.
    """
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
    """The number of its calls and results, plus one for the message itself if it contains anything
    else.
    """
    kinds = [block_type(raw) for raw in split_blocks(message.body)]
    pairs = sum(kind in ("tool_use", "tool_result") for kind in kinds)
    return pairs + (len(kinds) > pairs)
