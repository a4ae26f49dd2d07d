"""The sessions that a connection uses, and the commands that wait to start."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from llmsession.session import LLMSession

from ..wire import messages as w

__all__ = ["Attachment", "Backlog"]

WAITING_BYTES = 256 * 1024
"""How many bytes of commands may wait for their sessions before reading stops. One larger command
may wait in addition."""


ANSWERLESS_BYTES = 4 * 1024 * 1024
"""How many bytes of large commands of one connection may be without an answer before reading stops.
One larger command is allowed in addition. A client that sends many of them is therefore slowed
down, not refused."""


class Attachment:
    """A session that the connection uses, and its commands that wait to start."""

    __slots__ = ("blocked", "handle", "open_requests", "opening", "used_time", "waiting")

    def __init__(self, handle: LLMSession | None, used_time: float) -> None:
        self.handle = handle
        self.used_time = used_time
        self.waiting: deque[tuple[int, w.SessionCommand[Any]]] = deque()
        """The commands, each with the size of its frame in bytes."""
        self.opening = False
        self.blocked = False
        """Whether the next command must wait: for a command that is not enqueued yet, or for room
        in the outbox."""
        self.open_requests = 0

    @property
    def is_idle(self) -> bool:
        """Whether no command of the session waits or runs."""
        return not (self.waiting or self.opening or self.open_requests)


class Backlog:
    """Counts the bytes of commands that wait to start or to be answered, over all sessions of a
    connection."""

    def __init__(self) -> None:
        self._waiting_bytes = self._answerless_bytes = 0
        self._waiting_fit: asyncio.Event | None = None
        """Set when little waits again. A transport waits for it before it reads on."""

    @property
    def has_room(self) -> bool:
        """Whether so little waits that the next frame may be read."""
        return self._waiting_bytes <= WAITING_BYTES and self._answerless_bytes <= ANSWERLESS_BYTES

    def begin(self, size_bytes: int) -> None:
        """Count a large command of *size_bytes*."""
        self._answerless_bytes += size_bytes

    def end(self, size_bytes: int) -> None:
        """Stop counting a large command of *size_bytes*."""
        self._answerless_bytes -= size_bytes
        if self.has_room:
            self.release()

    def put(self, attachment: Attachment, size_bytes: int, command: w.SessionCommand[Any]) -> None:
        """Queue *command* behind the others of its session."""
        attachment.waiting.append((size_bytes, command))
        self._waiting_bytes += size_bytes

    def take(self, attachment: Attachment) -> w.SessionCommand[Any]:
        """Remove and return the command that has waited longest."""
        size_bytes, command = attachment.waiting.popleft()
        self._waiting_bytes -= size_bytes
        if self.has_room:
            self.release()
        return command

    def release(self) -> None:
        """Wake the transport that waits for room."""
        if self._waiting_fit is not None:
            self._waiting_fit.set()
            self._waiting_fit = None

    async def wait_for_room(self) -> None:
        """Wait until there is room, or until ``release`` is called."""
        self._waiting_fit = self._waiting_fit or asyncio.Event()
        await self._waiting_fit.wait()
