"""Which commands were asked, under which ids, and what they were answered."""

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
    """A repeated id gets the answer of the first, while that is on its way, and ever after: the
    answers that are durable are in the state. Every promise that was handed out is kept here
    until it is answered, so that nobody is left hanging when the actor cannot go on."""

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self._in_flight: dict[str, tuple[str, Promise[Any]]] = {}
        self._promises: list[Promise[Any]] = []

    def remember(self, promise: Promise[Any]) -> None:
        """*promise* was handed to a caller."""
        if len(self._promises) >= 64 and len(self._promises) % 64 == 0:
            self.drop_answered()
        self._promises.append(promise)

    def drop_answered(self) -> None:
        """Forget the promises that are kept: they hold their callers' frames."""
        self._promises = [promise for promise in self._promises if not promise.is_set]

    def is_repeat(self, command: c.Command[Any] | c.InterruptCaller) -> bool:
        """Was its id used before? Then it is answered, now or with the first one: with that
        one's answer, or KeyReused where it asks for something else."""
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
        """Answer with *error*. A refused command changed nothing, so its id may be used again."""
        self.forget(command)
        command.promise.fail(error)

    def forget(self, command: c.Command[Any] | c.InterruptCaller) -> None:
        """The command is on its way no longer."""
        if command.command_id is not None:
            self._in_flight.pop(command.command_id, None)

    def answer(self, command: c.Command[None]) -> Callable[[], None]:
        """What to do when the command's record is durable."""
        return self.answer_with(command, None)

    def answer_with(self, command: c.Command[T], answer: T) -> Callable[[], None]:
        """As ``answer``, for a command that is answered with a value."""

        def durable() -> None:
            self.forget(command)
            command.promise.set(answer)

        return durable

    def fail_all(self, error: SessionError) -> None:
        """Answer everybody who still waits."""
        self._in_flight.clear()
        for promise in self._promises:
            promise.fail(error)
        self._promises.clear()
