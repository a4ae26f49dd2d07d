"""The calls of ``SessionService``: connections with frames, single commands, and event streams."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc
import msgspec

from llmsession.errors import (
    InvalidInput,
    Overloaded,
    ProtocolError,
    SessionError,
    Unauthenticated,
)

from ..server.connection import Connection
from ..server.limits import GOING_DOWN, RETRY_AFTER_S
from ..server.service import Service
from ..v1.session_pb2 import DESCRIPTOR, Command, Envelope, Frames
from ..v1.session_pb2_grpc import SessionServiceServicer
from ..wire import messages as w
from ..wire.errors import ERRORS, to_wire
from ..wire.framing import decode_from_server, encode
from .decoding import decode_message
from .envelopes import answer_envelope, command_in, event_envelope
from .errors import refusal
from .peer import GrpcPeer

__all__ = ["Calls", "service_methods"]

IDLE_S = 60.0
"""How long the state of a client that makes single calls is kept after its last call."""

MAX_COMMAND_FIELDS = 64
"""The most fields of a Command. It has three, but a client of a later version may send more."""


def _nothing() -> None:
    """Called when the outbox gets a frame. Single calls have no frames in the outbox."""


class _Caller:
    """A client that makes single calls. There is one for each pair of gRPC connection and token."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.ids = 0
        self.open_calls = 0
        self._outgoing_bytes = 0
        """Bytes of answers that are not sent yet."""
        self._room = asyncio.Event()
        self._idle: asyncio.TimerHandle | None = None

    def begins(self) -> None:
        """Count one more open call."""
        self.open_calls += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def ends(self, drop: Callable[[], None]) -> None:
        """Count one open call less. If no other call begins within ``IDLE_S``, *drop* is called."""
        self.open_calls -= 1
        if not self.open_calls:
            self._idle = asyncio.get_running_loop().call_later(IDLE_S, drop)

    def close(self) -> None:
        """Forget the client. Commands that were already accepted are still carried out."""
        if self._idle is not None:
            self._idle.cancel()
        self.connection.close()

    def sends(self, size_bytes: int, call: Any) -> None:
        """Count *size_bytes* as waiting to be sent until *call* is done."""
        self._outgoing_bytes += size_bytes
        call.add_done_callback(lambda _: self._sent(size_bytes))

    def _sent(self, size_bytes: int) -> None:
        self._outgoing_bytes -= size_bytes
        self._room.set()

    async def wait_for_room(self, limit_bytes: int) -> None:
        """Wait until fewer than *limit_bytes* wait to be sent. Cancellable."""
        while self._outgoing_bytes >= limit_bytes:
            self._room.clear()
            await self._room.wait()


