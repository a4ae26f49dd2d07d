"""Bounds what one client can cost the others while it connects and sends: connections, memory, and
the event loop's time."""

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
"""The first bytes of a frame that do not count. Most commands are smaller than this, so they are
accepted even if other clients have used up the limit."""
PASS_S = 0.005
"""How long frames are read in one pass of the event loop before everything else gets its turn."""
PATIENCE_S = 1.0
"""How long a connection may keep its place without a hello when its peer has no other place
left."""
WOKEN_AT_ONCE = 16
"""How many readers get their turn in one pass. Each of them reads at least one frame."""


def excess_of(size_bytes: int) -> int:
    """The bytes that a frame of *size_bytes* counts in ``IncomingBytes``."""
    return max(0, size_bytes - FREE_BYTES)


class IncomingBytes:
    """Counts the bytes of unfinished frames and of commands without an answer. The limits are
    *limit* in total, and *limit_of_one* per key: a tenant, or a connection without a tenant."""

    def __init__(self, limit: int, limit_of_one: int) -> None:
        self._limit = limit
        self._limit_of_one = limit_of_one
        self._by_key: Counter[object] = Counter()
        self.bytes = 0
        """The bytes that are counted now."""

    def take(self, key: object, size_bytes: int) -> None:
        """Count *size_bytes* more for *key*. Raises Overloaded, and counts nothing, if a limit
        would be exceeded."""
        if size_bytes <= 0:
            return
        if self._by_key[key] + size_bytes > self._limit_of_one:
            self._raise(f"{self._limit_of_one:,} bytes of one client")
        if self.bytes + size_bytes > self._limit:
            self._raise(f"{self._limit:,} bytes of all clients")
        self._by_key[key] += size_bytes
        self.bytes += size_bytes

    def give_back(self, key: object, size_bytes: int) -> None:
        """Stop counting *size_bytes* that *key* has taken."""
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
    """Divides the event loop's time between reading frames and everything else.

    Each reader reports how long a frame took. Once the frames of one pass of the loop have taken
    ``PASS_S``, further readers ``wait`` for a later pass. They get their turns in the order in
    which they began to wait. Without this, many fast clients would keep the loop busy with reading,
    and turns, answers and timers would be late.
    """

    def __init__(self) -> None:
        self._spent_s = 0.0
        self.has_time = True
        """Whether one more frame may be read in this pass."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_armed = False

    def spend(self, since: float) -> float:
        """Report that a frame was read since *since*, a time of ``perf_counter``. Returns the time
        now. If nothing is awaited in between, that is the *since* of the next frame."""
        now = perf_counter()
        self._spent_s += now - since
        self.has_time = self._spent_s < PASS_S
        if not self._is_armed:
            self._arm()
        return now

    async def wait(self) -> None:
        """Wait until it is the caller's turn. Can be cancelled."""
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
            if not turn.done():  # a cancelled reader's turn goes to the next one
                turn.set_result(None)
                woken += 1
        if self._waiting:
            self._arm()


class PendingHellos:
    """Bounds the connections that have not sent a hello: *limit_of_peer* for each peer, and *limit*
    in total. They do not count as clients yet.

    If a peer is at its limit, its new connection replaces its oldest one, provided that one is
    older than ``PATIENCE_S``. A working client sends its hello at once, so this only drops
    connections that occupy places.
    """

    def __init__(self, limit: int, limit_of_peer: int, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._limit_of_peer = limit_of_peer
        self._clock = clock
        self._by_host: dict[str, dict[PendingHello, None]] = {}
        """Each peer's connections, the oldest first."""
        self.count = 0
        self.dropped = 0
        """How many connections were dropped in favour of a newer one of the same peer."""

    def enter(self, peer: str, drop: Callable[[], None]) -> PendingHello:
        """Count a connection of *peer* until it ``leave``s. *drop* is called to end it. Raises
        Overloaded."""
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
        """Stop counting *pending*: it has sent its hello, or it is gone."""
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
        """Give the place back: the hello has come, or the connection is gone. Calling it again has
        no effect."""
        self._all.leave(self)
