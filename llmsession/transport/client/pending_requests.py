"""Commands without an answer yet, and when a client repeats what a busy service refused.

``Overloaded`` with a hint means that a limit of the service was reached. The command was not
performed. It is sent again, no earlier than the hint says and for a bounded time.

Commands of one session keep their order. Those that come after a refused command wait behind it,
and are then sent one at a time. A refused command is not sent again once a later command of the
session, which was on its way already, has been performed. An interrupt does not wait; it ends the
wait of the sends before it, which it covers. Queries, and commands of no session, have no order.
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

__all__ = ["PendingRequest", "PendingRequests", "again_after_s"]

FIRST_DELAY_S = 0.05
MAX_DELAY_S = 2.0
"""The pause doubles with each refusal; a longer hint replaces it. Up to a half is added at random,
so that clients that were refused together do not come back together."""

_UNORDERED = (w.Open, w.Outcome, w.Query)


def again_after_s(hint_s: float, refusals: int) -> float:
    """In how many seconds to send again what was refused *refusals* times, the last time with
    *hint_s*. Random, and never less than the hint."""
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
        """Was it sent over more than one connection? Then the first may have been performed."""
        self.refusal: Overloaded | None = None
        self.refusals = 0
        self.due = 0.0
        self.until: float | None = None
        """By the event loop's time: the earliest and the latest time to send it again."""


class _Line:
    """The commands of a session that have an order, or one command that has none."""

    __slots__ = ("covered", "sent", "timer", "waiting")

    def __init__(self) -> None:
        self.covered = 0
        """The id of the newest interrupt of all that is open: it covers the sends before it."""
        self.sent: set[int] = set()
        self.waiting: list[PendingRequest] = []
        """Refused, or behind one that was: in their order."""
        self.timer: asyncio.TimerHandle | None = None


class PendingRequests:
    """*send* sends a command now; where there is no connection it does not, and returns False.
    *overloaded_s* is how long one that was refused is asked again. Nothing in it waits."""

    def __init__(self, send: Callable[[w.Command[Any]], bool], overloaded_s: float) -> None:
        self._send = send
        self._overloaded_s = overloaded_s
        self._requests: dict[int, PendingRequest] = {}
        self._lines: dict[str | int, _Line] = {}

    def ask(self, command: w.Command[Any]) -> PendingRequest:
        """Send *command*, or let it wait behind a refused one of its session."""
        loop = asyncio.get_running_loop()
        request = self._requests[command.id] = PendingRequest(command, loop.create_future())
        key = _key(command)
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
        """The command *id* was answered, with something else than ``Overloaded``. Returns its
        request, which is not pending any more; None for an unknown id."""
        request = self._requests.pop(id, None)
        if request is None:
            return None
        key = _key(request.command)
        line = self._lines.get(key)
        if line is not None:
            line.sent.discard(id)
            if not isinstance(request.command, w.Interrupt):
                self._give_up_all(line, [late for late in line.waiting if late.command.id < id])
            self._send_next(key, line)
        return request

    def refused(self, id: int, error: Overloaded) -> bool:
        """The command *id* was answered with *error*: it is sent again, or fails. False for an
        unknown id."""
        request = self._requests.get(id)
        if request is None:
            return False
        now, key = asyncio.get_running_loop().time(), _key(request.command)
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
        """The connection was lost: every pending command is sent over the next one."""
        for line in self._lines.values():
            if line.timer is not None:
                line.timer.cancel()
        self._lines.clear()
        for request in self._requests.values():
            request.refusal, request.refusals, request.until = None, 0, None
            self._note_sent(request)

    @property
    def waiting(self) -> tuple[PendingRequest, ...]:
        """All pending requests, in the order in which they came."""
        return tuple(self._requests.values())

    def fail_all(self, error: SessionError) -> None:
        """Fail every pending request with *error*."""
        self.lost()
        requests, self._requests = tuple(self._requests.values()), {}
        self._lines.clear()
        for request in requests:
            _fail(request, error)

    def _note_sent(self, request: PendingRequest) -> None:
        key, command = _key(request.command), request.command
        if isinstance(command, w.Interrupt):
            line = self._lines.get(key)
            if line is not None and command.turn is None:
                line.covered = command.id
        elif isinstance(key, str):
            self._lines.setdefault(key, _Line()).sent.add(command.id)

    def _send_next(self, key: str | int, line: _Line) -> None:
        """Send the first command of *line*, once it is due and none before it is on its way."""
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
        """Send none of *requests* again."""
        for request in requests:
            line.waiting.remove(request)
            refused_before = Overloaded("an earlier command of the session was refused")
            self._give_up(request, request.refusal or refused_before)

    def _give_up(self, request: PendingRequest, error: Overloaded) -> None:
        del self._requests[request.command.id]
        if request.repeated and getattr(request.command, "command_id", None) is not None:
            # Refused now, but the one that was sent before may have been performed.
            unknown = Unreachable(f"a repeat was refused, so nobody knows if it was done: {error}")
            unknown.__cause__ = error
            _fail(request, unknown)
        else:
            _fail(request, error)


def _key(command: w.Command[Any]) -> str | int:
    """Commands with the same key have an order: those of one session. Others have their own key."""
    if isinstance(command, w.SessionCommand) and not isinstance(command, _UNORDERED):
        return command.session
    return command.id


def _fail(request: PendingRequest, error: SessionError) -> None:
    if not request.answer.done():
        request.answer.set_exception(error)
        request.answer.exception()  # asyncio need not report it: perhaps nobody waits any more
