"""The sessions that a connection uses, and their commands that cannot begin yet."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from llmsession.session import LLMSession

from ..wire import messages as w

__all__ = ["Attachment", "Backlog"]

WAITING_BYTES = 256 * 1024
"""Frames of commands that wait for their session; beside them one that is larger than that."""


ANSWERLESS_BYTES = 4 * 1024 * 1024
"""Large commands without an answer, of one connection; beside them one that is larger. A client
that sends many in a row is read as fast as they are performed, and not refused."""


class Attachment:
    """A session that the connection uses, and its commands that cannot begin yet."""

    __slots__ = ("blocked", "handle", "open_requests", "opening", "used_time", "waiting")

    def __init__(self, handle: LLMSession | None, used_time: float) -> None:
        self.handle = handle
        self.used_time = used_time
        self.waiting: deque[tuple[int, w.SessionCommand[Any]]] = deque()
        """With the bytes of their frames."""
        self.opening = False
        self.blocked = False
        """Must the next command wait, for one that is not in the mailbox yet or for room?"""
        self.open_requests = 0

    @property
    def is_idle(self) -> bool:
        """Does no command of the session wait or run?"""
        return not (self.waiting or self.opening or self.open_requests)


class Backlog:
    """How many bytes of commands wait to begin or for their answers, for all sessions of a
    connection."""

    def __init__(self) -> None:
        self._waiting_bytes = self._answerless_bytes = 0
        self._waiting_fit: asyncio.Event | None = None
        """Set once few bytes wait, where a transport waits for that to read on."""

    @property
    def has_room(self) -> bool:
        """Do so few bytes wait that the next frame may be read?"""
        return self._waiting_bytes <= WAITING_BYTES and self._answerless_bytes <= ANSWERLESS_BYTES

    def begin(self, size_bytes: int) -> None:
        """A large command of *size_bytes* was read."""
        self._answerless_bytes += size_bytes

    def end(self, size_bytes: int) -> None:
        """It holds these bytes no more."""
        self._answerless_bytes -= size_bytes
        if self.has_room:
            self.release()

    def put(self, attachment: Attachment, size_bytes: int, command: w.SessionCommand[Any]) -> None:
        """Let *command* wait, behind the others of its session."""
        attachment.waiting.append((size_bytes, command))
        self._waiting_bytes += size_bytes

    def take(self, attachment: Attachment) -> w.SessionCommand[Any]:
        """The command that waits longest; it does not wait any more."""
        size_bytes, command = attachment.waiting.popleft()
        self._waiting_bytes -= size_bytes
        if self.has_room:
            self.release()
        return command

    def release(self) -> None:
        """Wake who waits for room."""
        if self._waiting_fit is not None:
            self._waiting_fit.set()
            self._waiting_fit = None

    async def wait_for_room(self) -> None:
        """Until a command was taken and there is room, or ``release``."""
        self._waiting_fit = self._waiting_fit or asyncio.Event()
        await self._waiting_fit.wait()
