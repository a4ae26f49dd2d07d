"""The network of a simulated cluster, and the clocks of its hosts."""

from __future__ import annotations

from random import Random
from typing import TypeAlias

import anyio

__all__ = ["CLIENTS", "RENEWALS", "STORE", "End", "HostClock", "Network", "host_name"]

End: TypeAlias = str
"""One end of a connection: the name of a host, or one of these three."""
STORE: End = "store"
CLIENTS: End = "clients"
RENEWALS: End = "renewals"
"""The connection of a host on which its lease is renewed; it can break alone."""
LATE_S = 0.3
LOST_SHARE = 0.3


def host_name(number: int) -> End:
    """The name of a host. It keeps it when it starts again."""
    return f"host{number}"


class Network:
    """Who reaches whom now, and how late views and notices come."""

    def __init__(self, seed: int) -> None:
        self._random = Random(f"network {seed}")
        self._cut_until: dict[frozenset[End], float] = {}
        self._breaks: dict[frozenset[End], int] = {}
        self._late_until = 0.0

    def cut(self, one: End, other: End, seconds: float) -> None:
        """Break the connections between two ends, and let none be made for *seconds*."""
        pair = frozenset((one, other))
        until = anyio.current_time() + seconds
        self._cut_until[pair] = max(until, self._cut_until.get(pair, until))
        self._breaks[pair] = self._breaks.get(pair, 0) + 1

    def delay(self, seconds: float) -> None:
        """For *seconds*, views and notices are late, overtake each other, or are lost."""
        self._late_until = anyio.current_time() + seconds

    def heal(self) -> None:
        """Let everybody reach everybody."""
        self._cut_until.clear()
        self._late_until = 0.0

    def reaches(self, one: End, other: End) -> bool:
        """Whether a message passes now."""
        return anyio.current_time() >= self._cut_until.get(frozenset((one, other)), 0.0)

    def breaks(self, one: End, other: End) -> int:
        """How often the connections between two ends were broken."""
        return self._breaks.get(frozenset((one, other)), 0)

    def delay_s(self) -> float | None:
        """How long the next view or notice takes; None if it is lost."""
        if anyio.current_time() >= self._late_until:
            return self._random.choice((0.0, 0.0005, 0.004))
        return None if self._random.random() < LOST_SHARE else self._random.uniform(0, LATE_S)


class HostClock:
    """The clock that a host measures its lease by. It drifts by *rate*, and while the host is
    stopped it goes on: the host sees it jump.

    The simulation cannot stop the code of one host only: it isolates it. So the clock jumps at
    once, and stands still until the host goes on. What the code does meanwhile is done as if it
    were done then.
    """

    def __init__(self, rate: float, start: float) -> None:
        self.rate = rate
        self._start = start
        self._stopped_until = 0.0

    def stop(self, seconds: float) -> None:
        """The host is stopped for *seconds* from now on."""
        self._stopped_until = anyio.current_time() + seconds

    def __call__(self) -> float:
        return self._start + self.rate * max(anyio.current_time(), self._stopped_until)
