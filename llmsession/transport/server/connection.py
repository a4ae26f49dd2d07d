"""One client at the service, whatever carries its frames.

A transport gives it each frame as it is read, sends what it takes out, and closes when
``is_closed``.
Commands of one session are begun in the order of their frames, before anything is awaited: each
is a task whose first step enqueues it, and tasks begin in the order that they are made. Where a
session has to be opened first, its commands wait in line. A connection that is gone cancels
nothing: what was asked is done, and nobody is told.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from llmsession.errors import (
    InvalidInput,
    Overloaded,
    ProtocolError,
    SessionError,
    Unauthenticated,
)
from llmsession.session import LLMSession
from llmsession.session.handles.subscription import is_cold, subscribe_sink

from ..wire import messages as w
from ..wire.errors import to_wire
from . import tenancy
from .command_table import ASYNC_COMMANDS, READ_COMMANDS, is_slow_to_number, opened
from .limits import HELLO_BYTES
from .outbox import Outbox
from .subscription import ServerSubscription

if TYPE_CHECKING:
    from .service import Service

__all__ = ["Connection"]

WAITING_BYTES = 256 * 1024
"""Frames of commands that wait for their session; beside them one that is larger than that."""

_encode = msgspec.json.Encoder(enc_hook=str).encode


class _Attachment:
    """A session that the connection uses, and its commands that cannot begin yet."""

    __slots__ = ("handle", "held", "open_requests", "opening", "touched_at", "waiting")

    def __init__(self) -> None:
        self.handle: LLMSession | None = None
        self.waiting: deque[tuple[int, w.SessionCommand]] = deque()
        """With the bytes of their frames."""
        self.opening = False
        self.held = False
        """A command is on its way into the mailbox; the next one waits for it."""
        self.open_requests = 0
        self.touched_at = 0.0


class Connection:
    """Made by ``Service.connect``. Nothing in here waits, and nothing raises at the transport.

    ``wake`` is called when there is something to ``take``, from the event loop's thread.
    """

    def __init__(
        self, service: Service, peer: str, wake: Callable[[], None], token: str | None
    ) -> None:
        self._service = service
        self.peer = peer
        self._token = token
        self.tenant: str | None = None
        self.authenticated = False
        self.outbox = Outbox(service.limits.outgoing_bytes, wake)
        self._attached: dict[str, _Attachment] = {}
        self._feeds: dict[int, ServerSubscription] = {}
        self._callers: dict[int, asyncio.Future[bytes]] = {}
        self._waits: set[asyncio.Task[None]] = set()
        """Tasks that only wait, for this client alone."""
        self.open_requests = 0
        self._frame_bytes = 0
        """Of the frame that is being read."""
        self._waiting_bytes = 0
        """Of the commands that cannot begin yet."""
        self._room: asyncio.Event | None = None
        self._closing = False
        self._closed = False
        self.ended_by: SessionError | None = None
        """What the client did wrong, or was refused for; None where it ends in order."""

    # What a transport calls.

    @property
    def client(self) -> object:
        """Whom limits of one client count for: the tenant, or this connection."""
        return self if self.tenant is None else self.tenant

    @property
    def max_frame_bytes(self) -> int:
        """The largest frame that is read now: a small one before the hello."""
        return self._service.limits.frame_bytes if self.authenticated else HELLO_BYTES

    @property
    def is_closed(self) -> bool:
        """Has everything been sent to a connection that ends? Then close it."""
        return self._closed or (self._closing and not len(self.outbox))

    @property
    def is_closing(self) -> bool:
        """Is nothing more read, and at most what waits sent?"""
        return self._closing

    def receive(self, frame: bytes) -> None:
        """Read one frame. What is wrong with it is answered; nothing is raised."""
        if self._closing:
            return
        try:
            if len(frame) > self.max_frame_bytes:
                raise ProtocolError(f"the frame is larger than {self.max_frame_bytes:,} bytes")
            self._frame_bytes = len(frame)
            message = w.decode_from_client(frame)
            self._read(message)
        except SessionError as error:
            self.fail(error)
        except Exception as error:  # a bug of ours costs this connection, and no other
            self._service.log.error("connection.crashed", peer=self.peer, exc_info=error)
            self.fail(ProtocolError("the service failed"))

    def take(self) -> bytes | None:
        """The next frame to send, or None: ``wake`` is called when there is one again."""
        return self.outbox.take()

    @property
    def has_room(self) -> bool:
        """Does so little wait, to be sent or to begin, that the next frame may be read?"""
        return self.outbox.has_room and self._waiting_bytes <= WAITING_BYTES

    async def wait_for_room(self) -> None:
        """Until ``has_room``, or the connection ends. Cancellable."""
        while not self._closing and not self.has_room:
            if not self.outbox.has_room:
                await self.outbox.wait_for_room()
            else:
                self._room = self._room or asyncio.Event()
                await self._room.wait()

    def welcome(self) -> None:
        """Take it as greeted, with the token that the transport has. Raises Unauthenticated."""
        self.tenant = self._service.authenticate(self.peer, self._token)
        self.authenticated = True

    def still_authorized(self) -> bool:
        """Those who may connect have changed: is the client still one of them, as who it came? If
        not it is told so, and the connection ends. What it asked before is done."""
        if self._closing or not self.authenticated:
            return True
        try:
            if self._service.authenticate(self.peer, self._token) == self.tenant:
                return True
            self.fail(Unauthenticated("the token is another tenant's now"))
        except Unauthenticated as error:
            self.fail(error)
        return False

    def call(self, command: w.Command, size_bytes: int) -> asyncio.Future[bytes]:
        """Perform one command, of *size_bytes*, of a connection that was welcomed; the frame of
        its answer, a ``reply`` or an ``error``, without the outbox. Its id must not be in use."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._callers[command.id] = answer
        self._frame_bytes = size_bytes
        self._command(command)
        return answer

    def ping(self) -> None:
        """Ask whether anybody is there."""
        self.outbox.put(w.encode(w.Ping()))

    def fail(self, error: SessionError) -> None:
        """Tell the client what it did wrong, and end."""
        if self._closing:
            return
        self.ended_by = error
        self._service.refused(self, error)
        self._end(w.encode(to_wire(error)), w.Goodbye(reason=type(error).__name__))

    def leave(self, reason: str, retry_after_s: float | None = None) -> None:
        """Say goodbye. What waits to be sent is sent before it; nothing more is read."""
        if not self._closing:
            self._end(None, w.Goodbye(reason=reason, retry_after_s=retry_after_s))

    def _end(self, last: bytes | None, goodbye: w.Goodbye) -> None:
        self._closing = True
        self._let_go()
        if last is not None:
            self.outbox.put(last)
        self.outbox.put(w.encode(goodbye))

    def close(self) -> None:
        """The transport has lost its peer, or closed. Detaches everything, cancels nothing."""
        self._closing = True
        if not self._closed:
            self._closed = True
            self._let_go()
            self.outbox.clear()
            self._service.forget(self)

    def _let_go(self) -> None:
        for feed in self._feeds.values():
            feed.close()
        self._feeds.clear()
        for task in self._waits:
            task.cancel()
        for answer in self._callers.values():
            answer.cancel()
        self._callers.clear()
        self._attached.clear()
        self._let_in()

    # Reading.

    def _read(self, message: w.FromClient | w.Error) -> None:
        match message:
            case w.Ping():
                self.outbox.put(w.encode(w.Pong()))
            case w.Pong():
                pass
            case w.Goodbye():
                self.leave("as you wish")
            case w.Hello():
                self._greet(message)
            case _ if not self.authenticated:
                raise ProtocolError("say hello first")
            case w.Error():
                self.outbox.put(w.encode(message))
            case _:
                self._command(message)

    def _greet(self, hello: w.Hello) -> None:
        if self.authenticated:
            raise ProtocolError("hello was said before")
        if w.VERSION not in hello.versions:
            raise ProtocolError(
                f"version {w.VERSION} of the protocol is spoken here, and none of"
                f" {list(hello.versions)}"
            )
        self._token = self._token if hello.token is None else hello.token
        self.welcome()
        limits = self._service.limits
        self.outbox.put(
            w.encode(
                w.Welcome(
                    version=w.VERSION,
                    server=self._service.name,
                    max_frame_bytes=limits.frame_bytes,
                    keepalive_s=limits.keepalive_s,
                    default_model=self._service.default_model,
                )
            )
        )

    def _command(self, command: w.Command) -> None:
        self.open_requests += 1
        self._service.began(command)
        command = tenancy.placed(self.tenant, command)
        try:
            self._service.check(self, command)
            if isinstance(command, w.SessionCommand):
                if isinstance(command, w.Delete):
                    self._start(command, lambda: self._delete(command))
                elif isinstance(command, w.Row):
                    self._start(command, lambda: self._service.row(self.tenant, command.session))
                elif isinstance(command, w.Export):
                    self._start(command, lambda: self._service.export(self.tenant, command.session))
                else:
                    attachment = self._attachment(command.session)
                    attachment.waiting.append((self._frame_bytes, command))
                    self._waiting_bytes += self._frame_bytes
                    self._begin_waiting(command.session, attachment)
            elif isinstance(command, w.Create):
                self._start(command, lambda: self._create(command))
            elif isinstance(command, w.ListSessions):
                self._start(command, lambda: self._service.list(self.tenant, command))
            elif isinstance(command, w.Statistics):
                self._answer(command, self._service.figures(self.tenant, command.limit))
            else:
                self._unsubscribe(command)
        except SessionError as error:
            self._answer_error(command, error)

    def _attachment(self, session: str) -> _Attachment:
        attachment = self._attached.get(session)
        if attachment is None:
            limit = self._service.limits.sessions_per_connection
            if len(self._attached) >= limit:
                raise Overloaded(f"{limit} sessions are in use on this connection", retry_after_s=1)
            attachment = self._attached[session] = _Attachment()
        attachment.touched_at = self._service.now()
        return attachment

    def _begin_waiting(self, session: str, attachment: _Attachment) -> None:
        """Begin the commands of *session* that can begin, in their order; also those of a client
        that is gone."""
        while attachment.waiting and not attachment.held and not attachment.opening:
            handle = attachment.handle
            command = attachment.waiting[0][1]
            if handle is None or is_cold(handle) or _reopens(command):
                attachment.opening = True
                self._service.start(self._open(session, attachment, command))
                return
            if type(command) in READ_COMMANDS and not self.outbox.has_room and not self._closing:
                attachment.held = True
                self._service.start(self._go_on(session, attachment))
                return
            self._begin(attachment, handle, self._next(attachment))

    def _next(self, attachment: _Attachment) -> w.SessionCommand:
        """The command that is next in line, taken out of it."""
        size_bytes, command = attachment.waiting.popleft()
        self._waiting_bytes -= size_bytes
        self._let_in()
        return command

    def _let_in(self) -> None:
        if self._room is not None and (self._closing or self._waiting_bytes <= WAITING_BYTES):
            self._room.set()
            self._room = None

    async def _go_on(self, session: str, attachment: _Attachment) -> None:
        """Reads, whose answers are large, are performed as the client takes these."""
        await self.outbox.wait_for_room()
        attachment.held = False
        self._begin_waiting(session, attachment)

    async def _open(self, session: str, attachment: _Attachment, command: w.SessionCommand) -> None:
        opening = command if isinstance(command, w.Open) else w.Open(id=0, session=session)
        try:
            attachment.handle = await self._service.open(self.tenant, opening)
        except Exception as error:
            refusal = self._service.told(error)
            attachment.opening = False
            if self._attached.get(session) is attachment and attachment.handle is None:
                del self._attached[session]
            # Those that only need the session open fail with it, up to one that says how.
            self._answer_error(self._next(attachment), refusal)
            while attachment.waiting and not isinstance(attachment.waiting[0][1], w.Open):
                self._answer_error(self._next(attachment), refusal)
            if attachment.waiting and not self._closing:
                self._attached[session] = attachment
        else:
            attachment.opening = False
            if command is opening:
                self._answer(self._next(attachment), opened(attachment.handle))
        self._begin_waiting(session, attachment)

    def _begin(
        self, attachment: _Attachment, handle: LLMSession, command: w.SessionCommand
    ) -> None:
        try:
            read = READ_COMMANDS.get(type(command))
            if read is not None:
                self._answer(command, None if self._closing else read(handle, command))
            elif isinstance(command, w.Subscribe):
                if not self._closing:
                    self._subscribe(handle, command)
            elif isinstance(command, w.Fork):
                self._start(command, lambda: self._fork(handle, command), attachment)
            else:
                attachment.held = is_slow_to_number(command)
                waits = ASYNC_COMMANDS[type(command)]
                self._start(command, lambda: waits(handle, command), attachment)
        except SessionError as error:
            self._answer_error(command, error)

    # Commands that wait.

    def _start(
        self,
        command: w.Command,
        waits: Callable[[], Awaitable[Any]],
        attachment: _Attachment | None = None,
    ) -> None:
        task = self._service.start(self._perform(command, waits, attachment))
        if isinstance(command, w.Outcome):
            self._waits.add(task)
            task.add_done_callback(self._waits.discard)

    async def _perform(
        self,
        command: w.Command,
        waits: Callable[[], Awaitable[Any]],
        attachment: _Attachment | None,
    ) -> None:
        if attachment is not None:
            attachment.open_requests += 1
        try:
            body = await waits()
        except Exception as error:
            self._answer_error(command, self._service.told(error))
        else:
            if isinstance(command, w.Close):
                self._attached.pop(command.session, None)
            self._answer(command, body)
        finally:
            if attachment is not None:
                attachment.open_requests -= 1
                if attachment.held and isinstance(command, w.Submit):
                    attachment.held = False
                    self._begin_waiting(command.session, attachment)

    async def _create(self, command: w.Create) -> w.Opened:
        handle = await self._service.create(self.tenant, command)
        self._attach(handle)
        return opened(handle)

    async def _fork(self, handle: LLMSession, command: w.Fork) -> w.Opened:
        fork = await handle.fork(
            command.at,
            session_id=command.fork,
            labels=command.labels,
            when_busy=command.when_busy,
            command_id=command.command_id,
        )
        self._attach(fork)
        return opened(fork)

    def _attach(self, handle: LLMSession) -> None:
        if not self._closing and handle.id not in self._attached:
            attachment = self._attached[handle.id] = _Attachment()
            attachment.handle = handle
            attachment.touched_at = self._service.now()

    async def _delete(self, command: w.Delete) -> None:
        await self._service.delete(self.tenant, command.session)
        self._attached.pop(command.session, None)

    # Subscriptions.

    def _subscribe(self, handle: LLMSession, command: w.Subscribe) -> None:
        limit = self._service.limits.subscriptions_per_connection
        if len(self._feeds) >= limit:
            raise Overloaded(f"{limit} subscriptions are open on this connection", retry_after_s=1)
        if command.id in self._feeds:
            raise InvalidInput(f"subscription {command.id} is open; choose another id")
        feed = ServerSubscription(
            command.id,
            self.outbox,
            self._feed_ended,
            command.turn,
            lambda error: self._service.shown(self, command, error),
        )
        listening = subscribe_sink(handle, feed, after=command.after, turn=command.turn)
        self._answer(command, w.Subscribed(listening.after))
        self._feeds[command.id] = feed
        if feed.begin(listening):
            self._service.start(feed.catch_up())

    def _feed_ended(self, feed: ServerSubscription) -> None:
        self._feeds.pop(feed.id, None)
        self._service.feed_ended(self, feed)

    def _unsubscribe(self, command: w.Unsubscribe) -> None:
        feed = self._feeds.pop(command.subscription, None)
        if feed is not None:
            feed.close()
        self._answer(command, None)

    @property
    def subscriptions(self) -> int:
        """How many are open."""
        return len(self._feeds)

    @property
    def sessions(self) -> int:
        """How many are in use."""
        return len(self._attached)

    def let_idle_go(self, before: float) -> None:
        """Hold no session any more that was not used since *before*. Its next command opens it
        again; subscriptions stay."""
        for session, attachment in tuple(self._attached.items()):
            idle = not (attachment.waiting or attachment.opening or attachment.open_requests)
            if idle and attachment.touched_at < before:
                del self._attached[session]

    # Answers.

    def _answer(self, command: w.Command, body: Any) -> None:
        self._put_answer(command, w.encode_reply(command.id, _encode(body)), None)

    def _answer_error(self, command: w.Command, error: SessionError) -> None:
        told = self._service.shown(self, command, error)
        self._put_answer(command, w.encode(to_wire(told, id=command.id)), error)

    def _put_answer(self, command: w.Command, frame: bytes, error: SessionError | None) -> None:
        self.open_requests -= 1
        self._service.answered(self, command, error)
        caller = self._callers.pop(command.id, None)
        if caller is not None:
            if not caller.done():
                caller.set_result(frame)
        elif not self._closing:
            self.outbox.put(frame)


def _reopens(command: w.SessionCommand) -> bool:
    return isinstance(command, w.Open)
