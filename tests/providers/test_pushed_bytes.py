"""Bytes that a connection of the installed aiohttp pushes, and what a task has to read itself."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import aiohttp
import anyio
import pytest
from aiohttp.client_proto import ResponseHandler
from anyio.lowlevel import checkpoint

from llmsession.providers.pushed_bytes import MAX_PUSHED_BYTES, PushedBytes, find_pushed_bytes

pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
LIMIT_S = 10.0

asker: ContextVar[str] = ContextVar("asker", default="nobody")


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


class Wire(asyncio.Transport):
    """A transport to which a test gives what arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: Any = None
        self.is_closed = False

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert not self.is_closed, "a transport of TLS that was closed twice has no protocol"
        return self.protocol  # type: ignore[no-any-return]

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def arrives(self, data: bytes) -> None:
        self.protocol.data_received(data)

    def is_lost(self) -> None:
        self.is_closed = True
        self.protocol.connection_lost(None)
        self.protocol = None


class Response:
    """A response whose head has arrived on *wire*, and whose bytes are taken in ``taken``."""

    def __init__(self, limit_s: float | None, buffer_bytes: int) -> None:
        self.wire = Wire()
        self.taken: list[bytes] = []
        self.refused = b"refused"
        self.protocol = ResponseHandler(asyncio.get_running_loop())
        self.protocol.connection_made(self.wire)
        self.protocol.set_response_params(
            read_timeout=limit_s, auto_decompress=False, read_bufsize=buffer_bytes
        )
        self.wire.protocol = self.protocol
        self.wire.arrives(HEAD)

    async def begin(self) -> None:
        _, self.content = await self.protocol.read()
        self.pushed = PushedBytes(self.wire, self.protocol, self.content, self.take)

    def take(self, received: bytes) -> bool:
        self.taken.append(received)
        return received != self.refused


async def response(limit_s: float | None = LIMIT_S, buffer_bytes: int = 2**16) -> Response:
    made = Response(limit_s, buffer_bytes)
    await made.begin()
    return made


class Waiting:
    """A task that waits for what it has to read, as long as the block runs."""

    def __init__(self, found: Response, read: int = 0) -> None:
        self._found = found
        self._read = read
        self.is_over = False
        self.is_refused = False

    async def __aenter__(self) -> Waiting:
        self._group = await anyio.create_task_group().__aenter__()
        self._group.start_soon(self._wait)
        await checkpoint()
        await checkpoint()
        return self

    async def _wait(self) -> None:
        self.is_refused = await self._found.pushed.wait(self._read)
        self.is_over = True

    def cancel(self) -> None:
        self._group.cancel_scope.cancel()

    async def __aexit__(self, *error: Any) -> bool | None:
        self.cancel()
        return await self._group.__aexit__(*error)


async def test_bytes_are_taken_before_the_transport_goes_on() -> None:
    found = await response()
    async with Waiting(found) as waiting:
        found.wire.arrives(chunk(b"one"))
        assert found.taken == [b"one"]
        found.wire.arrives(chunk(b"two") + chunk(b"three"))
        found.wire.arrives(chunk(b"four")[:-4])
        found.wire.arrives(chunk(b"four")[-4:])
        assert found.taken == [b"one", b"twothree", b"fo", b"ur"]
        await checkpoint()
        assert not waiting.is_over


async def test_bytes_are_taken_in_the_context_of_the_task_that_reads() -> None:
    asker.set("the task")
    found = await response()
    askers: list[str] = []

    def take(received: bytes) -> bool:
        askers.append(asker.get())
        return True

    found.pushed = PushedBytes(found.wire, found.protocol, found.content, take)
    asker.set("somebody else")
    async with Waiting(found):
        found.wire.arrives(chunk(b"one"))
    assert askers == ["the task"]


async def test_what_has_arrived_before_is_left_to_the_task() -> None:
    found = await response()
    found.wire.arrives(chunk(b"one"))
    async with Waiting(found) as waiting:
        assert waiting.is_over
        assert found.content.read_nowait() == b"one"
    async with Waiting(found, read=3) as waiting:
        found.wire.arrives(chunk(b"two"))
        assert (found.taken, waiting.is_over) == ([b"two"], False)
    is_ended(found)
    async with Waiting(found) as waiting:
        assert waiting.is_over


def is_refused(found: Response) -> None:
    found.wire.arrives(chunk(found.refused))


def is_ended(found: Response) -> None:
    found.wire.arrives(LAST)


def is_lost(found: Response) -> None:
    found.wire.is_lost()


def is_failed(found: Response) -> None:
    found.content.set_exception(aiohttp.ClientPayloadError())
    found.wire.arrives(chunk(b"one"))


