"""A client's link to a service. It outlives its connections.

After a lost connection the link connects again. Commands without an answer are sent again in the
same order and with the same ids; their command ids make a repeat harmless. Subscriptions continue
after the last event that was received. Commands that a busy service refused are sent again for a
while, too: see ``pending_requests``.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from llmsession.errors import (
    InvalidInput,
    Overloaded,
    ProtocolError,
    SessionClosed,
    SessionError,
    Unreachable,
    error_text,
)

from ..wire import messages as w
from ..wire.errors import from_wire
from ..wire.framing import decode_from_server, encode
from .channel import Channel, Dial
from .pending_requests import PendingRequest, PendingRequests, again_after_s, fail

__all__ = ["EventSink", "Link", "Requester"]

FIRST_DELAY_S = 0.05
MAX_DELAY_S = 2.0
"""The delay between two attempts to connect, in seconds. It doubles each time. Up to a half is
taken off at random, so that the clients of a restarted service do not all come back at once."""
HELLO_S = 10.0


class EventSink(Protocol):
    """The link's view of a subscription. No method waits."""

    def subscribe_again(self, id: int) -> w.Subscribe:
        """The command that continues after the last received event."""

    def begun(self, cursor: int) -> None:
        """The service has started the subscription after *cursor*."""

    def event(self, event: w.Event) -> None:
        """Receive the next event."""

    def lag(self) -> None:
        """The service has ended the subscription because it was read too slowly."""

    def end(self, *, moved: bool = False) -> None:
        """No more events will come. *moved*: not from this owner of the session."""

    def fail(self, error: SessionError) -> None:
        """No more events will come, because of *error*."""


class Requester(Protocol):
    """What the handles of a client use: a ``Link``, or the links to all hosts of a cluster."""

    @property
    def default_model(self) -> str | None:
        """What the service said of it."""

    @property
    def reconnects(self) -> int:
        """How often a connection was made again."""

    def new_id(self) -> int:
        """An id that was not used."""

    def ask(self, command: w.Command[Any]) -> PendingRequest:
        """Send *command*."""

    def subscribe(self, id: int, sink: EventSink) -> None:
        """Give *sink* its events."""

    def unsubscribe(self, id: int) -> None:
        """Give its sink nothing more."""


