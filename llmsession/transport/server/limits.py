"""The limits of a service, and how it measures its load."""

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
]

GOING_DOWN = "the service goes down"
RETRY_AFTER_S = 1.0
"""The hint where nothing better is known: a limit on what is open was reached."""

MAX_LATE_HINT_S = 2.0
"""A stall of any length says nothing of the next one: once it is over the service is as quick as
before, and clients that waited for as long again would give up."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a service. Beyond each of them a command is answered ``Overloaded``, with a
    hint when to try again; a frame that is too large is a protocol error. None is no limit."""

    connections: int = 4096
    """Clients at once that have said hello. A stream of gRPC counts as one."""
    connections_before_hello: int = 256
    """Connections of one peer that have not said hello. A peer is an IPv4 address, an IPv6
    network of 64 bits, or all of a Unix socket. In all as many as ``connections``. A new
    connection takes the place of the oldest after a second."""
    sessions_per_connection: int = 10_000
    """Sessions that one client has open."""
    subscriptions_per_connection: int = 10_000
    """Subscriptions of one client."""
    subscriptions_per_session: int = 2_000
    """Subscriptions of all clients to one session: each event of the session costs as often."""
    own_subscriptions_per_session: int = 200
    """Subscriptions of one connection to one session, so that one client does not take all of a
    session's."""
    open_requests_per_connection: int = 10_000
    """Commands of one client without an answer."""
    open_turns: int | None = 10_000
    """Turns that were accepted and have not ended, of all clients."""
    frame_bytes: int = 36 * 1024 * 1024
    """Bytes of one message from a client. A message of a session may have 32 MiB."""
    commands_per_s: float | None = 5_000.0
    """Commands a second of a tenant, or of a connection without one; a burst may be twice that.
    Every frame counts, also pings and empty lines. A command beyond it is answered
    ``Overloaded`` before its fields are read; other frames are read no faster."""
    incoming_bytes: int = 128 * 1024 * 1024
    """Bytes of frames that have not ended and of commands that wait for their answers, of all
    clients. The first 16 KiB of each frame do not count."""
    incoming_bytes_per_client: int = 64 * 1024 * 1024
    """The same bytes of a tenant, or of a connection without one. It is more than one frame may
    have."""
    outgoing_bytes: int = 4 * 1024 * 1024
    """Bytes that may wait for a connection that does not read, beside one message that is
    larger than that alone."""
    max_lag_s: float = 1.0
    """How many seconds late the event loop may run before sends and new sessions are refused.
    Interrupts never are. The hint is the measured lag, at most 2 s."""
    keepalive_s: float = 20.0
    """Seconds that a connection may be silent before it is sent a ping, and after that is
    dropped."""
    hello_s: float = 10.0
    """Seconds that a connection may take to say hello."""


HELLO_BYTES = 64 * 1024
"""The largest frame before the hello."""
HELLO_FRAMES = 8
"""Frames before the hello, itself included: a client that waits for its welcome may be pinged."""


def check_limit(count: int, limit: int, what: str) -> None:
    """Raises Overloaded where there are *limit* already; *what* says of what."""
    if count >= limit:
        raise Overloaded(f"{limit} {what}", retry_after_s=RETRY_AFTER_S)


def late_hint_s(lag_s: float) -> float:
    """When a command is worth repeating that was refused because the event loop ran *lag_s* late:
    after as long again, at most ``MAX_LATE_HINT_S``."""
    return min(lag_s, MAX_LATE_HINT_S)


class RateLimit:
    """A bucket of tokens: *per_s* flow in, at most twice that are kept; None never runs dry."""

    __slots__ = ("_clock", "_excess_until", "_filled_at", "_per_s", "_tokens")

    def __init__(self, per_s: float | None, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._clock = clock
        self._tokens = 2 * per_s if per_s else 0.0
        self._filled_at = self._excess_until = clock()

    def take(self) -> float | None:
        """Take one token; None if there was one, else in how many seconds there will be."""
        if self._per_s is None:
            return None
        now = self._clock()
        refilled = self._tokens + (now - self._filled_at) * self._per_s
        self._tokens, self._filled_at = min(refilled, 2 * self._per_s), now
        if self._tokens < 1:
            return (1 - self._tokens) / self._per_s
        self._tokens -= 1
        return None

    @property
    def is_dry(self) -> bool:
        """Would ``take`` find no token now?"""
        if self._per_s is None or self._tokens >= 1:
            return False
        return self._tokens + (self._clock() - self._filled_at) * self._per_s < 1

    def exceed(self) -> float:
        """Count one frame that found no token. Returns in how many seconds the next frame is due,
        so that no more than *per_s* of these are read, over however many connections."""
        if self._per_s is None:
            return 0.0
        now = self._clock()
        self._excess_until = max(now, self._excess_until) + 1 / self._per_s
        return self._excess_until - now


class LoopLag:
    """Measures how late the event loop runs what is due, every *every_s*, and calls *tick*."""

    def __init__(self, tick: Callable[[], None], every_s: float = 0.1) -> None:
        self._tick = tick
        self._every_s = every_s
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self.lag_s = 0.0
        """The newest measurement, or, where that is less, what is left of the one before."""

    def start(self) -> None:
        """Begin to measure, in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._arm()

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._due = self._loop.time() + self._every_s
        self._timer = self._loop.call_at(self._due, self._measure)

    def _measure(self) -> None:
        late_s = self._loop.time() - self._due
        # Half of the last one stays: one quick turn does not mean that the rush is over.
        self.lag_s = max(late_s, self.lag_s / 2)
        self._arm()
        self._tick()
