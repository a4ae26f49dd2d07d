"""Takes the bytes of a response from aiohttp in the callback that brings them from the socket.

A task that reads them is woken for each piece, and aiohttp sets its read timeout anew for each
piece. Together that costs as much as everything else that happens to a delta on its way from the
socket to a subscriber.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiohttp import StreamReader
    from aiohttp.client_proto import ResponseHandler

__all__ = ["MAX_PUSHED_BYTES", "PushedBytes", "find_pushed_bytes"]

MAX_PUSHED_BYTES = 32 * 1024
"""How many bytes are taken in one callback. If more arrive, the task reads them, and lets other
tasks run in between.
"""
_MIN_S = 0.001
"""A read timeout of aiohttp's that has passed already. With 0 it would wait without a limit."""


class PushedBytes(asyncio.Protocol):
    """The protocol of one of aiohttp's connections, while ``wait`` runs.

    It passes everything on to aiohttp's own protocol, *protocol*, which parses HTTP as always. Then
    *take* gets what that has added to the response's *content*. *take* returns False for bytes that
    need the task. It runs in the context of the task that makes this object, and must not raise.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        protocol: ResponseHandler,
        content: StreamReader,
        take: Callable[[bytes], bool],
    ) -> None:
        self._transport = transport
        self._protocol = protocol
        self._content = content
        self._take = take
        self._context = copy_context()
        self._loop = asyncio.get_running_loop()
        self._limit_s = protocol.read_timeout
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self._taken = 0
        """How many bytes of the response were read, here and by the task."""
        self._is_refused = False
        self._waiter: asyncio.Future[None] = self._loop.create_future()

    async def wait(self, read: int) -> bool:
        """Take the bytes that arrive. Returns True as soon as *take* has returned False: call it
        again after what *take* has left. Returns False if the task has to read on: at the end of
        the response, if it breaks, if more than ``MAX_PUSHED_BYTES`` arrive, and when it was silent
        for half of aiohttp's read timeout. Then aiohttp watches the other half.

        The task has read *read* bytes since the last wait. Cancellable: then no byte is taken any
        more. Raises OSError if nothing is left to read, and the connection has ended in a way that
        aiohttp tells no reader.
        """
        self._taken += read
        self._is_refused = False
        if not (
            self._needs_reading()
            or self._transport.is_closing()
            or self._transport.get_protocol() is not self._protocol
        ):
            self._waiter = self._loop.create_future()
            self._begin()
            try:
                await self._waiter
            finally:
                self._end()
            if self._is_refused:
                return True
        error = self._protocol.exception()
        is_lost = error is not None or self._protocol.transport is None
        if is_lost and not self._needs_reading():
            # After broken chunks, or if its client was closed, aiohttp would let a reader wait. The
            # text of its error may quote the reply.
            raise ConnectionAbortedError(f"the connection was closed: {type(error).__name__}")
        return False

    def _needs_reading(self) -> bool:
        content = self._content
        is_over = content.is_eof() or content.exception() is not None
        return is_over or content.total_bytes != self._taken

    def _begin(self) -> None:
        self._heard_at = self._loop.time()
        if self._limit_s:
            self._protocol.read_timeout = None  # the timer that runs ends with the next bytes
            self._timer = self._loop.call_later(
                self._limit_s / 2, self._check_silence, self._limit_s
            )
        self._transport.set_protocol(self)

    def _check_silence(self, limit_s: float) -> None:
        left_s = self._heard_at + limit_s / 2 - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._check_silence, limit_s)
        else:
            self._wake()

    def _wake(self) -> None:
        if not self._waiter.done():
            self._waiter.set_result(None)
            # Not in the task, because after the response another request may use the connection.
            self._end()

    def _end(self) -> None:
        """Give the connection back to aiohttp. Has no effect the second time."""
        # A connection that closes may have no protocol any more.
        if not self._transport.is_closing() and self._transport.get_protocol() is self:
            self._transport.set_protocol(self._protocol)
        if self._timer is None or not self._limit_s:
            return
        self._timer.cancel()
        self._timer = None
        if self._protocol.is_connected() and not self._content.is_eof():
            silent_s = self._loop.time() - self._heard_at
            self._protocol.read_timeout = max(self._limit_s - silent_s, _MIN_S)
            self._protocol.start_timeout()
        self._protocol.read_timeout = self._limit_s

    def data_received(self, data: bytes) -> None:
        """Let aiohttp parse *data*, and take what it has found."""
        self._protocol.data_received(data)
        if self._waiter.done():  # the task was cancelled, or is about to read
            return
        self._heard_at = self._loop.time()
        content = self._content
        if len(data) > MAX_PUSHED_BYTES or content.exception() is not None:
            self._wake()
            return
        received = content.read_nowait()
        self._taken += len(received)
        # Reading may let aiohttp go on with bytes that it has held back.
        is_all = content.total_bytes == self._taken and not content.is_eof()
        self._is_refused = not self._context.run(self._take, received)
        if self._is_refused or not is_all:
            self._wake()

    def eof_received(self) -> None:
        """Pass it on."""
        self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on, and let the task find out what is missing."""
        self._protocol.connection_lost(exc)
        self._wake()

    def pause_writing(self) -> None:
        """Pass it on."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        self._protocol.resume_writing()


_LAYERS = (("BoundAsyncStream", "_stream"), ("AiohttpResponseStream", "_aiohttp_response"))
"""The classes around aiohttp's response in one of the SDK's clients, and the next layer in each."""
_USED = {
    "protocol": (
        "data_received", "eof_received", "connection_lost", "pause_writing", "resume_writing",
        "read_timeout", "start_timeout", "is_connected", "exception",
    ),
    "content": ("read_nowait", "total_bytes", "is_eof", "exception"),
    "transport": ("get_protocol", "set_protocol", "is_closing"),
}  # fmt: skip


def find_pushed_bytes(stream: Any, take: Callable[[bytes], bool]) -> PushedBytes | None:
    """What gives *take* the bytes of *stream*, the body of a response of the SDK's client.

    None if they do not come from aiohttp, if something reads them in between, as an SDK's tracing
    does, or if a part that is used has changed in a newer version. They can then be iterated only.
    """
    for name, inner in _LAYERS:
        if type(stream).__name__ != name:
            return None
        stream = getattr(stream, inner, None)
    protocol = getattr(getattr(stream, "connection", None), "protocol", None)
    parts: dict[str, Any] = {
        "protocol": protocol,
        "content": getattr(stream, "content", None),
        "transport": getattr(protocol, "transport", None),
    }
    if not all(hasattr(parts[part], name) for part, names in _USED.items() for name in names):
        return None
    # A limit for the whole response cancels only a task that reads.
    if type(getattr(parts["content"], "_timer", None)).__name__ != "TimerNoop":
        return None
    return PushedBytes(**parts, take=take)
