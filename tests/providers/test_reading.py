"""Reading a stream: however it is left, it is closed, and ProviderError is all that comes out."""

from __future__ import annotations

import gzip
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import httpx2
import msgspec
import pytest

from llmsession import (
    InterruptResult,
    ProviderError,
    SessionConfig,
    SessionManager,
    TurnLimits,
)
from llmsession.providers import reading as reading_module
from llmsession.providers.failures import Failures
from llmsession.providers.reading import (
    CLOSE_S,
    DRAIN_S,
    ClosedLater,
    ReplyStream,
    closed_later,
)
from llmsession.session.core.reply_reader import read_reply
from llmsession.session.tasks.owner_lease import OwnerLease
from llmsession.testing.scripted import ScriptedProvider
from llmsession.turns.previews import Preview
from llmsession.turns.reply import ReplyBuilder
from llmsession.turns.request import Request, StepTag
from llmsession.turns.stream import BlockDelta, BlockStarted, BlockStopped, ReplyEnded, StreamEvent

FAILURES = Failures("test", secrets=(), retries=False)


class SdkEvent:
    """An event as the SDK splits Bedrock's binary frames."""

    def __init__(self, data: str) -> None:
        self.data = data


class Numbers:
    """A reader: a number is an event, and "end" ends the reply."""

    def __init__(self) -> None:
        self.ended = False
        self.finished = 0

    def read(self, data: str) -> tuple[StreamEvent, ...]:
        if data == "end":
            self.ended = True
            return (ReplyEnded("end_turn"),)
        return (BlockStopped(int(data)),)

    def finish(self) -> tuple[StreamEvent, ...]:
        self.finished += 1
        return ()


class Stream:
    """An SDK's stream of *data*, and its response. An exception in *data* is raised, a number of
    seconds is waited.
    """

    def __init__(
        self, *data: Any, close_s: float = 0.0, media_type: str = "text/event-stream"
    ) -> None:
        self.headers = {"request-id": "r1", "content-type": media_type}
        self._data = data
        self._close_s = close_s
        self.is_stream_consumed = False
        self.read = 0
        self.unwound = False
        self.closed = 0
        self.answer: httpx2.Response | None = None
        """The response of a test that does not play *data*."""

    @property
    def response(self) -> Stream | httpx2.Response:
        return self.answer or self

    @property
    def stream(self) -> AsyncGenerator[bytes, None]:
        return self._pieces()

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._each()) as data:
            async for each in data:
                yield f"data: {each}\n\n".encode()

    async def _iter_events(self) -> AsyncGenerator[SdkEvent, None]:
        async with aclosing(self._each()) as data:
            async for each in data:
                yield SdkEvent(each)

    async def _each(self) -> AsyncGenerator[str, None]:
        try:
            for each in self._data:
                await anyio.lowlevel.checkpoint()
                if isinstance(each, Exception):
                    raise each
                if isinstance(each, float):
                    await anyio.sleep(each)
                    continue
                self.read += 1
                yield each
        finally:
            self.unwound = True

    async def close(self) -> None:
        self.closed += 1
        await anyio.sleep(self._close_s)


def reading(stream: Stream | Exception, reader: Numbers | None = None) -> Any:
    async def connect() -> Any:
        if isinstance(stream, Exception):
            raise stream
        return stream

    return ReplyStream(connect, reader or Numbers(), FAILURES)


async def test_a_stream_is_read_to_its_end_and_closed() -> None:
    stream, reader = Stream("1", "", "2", "end"), Numbers()
    events = [event async for event in reading(stream, reader)]
    assert events == [BlockStopped(1), BlockStopped(2), ReplyEnded("end_turn")]
    assert (reader.finished, stream.closed, stream.unwound) == (1, 1, True)


