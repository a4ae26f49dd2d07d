"""Commands without an answer, and when a client repeats a command that a busy service refused.

``Overloaded`` with a hint means that the service has reached a limit and has not carried out the
command. The client sends it again, no earlier than the hint says and for a bounded time.

Commands of one session keep their order:

- Commands behind a refused one wait for it. They are then sent one at a time.
- A refused command is not retried once a later command of the session has been carried out. That
  can happen if the later command was already on its way.
- An interrupt does not wait. It covers the sends before it, so these are not retried.
- Queries and commands without a session have no order.
"""

from __future__ import annotations

import asyncio
import random
from bisect import insort
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from llmsession.errors import Overloaded, SessionError, Unreachable

from ..wire import messages as w

__all__ = ["PendingRequest", "PendingRequests", "again_after_s", "fail", "order_key"]

FIRST_DELAY_S = 0.05
MAX_DELAY_S = 2.0
"""The delay doubles with each refusal, and is at least the hint. Up to a half is added at random,
so that clients that were refused together do not come back together."""

_UNORDERED = (w.Open, w.Outcome, w.Query)


def again_after_s(hint_s: float, refusals: int) -> float:
    """In how many seconds to retry a command that was refused *refusals* times, the last time with
    *hint_s*. The result is random and never less than the hint."""
    backoff_s: float = min(FIRST_DELAY_S * 2 ** min(refusals, 10), MAX_DELAY_S)
    return max(hint_s, backoff_s) * random.uniform(1.0, 1.5)


class PendingRequest:
    """A command that has no answer yet."""

    __slots__ = ("answer", "command", "due", "refusal", "refusals", "repeated", "sent", "until")

    def __init__(self, command: w.Command[Any], answer: asyncio.Future[msgspec.Raw]) -> None:
        self.command = command
        self.answer = answer
        self.sent = False
        self.repeated = False
        """Whether it was sent over more than one connection. Then the first one may have carried it
        out, although its answer was lost."""
        self.refusal: Overloaded | None = None
        self.refusals = 0
        self.due = 0.0
        self.until: float | None = None
        """``due`` is the earliest and ``until`` the latest time to retry, in the event loop's
        time."""


class _Line:
    """The ordered commands of one session, or one command that has no order."""

    __slots__ = ("covered", "sent", "timer", "waiting")

    def __init__(self) -> None:
        self.covered = 0
        """The id of the newest interrupt of everything open. It covers all sends before it."""
        self.sent: set[int] = set()
        self.waiting: list[PendingRequest] = []
        """Refused commands, and commands behind a refused one, in their order."""
        self.timer: asyncio.TimerHandle | None = None