def has_too_much(found: Response) -> None:
    found.wire.arrives(chunk(bytes(MAX_PUSHED_BYTES)) + chunk(b"more"))


@pytest.mark.parametrize("happens", [is_refused, is_ended, is_lost, is_failed, has_too_much])
async def test_the_task_is_woken_and_aiohttp_has_its_connection_back_by_then(
    happens: Callable[[Response], None],
) -> None:
    found = await response()
    async with Waiting(found) as waiting:
        assert found.wire.get_protocol() is found.pushed
        happens(found)
        assert found.wire.is_closing() or found.wire.get_protocol() is found.protocol
        assert found.protocol.read_timeout == LIMIT_S
        await checkpoint()
        await checkpoint()
        assert waiting.is_over
        assert waiting.is_refused == (happens is is_refused)


async def test_what_is_too_much_at_once_is_there_for_the_task() -> None:
    found = await response()
    async with Waiting(found):
        has_too_much(found)
        assert found.taken == []
        assert found.content.read_nowait() == bytes(MAX_PUSHED_BYTES) + b"more"


async def test_what_aiohttp_holds_back_until_something_is_read_is_not_forgotten() -> None:
    found = await response(buffer_bytes=16)
    async with Waiting(found) as waiting:
        found.wire.arrives(b"".join(chunk(b"%d" % number) for number in range(10)))
        assert [len(received) < 10 for received in found.taken] == [True]
        await checkpoint()
        await checkpoint()
        assert waiting.is_over
        while sum(map(len, found.taken)) < 10:
            found.taken.append(await found.content.readany())
    assert b"".join(found.taken) == b"0123456789"


async def test_a_connection_that_is_lost_in_mid_response_is_an_error_for_the_task() -> None:
    found = await response()
    async with Waiting(found):
        is_lost(found)
    with pytest.raises(aiohttp.ClientPayloadError):
        await found.content.readany()


@pytest.mark.parametrize("is_waiting", [True, False])
@pytest.mark.parametrize("cause", ["broken chunks", "a closed client"])
async def test_a_connection_of_whose_end_aiohttp_says_nothing_is_an_error_too(
    cause: str, is_waiting: bool
) -> None:
    found, errors = await response(), []

    async def fail() -> None:
        with pytest.raises(OSError, match="the connection was closed: ") as raised:
            await found.pushed.wait(0)
        errors.append(str(raised.value))

    async with anyio.create_task_group() as group:
        if is_waiting:
            group.start_soon(fail)
            await checkpoint()
        if cause == "broken chunks":
            found.wire.arrives(b"no chunk\r\n")
        else:
            found.protocol.close()
        if is_waiting:
            found.wire.is_lost()
        else:
            group.start_soon(fail)
    assert ["no chunk" in error for error in errors] == [False]


async def test_what_has_arrived_before_broken_chunks_is_read_first() -> None:
    found = await response()
    async with Waiting(found) as waiting:
        found.wire.arrives(chunk(found.refused) + b"no chunk\r\n")
        await checkpoint()
        await checkpoint()
        assert (found.taken, waiting.is_refused) == ([found.refused], True)
    with pytest.raises(OSError, match="HttpProcessingError"):
        await found.pushed.wait(0)
    found = await response()
    found.wire.arrives(chunk(b"one") + b"no chunk\r\n")
    assert not await found.pushed.wait(0)
    assert found.content.read_nowait() == b"one"
    with pytest.raises(OSError, match="HttpProcessingError"):
        await found.pushed.wait(3)


