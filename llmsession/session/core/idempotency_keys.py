"""The ids of commands and their answers: a repeated command gets the answer of the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from llmsession.errors import KeyReused, SessionError

from ..log.state import SessionState
from ..tasks.promise import Promise
from ..values import commands as c

__all__ = ["IdempotencyKeys"]

T = TypeVar("T")


class IdempotencyKeys:
    """The command ids of one session.

    A repeated id gets the answer of the first command, also while that command is still being
    performed. Durable answers are in the state. Every promise of a caller is kept here until it is
    answered, so that no caller waits for ever if the actor cannot continue.
    """

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self._in_flight: dict[str, tuple[str, Promise[Any]]] = {}
        self._promises: list[Promise[Any]] = []

    def remember(self, promise: Promise[Any]) -> None:
        """Note *promise*, which a caller waits for."""
        if len(self._promises) >= 64 and len(self._promises) % 64 == 0:
            self.drop_answered()
        self._promises.append(promise)

    def drop_answered(self) -> None:
        """Drop the answered promises, because they refer to their callers' frames."""
        self._promises = [promise for promise in self._promises if not promise.is_set]

    def is_repeat(self, command: c.Command[Any] | c.InterruptCaller) -> bool:
        """Was the command's id used before?

        If so, its promise gets the first command's answer, now or later, or KeyReused if the first
        command had other content.
        """
        command_id = command.command_id
        if command_id is None:
            return False
        known = self._state.commands.get(command_id)
        in_flight = self._in_flight.get(command_id)
        if known is None and in_flight is None:
            self._in_flight[command_id] = (command.digest, command.promise)
            return False
        first = known.digest if known else in_flight[0] if in_flight else ""
        if first != command.digest:
            command.promise.fail(KeyReused(command_id))
        elif known is not None:
            command.promise.set(msgspec.json.decode(known.answer, type=command.answer_type))
        elif in_flight is not None:
            in_flight[1].follow(command.promise)
        return True

    def refuse(self, command: c.Command[Any], error: SessionError) -> None:
        """Answer *command* with *error*. It changed nothing, so its id may be used again."""
        self.forget(command)
        command.promise.fail(error)

    def forget(self, command: c.Command[Any] | c.InterruptCaller) -> None:
        """*command* is no longer being performed."""
        if command.command_id is not None:
            self._in_flight.pop(command.command_id, None)

    def answer(self, command: c.Command[None]) -> Callable[[], None]:
        """A function that answers *command*, to be called when its record is durable."""
        return self.answer_with(command, None)

    def answer_with(self, command: c.Command[T], answer: T) -> Callable[[], None]:
        """The same as ``answer``, for a command whose answer is a value."""

        def durable() -> None:
            self.forget(command)
            command.promise.set(answer)

        return durable

    def fail_all(self, error: SessionError) -> None:
        """Fail every promise that is not answered yet."""
        self._in_flight.clear()
        for promise in self._promises:
            promise.fail(error)
        self._promises.clear()
