"""The limits of a service, its rate limits, and how it measures the event loop's delay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from llmsession.errors import Overloaded

__all__ = [
    "GOING_DOWN",
    "RETRY_AFTER_S",
    "Limits",
    "LoopLag",
    "RateLimit",
    "check_limit",
    "late_hint_s",
    "rate_of_host",
]

GOING_DOWN = "the service goes down"
RETRY_AFTER_S = 1.0
"""The hint, in seconds, if a limit of open things is reached: nobody knows when one will end."""

MAX_LATE_HINT_S = 2.0
"""The longest hint after a stall of the event loop. The length of a stall says nothing about the
next one: once it is over, the service is as fast as before, and clients that wait as long again
would give up."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a service. A command that exceeds one is answered ``Overloaded``, with a hint
    when to try again. A frame that is too large is a protocol error. None means no limit."""

    connections: int = 4096
    """Clients that have sent a hello. A gRPC stream counts as one."""
    connections_before_hello: int = 256
    """Connections of one peer that have not sent a hello. A peer is an IPv4 address, an IPv6
    network of 64 bits, or all clients of a Unix socket. All peers together may have as many as
    ``connections``. At the limit, a new connection replaces the peer's oldest one after a
    second."""
    sessions_per_connection: int = 10_000
    """Sessions that one connection uses."""
    subscriptions_per_connection: int = 10_000
    """Subscriptions of one connection."""
    subscriptions_per_session: int = 2_000
    """Subscriptions of all clients to one session. Each event of the session is sent once for each
    of them."""
    own_subscriptions_per_session: int = 200
    """Subscriptions of one connection to one session, so that one client cannot use up the limit of
    the session."""
    open_requests_per_connection: int = 10_000
    """Commands of one connection that have no answer yet."""
    open_turns: int | None = 10_000
    """Accepted turns of all clients that have not ended."""
    frame_bytes: int = 36 * 1024 * 1024
    """Bytes of one frame from a client. A message of a session may have 32 MiB."""
    commands_per_s: float | None = 5_000.0
    """Commands a second of a tenant, or of a connection without one. A burst may have twice as
    many. In a cluster each host allows a tenant this rate divided by the number of hosts that are
    up. Every frame counts, pings and empty lines included. A command beyond the rate is answered
    ``Overloaded`` before its fields are decoded. Other frames beyond it are read later."""
    incoming_bytes: int = 128 * 1024 * 1024
    """Bytes of unfinished frames and of commands without an answer, of all clients. The first 16
    KiB of each frame do not count."""
    incoming_bytes_per_client: int = 64 * 1024 * 1024
    """The same bytes of one tenant, or of one connection without a tenant. It must be larger than
    ``frame_bytes``."""
    outgoing_bytes: int = 4 * 1024 * 1024
    """Bytes that may wait for a connection that does not read. One larger message may wait in
    addition."""
    max_lag_s: float = 1.0
    """Seconds that the event loop may be late before sends and new sessions are refused. Interrupts
    are never refused for this. The hint is the measured delay, at most 2 s."""
    keepalive_s: float = 20.0
    """Seconds of silence after which a connection is sent a ping, and seconds that it then has to
    answer."""
    hello_s: float = 10.0
    """Seconds that a new connection has to send its hello."""


HELLO_BYTES = 64 * 1024
"""The largest frame before the hello, in bytes."""
HELLO_FRAMES = 8
"""Frames before and including the hello. A client may ping while it waits for the welcome."""


def check_limit(count: int, limit: int, what: str) -> None:
    """Raises Overloaded if *count* has reached *limit*. *what* names the things that are
    counted."""
    if count >= limit:
        raise Overloaded(f"{limit} {what}", retry_after_s=RETRY_AFTER_S)


def late_hint_s(lag_s: float) -> float:
    """The hint, in seconds, for a command that is refused because the event loop runs *lag_s* late:
    the same time again, at most ``MAX_LATE_HINT_S``."""
    return min(lag_s, MAX_LATE_HINT_S)


def rate_of_host(per_s: float | None, hosts: int) -> float | None:
    """The part of a tenant's rate that each of *hosts* hosts allows. The tenant's sessions are
    spread over them, and so are its commands. None means no limit."""
    return None if per_s is None else per_s / max(1, hosts)


class RateLimit:
    """A token bucket. *per_s* tokens a second flow in, and at most twice as many are kept, or one.
    With None there is always a token."""

    __slots__ = ("_clock", "_excess_until", "_filled_at", "_per_s", "_tokens")

    def __init__(self, per_s: float | None, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._clock = clock
        self._tokens = max(1.0, 2 * per_s) if per_s else 0.0
        self._filled_at = self._excess_until = clock()

    def set_rate(self, per_s: float | None) -> None:
        """From now on *per_s* tokens a second flow in."""
        if self._per_s is not None and per_s is not None:
            self._fill(self._clock())
            self._tokens = min(self._tokens, max(1.0, 2 * per_s))
            self._per_s = per_s

    def _fill(self, now: float) -> None:
        assert self._per_s is not None  # a limit without a rate has no tokens
        refilled = self._tokens + (now - self._filled_at) * self._per_s
        self._tokens, self._filled_at = min(refilled, max(1.0, 2 * self._per_s)), now

    def take(self) -> float | None:
        """Take one token and return None, or return in how many seconds there will be one."""
        if self._per_s is None:
            return None
        self._fill(self._clock())
        if self._tokens < 1:
            return (1 - self._tokens) / self._per_s
        self._tokens -= 1
        return None

    @property
    def is_dry(self) -> bool:
        """Whether ``take`` would find no token now."""
        if self._per_s is None or self._tokens >= 1:
            return False
        return self._tokens + (self._clock() - self._filled_at) * self._per_s < 1

    def exceed(self) -> float:
        """Count one frame that found no token. Returns in how many seconds the next frame is due.

        All connections with the same rate key share this schedule, so together they are read no
        faster than *per_s* frames a second, however many connections there are."""
        if self._per_s is None:
            return 0.0
        now = self._clock()
        self._excess_until = max(now, self._excess_until) + 1 / self._per_s
        return self._excess_until - now


class LoopLag:
    """Measures every *every_s* seconds how late the event loop runs a timer, and calls *tick*."""

    def __init__(self, tick: Callable[[], None], every_s: float = 0.1) -> None:
        self._tick = tick
        self._every_s = every_s
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self.lag_s = 0.0
        """The newest measurement in seconds, or half of the previous value if that is more."""

    def start(self) -> None:
        """Begin to measure the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._arm()

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._due = self._loop.time() + self._every_s
        self._timer = self._loop.call_at(self._due, self._measure)

    def _measure(self) -> None:
        late_s = self._loop.time() - self._due
        # Half of the last value is kept, because one timely callback does not prove that the rush
        # is over.
        self.lag_s = max(late_s, self.lag_s / 2)
        self._arm()
        self._tick()