@pytest.mark.parametrize("happens", [is_ended, is_lost])
async def test_a_response_that_is_over_leaves_no_timer(
    happens: Callable[[Response], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await response()
    async with Waiting(found):
        timers: list[Any] = []
        with monkeypatch.context() as patch:
            patch.setattr(asyncio.get_running_loop(), "call_later", timers.append)
            happens(found)
        assert timers == []


async def test_a_wait_that_is_over_leaves_no_timer() -> None:
    found = await response()
    async with Waiting(found):
        is_refused(found)
    pushed = weakref.ref(found.pushed)
    del found.pushed
    gc.collect()
    assert pushed() is None


async def test_after_a_cancellation_nothing_is_taken() -> None:
    found = await response()
    async with Waiting(found) as waiting:
        waiting.cancel()
        found.wire.arrives(chunk(b"one"))  # the task has not run since
    assert found.taken == []
    assert found.wire.get_protocol() is found.protocol
    assert found.content.read_nowait() == b"one"


async def test_a_connection_that_somebody_else_reads_or_that_closes_is_left_to_them() -> None:
    found = await response()
    found.wire.set_protocol(somebody := asyncio.Protocol())
    async with Waiting(found) as waiting:
        assert waiting.is_over
        assert found.wire.get_protocol() is somebody
    found = await response()
    found.wire.close()
    async with Waiting(found) as waiting:
        assert waiting.is_over


async def test_writing_is_paused_and_goes_on_as_aiohttp_wants_it() -> None:
    found = await response()
    async with Waiting(found):
        found.wire.protocol.pause_writing()
        assert found.protocol.writing_paused
        found.wire.protocol.resume_writing()
        assert not found.protocol.writing_paused
        assert found.wire.protocol.eof_received() is None


async def read_all(found: Response) -> None:
    """As a stream is read: by the task what the connection does not push."""
    read = 0
    while True:
        await found.pushed.wait(read)
        received = await found.content.readany()
        read = len(received)
        found.taken.append(received)


@pytest.mark.parametrize(("pieces", "pause"), [(0, 0.0), (1, 0.9), (7, 0.9), (7, 0.4)])
async def test_a_silence_as_long_as_the_read_timeout_is_an_error_of_aiohttp(
    pieces: int, pause: float
) -> None:
    found = await response()
    async with anyio.create_task_group() as group:

        async def fail() -> None:
            with pytest.raises(aiohttp.SocketTimeoutError):
                await read_all(found)
            group.cancel_scope.cancel()

        group.start_soon(fail)
        for _ in range(pieces):
            await anyio.sleep(pause * LIMIT_S)
            found.wire.arrives(chunk(b"one"))
        silent_since = anyio.current_time()
        await anyio.sleep(2 * LIMIT_S)
    assert found.taken == [b"one"] * pieces
    assert anyio.current_time() - silent_since == pytest.approx(LIMIT_S, abs=0.01)


async def test_bytes_that_keep_coming_need_no_timer_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = await response()
    async with Waiting(found) as waiting:
        timers: list[Any] = []
        with monkeypatch.context() as patch:
            patch.setattr(asyncio.get_running_loop(), "call_later", timers.append)
            for _ in range(100):
                found.wire.arrives(chunk(b"one"))
        assert (len(found.taken), timers, waiting.is_over) == (100, [], False)
        for _ in range(100):
            await anyio.sleep(0.4 * LIMIT_S)
            found.wire.arrives(chunk(b"one"))
        assert (len(found.taken), waiting.is_over) == (200, False)


async def test_without_a_read_timeout_a_silence_is_waited_for() -> None:
    found = await response(limit_s=None)
    async with Waiting(found) as waiting:
        await anyio.sleep(1000 * LIMIT_S)
        found.wire.arrives(chunk(b"one"))
        assert (found.taken, waiting.is_over) == ([b"one"], False)


class BoundAsyncStream:
    def __init__(self, stream: Any) -> None:
        self._stream = stream


class AiohttpResponseStream:
    def __init__(self, response: Any) -> None:
        self._aiohttp_response = response


def layers(found: Response, **replaced: Any) -> BoundAsyncStream:
    """The layers of an SDK's client around *found*, some parts *replaced*."""
    parts: dict[str, Any] = {
        "content": found.content,
        "connection": SimpleNamespace(protocol=found.protocol),
        **replaced,
    }
    return BoundAsyncStream(AiohttpResponseStream(SimpleNamespace(**parts)))


async def test_the_bytes_of_a_response_are_found_where_nothing_stands_in_between() -> None:
    found = await response()
    pushed = find_pushed_bytes(layers(found), found.take)
    assert pushed is not None
    found.pushed = pushed
    async with Waiting(found):
        found.wire.arrives(chunk(b"one"))
    assert found.taken == [b"one"]


async def test_bytes_that_cannot_be_pushed_safely_are_iterated() -> None:
    found = await response()
    newer = SimpleNamespace(transport=found.wire, data_received=found.protocol.data_received)
    limited = aiohttp.StreamReader(
        found.protocol, 1, timer=aiohttp.helpers.TimerContext(asyncio.get_running_loop())
    )

    class TracedStream(BoundAsyncStream):
        """Sees the bytes on their way."""

    for stream in (
        None,
        TracedStream(layers(found)._stream),
        BoundAsyncStream(TracedStream(layers(found)._stream)),
        layers(found, connection=None),
        layers(found, connection=SimpleNamespace(protocol=newer)),
        layers(found, content=SimpleNamespace(read_nowait=found.content.read_nowait)),
        layers(found, content=limited),
    ):
        assert find_pushed_bytes(stream, found.take) is None
