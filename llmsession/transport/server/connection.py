"""One client at the service, whatever carries its frames.

A transport passes each frame that it reads to ``receive``, sends what ``take`` returns, and closes
when ``is_closed``.

Commands of one session begin in the order of their frames, before anything is awaited: each is a
task whose first step enqueues it, and tasks begin in the order in which they are made. Where the
session has to be opened first, its commands wait in a queue. A connection that is lost cancels
nothing: its commands are still performed, and nobody gets the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from llmsession.errors import (
    InvalidInput,
    Overloaded,
    ProtocolError,
    SessionError,
    Unauthenticated,
)
from llmsession.session import LLMSession
from llmsession.session.handles.subscription import (
    has_moved,
    is_cold,
    subscribe_sink,
    subscriber_count,
)

from ..wire import messages as w
from ..wire.errors import to_wire
from ..wire.framing import brief, decode_from_client, encode, encode_reply
from . import tenancy
from .admission import Admission
from .backlog import Attachment, Backlog
from .command_table import (
    ASYNC_COMMANDS,
    READ_COMMANDS,
    SERVICE_COMMANDS,
    is_slow_to_number,
    opened,
)
from .intake import excess_of
from .limits import HELLO_BYTES, HELLO_FRAMES, RETRY_AFTER_S, check_limit
from .outbox import Outbox
from .subscription import OpenSubscriptions, ServerSubscription

__all__ = ["ROUTES", "STEPS", "Connection"]

_encode = msgspec.json.Encoder(enc_hook=str).encode


MIN_PAUSE_S = 0.04
"""A client that is too fast is read in bursts, with pauses between them. A shorter pause makes
bursts so short that waking up for each costs as much as its frames. On average the client is read
at its rate all the same."""
_ENDS_USE = (w.Close, w.Delete)
"""After these the connection does not use the session any more."""
_BEFORE_THE_HELLO = (w.Hello, w.Ping, w.Pong, w.Goodbye)


class Connection:
    """Made by ``Service.connect``. Nothing in here raises at the transport. A transport that has
    read a frame tells ``ReadingTurns`` how long that took, and waits until there is room before it
    reads the next one.

    ``wake`` is called when there is something to ``take``, from the event loop's thread.
    ``on_welcome`` is called when the client has authenticated, and raises Overloaded where there is
    no room for it; ``on_closed`` once, when the connection is gone.
    """

    def __init__(
        self,
        admission: Admission,
        peer: str,
        wake: Callable[[], None],
        token: str | None,
        *,
        on_welcome: Callable[[Connection], None],
        on_closed: Callable[[Connection], None],
        snapshot: Callable[[str | None, int], w.ServiceSnapshot],
    ) -> None:
        self._admission = admission
        self.rate_key: object = object()
        """Whom the limits of commands a second and of incoming bytes count for: this connection,
        and once it has a tenant all connections of that."""
        self.max_frame_bytes = HELLO_BYTES
        """The largest frame that is read now: a small one before the hello."""
        self._on_welcome = on_welcome
        self._on_closed = on_closed
        self._snapshot = snapshot
        self.peer = peer
        self._token = token
        self.tenant: str | None = None
        self.authenticated = False
        self.outbox = Outbox(admission.limits.outgoing_bytes, wake)
        self._attached: dict[str, Attachment] = {}
        self._subscriptions = OpenSubscriptions()
        self._callers: dict[int, asyncio.Future[bytes]] = {}
        """By command id: who gets the answer, where it does not go into the outbox."""
        self._waits: set[asyncio.Task[None]] = set()
        """Tasks that only wait, for this client alone: they end with the connection."""
        self.open_requests = 0
        self._frame_bytes = 0
        """Of the frame that is being read."""
        self._early_frames = 0
        """Before the hello."""
        self._pause_until = 0.0
        self._unfinished: tuple[object, int] = (None, 0)
        """Who is charged for the frame that is still being received, and how many bytes."""
        self._charges: dict[int, tuple[object, int]] = {}
        """The same, of large commands without an answer, by the identity of the command."""
        self._creating = 0
        """Sessions that are being made: they will be in use."""
        self._backlog = Backlog()
        self._closing = False
        self._closed = False
        self.ended_by: SessionError | None = None
        """Why the service ended the connection; None where it ends in order."""

    # What a transport calls.

    @property
    def is_closed(self) -> bool:
        """Has a connection that ends sent everything? Then close it."""
        return self._closed or (self._closing and not len(self.outbox))

    @property
    def is_closing(self) -> bool:
        """Is nothing more read, and only sent what waits already?"""
        return self._closing

    def receive(self, frame: bytes | None) -> None:
        """Read one frame. None is an empty line, or a message without frames: it counts as a frame.
        An error in it is answered; nothing is raised."""
        if self._closing:
            return
        try:
            if not self.authenticated:
                self._check_early()
            if frame is None:
                self._count_frame()
            else:
                self._read(frame)
        except SessionError as error:
            self.fail(error)
        except Exception as error:  # a bug of ours costs this connection, and no other
            self._admission.log.error("connection.crashed", peer=self.peer, exc_info=error)
            self.fail(ProtocolError("the service failed"))

    def _check_early(self) -> None:
        """Raises ProtocolError for more than a handful of frames before the hello."""
        self._early_frames += 1
        if self._early_frames > HELLO_FRAMES:
            raise ProtocolError(f"there are more than {HELLO_FRAMES} frames before the hello")

    def _read(self, frame: bytes) -> None:
        self._frame_bytes = len(frame)
        if self._frame_bytes > self.max_frame_bytes:
            raise ProtocolError(f"the frame is larger than {self.max_frame_bytes:,} bytes")
        refusal = self._admission.refuse(self, frame) if self.authenticated else None
        if refusal is not None:
            self.outbox.put(refusal)
            return
        message = decode_from_client(frame)
        if not self.authenticated and not isinstance(message, _BEFORE_THE_HELLO):
            raise ProtocolError("say hello first")
        READERS[type(message)](self, message)

    def _count_frame(self) -> None:
        """Count a frame that is no command: those are counted where they are admitted."""
        if self.authenticated:
            self._admission.count_frame(self)

    def receiving(self, size_bytes: int) -> None:
        """The transport holds *size_bytes* of frames that were not given to ``receive`` yet. The
        connection ends with Overloaded if these are more than the service can hold."""
        key, charged = self._unfinished
        excess = 0 if self._closing else excess_of(size_bytes)
        if excess == charged:
            return
        if charged:
            self._admission.incoming.give_back(key, charged)
            self._unfinished = (None, 0)
        if excess:
            try:
                self._admission.incoming.take(self.rate_key, excess)
            except Overloaded as error:
                self.fail(error)
            else:
                self._unfinished = (self.rate_key, excess)

    def slow_down(self, pause_s: float) -> None:
        """Read the next frame no earlier than in *pause_s*, where that is worth a timer."""
        if pause_s > MIN_PAUSE_S:
            self._pause_until = self._admission.now() + pause_s

    def take(self) -> bytes | None:
        """The next frame to send, or None: ``wake`` is called when there is one again."""
        return self.outbox.take()

    @property
    def has_room(self) -> bool:
        """May the next frame be read? Little waits to be sent, to begin and for its answer, the
        client keeps its rate, and the event loop has time."""
        return (
            self.outbox.has_room
            and self._backlog.has_room
            and self._admission.turns.has_time
            and not self._must_pause
        )

    @property
    def _must_pause(self) -> bool:
        return self._pause_until > 0.0

    async def _pause(self) -> None:
        await asyncio.sleep(self._pause_until - self._admission.now())
        # A frame that was read meanwhile, by another call of the connection, may have set a later
        # time.
        if self._pause_until - self._admission.now() <= MIN_PAUSE_S:
            self._pause_until = 0.0

    async def wait_for_room(self) -> None:
        """Until ``has_room``, or the connection ends. Cancellable."""
        while not self._closing and not self.has_room:
            if not self.outbox.has_room:
                await self.outbox.wait_for_room()
            elif not self._backlog.has_room:
                await self._backlog.wait_for_room()
            elif self._must_pause:
                await self._pause()
            else:
                await self._admission.turns.wait()
                return  # it is this connection's turn, whatever others read in this pass

    def authenticate(self) -> None:
        """Let the client in, with the token that the transport or the hello has. Raises
        Unauthenticated, and Overloaded past the limit of connections."""
        self.tenant = self._admission.authenticate(self.peer, self._token)
        self._on_welcome(self)
        self.authenticated = True
        self.max_frame_bytes = self._admission.limits.frame_bytes
        if self.tenant is not None:
            self.rate_key = self.tenant

    def still_authorized(self) -> bool:
        """Authenticate the client again, after tokens have changed. If its token was revoked, or
        belongs to another tenant now, it gets the error and the connection ends. Commands that
        were already accepted are still carried out."""
        if self._closing or not self.authenticated:
            return True
        try:
            if self._admission.authenticate(self.peer, self._token) == self.tenant:
                return True
            self.fail(Unauthenticated("the token is another tenant's now"))
        except Unauthenticated as error:
            self.fail(error)
        return False

    def call(self, command: w.Command[Any], size_bytes: int) -> asyncio.Future[bytes]:
        """Perform one command, of *size_bytes*, for a client that is authenticated. The result is
        the frame of its answer, a ``reply`` or an ``error``, which does not go into the outbox.
        The command's id must not be in use."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._callers[command.id] = answer
        self._frame_bytes = size_bytes
        self._command(command)
        return answer

    def ping(self) -> None:
        """Ask the client for a sign of life."""
        self.outbox.put(encode(w.Ping()))

    def fail(self, error: SessionError) -> None:
        """End the connection because of *error*, which the client is sent."""
        if self._closing:
            return
        self.ended_by = error
        self._admission.refused(self.peer, error)
        hint_s = RETRY_AFTER_S if isinstance(error, Overloaded) else None
        goodbye = w.Goodbye(reason=type(error).__name__, retry_after_s=hint_s)
        self._end(encode(to_wire(error)), goodbye)

    def leave(self, reason: str, retry_after_s: float | None = None) -> None:
        """Say goodbye. What waits to be sent is sent before it; nothing more is read."""
        if not self._closing:
            self._end(None, w.Goodbye(reason=reason, retry_after_s=retry_after_s))

    def _end(self, last: bytes | None, goodbye: w.Goodbye) -> None:
        self._closing = True
        self.receiving(0)
        self._detach()
        if last is not None:
            self.outbox.put(last)
        self.outbox.put(encode(goodbye))

    def close(self) -> None:
        """The transport has lost its peer, or closed. Detaches everything, cancels nothing."""
        self._closing = True
        self.receiving(0)
        if not self._closed:
            self._closed = True
            self._detach()
            self.outbox.clear()
            self._on_closed(self)

    def _detach(self) -> None:
        self._subscriptions.close_all()
        for task in self._waits:
            task.cancel()
        for answer in self._callers.values():
            answer.cancel()
        self._callers.clear()
        self._attached.clear()
        self._backlog.release()

    # Reading. ``READERS``, below the class, says what is done with each message.

    def _read_ping(self, _ping: w.Ping) -> None:
        self._count_frame()
        self.outbox.put(encode(w.Pong()))

    def _read_pong(self, _pong: w.Pong) -> None:
        self._count_frame()

    def _read_goodbye(self, _goodbye: w.Goodbye) -> None:
        self.leave("as you wish")

    def _answer_wrong_command(self, answer: w.Error) -> None:
        self._count_frame()
        self.outbox.put(encode(answer))

    def _greet(self, hello: w.Hello) -> None:
        if self.authenticated:
            raise ProtocolError("hello was said before")
        if w.VERSION not in hello.versions:
            raise ProtocolError(
                f"version {w.VERSION} of the protocol is spoken here, and none of"
                f" {brief(list(hello.versions))}: upgrade the older of client and service"
            )
        self._token = self._token if hello.token is None else hello.token
        self.authenticate()
        limits = self._admission.limits
        self.outbox.put(
            encode(
                w.Welcome(
                    version=w.VERSION,
                    server=self._admission.server_name,
                    max_frame_bytes=limits.frame_bytes,
                    keepalive_s=limits.keepalive_s,
                    default_model=self._admission.default_model,
                )
            )
        )

    # Commands begin. ``ROUTES`` and ``STEPS``, below the class, say where each of them goes.

    def _command(self, command: w.Command[Any]) -> None:
        self.open_requests += 1
        self._admission.commands += 1
        command = tenancy.in_namespace(self.tenant, command)
        try:
            self._admission.check(self, command)
            self._charge(command)
            ROUTES[type(command)](self, command)
        except SessionError as error:
            self._answer_error(command, error)
        except Exception:
            self._discharge(command)
            raise

    def _charge(self, command: w.Command[Any]) -> None:
        """Count what a large command holds until it is answered. Raises Overloaded."""
        excess = excess_of(self._frame_bytes)
        if excess:
            key = self.rate_key
            self._admission.incoming.take(key, excess)
            self._charges[id(command)] = (key, excess)
            self._backlog.begin(excess)

    def _discharge(self, command: w.Command[Any]) -> None:
        """*command* holds nothing any more: it was answered, or nobody waits for it."""
        if self._charges and (charge := self._charges.pop(id(command), None)) is not None:
            self._admission.incoming.give_back(*charge)
            self._backlog.end(charge[1])

    def _route_to_service(self, command: w.Command[Any]) -> None:
        perform = SERVICE_COMMANDS[type(command)]
        self._start(command, lambda: perform(self._admission, self.tenant, command))

    def _route_to_session(self, command: w.SessionCommand[Any]) -> None:
        """Put *command* behind those of its session that cannot begin yet, and begin those that
        can."""
        attachment = self._attached.get(command.session)
        if attachment is None:
            self._check_sessions()
            attachment = self._attach(command.session, None)
        attachment.used_time = self._admission.now()
        self._backlog.put(attachment, self._frame_bytes, command)
        self._begin_waiting(command.session, attachment)

    def _check_sessions(self) -> None:
        """Raises Overloaded where the connection may use no further session."""
        limit, used = self._admission.limits.sessions_per_connection, len(self._attached)
        check_limit(used + self._creating, limit, "sessions are in use on this connection")

    def _attach(self, session: str, handle: LLMSession | None) -> Attachment:
        attachment = self._attached[session] = Attachment(handle, self._admission.now())
        return attachment

    def _begin_waiting(self, session: str, attachment: Attachment) -> None:
        """Begin the commands of *session* that can begin, in their order; also those of a client
        that is gone."""
        while attachment.waiting and not attachment.blocked and not attachment.opening:
            handle = attachment.handle
            command = attachment.waiting[0][1]
            if handle is None or isinstance(command, w.Open) or self._must_open(handle):
                attachment.opening = True
                self._admission.start(self._open(session, attachment, command))
                return
            if type(command) in READ_COMMANDS and not self.outbox.has_room and not self._closing:
                attachment.blocked = True
                self._admission.start(self._begin_when_room(session, attachment))
                return
            command = self._backlog.take(attachment)
            try:
                STEPS[type(command)](self, command, handle, attachment)
            except SessionError as error:
                self._answer_error(command, error)

    def _must_open(self, handle: LLMSession) -> bool:
        """Does the next command have to open the session again? In a cluster also one that moved:
        it may have come back, and if not the router says where it is."""
        return is_cold(handle) or (self._admission.router is not None and has_moved(handle))

    async def _begin_when_room(self, session: str, attachment: Attachment) -> None:
        """Queries have large answers: they are performed as fast as the client takes these."""
        await self.outbox.wait_for_room()
        attachment.blocked = False
        self._begin_waiting(session, attachment)

    async def _open(
        self, session: str, attachment: Attachment, command: w.SessionCommand[Any]
    ) -> None:
        opening = command if isinstance(command, w.Open) else w.Open(id=0, session=session)
        try:
            attachment.handle = await self._admission.open(self.tenant, opening)
        except Exception as error:
            refusal = self._admission.public_error(error)
            refusal = await self._admission.located(command, refusal)
            attachment.opening = False
            if self._attached.get(session) is attachment and attachment.handle is None:
                del self._attached[session]
            # Commands that only need the session to be open fail with it, up to the next ``open``:
            # that one may ask for a takeover, say, and succeed.
            self._answer_error(self._backlog.take(attachment), refusal)
            while attachment.waiting and not isinstance(attachment.waiting[0][1], w.Open):
                self._answer_error(self._backlog.take(attachment), refusal)
            if attachment.waiting and not self._closing:
                self._attached[session] = attachment
        else:
            attachment.opening = False
            if command is opening:
                self._answer(self._backlog.take(attachment), opened(attachment.handle))
        self._begin_waiting(session, attachment)

    # Steps of commands on one session, each with its open handle.

    def _read_now(
        self, command: w.SessionCommand[Any], handle: LLMSession, _attachment: Attachment
    ) -> None:
        read = READ_COMMANDS[type(command)]
        self._answer(command, None if self._closing else read(handle, command))

    def _start_on_handle(
        self, command: w.SessionCommand[Any], handle: LLMSession, attachment: Attachment
    ) -> None:
        attachment.blocked = is_slow_to_number(command)
        perform = ASYNC_COMMANDS[type(command)]
        self._start(command, lambda: perform(handle, command), attachment)

    def _subscribe(self, command: w.Subscribe, handle: LLMSession, _attachment: Attachment) -> None:
        if self._closing:
            self._discharge(command)
            return
        self._check_subscriptions(command.session, handle)
        if command.id in self._subscriptions:
            raise InvalidInput(f"subscription {command.id} is open; choose another id")
        subscription = ServerSubscription(
            command.id,
            command.session,
            self.outbox,
            self._on_ended,
            turn=command.turn,
            visible_error=lambda error: self._admission.visible_error(self, command, error),
        )
        events = subscribe_sink(handle, subscription, after=command.after, turn=command.turn)
        self._answer(command, w.Subscribed(events.after))
        self._subscriptions.add(subscription)
        if subscription.begin(events):
            self._admission.start(subscription.catch_up())

    def _check_subscriptions(self, session: str, handle: LLMSession) -> None:
        """Raises Overloaded where there are too many."""
        limits, own = self._admission.limits, self._subscriptions
        check_limit(
            len(own), limits.subscriptions_per_connection, "subscriptions of this connection"
        )
        check_limit(
            own.count(session),
            limits.own_subscriptions_per_session,
            "subscriptions of this connection to the session",
        )
        check_limit(
            subscriber_count(handle),
            limits.subscriptions_per_session,
            "subscriptions to the session",
        )

    # Commands that wait.

    def _start(
        self,
        command: w.Command[Any],
        perform: Callable[[], Awaitable[Any]],
        attachment: Attachment | None = None,
    ) -> None:
        is_new = isinstance(command, w.Create | w.Fork)
        if is_new:
            self._check_sessions()
            self._creating += 1
        task = self._admission.start(self._perform(command, perform, attachment))
        if is_new:
            task.add_done_callback(lambda _: self._created())
        if id(command) in self._charges:  # a wait that is cancelled has no answer
            task.add_done_callback(lambda _: self._discharge(command))
        if isinstance(command, w.Outcome):
            self._waits.add(task)
            task.add_done_callback(self._waits.discard)

    def _created(self) -> None:
        self._creating -= 1

    async def _perform(
        self,
        command: w.Command[Any],
        perform: Callable[[], Awaitable[Any]],
        attachment: Attachment | None,
    ) -> None:
        if attachment is not None:
            attachment.open_requests += 1
        try:
            body = await perform()
            if isinstance(body, LLMSession):
                body = self._opened(body)
        except Exception as error:
            failed = self._admission.public_error(error)
            self._answer_error(command, await self._admission.located(command, failed))
        else:
            if isinstance(command, _ENDS_USE):
                self._attached.pop(command.session, None)
            self._answer(command, body)
        finally:
            if attachment is not None:
                attachment.open_requests -= 1
                if attachment.blocked and isinstance(command, w.Submit):
                    attachment.blocked = False
                    self._begin_waiting(command.session, attachment)

    def _opened(self, handle: LLMSession) -> w.Opened:
        if not self._closing and handle.id not in self._attached:
            self._attach(handle.id, handle)
        return opened(handle)

    # Commands on the connection.

    def _send_snapshot(self, command: w.Statistics) -> None:
        self._answer(command, self._snapshot(self.tenant, command.limit))

    def _unsubscribe(self, command: w.Unsubscribe) -> None:
        subscription = self._subscriptions.pop(command.subscription)
        if subscription is not None:
            subscription.close()
        self._answer(command, None)

    def _on_ended(self, subscription: ServerSubscription) -> None:
        self._subscriptions.pop(subscription.id)
        self._admission.lagged += subscription.lagged

    @property
    def subscriptions(self) -> int:
        """How many are open."""
        return len(self._subscriptions)

    @property
    def sessions(self) -> int:
        """How many are in use."""
        return len(self._attached)

    def detach_idle(self, before: float) -> None:
        """Hold no session any more that was not used since *before*. Its next command opens it
        again; subscriptions stay."""
        for session, attachment in tuple(self._attached.items()):
            if attachment.is_idle and attachment.used_time < before:
                del self._attached[session]

    # Answers.

    def _answer(self, command: w.Command[Any], body: Any) -> None:
        self._put_answer(command, encode_reply(command.id, _encode(body)), None)

    def _answer_error(self, command: w.Command[Any], error: SessionError) -> None:
        visible = self._admission.visible_error(self, command, error)
        self._put_answer(command, encode(to_wire(visible, id=command.id)), error)

    def _put_answer(
        self, command: w.Command[Any], frame: bytes, error: SessionError | None
    ) -> None:
        self.open_requests -= 1
        self._discharge(command)
        self._admission.answered(self, command, error)
        caller = self._callers.pop(command.id, None)
        if caller is not None:
            if not caller.done():
                caller.set_result(frame)
        elif not self._closing:
            self.outbox.put(frame)


