"""Which answer meets which fault: in the order of requests, by a function, or by chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import TypeAlias

import msgspec

from .model.faults import WireFault
from .replies.received import Received

__all__ = ["FaultSchedule", "Faults", "RandomFaults"]


class RandomFaults(msgspec.Struct, frozen=True, kw_only=True):
    """Faults by chance: each answer has one with a chance of *rate*, out of *kinds*.

    What the n-th request of a conversation meets depends on *seed*, the conversation and n
    alone, so that a run can be had again whatever ran beside it.
    """

    seed: int
    rate: float = 0.1
    kinds: tuple[WireFault, ...] = (
        WireFault.rate_limited(0.5),
        WireFault.overloaded(),
        WireFault.server_error(),
        WireFault.stall(2.0),
        WireFault.cut(),
        WireFault.reset(),
        WireFault.error_event(after_events=3),
    )
    max_bytes: int = 2000
    """A fault that falls after some bytes falls before this many."""

    def choose(self, conversation: str, number: int) -> WireFault | None:
        """The fault of a conversation's request *number*, counted from 0."""
        rng = Random(f"{self.seed}/{conversation}/{number}")
        if rng.random() >= self.rate:
            return None
        fault = rng.choice(self.kinds)
        if fault.kind in ("cut", "reset", "stall") and rng.random() < 0.8:
            return msgspec.structs.replace(fault, after_bytes=rng.randrange(self.max_bytes))
        return fault


Faults: TypeAlias = (
    Iterable[WireFault | None] | Callable[[Received], WireFault | None] | RandomFaults | None
)


class FaultSchedule:
    """What is left of the faults. Asked once for each valid request, in the order they come."""

    def __init__(self, faults: Faults) -> None:
        self._chance: RandomFaults | None = None
        self._chosen: Callable[[Received], WireFault | None] | None = None
        self._listed: Iterator[WireFault | None] = iter(())
        if isinstance(faults, RandomFaults):
            self._chance = faults
        elif callable(faults):
            self._chosen = faults
        elif faults is not None:
            self._listed = iter(faults)
        self._seen: Counter[str] = Counter()

    def choose(self, received: Received) -> WireFault | None:
        """The fault that the answer to *received* meets."""
        if self._chance is not None:
            number = self._seen[received.conversation]
            self._seen[received.conversation] += 1
            return self._chance.choose(received.conversation, number)
        if self._chosen is not None:
            return self._chosen(received)
        return next(self._listed, None)
