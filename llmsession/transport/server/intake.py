"""What clients may cost all others before they are let in and while they send: connections, memory,
and the time of the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from time import perf_counter

from llmsession.errors import Overloaded

from .limits import RETRY_AFTER_S
from .refusals import host_of

__all__ = [
    "FREE_BYTES",
    "IncomingBytes",
    "PendingHello",
    "PendingHellos",
    "ReadingTurns",
    "excess_of",
]

FREE_BYTES = 16 * 1024
"""Of each frame these do not count: most commands are smaller, and are taken whatever others do."""
PASS_S = 0.005
"""How long frames are read in one pass of the event loop, before everything else has its turn."""
PATIENCE_S = 1.0
"""How long a connection keeps its place without a hello, where its peer has no other left."""
WOKEN_AT_ONCE = 16
"""Readers that have their turn in one pass: each reads one frame at least."""


def excess_of(size_bytes: int) -> int:
    """What a frame of *size_bytes* counts in ``IncomingBytes``."""
    return max(0, size_bytes - FREE_BYTES)


class IncomingBytes:
    """Bytes of frames that have not ended, and of commands that have no answer yet: at most
    *limit* in all, and *limit_of_one* of a tenant, or of a connection where there are none."""

    def __init__(self, limit: int, limit_of_one: int) -> None:
        self._limit = limit
        self._limit_of_one = limit_of_one
        self._by_key: Counter[object] = Counter()
        self.bytes = 0
        """What counts now."""

    def take(self, key: object, size_bytes: int) -> None:
        """Count *size_bytes* more for *key*. Raises Overloaded past a limit, and counts nothing."""
        if size_bytes <= 0:
            return
        if self._by_key[key] + size_bytes > self._limit_of_one:
            self._raise(f"{self._limit_of_one:,} bytes of one client")
        if self.bytes + size_bytes > self._limit:
            self._raise(f"{self._limit:,} bytes of all clients")
        self._by_key[key] += size_bytes
        self.bytes += size_bytes

    def give_back(self, key: object, size_bytes: int) -> None:
        """Count *size_bytes* less for *key*, which has taken them."""
        if size_bytes <= 0:
            return
        self.bytes -= size_bytes
        self._by_key[key] -= size_bytes
        if not self._by_key[key]:
            del self._by_key[key]

    @staticmethod
    def _raise(what: str) -> None:
        raise Overloaded(f"{what} wait in frames and commands", retry_after_s=RETRY_AFTER_S)


class ReadingTurns:
    """Shares the event loop between those who read frames and everything else.

    Who has read a frame says how long that took. Once that is ``PASS_S`` in one pass of the loop,
    readers ``wait`` for their turn in a later pass, in the order in which they came.
    """

    def __init__(self) -> None:
        self._spent_s = 0.0
        self.has_time = True
        """May one more frame be read in this pass?"""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_armed = False

    def spend(self, since: float) -> float:
        """A frame was read, beginning at *since* by ``perf_counter``. Returns the time now, which
        is the *since* of the next frame if nothing is awaited before it."""
        now = perf_counter()
        self._spent_s += now - since
        self.has_time = self._spent_s < PASS_S
        if not self._is_armed:
            self._arm()
        return now

    async def wait(self) -> None:
        """Until it is the caller's turn. Cancellable."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        if not self._is_armed:
            self._arm()
        await turn

    def _arm(self) -> None:
        self._is_armed = True
        asyncio.get_running_loop().call_soon(self._begin_pass)

    def _begin_pass(self) -> None:
        self._is_armed = False
        self._spent_s = 0.0
        self.has_time = True
        woken = 0
        while self._waiting and woken < WOKEN_AT_ONCE:
            turn = self._waiting.popleft()
            if not turn.done():  # else its reader was cancelled
                turn.set_result(None)
                woken += 1
        if self._waiting:
            self._arm()


class PendingHellos:
    """Connections that have not said hello: at most *limit_of_peer* of one peer, and *limit* in
    all. They are none of those that have.

    Past the limit of a peer, a new connection takes the place of the oldest, if that has had
    ``PATIENCE_S``: who says hello does so at once.
    """

    def __init__(self, limit: int, limit_of_peer: int, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._limit_of_peer = limit_of_peer
        self._clock = clock
        self._by_host: dict[str, dict[PendingHello, None]] = {}
        """Oldest first."""
        self.count = 0
        self.dropped = 0
        """Connections that made room for another one of their peer."""

    def enter(self, peer: str, drop: Callable[[], None]) -> PendingHello:
        """A connection of *peer*, until it ``leave``s; *drop* ends it. Raises Overloaded."""
        host, now = host_of(peer), self._clock()
        own = self._by_host.get(host, {})
        if len(own) >= self._limit_of_peer:
            oldest = next(iter(own))
            if now - oldest.since < PATIENCE_S:
                self._refuse(f"{self._limit_of_peer} connections of {host} have not said hello")
            self.dropped += 1
            oldest.leave()
            oldest.drop()
        elif self.count >= self._limit:
            self._refuse(f"{self._limit} connections have not said hello")
        pending = PendingHello(self, host, now, drop)
        self._by_host.setdefault(host, {})[pending] = None
        self.count += 1
        return pending

    @staticmethod
    def _refuse(why: str) -> None:
        raise Overloaded(why, retry_after_s=RETRY_AFTER_S)

    def leave(self, pending: PendingHello) -> None:
        """*pending* has said hello, or is gone."""
        own = self._by_host.get(pending.host, {})
        if pending in own:
            del own[pending]
            self.count -= 1
            if not own:
                del self._by_host[pending.host]


class PendingHello:
    """One connection's place among the ``PendingHellos``."""

    __slots__ = ("_all", "drop", "host", "since")

    def __init__(
        self, all: PendingHellos, host: str, since: float, drop: Callable[[], None]
    ) -> None:
        self._all = all
        self.host = host
        self.since = since
        self.drop = drop

    def leave(self) -> None:
        """It has said hello, or is gone. No effect the second time."""
        self._all.leave(self)