async def test_a_compressed_stream_is_decoded_by_the_http_client() -> None:
    async def compressed() -> AsyncGenerator[bytes, None]:
        await anyio.lowlevel.checkpoint()
        whole = gzip.compress(b"data: 1\n\ndata: end\n\n")
        yield whole[:9]
        yield whole[9:]

    headers = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    stream = Stream()
    stream.answer = httpx2.Response(200, headers=headers, content=compressed())
    events = [event async for event in reading(stream)]
    assert events == [BlockStopped(1), ReplyEnded("end_turn")]


async def test_a_response_that_a_hook_has_read_before_is_read_as_it_is() -> None:
    async def whole() -> AsyncGenerator[bytes, None]:
        await anyio.lowlevel.checkpoint()
        yield b"data: 1\n\ndata: end\n\n"

    stream = Stream()
    stream.answer = httpx2.Response(200, content=whole())
    await stream.answer.aread()
    events = [event async for event in reading(stream)]
    assert events == [BlockStopped(1), ReplyEnded("end_turn")]


async def test_bedrocks_binary_frames_are_split_by_the_sdk() -> None:
    stream = Stream("1", "", "end", media_type="application/vnd.amazon.eventstream")
    events = [event async for event in reading(stream)]
    assert events == [BlockStopped(1), ReplyEnded("end_turn")]
    assert (stream.closed, stream.unwound) == (1, True)


