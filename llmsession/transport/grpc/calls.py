"""The calls of ``SessionService``: frames of a connection, single commands, and events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar

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
"""How long a client of single calls is known after its last one."""

MAX_COMMAND_FIELDS = 64
"""A Command has three. A client of a later version may send some that are not known here."""

T = TypeVar("T")


def _nothing() -> None:
    """Nobody waits for an outbox that stays empty."""


class _Caller:
    """A client that makes single calls: one for each pair of gRPC connection and token."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.ids = 0
        self.open_calls = 0
        self._outgoing_bytes = 0
        """Of answers that its gRPC connection has not taken."""
        self._room = asyncio.Event()
        self._idle: asyncio.TimerHandle | None = None

    def begins(self) -> None:
        """One more call."""
        self.open_calls += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def ends(self, drop: Callable[[], None]) -> None:
        """A call is over. *let_go* is called if none comes for a while."""
        self.open_calls -= 1
        if not self.open_calls:
            self._idle = asyncio.get_running_loop().call_later(IDLE_S, drop)

    def close(self) -> None:
        """Forget the client. Commands that were accepted are still carried out."""
        if self._idle is not None:
            self._idle.cancel()
        self.connection.close()

    def sends(self, size_bytes: int, call: Any) -> None:
        """An answer of *size_bytes* is about to be sent."""
        self._outgoing_bytes += size_bytes
        call.add_done_callback(lambda _: self._sent(size_bytes))

    def _sent(self, size_bytes: int) -> None:
        self._outgoing_bytes -= size_bytes
        self._room.set()

    async def wait_for_room(self, limit_bytes: int) -> None:
        """Until less than *limit_bytes* wait to be sent. Cancellable."""
        while self._outgoing_bytes >= limit_bytes:
            self._room.clear()
            await self._room.wait()


class Calls(SessionServiceServicer):
    """The servicer. ``close`` says goodbye to all of its clients."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._admission = service.admission
        self._callers: dict[tuple[str, str | None], _Caller] = {}
        self._running: set[asyncio.Task[Any]] = set()
        self._peers: set[Connection] = set()
        self._closing = False

    async def close(self, timeout_s: float) -> None:
        """End every call, and wait for that at most *timeout_s*. Commands that were accepted are
        still carried out."""
        self.refuse()
        for connection in (*self._peers, *(caller.connection for caller in self._callers.values())):
            connection.leave(GOING_DOWN, RETRY_AFTER_S)
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)
        for key in tuple(self._callers):
            self._drop_caller(*key)

    def refuse(self) -> None:
        """Take no new calls. Those that there are go on."""
        self._closing = True

    # What all calls share: who calls, and how errors are answered.

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
            return None  # the call is over: nobody is there to be answered
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
                # Before anything is read: a client that is refused costs no memory.
                self._admission.authenticate(peer, token)
            try:
                frame_peer = self._connect_with_room(
                    lambda: GrpcPeer(self._service, call, peer, token)
                )
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
        """One command and its answer. A query waits where the client does not take its answers."""
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
        if caller is not None and caller.connection.is_closing:  # its token was revoked, say
            self._drop_caller(peer, token)
            caller = None
        if caller is None:
            connection = self._connect_with_room(
                lambda: self._service.connect(peer, _nothing, token)
            )
            try:
                connection.authenticate()
            except BaseException:
                connection.close()
                raise
            caller = self._callers[peer, token] = _Caller(connection)
        return caller

    def _connect_with_room(self, connect: Callable[[], T]) -> T:
        """What *connect* returns. If the limit is reached, idle clients of single calls are dropped
        first."""
        try:
            return connect()
        except Overloaded:
            if not self._drop_idle_callers():
                raise
        return connect()

    def _drop_idle_callers(self) -> bool:
        idle = [key for key, caller in self._callers.items() if not caller.open_calls]
        for key in idle:
            self._drop_caller(*key)
        return bool(idle)

    def _drop_caller(self, peer: str, token: str | None) -> None:
        caller = self._callers.pop((peer, token), None)
        if caller is not None:
            caller.close()

    # Events.

    async def Subscribe(self, _requests: object, call: Any) -> None:
        async def work(peer: str, token: str | None) -> None:
            woken = asyncio.Event()
            connection = self._connect_with_room(
                lambda: self._service.connect(peer, woken.set, token)
            )
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
                    case w.Ended():
                        return
                    case w.Error() as error:
                        await _abort(call, error)
                    case w.Goodbye():
                        raise Overloaded(GOING_DOWN, retry_after_s=RETRY_AFTER_S)
            await woken.wait()


def _single(command_type: type[w.Command[Any]]) -> Callable[[Calls, Command, Any], Any]:
    # Async, or gRPC would run it in a thread.
    async def perform(self: Calls, _requests: object, call: Any) -> Envelope:
        return await self.perform(command_type, call)

    return perform


def call_of(command_type: type[w.Command[Any]]) -> str:
    """The name of the call that performs a command: ``OpenCalls``. A call ``Close`` would take the
    place of ``close()`` in clients that some generators make: it is ``CloseSession``."""
    name = w.tag_of(command_type).title().replace("_", "")
    return "CloseSession" if name == "Close" else name


# ``Subscribe`` streams, and ends when its client leaves: nothing unsubscribes.
SINGLE_COMMANDS = [kind for kind in w.COMMANDS if kind not in (w.Subscribe, w.Unsubscribe)]
for _kind in SINGLE_COMMANDS:
    setattr(Calls, call_of(_kind), _single(_kind))


async def _request(connection: Connection, call: Any) -> tuple[Command, int]:
    """The message of *call*, whose client is authenticated, and its size in bytes. It is read once
    there is room for it. Raises InvalidInput for bytes that are none."""
    if not connection.has_room:
        await connection.wait_for_room()
    raw = await call.read()
    if raw is grpc.aio.EOF:
        raise InvalidInput("the call has no message")
    return decode_message(Command, raw, MAX_COMMAND_FIELDS), len(raw)


async def _answer(connection: Connection, command: w.Command[Any], size_bytes: int) -> bytes:
    """The frame of the answer. Cancelling the caller does not take the command back."""
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
            raise ProtocolError("the service failed")


async def _abort(call: Any, error: w.Error) -> NoReturn:
    await call.abort_with_status(refusal(error, ERRORS.get(error.code, SessionError)))
    raise AssertionError("abort raises")


def _token_of(call: Any) -> str | None:
    for name, value in call.invocation_metadata() or ():
        if name == "authorization":
            text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
            scheme, _, token = text.partition(" ")
            if scheme.lower() != "bearer":
                raise InvalidInput("authorization is 'Bearer' and a token")
            return token.strip()
    return None


def service_methods(calls: Calls, name: str) -> grpc.GenericRpcHandler:
    """The methods of the service *name*. Each takes its request as a stream of bytes, on the wire
    the same as one message: so a call is authenticated before its request is read, and bytes that
    are no message are answered by us."""
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