STEPS: Mapping[type[w.Command[Any]], Callable[[Connection, Any, LLMSession, Attachment], None]]
STEPS = {
    **dict.fromkeys(READ_COMMANDS, Connection._read_now),
    **dict.fromkeys(ASYNC_COMMANDS, Connection._start_on_handle),
    w.Subscribe: Connection._subscribe,
}
"""What a command on one session does once the session is open."""

ROUTES: Mapping[type[w.Command[Any]], Callable[[Connection, Any], None]]
ROUTES = {
    **dict.fromkeys((w.Open, *STEPS), Connection._route_to_session),
    **dict.fromkeys(SERVICE_COMMANDS, Connection._route_to_service),
    w.Statistics: Connection._send_snapshot,
    w.Unsubscribe: Connection._unsubscribe,
}
"""Every command: on one session, on the service, or on the connection."""

READERS: Mapping[type[w.FromClient | w.Error], Callable[[Connection, Any], None]]
READERS = {
    **dict.fromkeys(w.COMMANDS, Connection._command),
    w.Error: Connection._answer_wrong_command,
    w.Ping: Connection._read_ping,
    w.Pong: Connection._read_pong,
    w.Goodbye: Connection._read_goodbye,
    w.Hello: Connection._greet,
}
"""Everything that ``decode_from_client`` returns: an error is the answer to a wrong command."""
