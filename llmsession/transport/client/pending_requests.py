"""What a client has asked and has no answer to; and when it asks again what a busy service refused.

``Overloaded`` with a hint is a limit of the service: the command was not performed, and is asked
again, no earlier than the hint says and for a bounded time. Commands of one session keep their
order in that: what is asked after a refused one waits behind it, and then they go one at a time.
One that a later command has overtaken, because that was on its way already and was performed, is
not asked again. An interrupt waits for nothing, and ends the wait of the sends before it, which
it covers. Reads, and commands of no session, wait each for itself.
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
"""Doubled with each refusal; where the hint is longer it counts. Up to a half is added at random,
so that those who were refused together do not come back together."""

_UNORDERED = (w.Open, w.Outcome, w.Query)


def again_after_s(hint_s: float, refusals: int) -> float:
    """In how many seconds to ask again what was refused *refusals* times, the last time with
    *hint_s*. Random, and never less than the hint."""
    own_s: float = min(FIRST_DELAY_S * 2 ** min(refusals, 10), MAX_DELAY_S)
    return max(hint_s, own_s) * random.uniform(1.0, 1.5)


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
        """By the event loop's time: when it may be sent again, and when that has no more sense."""


class _Line:
    """The commands of a session that have an order, or one command that has none."""

    __slots__ = ("covered", "held", "sent", "timer")

    def __init__(self) -> None:
        self.covered = 0
        """The id of the newest interrupt of all that is open: it covers the sends before it."""
        self.sent: set[int] = set()
        self.held: list[PendingRequest] = []
        """Refused, or behind one that was: in their order."""
        self.timer: asyncio.TimerHandle | None = None


class PendingRequests:
    """*send* sends a command now; where there is no connection it does not, and returns False.
    *overloaded_s* is how long one that was refused is asked again. Nothing in it waits."""

    def __init__(self, send: Callable[[w.Command[Any]], bool], overloaded_s: float) -> None:
        self._send = send
        self._overloaded_s = overloaded_s
        self._asked: dict[int, PendingRequest] = {}
        self._lines: dict[str | int, _Line] = {}

    def ask(self, command: w.Command[Any]) -> PendingRequest:
        """Send *command*, or keep it behind one of its session that was refused."""
        loop = asyncio.get_running_loop()
        asked = self._asked[command.id] = PendingRequest(command, loop.create_future())
        key = _key(command)
        line = self._lines.get(key) if isinstance(key, str) else None
        if line is not None and line.held:
            if not isinstance(command, w.Interrupt):
                asked.until = loop.time() + self._overloaded_s
                line.held.append(asked)
                return asked
            if command.turn is None:
                self._let_go(line, [held for held in line.held if type(held.command) is w.Send])
        self._note_sent(asked)
        asked.sent = self._send(command)
        return asked

    def performed(self, id: int) -> PendingRequest | None:
        """The command *id* was answered, otherwise than by ``Overloaded``: it is not asked any
        more. None for one that was not asked."""
        asked = self._asked.pop(id, None)
        if asked is None:
            return None
        key = _key(asked.command)
        line = self._lines.get(key)
        if line is not None:
            line.sent.discard(id)
            if not isinstance(asked.command, w.Interrupt):
                self._let_go(line, [held for held in line.held if held.command.id < id])
            self._go_on(key, line)
        return asked

    def refused(self, id: int, error: Overloaded) -> bool:
        """The command *id* was answered with *error*: it is asked again, or fails. False for one
        that was not asked."""
        asked = self._asked.get(id)
        if asked is None:
            return False
        now, key = asyncio.get_running_loop().time(), _key(asked.command)
        line = self._lines.setdefault(key, _Line())
        line.sent.discard(id)
        asked.refusal = error
        if asked.until is None:
            asked.until = now + self._overloaded_s
        if error.retry_after_s is not None:
            asked.due = now + again_after_s(error.retry_after_s, asked.refusals)
            asked.refusals += 1
        is_covered = type(asked.command) is w.Send and id < line.covered
        if error.retry_after_s is None or asked.due > asked.until or is_covered:
            self._give_up(asked, error)
        else:
            insort(line.held, asked, key=lambda each: each.command.id)
        self._go_on(key, line)
        return True

    def lost(self) -> None:
        """There is no connection any more: all that waits is asked over the next one."""
        for line in self._lines.values():
            if line.timer is not None:
                line.timer.cancel()
        self._lines.clear()
        for asked in self._asked.values():
            asked.refusal, asked.refusals, asked.until = None, 0, None
            self._note_sent(asked)

    @property
    def waiting(self) -> tuple[PendingRequest, ...]:
        """What has no answer, in the order in which it was asked."""
        return tuple(self._asked.values())

    def fail_all(self, error: SessionError) -> None:
        """Nothing is asked any more."""
        self.lost()
        asked, self._asked = tuple(self._asked.values()), {}
        self._lines.clear()
        for each in asked:
            _fail(each, error)

    def _note_sent(self, asked: PendingRequest) -> None:
        key, command = _key(asked.command), asked.command
        if isinstance(command, w.Interrupt):
            line = self._lines.get(key)
            if line is not None and command.turn is None:
                line.covered = command.id
        elif isinstance(key, str):
            self._lines.setdefault(key, _Line()).sent.add(command.id)

    def _go_on(self, key: str | int, line: _Line) -> None:
        """Send what is first in *line*, once it is due and nothing before it is on its way."""
        loop = asyncio.get_running_loop()
        while line.held and not line.sent and line.timer is None:
            first = line.held[0]
            if first.until is not None and first.until < loop.time():
                self._let_go(line, [first])
            elif first.due > loop.time():
                line.timer = loop.call_at(first.due, self._due, key, line)
            else:
                line.held.remove(first)
                line.sent.add(first.command.id)
                first.sent = self._send(first.command)
        if not line.held and not line.sent and line.timer is None:
            self._lines.pop(key, None)

    def _due(self, key: str | int, line: _Line) -> None:
        line.timer = None
        self._go_on(key, line)

    def _let_go(self, line: _Line, held: Iterable[PendingRequest]) -> None:
        """These are not asked again."""
        for asked in held:
            line.held.remove(asked)
            told = asked.refusal or Overloaded("what was asked before it was refused, too")
            self._give_up(asked, told)

    def _give_up(self, asked: PendingRequest, error: Overloaded) -> None:
        del self._asked[asked.command.id]
        if asked.repeated and getattr(asked.command, "command_id", None) is not None:
            # Refused now, but the one that was sent before may have been performed.
            unknown = Unreachable(f"a repeat was refused, so nobody knows if it was done: {error}")
            unknown.__cause__ = error
            _fail(asked, unknown)
        else:
            _fail(asked, error)


def _key(command: w.Command[Any]) -> str | int:
    """What has one order: the commands of a session, or a command for itself."""
    if isinstance(command, w.SessionCommand) and not isinstance(command, _UNORDERED):
        return command.session
    return command.id


def _fail(asked: PendingRequest, error: SessionError) -> None:
    if not asked.answer.done():
        asked.answer.set_exception(error)
        asked.answer.exception()  # perhaps nobody waits for it any more
