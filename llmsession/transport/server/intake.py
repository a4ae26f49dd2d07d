"""What incoming bytes may cost all others: memory until they are a command that was performed, and
the time of the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from time import perf_counter

from llmsession.errors import Overloaded

from .limits import RETRY_AFTER_S

__all__ = ["FREE_BYTES", "IncomingBytes", "ReadingTurns", "excess_of"]

FREE_BYTES = 16 * 1024
"""Of each frame these do not count: most commands are smaller, and are taken whatever others do."""
PASS_S = 0.005
"""How long frames are read in one pass of the event loop, before everything else has its turn."""
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
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_armed = False

    @property
    def has_time(self) -> bool:
        """May one more frame be read in this pass?"""
        return self._spent_s < PASS_S

    def spend(self, since: float) -> None:
        """A frame was read, beginning at *since* by ``perf_counter``."""
        self._spent_s += perf_counter() - since
        self._arm()

    async def wait(self) -> None:
        """Until it is the caller's turn. Cancellable."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._arm()
        await turn

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            asyncio.get_running_loop().call_soon(self._begin_pass)

    def _begin_pass(self) -> None:
        self._is_armed = False
        self._spent_s = 0.0
        woken = 0
        while self._waiting and woken < WOKEN_AT_ONCE:
            turn = self._waiting.popleft()
            if not turn.done():  # else its reader was cancelled
                turn.set_result(None)
                woken += 1
        if self._waiting:
            self._arm()