class Calls(SessionServiceServicer):
    """The servicer of all calls. ``close`` sends a goodbye to all clients."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._admission = service.admission
        self._callers: dict[tuple[str, str | None], _Caller] = {}
        self._running: set[asyncio.Task[Any]] = set()
        self._peers: set[Connection] = set()
        self._closing = False
        # A client of single calls keeps its place for a while after its last one.
        service.when_full(self._drop_idle_callers)

    async def close(self, timeout_s: float) -> None:
        """End every call, and wait at most *timeout_s* for the calls to end. Commands that were
        already accepted are still carried out."""
        self.refuse()
        for connection in (*self._peers, *(caller.connection for caller in self._callers.values())):
            connection.leave(GOING_DOWN, RETRY_AFTER_S)
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)
        for key in tuple(self._callers):
            self._drop_caller(*key)

    def refuse(self) -> None:
        """Accept no new calls. Open calls continue."""
        self._closing = True

    # Shared by all calls: the client's identity, and the conversion of errors.

    async def _serve(self, call: Any, work: Callable[[str, str | None], Awaitable[Any]]) -> Any:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        peer = call.peer()
        try:
            if self._closing:
                raise Overloaded(GOING_DOWN, retry_after_s=RETRY_AFTER_S)
            return await work(peer, _token_of(call))
        except grpc.aio.AbortError:
            raise
        except (grpc.aio.BaseError, asyncio.InvalidStateError):
            return None  # the call has ended, so there is no client to answer
        except Exception as error:
            public = self._admission.public_error(error)
            if isinstance(public, Unauthenticated):
                self._admission.log_refusal(peer, public)
            await _abort(call, to_wire(public))
        finally:
            self._running.discard(task)

    # Frames.

    async def Connect(self, _requests: object, call: Any) -> None:
        async def work(peer: str, token: str | None) -> None:
            if token is not None or self._admission.is_guarded:
                # Authenticate before reading, so that a refused client costs no memory.
                self._admission.authenticate(peer, token)
            try:
                frame_peer = GrpcPeer(self._service, call, peer, token)
            except Overloaded as error:
                await call.write(Frames(frames=[encode(to_wire(error))]))
                return
            self._peers.add(frame_peer.connection)
            try:
                await call.send_initial_metadata(())
                await frame_peer.run()
                if frame_peer.refused is not None:
                    raise frame_peer.refused
            finally:
                self._peers.discard(frame_peer.connection)
                frame_peer.connection.close()

        await self._serve(call, work)

    # Single commands.

    async def perform(self, command_type: type[w.Command[Any]], call: Any) -> Envelope:
        """Perform one command and return its answer. A query first waits while the client does not
        read earlier answers."""
        kind = w.tag_of(command_type)

        async def work(peer: str, token: str | None) -> Envelope:
            caller = self._caller(peer, token)
            caller.begins()
            try:
                if issubclass(command_type, w.Query):
                    await caller.wait_for_room(self._admission.limits.outgoing_bytes)
                request, size = await _request(caller.connection, call)
                caller.ids += 1
                command = command_in(kind, caller.ids, request)
                del request
                frame = await _answer(caller.connection, command, size)
                caller.sends(len(frame), call)
                return answer_envelope(kind, command, await _reply(call, frame))
            finally:
                caller.ends(lambda: self._drop_caller(peer, token))

        answer: Envelope = await self._serve(call, work)
        return answer

    def _caller(self, peer: str, token: str | None) -> _Caller:
        caller = self._callers.get((peer, token))
        if caller is not None and caller.connection.is_closing:  # e.g. a revoked token
            self._drop_caller(peer, token)
            caller = None
        if caller is None:
            connection = self._service.connect(peer, _nothing, token)
            try:
                connection.authenticate()
            except BaseException:
                connection.close()
                raise
            caller = self._callers[peer, token] = _Caller(connection)
        return caller

    def _drop_idle_callers(self) -> None:
        for key in [key for key, caller in self._callers.items() if not caller.open_calls]:
            self._drop_caller(*key)

    def _drop_caller(self, peer: str, token: str | None) -> None:
        caller = self._callers.pop((peer, token), None)
        if caller is not None:
            caller.close()

    # Events.

    async def Subscribe(self, _requests: object, call: Any) -> None:
        async def work(peer: str, token: str | None) -> None:
            woken = asyncio.Event()
            connection = self._service.connect(peer, woken.set, token)
            self._peers.add(connection)
            try:
                connection.authenticate()
                request, size = await _request(connection, call)
                command = command_in("subscribe", 1, request)
                frame = await _answer(connection, command, size)
                reply = await _reply(call, frame)
                cursor = msgspec.json.decode(reply.body, type=w.Subscribed).cursor
                first = Envelope(session=request.session, kind="subscribed", seq=cursor)
                await call.write(first)
                await self._forward(connection, woken, call)
            finally:
                self._peers.discard(connection)
                connection.close()

        await self._serve(call, work)

    async def _forward(self, connection: Connection, woken: asyncio.Event, call: Any) -> None:
        while True:
            woken.clear()
            while (frame := connection.take()) is not None:
                match decode_from_server(frame):
                    case w.Event() as event:
                        await call.write(event_envelope(event))
                    case w.Lagged() as lagged:
                        await call.write(Envelope(kind="lagged", seq=lagged.cursor))
                        return
                    case w.Ended() as ended:
                        if ended.moved:
                            await call.write(Envelope(kind="moved", seq=ended.cursor or 0))
                        return
                    case w.Error() as error:
                        await _abort(call, error)
                    case w.Goodbye():
                        raise Overloaded(GOING_DOWN, retry_after_s=RETRY_AFTER_S)
            await woken.wait()


def _single(command_type: type[w.Command[Any]]) -> Callable[[Calls, Command, Any], Any]:
    # It must be async: gRPC runs plain functions in threads.
    async def perform(self: Calls, _requests: object, call: Any) -> Envelope:
        return await self.perform(command_type, call)

    return perform


def call_of(command_type: type[w.Command[Any]]) -> str:
    """The name of the call that performs a command, such as ``OpenCalls``. ``close`` is
    ``CloseSession``: a call ``Close`` would replace the method ``close()`` in some generated
    clients."""
    name = w.tag_of(command_type).title().replace("_", "")
    return "CloseSession" if name == "Close" else name


# ``Subscribe`` is a stream that ends when the client cancels it, so there is no ``Unsubscribe``.
SINGLE_COMMANDS = [kind for kind in w.COMMANDS if kind not in (w.Subscribe, w.Unsubscribe)]
for _kind in SINGLE_COMMANDS:
    setattr(Calls, call_of(_kind), _single(_kind))


async def _request(connection: Connection, call: Any) -> tuple[Command, int]:
    """The request message of *call* and its size in bytes. The client must be authenticated. The
    message is read once there is room for it. Raises InvalidInput for invalid bytes."""
    if not connection.has_room:
        await connection.wait_for_room()
    raw = await call.read()
    if raw is grpc.aio.EOF:
        raise InvalidInput("the call has no message")
    return decode_message(Command, raw, MAX_COMMAND_FIELDS), len(raw)


async def _answer(connection: Connection, command: w.Command[Any], size_bytes: int) -> bytes:
    """The frame of the answer. Cancelling this coroutine does not cancel the command."""
    answer = connection.call(command, size_bytes)
    try:
        return await answer
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if answer.cancelled() and task is not None and not task.cancelling():
            going_down = Overloaded(GOING_DOWN, retry_after_s=RETRY_AFTER_S)
            raise connection.ended_by or going_down from None
        raise


async def _reply(call: Any, frame: bytes) -> w.Reply:
    match decode_from_server(frame):
        case w.Reply() as reply:
            return reply
        case w.Error() as error:
            await _abort(call, error)
        case _:
            raise ProtocolError("the service failed; see its log")


async def _abort(call: Any, error: w.Error) -> NoReturn:
    await call.abort_with_status(refusal(error, ERRORS.get(error.code, SessionError)))
    raise AssertionError("abort raises")


def _token_of(call: Any) -> str | None:
    for name, value in call.invocation_metadata() or ():
        if name == "authorization":
            text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
            scheme, _, token = text.partition(" ")
            if scheme.lower() != "bearer":
                raise InvalidInput("authorization must be 'Bearer TOKEN'")
            return token.strip()
    return None


def service_methods(calls: Calls, name: str) -> grpc.GenericRpcHandler:
    """The methods of the service *name*. Each takes its request as a stream of bytes. On the wire
    this looks the same as one message. So the service can authenticate a call before it reads the
    request, and can answer invalid bytes itself."""
    methods: dict[str, Any] = {}
    for method in DESCRIPTOR.services_by_name[name.rpartition(".")[2]].methods:
        answer = Frames if method.name == "Connect" else Envelope
        make = (
            grpc.stream_stream_rpc_method_handler
            if method.server_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        methods[method.name] = make(
            getattr(calls, method.name), response_serializer=answer.SerializeToString
        )
    return grpc.method_handlers_generic_handler(name, methods)
