"""What a connection does with one answer, step by step, and what can go wrong with it: refused,
stalled, cut, reset, failed in its middle. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import msgspec

from .refusal import Api, Refusal, overloaded, rate_limited, server_error

__all__ = ["Break", "End", "Head", "Pause", "Send", "Step", "WireFault", "spoiled"]


class Head(msgspec.Struct, frozen=True):
    """The status line and the headers go out."""

    status: int
    headers: tuple[tuple[str, str], ...]


class Send(msgspec.Struct, frozen=True):
    """These bytes of the body go out, by themselves."""

    body: bytes


class Pause(msgspec.Struct, frozen=True):
    """Nothing happens for so long; for ever, if it is infinite."""

    seconds: float


class End(msgspec.Struct, frozen=True):
    """The body is whole; the connection stays."""


class Break(msgspec.Struct, frozen=True):
    """The connection ends here: closed, or reset."""

    reset: bool


Step: TypeAlias = Head | Send | Pause | End | Break


FaultKind: TypeAlias = Literal["refuse", "stall", "cut", "reset", "error_event", "pings"]


class WireFault(msgspec.Struct, frozen=True, kw_only=True):
    """What goes wrong with one answer. Made by the class methods.

    ``after_bytes`` counts bytes of the body, so that a stream can break inside of an event or of
    a character; None is before the first byte of the answer, its status line included.
    """

    kind: FaultKind
    status: int = 0
    seconds: float | None = None
    after_bytes: int | None = None
    every: int = 0

    @classmethod
    def rate_limited(cls, retry_after_s: float | None = None) -> WireFault:
        """429, with ``retry-after`` and ``retry-after-ms`` if a time is given."""
        return cls(kind="refuse", status=429, seconds=retry_after_s)

    @classmethod
    def overloaded(cls) -> WireFault:
        """529 ``overloaded_error``; chat completions say 503."""
        return cls(kind="refuse", status=529)

    @classmethod
    def server_error(cls, status: int = 500) -> WireFault:
        """500 ``api_error``, or another status of that kind."""
        return cls(kind="refuse", status=status)

    @classmethod
    def stall(cls, seconds: float = math.inf, *, after_bytes: int | None = None) -> WireFault:
        """Nothing comes for so long, then all goes on."""
        return cls(kind="stall", seconds=seconds, after_bytes=after_bytes)

    @classmethod
    def cut(cls, after_bytes: int | None = None) -> WireFault:
        """The connection is closed there, before the answer is whole."""
        return cls(kind="cut", after_bytes=after_bytes)

    @classmethod
    def reset(cls, after_bytes: int | None = None) -> WireFault:
        """The connection is reset there: the client's next read or write fails."""
        return cls(kind="reset", after_bytes=after_bytes)

    @classmethod
    def error_event(cls, *, after_events: int = 1) -> WireFault:
        """After so many events of a stream one says ``overloaded_error``, and it ends."""
        return cls(kind="error_event", every=after_events)

    @classmethod
    def pings(cls, every: int = 1) -> WireFault:
        """A ping after every so many events of a stream; nothing is lost by it."""
        return cls(kind="pings", every=every)

    @property
    def loses_the_reply(self) -> bool:
        """Does the client not get the whole of it?"""
        return self.kind not in ("stall", "pings") or self.seconds == math.inf

    def refusal(self, api: Api) -> Refusal | None:
        """What is answered in place of a reply, in the words of *api*; None if one is given."""
        if self.kind != "refuse":
            return None
        if self.status == 429:
            return rate_limited(api, self.seconds)
        if self.status == 529:
            return overloaded(api)
        return server_error(api, self.status)


def spoiled(
    steps: Iterable[Step], fault: WireFault, *, error_event: bytes, ping: bytes
) -> list[Step]:
    """*steps* with *fault* in them. *error_event* and *ping* are as the API's stream says them.

    A fault after more bytes than the body has falls at its end, before it is said to be whole.
    """
    match fault.kind:
        case "stall":
            return list(_at_byte(steps, fault.after_bytes, [Pause(fault.seconds or 0.0)]))
        case "cut" | "reset":
            broken = _at_byte(steps, fault.after_bytes, [Break(fault.kind == "reset")])
            return list(_up_to_break(broken))
        case "error_event":
            return list(_after_events(steps, fault.every, error_event))
        case "pings":
            return list(_with_pings(steps, fault.every, ping))
        case "refuse":
            return list(steps)


def _at_byte(steps: Iterable[Step], after: int | None, there: list[Step]) -> Iterator[Step]:
    if after is None:
        yield from there
        yield from steps
        return
    left: int | None = after
    for step in steps:
        if left is None or not isinstance(step, Send | End):
            yield step
        elif isinstance(step, Send) and len(step.body) <= left:
            left -= len(step.body)
            yield step
        else:
            body = step.body if isinstance(step, Send) else b""
            if body[:left]:
                yield Send(body[:left])
            yield from there
            yield Send(body[left:]) if body else step
            left = None


def _up_to_break(steps: Iterable[Step]) -> Iterator[Step]:
    for step in steps:
        yield step
        if isinstance(step, Break):
            return


def _after_events(steps: Iterable[Step], events: int, error_event: bytes) -> Iterator[Step]:
    for step in steps:
        if (isinstance(step, Send) and events == 0) or isinstance(step, End):
            yield Send(error_event)
            yield End()
            return
        events -= isinstance(step, Send)
        yield step


def _with_pings(steps: Iterable[Step], every: int, ping: bytes) -> Iterator[Step]:
    sent = 0
    for step in steps:
        yield step
        if isinstance(step, Send):
            sent += 1
            if sent % every == 0:
                yield Send(ping)