class Link:
    """Keeps one connection to a service. *dial* makes a connection, and ``begin`` the first one.

    *patience_s* is how many seconds the service may be unreachable before waiting calls fail with
    Unreachable. The next call tries to connect again. *overloaded_s* is how many seconds a command
    is sent again that the service refuses as Overloaded with a hint. *silence_s* is for clients
    that can go elsewhere: while a command or a subscription waits, a service that is silent for so
    long is asked if it is there, and after as long again the connection is lost. By default the
    service's keepalive decides.
    """

    def __init__(
        self,
        dial: Dial,
        *,
        token: str | None,
        patience_s: float,
        client: str,
        overloaded_s: float = 0.0,
        silence_s: float | None = None,
    ) -> None:
        self._dial = dial
        self._silence_s = silence_s
        self._hello = encode(w.Hello(versions=(w.VERSION,), token=token, client=client))
        self._patience_s = patience_s
        self._channel: Channel | None = None
        self._unused: Channel | None = None
        """The first channel, until the task that serves it has started."""
        self._ids = 0
        self._pending = PendingRequests(self._send, overloaded_s)
        # Weak references: a caller that breaks out of a loop over events does not have to close the
        # subscription.
        self._sinks: weakref.WeakValueDictionary[int, EventSink] = weakref.WeakValueDictionary()
        self._subscribed: set[int] = set()
        """Subscriptions that the service has not ended, even if it has not started them yet."""
        self._begun: set[int] = set()
        self._leaving: set[int] = set()
        """Subscriptions whose ``unsubscribe`` has no answer yet: their events are on their way."""
        self._refused: dict[int, tuple[int, float]] = {}
        """For each refused subscription: how often it was refused, and until when it is retried."""
        self._retries: dict[int, asyncio.TimerHandle] = {}
        """For each refused subscription: the timer of its next attempt."""
        self._overloaded_s = overloaded_s
        self._max_frame_bytes = 0
        """The largest frame that the service takes, as the newest welcome said."""
        self._runner: asyncio.Task[None] | None = None
        self._closed = False
        self._heard = False
        self.heard_at = -math.inf
        """When the service last sent something after its welcome, by the event loop's time."""
        self.default_model: str | None = None
        """The default model that the newest welcome named."""
        self.cluster: w.ClusterHosts | None = None
        """The hosts that the newest welcome named; None if the service is no host of a cluster."""
        self.reconnects = 0
        """How often the link has connected again."""

    async def begin(self, *, hello_s: float | None = None) -> None:
        """Make the first connection, in *hello_s* seconds. Raises Unreachable, Unauthenticated,
        ProtocolError, and Overloaded if the service accepts no more clients."""
        channel, keepalive_s = await self._connected(HELLO_S if hello_s is None else hello_s)
        self._unused = channel
        self._runner = asyncio.get_running_loop().create_task(self._run(channel, keepalive_s))

    async def aclose(self) -> None:
        """Send a goodbye, and fail everything that waits with SessionClosed."""
        self._closed = True
        if self._runner is not None:
            if self._channel is not None:
                self._channel.send(encode(w.Goodbye()))
            self._runner.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._runner
            if self._unused is not None:  # the task was cancelled before its first step
                await self._unused.aclose()
        self._fail_all(SessionClosed("the connection was closed"))

    # Commands.

    def new_id(self) -> int:
        """An id that this link has not used yet."""
        self._ids += 1
        return self._ids

    def ask(self, command: w.Command[Any]) -> PendingRequest:
        """Send *command* now, or as soon as there is a connection. The request's ``answer`` is a
        future of the reply's body; it fails with the error of the command."""
        if self._closed:
            closed = PendingRequest(command, asyncio.get_running_loop().create_future())
            closed.answer.set_exception(SessionClosed("the connection was closed"))
            return closed
        request = self._pending.ask(command)
        self._keep_running()
        return request

    def subscribe(self, id: int, sink: EventSink) -> None:
        """Pass events to *sink* until the subscription ends or is unsubscribed."""
        if self._closed:
            sink.fail(SessionClosed("the connection was closed"))
            return
        if len(self._subscribed) > len(self._sinks):  # readers dropped some that have no events
            for dropped in self._subscribed.difference(self._sinks):
                self._leave(dropped)
        self._sinks[id] = sink
        self._subscribed.add(id)
        self._send(sink.subscribe_again(id))
        self._keep_running()

    def unsubscribe(self, id: int) -> None:
        """Pass no more events to the subscription's sink."""
        self._sinks.pop(id, None)
        if id in self._subscribed:
            self._leave(id)

    def _leave(self, id: int) -> None:
        """Unsubscribe *id*, unless that was asked and is not answered. As any command, it is sent
        again if the service refuses it. A lost connection has no subscriptions."""
        self._drop_subscription(id)
        if id not in self._leaving and self._channel is not None:
            self._leaving.add(id)
            request = self._pending.ask(w.Unsubscribe(id=self.new_id(), subscription=id))
            request.answer.add_done_callback(lambda answer: self._left(id, answer))

    def _left(self, id: int, answer: asyncio.Future[msgspec.Raw]) -> None:
        self._leaving.discard(id)
        answer.exception()  # if it failed, the next event of the subscription asks again

    def _drop_subscription(self, id: int) -> None:
        self._subscribed.discard(id)
        self._begun.discard(id)
        self._refused.pop(id, None)
        if id in self._retries:
            self._retries.pop(id).cancel()

    def _cancel_retries(self) -> None:
        """Stop the retries. A new connection subscribes everything again, so a later retry would
        subscribe twice."""
        for timer in self._retries.values():
            timer.cancel()
        self._retries.clear()

    def drop_connection(self) -> None:
        """Drop the current connection, as a failing network does. The link connects again."""
        if self._channel is not None:
            self._lost.set()

    def _send(self, command: w.Command[Any]) -> bool:
        """Send *command* if there is a connection. Returns false if not: then the next connection
        sends it. A command that is too large for the service fails soon instead."""
        if self._channel is None:
            return False
        frame = encode(command)
        if len(frame) <= self._max_frame_bytes:
            self._channel.send(frame)
        else:
            # The service would end the connection, and the next one, too: all would be repeated.
            most = self._max_frame_bytes
            error = InvalidInput(
                f"the command has {len(frame):,} bytes, and the service takes at most {most:,}"
            )
            asyncio.get_running_loop().call_soon(self._refuse, command.id, error)
        return True

    def _refuse(self, id: int, error: SessionError) -> None:
        request = self._pending.performed(id)
        if request is not None:
            fail(request, error)

    def _keep_running(self) -> None:
        """Start to connect again if the link has given up."""
        if self._runner is not None and self._runner.done():
            self._runner = asyncio.get_running_loop().create_task(self._come_back())

    # The connection.

    async def _connected(self, hello_s: float) -> tuple[Channel, float]:
        """A channel whose hello was answered, and its keepalive in seconds."""
        try:
            async with asyncio.timeout(hello_s):
                channel = await self._dial()
        except (OSError, TimeoutError) as error:
            raise Unreachable(f"the service cannot be reached: {error_text(error)}") from error
        try:
            async with asyncio.timeout(hello_s):
                channel.send(self._hello)
                return channel, await self._welcomed(channel)
        except TimeoutError as error:
            await channel.aclose()
            message = f"the service has not answered in {hello_s:g} s; is it behind TLS?"
            raise Unreachable(message) from error
        except OSError as error:
            await channel.aclose()
            raise Unreachable(f"the service does not answer: {error_text(error)}") from error
        except BaseException:
            await channel.aclose()
            raise

    async def _welcomed(self, channel: Channel) -> float:
        while frames := await channel.receive():
            for index, frame in enumerate(frames):
                match decode_from_server(frame):
                    case w.Welcome() as welcome:
                        if welcome.version != w.VERSION:
                            raise ProtocolError(
                                f"the service speaks version {welcome.version} of the protocol, and"
                                f" this client version {w.VERSION}: upgrade the older of the two"
                            )
                        self._early = frames[index + 1 :]
                        self._max_frame_bytes = welcome.max_frame_bytes
                        self.default_model = welcome.default_model
                        self.cluster = welcome.cluster
                        return welcome.keepalive_s
                    case w.Error() as error:
                        raise from_wire(error)
                    case w.Goodbye() as goodbye:
                        raise Unreachable(f"the service said goodbye: {goodbye.reason}")
                    case w.Ping():
                        channel.send(encode(w.Pong()))
        raise Unreachable("the service closed the connection")

    async def _run(self, channel: Channel, keepalive_s: float) -> None:
        """Serve one connection after the other until *patience_s* is exceeded. Raises nothing."""
        while True:
            try:
                hint_s = await self._serve(channel, keepalive_s)
            except ProtocolError as error:
                self._fail_all(error)  # sent again, the same would end the next connection, too
                return
            again = await self._connected_again(hint_s)
            if again is None:
                return
            channel, keepalive_s = again
            self.reconnects += 1
            for request in self._pending.waiting:
                request.repeated = request.sent

    async def _come_back(self) -> None:
        again = await self._connected_again(0.0)
        if again is not None:
            await self._run(*again)

    async def _connected_again(self, hint_s: float) -> tuple[Channel, float] | None:
        loop = asyncio.get_running_loop()
        until, delay_s = loop.time() + self._patience_s, FIRST_DELAY_S
        hello_s = HELLO_S if self._silence_s is None else min(HELLO_S, 2 * self._silence_s)
        await asyncio.sleep(hint_s * random.uniform(0.5, 1.0))
        while True:
            try:
                return await self._connected(hello_s)
            except (Unreachable, Overloaded) as error:
                if loop.time() + delay_s > until:
                    self._fail_all(error)
                    return None
            except SessionError as error:  # Unauthenticated, for example
                self._fail_all(error)  # another attempt would fail in the same way
                return None
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
            delay_s = min(2 * delay_s, MAX_DELAY_S)

    async def _serve(self, channel: Channel, keepalive_s: float) -> float:
        """Use *channel* until it is lost. Returns in how many seconds to connect again. Raises
        ProtocolError if the service ended the connection with it, or cannot be understood."""
        self._channel, self._lost, self._unused = channel, asyncio.Event(), None
        loop = asyncio.get_running_loop()
        # Subscriptions are sent first, so that they receive the events of the repeated commands.
        for id, sink in tuple(self._sinks.items()):
            channel.send(encode(sink.subscribe_again(id)))
        for request in self._pending.waiting:
            request.sent = self._send(request.command)
        reading = loop.create_task(self._read(channel))
        tasks = (
            reading,
            loop.create_task(self._keep_alive(channel, keepalive_s)),
            loop.create_task(self._lost.wait()),
        )
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and not reading.cancelled():
                error = reading.exception()
                if isinstance(error, ProtocolError):
                    raise error
                return reading.result() if error is None else 0.0
            return 0.0
        finally:
            self._channel = None
            self._pending.lost()
            self._cancel_retries()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await channel.aclose()

    async def _read(self, channel: Channel) -> float:
        frames, self._early = self._early, []
        while True:
            for frame in frames:
                goodbye = self._receive(channel, frame)
                if goodbye is not None:
                    return goodbye.retry_after_s or 0.0
            frames = await channel.receive()
            if not frames:
                return 0.0
            self._heard, self.heard_at = True, asyncio.get_running_loop().time()

    async def _keep_alive(self, channel: Channel, keepalive_s: float) -> None:
        """Return once the service was silent for too long, although it was asked."""
        look_s = keepalive_s if self._silence_s is None else min(keepalive_s, self._silence_s)
        silent_s, asked_at_s = 0.0, None
        progress = (0, 0)
        while True:
            self._heard, progress_before = False, progress
            await asyncio.sleep(look_s)
            progress = channel.progress()
            if progress[0] > progress_before[0] and not self._heard:
                # A large frame comes, and a ping of the service waits behind it.
                channel.send(encode(w.Ping()))
            if self._heard or progress != progress_before:
                silent_s, asked_at_s = 0.0, None
                continue
            silent_s += look_s
            limit_s = look_s if self._pending.waiting or self._sinks else keepalive_s
            if asked_at_s is None and silent_s >= limit_s:
                channel.send(encode(w.Ping()))
                asked_at_s = silent_s
            elif asked_at_s is not None and silent_s >= asked_at_s + limit_s:
                return

    def _receive(self, channel: Channel, frame: bytes) -> w.Goodbye | None:
        match message := decode_from_server(frame):
            case w.Event():
                sink = self._sinks.get(message.subscription)
                if sink is not None:
                    sink.event(message)
                else:
                    self._leave(message.subscription)
            case w.Reply():
                self._on_reply(message)
            case w.Error():
                self._on_error(message)
            case w.Lagged():
                self._end_sink(message.subscription, lambda sink: sink.lag())
            case w.Ended(subscription=id, moved=moved):
                self._end_sink(id, lambda sink: sink.end(moved=moved))
            case w.Ping():
                channel.send(encode(w.Pong()))
            case w.Goodbye():
                return message
        return None

    def _on_reply(self, reply: w.Reply) -> None:
        request = self._pending.performed(reply.id)
        if request is not None:
            if not request.answer.done():
                request.answer.set_result(reply.body)
            return
        sink = self._sinks.get(reply.id)
        if sink is not None:
            self._begun.add(reply.id)
            self._refused.pop(reply.id, None)
            sink.begun(msgspec.json.decode(reply.body, type=w.Subscribed).cursor)

    def _on_error(self, message: w.Error) -> None:
        error = from_wire(message)
        if message.id is None:  # of the connection itself; its end follows
            if isinstance(error, ProtocolError):
                raise error
            return
        if isinstance(error, Overloaded) and self._pending.refused(message.id, error):
            return
        request = self._pending.performed(message.id)
        if request is None:
            self._on_refused_subscription(message.id, message, error)
        elif not request.answer.done():
            request.answer.set_exception(error)

    def _on_refused_subscription(self, id: int, message: w.Error, error: SessionError) -> None:
        loop = asyncio.get_running_loop()
        refusals, until = self._refused.get(id, (0, loop.time() + self._overloaded_s))
        hint_s = message.retry_after_s
        delay_s = again_after_s(MAX_DELAY_S if hint_s is None else hint_s, refusals)
        is_hinted = isinstance(error, Overloaded) and hint_s is not None
        is_elsewhere = getattr(error, "address", None) is not None
        if (message.retryable and id in self._begun and not is_elsewhere) or (
            is_hinted and loop.time() + delay_s <= until
        ):
            # A subscription that worked before the connection was lost is retried without a limit.
            # A new one is retried only as long as a command would be.
            self._refused[id] = (refusals + 1, until)
            self._retries[id] = loop.call_later(delay_s, self._resubscribe, id)
        else:
            self._end_sink(id, lambda sink: sink.fail(error))

    def _resubscribe(self, id: int) -> None:
        self._retries.pop(id, None)
        sink = self._sinks.get(id)
        if sink is not None:
            self._send(sink.subscribe_again(id))

    def _end_sink(self, id: int, tell: Callable[[EventSink], Any]) -> None:
        self._drop_subscription(id)
        sink = self._sinks.pop(id, None)
        if sink is not None:
            tell(sink)

    def _fail_all(self, error: SessionError) -> None:
        sinks = tuple(self._sinks.values())
        self._sinks.clear()
        self._subscribed.clear()
        self._begun.clear()
        self._refused.clear()
        self._cancel_retries()
        self._pending.fail_all(error)
        for sink in sinks:
            sink.fail(error)
