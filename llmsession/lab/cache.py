"""The provider's prompt cache in a replay: what each request reads from it and writes to it.

It is modelled as a prefix cache. A request reads the messages that it shares byte for byte with the
request before, from the first one on, and the system text and tools in front of them. Everything
else is written. After the provider's time to live nothing is left. Not modelled are breakpoints,
minimum lengths, and other sessions of the same account.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from llmsession.compaction.view.prefix import shared_prefix
from llmsession.turns.request import Request, RequestMessage
from llmsession.turns.spending.prices import Price, cost
from llmsession.turns.usage import Usage

__all__ = ["PLAIN", "Charged", "PrefixCache", "Spent", "shared_messages"]

PLAIN = Price.usd(1, 5, cache_read="0.1", cache_write_5m="1.25", cache_write_1h=2)
"""Prices relative to a plain input token, in the ratios of Anthropic's models: a million plain
input tokens cost one.
"""


class Charged(NamedTuple):
    """What one request was charged, in tokens and in billionths of the price's unit."""

    read_tokens: int
    written_tokens: int
    cost: int


def shared_messages(before: Sequence[RequestMessage], now: Sequence[RequestMessage]) -> int:
    """How many messages at the beginning of *now* are those of *before*, byte for byte."""
    shared = shared_prefix(before, now)
    while shared < min(len(before), len(now)):
        known, current = before[shared], now[shared]
        if known.role != current.role or bytes(known.body) != bytes(current.body):
            break
        shared += 1
    return shared


class PrefixCache:
    """The cache of one replayed conversation. ``tokens`` is the size of its content, which is the
    last prompt.
    """

    def __init__(self, price: Price, ttl_s: float) -> None:
        self._price = price
        self.ttl_s = ttl_s
        self._last: Request | None = None
        self._touched_at: float | None = None
        self.tokens = 0

    def idle_s(self, now_s: float | None) -> float:
        """For how many seconds nothing was asked at *now_s*; 0 if the recording has no times."""
        if now_s is None or self._touched_at is None:
            return 0.0
        return max(0.0, now_s - self._touched_at)

    def is_cold(self, now_s: float | None) -> bool:
        """Would a request at *now_s* find nothing in it?"""
        return self._last is None or self.idle_s(now_s) >= self.ttl_s

    def shared(self, request: Request, now_s: float | None) -> int | None:
        """How many messages at the beginning of *request* are in the cache; None if not even the
        system text and tools in front of them are.
        """
        last = self._last
        if last is None or self.is_cold(now_s):
            return None
        if (last.system, last.tools, last.model) != (request.system, request.tools, request.model):
            return None
        return shared_messages(last.messages, request.messages)

    def ask(
        self, request: Request, *, read_tokens: int, tokens: int, now_s: float | None
    ) -> Charged:
        """Send *request*, of *tokens* tokens, at *now_s*. *read_tokens* of them are in the
        cache.
        """
        self._last, self._touched_at, self.tokens = request, now_s, tokens
        return self._charged(read_tokens, tokens - read_tokens, 0)

    def ask_again(self, *, added_tokens: int, output_tokens: int) -> Charged:
        """Send the last request once more, with *added_tokens* behind it, as the step of a recall
        does.
        """
        read = self.tokens
        self.tokens += added_tokens
        return self._charged(read, added_tokens, output_tokens)

    def touch(self, now_s: float | None) -> None:
        """The reply was complete at *now_s*; the time to live is counted from there."""
        if now_s is not None and self._touched_at is not None:
            self._touched_at = max(self._touched_at, now_s)

    def _charged(self, read: int, written: int, output: int) -> Charged:
        usage = Usage(output_tokens=output, cache_read_tokens=read, cache_write_tokens=written)
        return Charged(read, written, cost(usage, self._price))


class Spent(msgspec.Struct):
    """Sums over the requests of a replay. ``cost`` is in billionths of the price's unit."""

    read_tokens: int = 0
    written_tokens: int = 0
    cost: int = 0

    def add(self, charged: Charged | Spent) -> None:
        """Add *charged*: a request, or a sum of requests."""
        self.read_tokens += charged.read_tokens
        self.written_tokens += charged.written_tokens
        self.cost += charged.cost
