"""The protocol of one connected client, independent of the transport that carries its frames.

A transport passes each frame that it reads to ``receive``, sends what ``take`` returns, and closes
the connection when ``is_closed`` is true.

Commands on one session start in the order of their frames. Each command is a task whose first step
enqueues it, and tasks start in the order in which they are created; nothing is awaited before that.
If the session has to be opened first, its commands wait in a queue. A lost connection cancels no
command: they are still carried out, but nobody receives the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
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
    has_ended,
    has_moved,
    is_cold,
    newest_seq,
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
"""The shortest pause of a client that exceeds its rate. Such a client is read in bursts with pauses
between them, so its average rate is the allowed one. With shorter pauses the bursts would be so
short that waking up for each costs as much as its frames."""
QUERIES = 4
"""How many queries of one kind about the whole service are carried out at the same time. Each may
have a large answer."""
_LARGE_ANSWERS = (w.Outcome, w.Interrupt, w.Query)
"""Commands whose answers may hold whole messages."""
_ENDS_USE = (w.Close, w.Delete)
"""After one of these the connection no longer uses the session."""
_BEFORE_THE_HELLO = (w.Hello, w.Ping, w.Pong, w.Goodbye)


class Connection:
    """One client, created by ``Service.connect``. No method raises an error that the transport
    would have to handle.

    A transport reports to ``ReadingTurns`` how long each frame took, and waits for room before it
    reads the next one. ``wake`` is called in the event loop's thread when there is something to
    ``take``. ``on_welcome`` is called when the client has authenticated; it raises Overloaded if
    the limit of connections is reached. ``on_closed`` is called once, when the connection is gone.
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
        """The key that rates and incoming bytes are counted by. It is this connection, or the
        tenant once there is one: then all connections of the tenant share the limits."""
        self.max_frame_bytes = HELLO_BYTES
        """The largest frame that is accepted now. Before the hello only small ones are."""
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
        self._starting: dict[int, w.Subscribe] = {}
        """Subscriptions by id that wait until their session is open. One that was unsubscribed
        meanwhile is not here any more."""
        self._callers: dict[int, asyncio.Future[bytes]] = {}
        """Futures by command id, for answers that do not go into the outbox."""
        self._waits: set[asyncio.Task[None]] = set()
        """Tasks that only wait on behalf of this client. They are cancelled with the connection."""
        self.open_requests = 0
        self._answered = asyncio.Event()
        """Set when a command was answered, or now only waits for the end of a turn."""
        self._frame_bytes = 0
        """The size of the frame that is being read."""
        self._early_frames = 0
        """How many frames came before the hello."""
        self._pause_until = 0.0
        self._unfinished: tuple[object, int] = (None, 0)
        """The rate key that the unfinished frame is charged to, and the bytes charged."""
        self._charges: dict[int, tuple[object, int]] = {}
        """The same for large commands without an answer, by the identity of the command."""
        self._creating = 0
        """Sessions that are being created. They count as used, so that the limit holds."""
        self._backlog = Backlog()
        self._queries: dict[type[w.Command[Any]], asyncio.Semaphore] = {}
        """For each kind of query about the whole service: how many more may be carried out now."""
        self._large_answer = asyncio.Lock()
        """Held by the large answer that waits for room. The others queue behind it, so that each
        time there is room only one wakes up."""
        self._closing = False
        self._closed = False
        self.ended_by: SessionError | None = None
        """Why the service ended the connection; None if it ended normally."""

    # Called by the transport.

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended and everything was sent. The transport then closes
        it."""
        return self._closed or (self._closing and not len(self.outbox))

    @property
    def is_closing(self) -> bool:
        """Whether the connection is ending: no frame is read any more, queued ones are still
        sent."""
        return self._closing

    def receive(self, frame: bytes | None) -> None:
        """Read one frame. None stands for an empty line or a message without frames, which count as
        a frame, too. Errors are sent to the client; nothing is raised."""
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
        except Exception as error:  # a bug of ours ends this connection, but no other
            self._admission.log.error("connection.crashed", peer=self.peer, exc_info=error)
            self.fail(ProtocolError("the service failed"))

    def _check_early(self) -> None:
        """Raises ProtocolError for more than ``HELLO_FRAMES`` frames before the hello."""
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
        """Count a frame that is not a command. Commands are counted when they are admitted."""
        if self.authenticated:
            self._admission.count_frame(self)

    def receiving(self, size_bytes: int) -> None:
        """Note that the transport holds *size_bytes* of an unfinished frame. Ends the connection
        with Overloaded if the service cannot hold that many.

        Without this, a client could fill the memory with frames that it never finishes."""
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
        """Read no frame for the next *pause_s* seconds, if that is long enough for a timer."""
        if pause_s > MIN_PAUSE_S:
            self._pause_until = self._admission.now() + pause_s

    def take(self) -> bytes | None:
        """The next frame to send, or None. After None, ``wake`` is called when there is one."""
        return self.outbox.take()

    @property
    def has_room(self) -> bool:
        """Whether the next frame may be read. This is the backpressure: reading stops while too
        much waits to be sent, to start or to be answered, while the client exceeds its rate, or
        while reading has used up its share of the event loop."""
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
        # Another call of the same connection may have read a frame in the meantime and set a later
        # time.
        if self._pause_until - self._admission.now() <= MIN_PAUSE_S:
            self._pause_until = 0.0

    async def wait_for_room(self) -> None:
        """Wait until ``has_room`` or until the connection ends. Can be cancelled."""
        while not self._closing and not self.has_room:
            if not self.outbox.has_room:
                await self.outbox.wait_for_room()
            elif not self._backlog.has_room:
                await self._backlog.wait_for_room()
            elif self._must_pause:
                await self._pause()
            else:
                await self._admission.turns.wait()
                # It is this connection's turn now. Other readers of this pass may use up the time,
                # so checking again could starve this one.
                return

    def authenticate(self) -> None:
        """Admit the client with the token of the transport or of the hello. Raises Unauthenticated,
        and Overloaded if the limit of connections is reached."""
        self.tenant = self._admission.authenticate(self.peer, self._token)
        self._on_welcome(self)
        self.authenticated = True
        self.max_frame_bytes = self._admission.limits.frame_bytes
        if self.tenant is not None:
            self.rate_key = self.tenant

    def still_authorized(self) -> bool:
        """Authenticate the client again, after tokens have changed. Returns false, and ends the
        connection with the error, if the client's token was revoked or now belongs to another
        tenant. Commands that were already accepted are still carried out."""
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
        """Carry out one command of *size_bytes* for an authenticated client. The result is the
        frame of the answer, a ``reply`` or an ``error``; it does not go into the outbox. The
        command's id must not be in use."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._callers[command.id] = answer
        self._frame_bytes = size_bytes
        self._command(command)
        return answer

    def ping(self) -> None:
        """Send a ping, which the client has to answer."""
        self.outbox.put(encode(w.Ping()))

    def fail(self, error: SessionError) -> None:
        """Send *error* to the client and end the connection."""
        if self._closing:
            return
        self.ended_by = error
        self._admission.refused(self.peer, error)
        hint_s = RETRY_AFTER_S if isinstance(error, Overloaded) else None
        goodbye = w.Goodbye(reason=type(error).__name__, retry_after_s=hint_s)
        self._end(encode(to_wire(error)), goodbye)

    def leave(self, reason: str, retry_after_s: float | None = None) -> None:
        """Send a goodbye after everything that is queued. Nothing more is read."""
        if not self._closing:
            self._end(None, w.Goodbye(reason=reason, retry_after_s=retry_after_s))

    async def end_input(self, wait_s: float) -> None:
        """The client sends no more: it gets the answers that come within *wait_s* seconds, and a
        goodbye. For the end of a turn it does not wait any longer.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while self.open_requests > len(self._waits) and not self._closing:
                    self._answered.clear()
                    await self._answered.wait()
        self.leave("end of input")

    def _end(self, last: bytes | None, goodbye: w.Goodbye) -> None:
        self._closing = True
        self._answered.set()
        self.receiving(0)
        self._detach()
        if last is not None:
            self.outbox.put(last)
        self.outbox.put(encode(goodbye))

    def close(self) -> None:
        """End the connection, because the transport lost its peer or closed. Cancels no command."""
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

    # Reading. ``READERS``, below the class, maps each message to its method.

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
                    cluster=self._admission.hosts_for(self.tenant),
                )
            )
        )

    # Starting commands. ``ROUTES`` and ``STEPS``, below the class, map each command to its method.

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
        """Count the bytes that a large command holds until it is answered. Raises Overloaded."""
        excess = excess_of(self._frame_bytes)
        if excess:
            key = self.rate_key
            self._admission.incoming.take(key, excess)
            self._charges[id(command)] = (key, excess)
            self._backlog.begin(excess)

    def _discharge(self, command: w.Command[Any]) -> None:
        """Stop counting *command*: it was answered, or nobody waits for its answer."""
        if self._charges and (charge := self._charges.pop(id(command), None)) is not None:
            self._admission.incoming.give_back(*charge)
            self._backlog.end(charge[1])

    def _route_to_service(self, command: w.Command[Any]) -> None:
        perform = SERVICE_COMMANDS[type(command)]
        is_query = isinstance(command, w.Query)
        self._start(
            command, lambda: perform(self._admission, self.tenant, command), is_query=is_query
        )

    def _route_to_session(self, command: w.SessionCommand[Any]) -> None:
        """Queue *command* behind the waiting commands of its session, and start those that can
        start."""
        attachment = self._attached.get(command.session)
        if attachment is None:
            self._check_sessions()
            attachment = self._attach(command.session, None)
        attachment.used_time = self._admission.now()
        self._backlog.put(attachment, self._frame_bytes, command)
        self._begin_waiting(command.session, attachment)

    def _route_subscribe(self, command: w.Subscribe) -> None:
        if command.id in self._starting:
            raise InvalidInput(f"subscription {command.id} is open; choose another id")
        self._starting[command.id] = command
        self._route_to_session(command)

    def _check_sessions(self) -> None:
        """Raises Overloaded if the connection already uses as many sessions as it may."""
        limit, used = self._admission.limits.sessions_per_connection, len(self._attached)
        check_limit(used + self._creating, limit, "sessions are in use on this connection")

    def _attach(self, session: str, handle: LLMSession | None) -> Attachment:
        attachment = self._attached[session] = Attachment(handle, self._admission.now())
        return attachment

    def _begin_waiting(self, session: str, attachment: Attachment) -> None:
        """Start the commands of *session* that can start, in their order. It does so even if the
        client is gone, because these commands were accepted."""
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
        """Start again once the outbox has room. Answers of queries are large, so queries are
        carried out only as fast as the client reads the answers."""
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
            # The commands behind this one that only need the session to be open fail with the same
            # error, up to the next ``open``: that one may succeed, for example with a takeover.
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

    # Steps of commands on one session. Each gets the open handle.

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
        is_read = isinstance(command, w.Outcome) and has_ended(handle, command.turn)
        self._start(command, lambda: perform(handle, command), attachment, is_query=is_read)

    def _subscribe(self, command: w.Subscribe, handle: LLMSession, _attachment: Attachment) -> None:
        if self._closing:
            self._discharge(command)
            return
        if not self._has_started(command):
            cursor = newest_seq(handle) if command.after is None else command.after
            self._answer(command, w.Subscribed(cursor))
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

    def _has_started(self, command: w.Subscribe) -> bool:
        """Note that *command* waits no more. Returns false if it was unsubscribed meanwhile."""
        if self._starting.get(command.id) is not command:
            return False
        del self._starting[command.id]
        return True

    def _check_subscriptions(self, session: str, handle: LLMSession) -> None:
        """Raises Overloaded if a limit of subscriptions is reached."""
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

    # Commands that are carried out in a task.

    def _start(
        self,
        command: w.Command[Any],
        perform: Callable[[], Awaitable[Any]],
        attachment: Attachment | None = None,
        *,
        is_query: bool = False,
    ) -> None:
        """Carry out *command* in a task. *is_query*: its answer may be large, and can be read at
        any time."""
        is_new = isinstance(command, w.Create | w.Fork)
        if is_new:
            self._check_sessions()
            self._creating += 1
        task = self._admission.start(
            self._perform_with_room(command, perform, attachment)
            if is_query
            else self._perform(command, perform, attachment)
        )
        if is_new:
            task.add_done_callback(lambda _: self._created())
        if id(command) in self._charges:  # a cancelled wait has no answer that would discharge it
            task.add_done_callback(lambda _: self._discharge(command))
        if isinstance(command, w.Outcome):
            if not is_query:
                self._waits.add(task)
            self._answered.set()
            task.add_done_callback(self._waits.discard)
            caller = self._callers.get(command.id)
            if caller is not None:
                caller.add_done_callback(lambda _: self._give_up(command, task))

    def _give_up(self, command: w.Command[Any], task: asyncio.Task[None]) -> None:
        """The caller of a wait is gone, or was answered. Without this, waits that clients give up
        would count as open until their turns end."""
        if command.id in self._callers and task.cancel():
            del self._callers[command.id]
            self.open_requests -= 1

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
            if isinstance(command, _LARGE_ANSWERS) and not self.outbox.has_room:
                await self._wait_to_answer()
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

    async def _wait_to_answer(self) -> None:
        """Wait for room before a large answer is encoded: many of them, for example all that waited
        for the end of one turn, would exceed the outbox."""
        task = asyncio.current_task()
        assert task is not None
        self._waits.discard(task)  # a client that sends no more gets it: the turn's end came
        async with self._large_answer:
            await self.outbox.wait_for_room()

    async def _perform_with_room(
        self,
        query: w.Command[Any],
        perform: Callable[[], Awaitable[Any]],
        attachment: Attachment | None,
    ) -> None:
        """Carry out *query*, a few of its kind at a time, and only as fast as the client reads the
        answers: they may be large."""
        async with self._queries.setdefault(type(query), asyncio.Semaphore(QUERIES)):
            await self.outbox.wait_for_room()
            if self._closing:
                self._answer(query, None)
            else:
                await self._perform(query, perform, attachment)

    def _opened(self, handle: LLMSession) -> w.Opened:
        if not self._closing and handle.id not in self._attached:
            self._attach(handle.id, handle)
        return opened(handle)

    # Commands on the connection itself.

    def _send_snapshot(self, command: w.Statistics) -> None:
        self._answer(command, self._snapshot(self.tenant, command.limit))

    def _unsubscribe(self, command: w.Unsubscribe) -> None:
        subscription = self._subscriptions.pop(command.subscription)
        if subscription is not None:
            subscription.close()
        self._starting.pop(command.subscription, None)
        self._answer(command, None)

    def _on_ended(self, subscription: ServerSubscription) -> None:
        self._subscriptions.pop(subscription.id)
        self._admission.lagged += subscription.lagged

    @property
    def subscriptions(self) -> int:
        """How many subscriptions are open."""
        return len(self._subscriptions)

    @property
    def sessions(self) -> int:
        """How many sessions are in use."""
        return len(self._attached)

    def detach_idle(self, before: float) -> None:
        """Stop using sessions that were not used since *before*, so that they can be evicted. The
        next command opens its session again. Subscriptions stay open."""
        for session, attachment in tuple(self._attached.items()):
            if attachment.is_idle and attachment.used_time < before:
                del self._attached[session]

    # Answers.

    def _answer(self, command: w.Command[Any], body: Any) -> None:
        # Nobody gets the answer of a closing connection, and thousands may have waited for room.
        known = None if self._closing else body
        self._put_answer(command, encode_reply(command.id, _encode(known)), None)

    def _answer_error(self, command: w.Command[Any], error: SessionError) -> None:
        if isinstance(command, w.Subscribe):
            self._has_started(command)
        visible = self._admission.visible_error(self, command, error)
        self._put_answer(command, encode(to_wire(visible, id=command.id)), error)

    def _put_answer(
        self, command: w.Command[Any], frame: bytes, error: SessionError | None
    ) -> None:
        self.open_requests -= 1
        self._answered.set()
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
"""What a command on one session does once its session is open."""

ROUTES: Mapping[type[w.Command[Any]], Callable[[Connection, Any], None]]
ROUTES = {
    **dict.fromkeys((w.Open, *STEPS), Connection._route_to_session),
    w.Subscribe: Connection._route_subscribe,
    **dict.fromkeys(SERVICE_COMMANDS, Connection._route_to_service),
    w.Statistics: Connection._send_snapshot,
    w.Unsubscribe: Connection._unsubscribe,
}
"""Every command, routed to its session, to the service, or to the connection."""

READERS: Mapping[type[w.FromClient | w.Error], Callable[[Connection, Any], None]]
READERS = {
    **dict.fromkeys(w.COMMANDS, Connection._command),
    w.Error: Connection._answer_wrong_command,
    w.Ping: Connection._read_ping,
    w.Pong: Connection._read_pong,
    w.Goodbye: Connection._read_goodbye,
    w.Hello: Connection._greet,
}
"""Everything that ``decode_from_client`` returns. An Error is the answer to an invalid command."""
