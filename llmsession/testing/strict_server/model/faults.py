"""The steps in which a connection sends one answer, and the faults of these steps. Pure."""

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
    """Nothing is sent for ``seconds``. They may be infinite."""

    seconds: float


class End(msgspec.Struct, frozen=True):
    """The body is whole; the connection stays."""


class Break(msgspec.Struct, frozen=True):
    """The connection ends here: closed, or reset."""

    reset: bool


Step: TypeAlias = Head | Send | Pause | End | Break


FaultKind: TypeAlias = Literal["refuse", "stall", "cut", "reset", "error_event", "pings"]


class WireFault(msgspec.Struct, frozen=True, kw_only=True):
    """The fault of one answer. Create it with the class methods.

    ``after_bytes`` counts bytes of the body, so a stream can break inside an event or a character.
    None means before the first byte of the answer, including its status line.
    """

    kind: FaultKind
    status: int = 0
    seconds: float | None = None
    after_bytes: int | None = None
    every: int = 0

    @classmethod
    def rate_limited(cls, retry_after_s: float | None = None) -> WireFault:
        """Status 429, with ``retry-after`` and ``retry-after-ms`` if *retry_after_s* is set."""
        return cls(kind="refuse", status=429, seconds=retry_after_s)

    @classmethod
    def overloaded(cls) -> WireFault:
        """Status 529 with ``overloaded_error``. Chat completions use status 503."""
        return cls(kind="refuse", status=529)

    @classmethod
    def server_error(cls, status: int = 500) -> WireFault:
        """Status 500 with ``api_error``, or another status of a server error."""
        return cls(kind="refuse", status=status)

    @classmethod
    def stall(cls, seconds: float = math.inf, *, after_bytes: int | None = None) -> WireFault:
        """The answer pauses for *seconds*, then continues."""
        return cls(kind="stall", seconds=seconds, after_bytes=after_bytes)

    @classmethod
    def cut(cls, after_bytes: int | None = None) -> WireFault:
        """The connection is closed there, before the answer is complete."""
        return cls(kind="cut", after_bytes=after_bytes)

    @classmethod
    def reset(cls, after_bytes: int | None = None) -> WireFault:
        """The connection is reset there, so the client's next read or write fails."""
        return cls(kind="reset", after_bytes=after_bytes)

    @classmethod
    def error_event(cls, *, after_events: int = 1) -> WireFault:
        """After *after_events* events, the stream ends with an ``overloaded_error`` event."""
        return cls(kind="error_event", every=after_events)

    @classmethod
    def pings(cls, every: int = 1) -> WireFault:
        """The stream has a ping after each *every* events. Nothing is lost."""
        return cls(kind="pings", every=every)

    @property
    def loses_the_reply(self) -> bool:
        """Whether the client does not get the complete reply."""
        return self.kind not in ("stall", "pings") or self.seconds == math.inf

    def refusal(self, api: Api) -> Refusal | None:
        """The error that *api* answers instead of a reply. None if the fault is of another kind."""
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
    """*steps* with *fault* added. *error_event* and *ping* are encoded for the API's stream.

    If the body has fewer bytes than ``after_bytes``, the fault comes after the body, before the end
    of the answer.
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