class Pushed:
    """What pushes *pieces* as soon as the task waits for them. An error among them is the
    connection's, after what was pushed before.
    """

    def __init__(self, pieces: list[Any], take: Callable[[bytes], bool]) -> None:
        self._pieces = pieces
        self._take = take

    async def wait(self, _read: int) -> bool:
        await anyio.lowlevel.checkpoint()
        while self._pieces:
            if isinstance(piece := self._pieces.pop(0), OSError):
                raise piece
            if not self._take(piece):
                return True
        return False


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Bytes that a stream pushes, after the first piece that is read from it."""
    pieces: list[Any] = []
    monkeypatch.setattr(reading_module, "find_pushed_bytes", lambda _, take: Pushed(pieces, take))
    return pieces


def small(accepted: list[StreamEvent]) -> Callable[[StreamEvent], bool]:
    """Accepts blocks with a number below 10."""

    def accept(event: StreamEvent) -> bool:
        if isinstance(event, BlockStopped) and event.index < 10:
            accepted.append(event)
            return True
        return False

    return accept


async def test_pushed_events_are_offered_in_order_and_those_that_are_refused_are_yielded(
    pushed: list[Any],
) -> None:
    pushed += [b"data: 2\n\ndata", b": 3\n\ndata: 40\n\ndata: 5\n\n", b"data: 6\n\n"]
    accepted: list[StreamEvent] = []
    events = reading(Stream("1", "7", "end"))
    events.push_to(small(accepted))
    yielded = [event async for event in events]
    assert accepted == [BlockStopped(2), BlockStopped(3), BlockStopped(6)]
    assert yielded == [*map(BlockStopped, (1, 40, 5, 7)), ReplyEnded("end_turn")]


async def test_pushed_bytes_that_cannot_be_read_break_the_stream(pushed: list[Any]) -> None:
    pushed += [b"data: 2\n\ndata: nonsense\n\ndata: 3\n\n"]
    accepted: list[StreamEvent] = []
    stream, yielded = Stream("1", "7", "end"), []
    events = reading(stream)
    events.push_to(small(accepted))
    with pytest.raises(ProviderError, match="stream raised") as raised:
        async for event in events:
            yielded.append(event)
    assert (yielded, accepted) == ([BlockStopped(1)], [BlockStopped(2)])
    assert raised.value.request_id == "r1"
    assert (stream.closed, stream.unwound) == (1, True)


async def test_events_that_came_before_the_connection_was_lost_are_yielded_before_its_error(
    pushed: list[Any],
) -> None:
    pushed += [b"data: 40\n\ndata: 41\n\n", OSError("lost")]
    stream, yielded = Stream("1", "7"), []
    events = reading(stream)
    events.push_to(lambda event: False)
    with pytest.raises(ProviderError, match="lost"):
        async for event in events:
            yielded.append(event)
    assert yielded == [*map(BlockStopped, (1, 40, 41))]
    assert (stream.closed, stream.unwound) == (1, True)


async def test_after_refused_events_more_is_pushed_before_the_task_reads(pushed: list[Any]) -> None:
    pushed += [b"data: 40\n\n", b"data: 2\n\n", b"data: 50\n\n"]
    seen: list[StreamEvent] = []
    events = reading(Stream("1", "7", "end"))
    events.push_to(small(seen))
    async for event in events:
        seen.append(event)
    assert seen == [*map(BlockStopped, (1, 40, 2, 50, 7)), ReplyEnded("end_turn")]


async def test_nothing_is_pushed_that_nobody_accepts(pushed: list[Any]) -> None:
    pushed += [b"data: 2\n\n"]
    events = [event async for event in reading(Stream("1", "end"))]
    assert events == [BlockStopped(1), ReplyEnded("end_turn")]


async def test_a_stream_is_also_advanced_and_left_step_by_step() -> None:
    stream = Stream("1", "2", "end")
    events = reading(stream)
    assert (await anext(events), await events.asend(None)) == (BlockStopped(1), BlockStopped(2))
    with pytest.raises(ProviderError) as raised:
        await events.athrow(TypeError("odd"))
    assert isinstance(raised.value.__cause__, TypeError)
    assert (stream.closed, stream.unwound) == (1, True)


async def test_what_follows_the_end_is_read_so_that_the_connection_can_be_used_again() -> None:
    stream = Stream("end", "1", "2")
    async with aclosing(reading(stream)) as events:
        assert await anext(events) == ReplyEnded("end_turn")
    assert (stream.read, stream.closed) == (3, 1)


async def test_what_follows_the_end_is_not_waited_for_long() -> None:
    stream = Stream("end", 1000.0)
    started = anyio.current_time()
    async with aclosing(reading(stream)) as events:
        await anext(events)
    assert anyio.current_time() - started <= DRAIN_S * 1.5
    assert (stream.closed, stream.unwound) == (1, True)


async def test_leaving_early_ends_every_generator_below_and_closes() -> None:
    stream = Stream("1", "2", 1000.0)
    async with aclosing(reading(stream)) as events:
        await anext(events)
    assert (stream.closed, stream.unwound) == (1, True)


@pytest.mark.parametrize(
    "error", [OSError("gone"), TypeError("odd"), ProviderError("x", kind="fatal")]
)
async def test_an_error_of_the_stream_closes_it_and_is_translated(error: Exception) -> None:
    stream = Stream("1", error)
    with pytest.raises(ProviderError) as raised:
        async for _ in reading(stream):
            pass
    assert raised.value.request_id == "r1"
    assert (stream.closed, stream.unwound) == (1, True)
    if not isinstance(error, ProviderError):
        assert raised.value.__cause__ is error


async def test_a_refused_connection_is_translated_with_its_cause() -> None:
    error = OSError("nobody")
    with pytest.raises(ProviderError) as raised:
        await anext(reading(error))
    assert raised.value.__cause__ is error
    assert raised.value.kind == "retryable"


async def test_cancellation_closes_the_stream_and_goes_on() -> None:
    stream = Stream("1", 1000.0)
    with anyio.move_on_after(1) as scope:
        async with aclosing(reading(stream)) as events:
            async for _ in events:
                pass
    assert scope.cancelled_caught
    assert (stream.closed, stream.unwound) == (1, True)


async def test_a_stream_that_does_not_close_is_left_after_a_while() -> None:
    stream = Stream("1", 1000.0, close_s=1000.0)
    started = anyio.current_time()
    async with aclosing(reading(stream)) as events:
        await anext(events)
    assert stream.closed == 1
    assert anyio.current_time() - started <= CLOSE_S * 1.5


async def left_with(later: ClosedLater) -> Stream:
    """A stream that is left after its first event, whose connection *later* may close."""
    stream = Stream("1", 1000.0)
    token = closed_later.set(later)
    try:
        async with aclosing(reading(stream)) as events:
            await anext(events)
    finally:
        closed_later.reset(token)
    return stream


async def test_after_an_interrupt_the_connection_is_closed_by_who_waits_for_the_reply() -> None:
    later = ClosedLater(lambda: True)
    stream = await left_with(later)
    assert (stream.closed, stream.unwound) == (0, False)
    await later.close()
    assert (stream.closed, stream.unwound) == (1, True)
    # Nobody comes a second time, so what is left now is closed at once.
    assert (await left_with(later)).closed == 1


async def test_a_connection_that_is_left_without_an_interrupt_is_closed_at_once() -> None:
    # The reply may be read from another connection for minutes.
    later = ClosedLater(lambda: False)
    assert (await left_with(later)).closed == 1
    await later.close()


class OneStream(ScriptedProvider):
    """Reads its only reply from *stream*."""

    def __init__(self, stream: Stream) -> None:
        super().__init__([])
        self._stream = stream

    def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        events: AsyncGenerator[StreamEvent, None] = reading(self._stream)
        return events


class Deltas(Numbers):
    """A reader: "1" opens block 1, and later a number is a delta of its block."""

    def read(self, data: str) -> tuple[StreamEvent, ...]:
        if self.finished:
            return (BlockDelta(int(data), "text", "x"),)
        self.finished = 1
        return (BlockStarted(1, msgspec.Raw(b'{"type":"text","text":""}')),)


class OneStreamOfDeltas(OneStream):
    def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        events: AsyncGenerator[StreamEvent, None] = reading(self._stream, Deltas())
        return events


async def test_a_pushed_delta_of_no_block_fails_the_turn(pushed: list[Any]) -> None:
    pushed += [b"data: 2\n\n"]
    stream = Stream("1", 1000.0)
    async with SessionManager(provider=OneStreamOfDeltas(stream)) as manager:
        limits = TurnLimits(max_retries=0)
        session = await manager.create(SessionConfig(model="m", limits=limits))
        outcome = await (await session.send("go")).outcome()
    assert (outcome.status, "block 2 is not open" in str(outcome.error)) == ("failed", True)
    assert (stream.closed, stream.unwound) == (1, True)


async def test_an_error_while_a_pushed_delta_is_shown_ends_the_reply_and_is_not_the_providers(
    pushed: list[Any],
) -> None:
    pushed += [b"data: 1\n\n"]
    stream, shown = Stream("1", 1000.0), []

    def show(preview: Preview) -> None:
        shown.append(preview.text)
        raise TypeError("odd")

    request = Request(model="m", max_tokens=9, messages=())
    with pytest.raises(TypeError, match="odd"):
        await read_reply(
            OneStreamOfDeltas(stream),
            request,
            StepTag(1, 1, 1),
            builder=ReplyBuilder(),
            show=show,
            lease=cast("OwnerLease", SimpleNamespace(is_valid=True)),
        )
    assert shown == ["x"]
    assert (stream.closed, stream.unwound) == (1, True)


async def test_an_interrupt_does_not_wait_until_the_connection_is_closed() -> None:
    stream = Stream(1000.0, close_s=CLOSE_S / 2)
    async with SessionManager(provider=OneStream(stream)) as manager:
        session = await manager.create(SessionConfig(model="m"))
        await session.send("go")
        await anyio.sleep(1)
        interrupted_at = anyio.current_time()
        assert (await session.interrupt()).result is InterruptResult.ABORTED
        assert anyio.current_time() == interrupted_at
    # The manager's end waits for it.
    assert (stream.closed, stream.unwound) == (1, True)
    assert anyio.current_time() - interrupted_at >= CLOSE_S / 2


def test_closing_takes_less_than_the_session_waits_for_it() -> None:
    from llmsession.session.core import reply_reader

    assert DRAIN_S + CLOSE_S < reply_reader.CLOSE_S
