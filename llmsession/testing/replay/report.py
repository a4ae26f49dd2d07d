"""How a conversation is replayed, and what the replay did: values."""

from __future__ import annotations

import math
from collections import Counter
from typing import Literal

import msgspec

from llmsession.errors import InvalidInput
from llmsession.session.values.config import CompactionConfig
from llmsession.turns.messages import Message
from llmsession.turns.records import InterruptPolicy

__all__ = ["DriveOptions", "DriveReport", "Driven"]

MAX_TOLD = 10
"""So many faults are told in words; all are counted."""


class DriveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a conversation is replayed.

    Without *interrupt_every* nothing is interrupted but what was in the recording. With it, one
    step in so many is, on average, at a random point, under *interrupt_policy*. Equal seeds give
    equal interrupts; where one races the turn, who wins may differ.
    """

    window_tokens: int = 200_000
    compaction: CompactionConfig = CompactionConfig()
    delta_chars: int = 48
    delay_s: float = 0.0
    interrupt_every: int | None = None
    interrupt_policy: InterruptPolicy | Literal["random"] = "random"
    seed: int = 0

    def checked(self) -> DriveOptions:
        """These options. Raises InvalidInput for what cannot work."""
        if self.interrupt_every is not None and self.interrupt_every < 1:
            raise InvalidInput(f"interrupt_every is {self.interrupt_every}; it is 1 or more")
        if self.window_tokens < 2:
            raise InvalidInput(f"a window of {self.window_tokens} tokens holds no request")
        if self.delta_chars < 1:
            raise InvalidInput(f"delta_chars is {self.delta_chars}; it is 1 or more")
        if not 0 <= self.delay_s < math.inf:
            raise InvalidInput(f"delay_s is {self.delay_s}; it is 0 or more, and finite")
        return self


class DriveReport(msgspec.Struct, kw_only=True):
    """What one replay did. Turns, steps (replies) and messages are those of the final history.

    ``repaired`` counts its results that stand for one that never came, ``receipts`` its notes on
    dropped turns; ``resent`` the turns that were sent again, ``kept`` those that an interrupt of
    ours cut short. ``differences`` counts messages that are not as the recording has them.
    ``history_equal`` is None where nothing was compared. ``faults`` tells the first things
    that went wrong in words.
    """

    turns: int = 0
    steps: int = 0
    messages: int = 0
    requests: int = 0
    invalid_requests: int = 0
    repaired: int = 0
    compactions: int = 0
    interrupts: int = 0
    orphans: int = 0
    resent: int = 0
    kept: int = 0
    receipts: int = 0
    differences: int = 0
    history_equal: bool | None = None
    interrupt_results: Counter[str] = msgspec.field(default_factory=Counter)
    skipped_reasons: Counter[str] = msgspec.field(default_factory=Counter)
    faults: list[str] = []

    @property
    def skipped(self) -> int:
        """What the model of the recording saw and the session was not shown: lost content that
        the reader noted, and turns and texts that could not be sent."""
        return sum(self.skipped_reasons.values())

    @property
    def is_broken(self) -> bool:
        """Was a promise broken?"""
        wrong = self.invalid_requests or self.orphans or self.differences
        return bool(wrong) or self.history_equal is False

    def fault(self, text: str) -> None:
        """Tell of one thing that went wrong; past the first ten it is only counted elsewhere."""
        if len(self.faults) < MAX_TOLD:
            self.faults.append(text)

    def add(self, other: DriveReport) -> None:
        """Count *other*, the replay of another conversation, in."""
        for name in self.__struct_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if name == "history_equal":
                known = [equal for equal in (mine, theirs) if equal is not None]
                self.history_equal = all(known) if known else None
            else:
                setattr(self, name, mine + theirs)


class Driven(msgspec.Struct, frozen=True):
    """A replay that is over: its report, the history, and the history's turns by recorded turn.
    ``kept`` are the recorded turns that an interrupt of ours cut short, ``too_large`` those that
    failed because the window could not hold them (or the recorded reply was a refusal)."""

    report: DriveReport
    history: tuple[Message, ...]
    turns: dict[int, tuple[Message, ...]]
    kept: frozenset[int]
    too_large: frozenset[int]
