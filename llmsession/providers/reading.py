"""Reads one reply from an SDK's stream: yields events, translates errors, closes the connection."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

import anyio
import msgspec
from anyio.lowlevel import cancel_shielded_checkpoint

from llmsession.errors import ProviderError
from llmsession.turns.blocks import clean_text
from llmsession.turns.stream import StreamEvent

from .failures import Failures
from .server_sent_events import ServerSentEvents

__all__ = [
    "ClosedLater",
    "Events",
    "Reader",
    "closed_later",
    "read_json",
    "read_reply_stream",
    "stopped_early",
]

T = TypeVar("T")
Events: TypeAlias = tuple[StreamEvent, ...]

DRAIN_S = 0.1
"""How many seconds the rest of the response may take after the end of the reply. A response that is
read to its end leaves its connection open for the next request.
"""
CLOSE_S = 0.5
"""How many seconds closing may take. The session gives a stream one second in all."""
AWS_EVENT_STREAM = "application/vnd.amazon.eventstream"


class ClosedLater:
    """Connections of replies that were interrupted. Whoever waits for the replies closes them, once
    it has reported that they ended.

    Closing a socket with bytes that nobody has read can take as long as the rest of an interrupt.
    *is_interrupted* says whether the whole work is over: a connection that is left while other
    connections of the same work are read on, as after a failure, is closed at once.
    """

    def __init__(self, is_interrupted: Callable[[], bool]) -> None:
        self._is_interrupted = is_interrupted
        self._closes: list[Callable[[], Awaitable[None]]] | None = []

    def take(self, close: Callable[[], Awaitable[None]]) -> bool:
        """Call *close* later. False if nothing was interrupted or it is too late: call it now."""
        if self._closes is None or not self._is_interrupted():
            return False
        self._closes.append(close)
        return True

    async def close(self) -> None:
        """Close the connections, after what is ready to run in the event loop now. Call it once."""
        if self._closes:
            await cancel_shielded_checkpoint()
        closes, self._closes = self._closes or [], None
        for close in closes:
            await close()


closed_later: ContextVar[ClosedLater | None] = ContextVar("closed_later", default=None)
"""Who closes the connections of replies that are interrupted in this context. None: they are closed
before the reading ends."""


class Reader(Protocol):
    """Turns the server-sent events of one reply into our events."""

    ended: bool

    def read(self, data: str) -> Events:
        """The events that one server-sent event stands for."""
        ...

    def finish(self) -> Events:
        """The events that the end of the stream stands for."""
        ...


def stopped_early() -> ProviderError:
    """The error for a stream that ended before its reply did."""
    return ProviderError("the provider's stream stopped before its end", kind="retryable")


def read_json(data: str, decoder: msgspec.json.Decoder[T]) -> tuple[str, T]:
    """*data*, and the value that *decoder* reads from it. Lone surrogates are replaced.

    Raises a retryable ProviderError if *data* is not JSON, because then the stream is broken.
    """
    try:
        return data, decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        first = error
    try:
        # JSON that Python wrote may hold half of a surrogate pair.
        cleaned = clean_text(json.dumps(json.loads(data), ensure_ascii=False))
        return cleaned, decoder.decode(cleaned)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        what = "not JSON" if isinstance(first, UnicodeError) else type(first).__name__
        raise ProviderError(
            f"the provider's stream is broken: an event cannot be read ({what})", kind="retryable"
        ) from None


async def read_reply_stream(
    connect: Callable[[], Awaitable[Any]], reader: Reader, failures: Failures
) -> AsyncGenerator[StreamEvent, None]:
    """The events of the stream that *connect* opens. Raises ProviderError alone.

    However the generator is left, the connection is released or closed afterwards; after an
    interrupt by ``closed_later``.
    """
    try:
        stream = await connect()
    except Exception as error:
        translated = failures.refused(error, now=time.time())
        raise translated from failures.chainable(error)
    received, split = _source(stream)
    try:
        async for piece in received:
            for data in split(piece):
                for event in reader.read(data):
                    yield event
        for event in reader.finish():
            yield event
    except Exception as error:
        translated = failures.broken(error, stream.response.headers, now=time.time())
        if translated is error:
            raise
        raise translated from failures.chainable(error)
    finally:
        close, later = partial(_close, stream, received, drain=reader.ended), closed_later.get()
        if reader.ended or later is None or not later.take(close):
            await close()


def _source(stream: Any) -> tuple[AsyncGenerator[Any, None], Callable[[Any], Iterable[str]]]:
    """What to read from *stream*, and how to split that into the data of server-sent events."""
    response = stream.response
    if AWS_EVENT_STREAM in response.headers.get("content-type", ""):
        # Bedrock's frames are binary, and the SDK reads them with botocore. The method is private,
        # but the SDK's public iteration builds a model object for each event.
        return stream._iter_events(), _data_of_sdk_event
    # The bytes as the HTTP client has received them, with the SDK's own timeouts. The SDK splits
    # them into lines and events more slowly, and then builds a model object for each event.
    split = ServerSentEvents().feed
    if "content-encoding" in response.headers or response.is_stream_consumed:
        return response.aiter_bytes(), split
    # Nothing is to be decoded and nothing was read yet, by a hook of the caller's client for
    # instance. The response's own generators would only hand on each piece.
    return aiter(response.stream), split


def _data_of_sdk_event(sse: Any) -> Iterable[str]:
    return (sse.data,) if sse.data else ()


async def _close(stream: Any, received: AsyncGenerator[Any, None], *, drain: bool) -> None:
    """End the generators under *received* and close the response. Raises nothing."""
    # A read that is cancelled at once ends every generator down to the socket. Closing only the
    # outermost one would leave the others to the garbage collector.
    with (
        suppress(Exception),
        anyio.move_on_after(DRAIN_S if drain else 0, shield=True),
    ):
        async for _ in received:
            pass
    with suppress(Exception), anyio.move_on_after(CLOSE_S, shield=True):
        await stream.close()