class PendingRequests:
    """The commands of a link that have no answer. No method waits.

    *send* sends a command, or returns false if there is no connection. *overloaded_s* is how many
    seconds a refused command is retried."""

    def __init__(self, send: Callable[[w.Command[Any]], bool], overloaded_s: float) -> None:
        self._send = send
        self._overloaded_s = overloaded_s
        self._requests: dict[int, PendingRequest] = {}
        self._lines: dict[str | int, _Line] = {}

    def ask(self, command: w.Command[Any]) -> PendingRequest:
        """Send *command*, or queue it behind a refused command of its session."""
        loop = asyncio.get_running_loop()
        request = self._requests[command.id] = PendingRequest(command, loop.create_future())
        key = order_key(command)
        line = self._lines.get(key) if isinstance(key, str) else None
        if line is not None and line.waiting:
            if not isinstance(command, w.Interrupt):
                request.until = loop.time() + self._overloaded_s
                line.waiting.append(request)
                return request
            if command.turn is None:
                sends = [request for request in line.waiting if type(request.command) is w.Send]
                self._give_up_all(line, sends)
        self._note_sent(request)
        request.sent = self._send(command)
        return request

    def performed(self, id: int) -> PendingRequest | None:
        """The command *id* was answered, and not with ``Overloaded``. Returns its request, which is
        no longer pending, or None for an unknown id."""
        request = self._requests.pop(id, None)
        if request is None:
            return None
        key = order_key(request.command)
        line = self._lines.get(key)
        if line is not None:
            line.sent.discard(id)
            if not isinstance(request.command, w.Interrupt):
                self._give_up_all(line, [late for late in line.waiting if late.command.id < id])
            self._send_next(key, line)
        return request

    def refused(self, id: int, error: Overloaded) -> bool:
        """The command *id* was refused with *error*. Retry it later, or fail it. Returns false for
        an unknown id."""
        request = self._requests.get(id)
        if request is None:
            return False
        now, key = asyncio.get_running_loop().time(), order_key(request.command)
        line = self._lines.setdefault(key, _Line())
        line.sent.discard(id)
        request.refusal = error
        if request.until is None:
            request.until = now + self._overloaded_s
        if error.retry_after_s is not None:
            request.due = now + again_after_s(error.retry_after_s, request.refusals)
            request.refusals += 1
        is_covered = type(request.command) is w.Send and id < line.covered
        if error.retry_after_s is None or request.due > request.until or is_covered:
            self._give_up(request, error)
        else:
            insort(line.waiting, request, key=lambda request: request.command.id)
        self._send_next(key, line)
        return True

    def lost(self) -> None:
        """The connection was lost. The next connection sends every pending command."""
        for line in self._lines.values():
            if line.timer is not None:
                line.timer.cancel()
        self._lines.clear()
        for request in self._requests.values():
            request.refusal, request.refusals, request.until = None, 0, None
            self._note_sent(request)

    @property
    def waiting(self) -> tuple[PendingRequest, ...]:
        """All pending requests, in the order in which they were asked."""
        return tuple(self._requests.values())

    def fail_all(self, error: SessionError) -> None:
        """Fail every pending request with *error*."""
        self.lost()
        requests, self._requests = tuple(self._requests.values()), {}
        self._lines.clear()
        for request in requests:
            fail(request, error)

    def _note_sent(self, request: PendingRequest) -> None:
        key, command = order_key(request.command), request.command
        if isinstance(command, w.Interrupt):
            line = self._lines.get(key)
            if line is not None and command.turn is None:
                line.covered = command.id
        elif isinstance(key, str):
            self._lines.setdefault(key, _Line()).sent.add(command.id)

    def _send_next(self, key: str | int, line: _Line) -> None:
        """Send the first waiting command of *line* if it is due and no earlier one is on its
        way."""
        loop = asyncio.get_running_loop()
        while line.waiting and not line.sent and line.timer is None:
            first = line.waiting[0]
            if first.until is not None and first.until < loop.time():
                self._give_up_all(line, [first])
            elif first.due > loop.time():
                line.timer = loop.call_at(first.due, self._due, key, line)
            else:
                line.waiting.remove(first)
                line.sent.add(first.command.id)
                first.sent = self._send(first.command)
        if not line.waiting and not line.sent and line.timer is None:
            self._lines.pop(key, None)

    def _due(self, key: str | int, line: _Line) -> None:
        line.timer = None
        self._send_next(key, line)

    def _give_up_all(self, line: _Line, requests: Iterable[PendingRequest]) -> None:
        """Fail *requests*, which are not retried any more."""
        for request in requests:
            line.waiting.remove(request)
            refused_before = Overloaded("an earlier command of the session was refused")
            self._give_up(request, request.refusal or refused_before)

    def _give_up(self, request: PendingRequest, error: Overloaded) -> None:
        del self._requests[request.command.id]
        if request.repeated and getattr(request.command, "command_id", None) is not None:
            # This repeat was refused, but the first one may have been carried out before the
            # connection was lost. Reporting Overloaded would claim that it was not.
            unknown = Unreachable(f"a repeat was refused, so nobody knows if it was done: {error}")
            unknown.__cause__ = error
            fail(request, unknown)
        else:
            fail(request, error)


def order_key(command: w.Command[Any]) -> str | int:
    """The key of a command's order. Commands of one session share it; others have their own key."""
    if isinstance(command, w.SessionCommand) and not isinstance(command, _UNORDERED):
        return command.session
    return command.id


def fail(request: PendingRequest, error: SessionError) -> None:
    """Answer *request* with *error*, unless it has an answer."""
    if not request.answer.done():
        request.answer.set_exception(error)
        # Retrieve the exception, or asyncio would report it if the caller has stopped waiting.
        request.answer.exception()
