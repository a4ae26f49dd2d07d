"""Reads one reply from an SDK's stream: yields events, translates errors, closes the connection."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from itertools import chain
from typing import Any, Protocol, TypeAlias, TypeVar

import anyio
import msgspec
from anyio.lowlevel import cancel_shielded_checkpoint

from llmsession.errors import ProviderError
from llmsession.turns.blocks import clean_text
from llmsession.turns.stream import StreamEvent

from .failures import Failures
from .pushed_bytes import PushedBytes, find_pushed_bytes
from .server_sent_events import ServerSentEvents

__all__ = [
    "ClosedLater",
    "Events",
    "Reader",
    "ReplyStream",
    "closed_later",
    "read_json",
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


class ReplyStream(AsyncGenerator[StreamEvent, None]):
    """The events of one reply, of the stream that *connect* opens. Raises ProviderError alone.

    Iterate it once. However the iteration is left, the connection is released or closed afterwards;
    after an interrupt by ``closed_later``.
    """

    def __init__(
        self, connect: Callable[[], Awaitable[Any]], reader: Reader, failures: Failures
    ) -> None:
        self._reading = _Reading(connect, reader, failures)
        self._events = self._reading.events()

    def push_to(self, accept: Callable[[StreamEvent], bool]) -> None:
        """While the iteration waits, let *accept* have the next events in the callback that brings
        their bytes, if the HTTP client can do that. Call it before the iteration begins.

        An event that *accept* returns False for is the next one of the iteration. *accept* must not
        raise. It is not called once the waiting task was cancelled.
        """
        self._reading.accept = accept

    def __aiter__(self) -> AsyncGenerator[StreamEvent, None]:
        return self._events

    def asend(self, value: None, /) -> Coroutine[Any, Any, StreamEvent]:
        """See ``AsyncGenerator``."""
        return self._events.asend(value)

    def athrow(self, *error: Any) -> Coroutine[Any, Any, StreamEvent]:
        """See ``AsyncGenerator``."""
        return self._events.athrow(*error)

    def aclose(self) -> Coroutine[Any, Any, None]:
        """See ``AsyncGenerator``."""
        return self._events.aclose()


class _Reading:
    """Reads one reply: in the task that iterates, and in callbacks while it waits. It does not know
    the stream that holds its generator: with such a cycle, the garbage collector would have to find
    a stream that somebody dropped.
    """

    def __init__(
        self, connect: Callable[[], Awaitable[Any]], reader: Reader, failures: Failures
    ) -> None:
        self._connect = connect
        self._reader = reader
        self._failures = failures
        self._split: Callable[[Any], Iterable[str]] = _data_of_sdk_event
        self.accept: Callable[[StreamEvent], bool] | None = None
        self._left: Iterator[StreamEvent] = iter(())
        """What a callback has left for the task: events that it must yield, or an error."""

    async def events(self) -> AsyncGenerator[StreamEvent, None]:
        reader, failures = self._reader, self._failures
        try:
            stream = await self._connect()
        except Exception as error:
            translated = failures.refused(error, now=time.time())
            raise translated from failures.chainable(error)
        received, pushed = self._source(stream)
        try:
            async for piece in received:
                for event in self._parse(piece):
                    yield event
                if pushed is not None:
                    read = len(piece)
                    while await pushed.wait(read):
                        for event in self._left:
                            yield event
                        read = 0
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

    def _source(self, stream: Any) -> tuple[AsyncGenerator[Any, None], PushedBytes | None]:
        """What to read from *stream*, and what pushes its bytes."""
        response = stream.response
        if AWS_EVENT_STREAM in response.headers.get("content-type", ""):
            # Bedrock's frames are binary, and the SDK reads them with botocore. The method is
            # private, but the SDK's public iteration builds a model object for each event.
            return stream._iter_events(), None
        # The bytes as the HTTP client has received them, with the SDK's own timeouts. The SDK
        # splits them into lines and events more slowly, and then builds a model object for each
        # event.
        self._split = ServerSentEvents().feed
        if "content-encoding" in response.headers or response.is_stream_consumed:
            return response.aiter_bytes(), None
        # Nothing is to be decoded and nothing was read yet, by a hook of the caller's client for
        # instance. The response's own generators would only hand on each piece.
        pushed = None if self.accept is None else find_pushed_bytes(response.stream, self._take)
        return aiter(response.stream), pushed

    def _parse(self, piece: Any) -> Iterator[StreamEvent]:
        for data in self._split(piece):
            yield from self._reader.read(data)

    def _take(self, received: bytes) -> bool:
        """Parse *received* in a callback. False if the task has to yield or to raise something."""
        assert self.accept is not None  # nothing pushes without it
        events = self._parse(received)
        try:
            for event in events:
                if not self.accept(event):
                    self._left = chain((event,), events)
                    return False
        except Exception as error:
            self._left = _raising(error)
            return False
        return True


def _raising(error: Exception) -> Iterator[StreamEvent]:
    raise error
    yield


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
