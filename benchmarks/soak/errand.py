"""What a client process of a soak is sent to do, and what it says when it comes back."""

from __future__ import annotations

from collections import Counter

import msgspec

__all__ = ["MODEL", "Errand", "TellTale", "Told"]

MODEL = "claude-opus-5-5"
"""One that binds its thinking: every byte before it has to stay as it was."""


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """What one client process does for *seconds*. ``patience_s``: how long a service may be away,
    and an answer may take. One that ``stresses`` must not be killed: its sessions would wait ten
    minutes for results of calls that nobody runs any more."""

    name: str
    seed: int
    seconds: float
    addresses: tuple[str, ...]
    folder: str
    lives: int = 4
    stresses: bool = True
    patience_s: float = 120.0


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What it came to. ``complaints`` are broken promises."""

    counts: dict[str, int]
    complaints: tuple[str, ...]
    sends_ms: tuple[float, ...]
    interrupts_ms: tuple[float, ...]


class TellTale:
    """Collects what a client process saw."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.complaints: list[str] = []
        self.sends_ms: list[float] = []
        self.interrupts_ms: list[float] = []

    def told(self) -> Told:
        """What can be said in a line of JSON."""
        return Told(
            counts=dict(self.counts),
            complaints=tuple(self.complaints),
            sends_ms=tuple(round(each, 2) for each in self.sends_ms),
            interrupts_ms=tuple(round(each, 2) for each in self.interrupts_ms),
        )
