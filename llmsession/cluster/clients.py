"""A client of a whole cluster: it finds the host of each session, and follows sessions that move.

There is a link to each host that is used. A command goes to the host that served its session last,
or to any host, which says where to go. It then goes there, under the same command id. Commands of
one session keep their order: if one of them has to go elsewhere, later ones wait until all that are
on their way have been answered.
"""

from __future__ import annotations

import asyncio
import random
import weakref
from bisect import insort
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from llmsession.errors import (
    InvalidInput,
    Overloaded,
    ProtocolError,
    SessionClosed,
    SessionError,
    SessionInUse,
    SessionMoved,
    Unreachable,
)
from llmsession.transport import RemoteManager
from llmsession.transport.client.link import EventSink, Link
from llmsession.transport.client.pending_requests import PendingRequest, fail, order_key
from llmsession.transport.connecting import OVERLOADED_S, PATIENCE_S, check_on_asyncio, dial_of
from llmsession.transport.server.access import check_token_is_safe
from llmsession.transport.wire import messages as w
from llmsession.transport.wire.addresses import parse_address
from llmsession.transport.wire.tls import ClientTls

from .placement import EMPTY, Host, HostState, View, host_of

__all__ = ["ClusterLink", "connect_cluster", "link_maker"]

MAX_HOPS = 8
"""So often one command is sent on before it waits, too."""
FIRST_DELAY_S, MAX_DELAY_S = 0.05, 1.0
MAX_ROUTES = 100_000
_STATES: Mapping[str, HostState] = {"joining": "joining", "up": "up", "draining": "draining"}
"""The states that are known here. A host in one that a newer version has is given no sessions."""
SILENCE_S = 2.0
"""A host that has not answered a command for so long is asked if it is there. After as long again
the command goes on at another host: see ``Link``."""


@asynccontextmanager
async def connect_cluster(
    addresses: Sequence[str],
    *,
    token: str | None = None,
    tls: ClientTls | None = None,
    insecure: bool = False,
    patience_s: float = PATIENCE_S,
    overloaded_s: float = OVERLOADED_S,
    silence_s: float = SILENCE_S,
) -> AsyncIterator[RemoteManager]:
    """The sessions of the cluster whose hosts listen at *addresses*: some of them are enough, the
    hosts say where the others are. In asyncio only.

    Commands and subscriptions follow a session that moves to another host, and those of a host
    that died go on at the next one. *patience_s* is how long a session may be served by no host
    before waiting calls fail. A host that is silent for *silence_s* seconds while a command or a
    subscription waits is asked if it is there; after as long again these go on at another host. So
    a host that is frozen, or cut off, is left after two to three times this time. The other
    parameters are those of ``connect``, for every host.

    Raises InvalidInput and InvalidConfig. Raises Unauthenticated if a host does not know the token,
    and, if none can be used, the error of the last one: Unreachable, ProtocolError or Overloaded.
    """
    check_on_asyncio("connect_cluster")
    if isinstance(addresses, str) or not addresses:
        raise InvalidInput("connect_cluster takes a list of addresses, one or more")
    if not silence_s > 0:
        raise InvalidInput(f"silence_s is {silence_s!r}; it has to be above 0")
    make = link_maker(
        token=token,
        tls=tls,
        insecure=insecure,
        overloaded_s=overloaded_s,
        silence_s=silence_s,
    )
    link = ClusterLink(tuple(addresses), make, patience_s=patience_s, silence_s=silence_s)
    for address in addresses:
        make(address)  # raises for one that cannot be used
    try:
        await link.begin()
        yield RemoteManager(link)
    finally:
        await link.aclose()


def link_maker(
    *,
    token: str | None = None,
    tls: ClientTls | None = None,
    insecure: bool = False,
    overloaded_s: float = 0.0,
    silence_s: float = SILENCE_S,
    client: str = "python",
) -> Callable[[str], Link]:
    """A function that makes the link to the host at an address. The link fails at once if the host
    cannot be reached. The function raises InvalidInput and InvalidConfig. For the parameters see
    ``connect_cluster``."""

    def make(address: str) -> Link:
        where = parse_address(address)
        check_token_is_safe(
            where, has_tls=tls is not None, has_token=token is not None, insecure=insecure
        )
        context = None if where.scheme == "unix" else tls
        return Link(
            dial_of(where, context, token),
            token=token,
            patience_s=0.0,  # another host may serve the session by now
            overloaded_s=overloaded_s,
            silence_s=silence_s,
            client=client,
        )

    return make


class _Request(PendingRequest):
    """A command of the cluster's client, wherever it is sent."""

    __slots__ = ("give_up", "hops", "sent_at")

    def __init__(self, command: w.Command[Any]) -> None:
        super().__init__(command, asyncio.get_running_loop().create_future())
        self.sent_at = 0.0
        """When it was sent to a host last. By the event loop's time, as the next."""
        self.give_up: float | None = None
        """An error after this is the caller's. None as long as a host has it."""
        self.hops = 0


class _Line:
    """The commands of one session that have an order, or one command that has none."""

    def __init__(self, session: str | None) -> None:
        self.session = session
        self.sent: set[int] = set()
        self.link: Link | None = None
        """Where those are on their way."""
        self.waiting: list[_Request] = []
        """In their order: to be sent once none is on its way."""
        self.is_moving = False
        """Does a task send those that wait?"""
        self.was_sent_on = False
        """Did a host say where to go? Then the session has to be opened there."""


class ClusterLink:
    """A link to all hosts of a cluster: see ``Requester``. *make* makes the link to one host, which
    fails at once when that cannot be reached."""

    def __init__(
        self,
        addresses: Sequence[str],
        make: Callable[[str], Link],
        *,
        patience_s: float,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._given = tuple(addresses)
        self._addresses = list(addresses)
        """Those of all hosts that are known. The next to be asked is the first one."""
        self._view = EMPTY
        """The newest view that a host sent. It says where a session without a route may be."""
        self._namespace = ""
        """What the ids of this client's sessions begin with at the hosts."""
        self._silent: set[str] = set()
        """Hosts that could not be reached, and were not since."""
        self._make = make
        self._patience_s = patience_s
        self._silence_s = silence_s
        self._links: dict[str, Link] = {}
        self._connecting: dict[str, asyncio.Task[Link]] = {}
        self._routes: OrderedDict[str, str] = OrderedDict()
        """By session: the address of the host that served it last."""
        self._lines: dict[str | int, _Line] = {}
        self._relays: dict[int, _Relay] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ids = 0
        self._closed = False
        self.reconnects = 0
        """How often a subscription went on at another host."""
        self.default_model: str | None = None

    async def begin(self) -> None:
        """Connect to one host. Raises as ``connect_cluster``."""
        for left in reversed(range(len(self._addresses))):
            address = self._addresses[0]
            try:
                link = await self._link_to(address)
            except (Unreachable, ProtocolError, Overloaded) as error:
                if left:
                    self._skip(address)
                elif isinstance(error, Unreachable):
                    raise Unreachable(f"no host can be reached; {address}: {error}") from error
                else:
                    raise
            else:
                self.default_model = link.default_model
                return

    async def aclose(self) -> None:
        """Close the link to every host, and fail what waits with SessionClosed."""
        self._closed = True
        tasks = (*self._tasks, *self._connecting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in self._links.values():
            await link.aclose()
        closed = SessionClosed("the connection was closed")
        for line in self._lines.values():
            for request in line.waiting:
                fail(request, closed)
        for relay in tuple(self._relays.values()):
            relay.give_up(closed)

    def new_id(self) -> int:
        """An id that this link has not used."""
        self._ids += 1
        return self._ids

    # Commands.

    def ask(self, command: w.Command[Any]) -> PendingRequest:
        """Send *command* to the host of its session, now or once it is known."""
        request = _Request(command)
        if self._closed:
            fail(request, SessionClosed("the connection was closed"))
            return request
        key, session = order_key(command), getattr(command, "session", None)
        line = self._lines.setdefault(key, _Line(session))
        link = self._known_link(session)
        # Where the session is may be known from the answer to a query, before earlier commands of
        # this line have their answers from the host that it left.
        would_overtake = bool(line.sent) and line.link is not link
        if link is None or would_overtake or line.waiting or line.is_moving:
            line.waiting.append(request)
            if not line.sent:  # otherwise the last answer to these moves the line
                self._move(key, line, 0.0)
        else:
            self._send(key, line, request, link)
        return request

    def _send(self, key: str | int, line: _Line, request: _Request, link: Link) -> None:
        line.sent.add(request.command.id)
        line.link = link
        command = msgspec.structs.replace(request.command, id=link.new_id())
        if line.was_sent_on and isinstance(command, w.Open):
            command = msgspec.structs.replace(command, here=True)
        request.sent_at = self._now()
        sent = link.ask(command)
        sent.answer.add_done_callback(lambda answer: self._answered(key, line, request, link, sent))

    def _answered(
        self, key: str | int, line: _Line, request: _Request, link: Link, sent: PendingRequest
    ) -> None:
        line.sent.discard(request.command.id)
        if sent.answer.cancelled():
            fail(request, SessionClosed("the connection was closed"))
            return
        request.repeated = request.repeated or sent.repeated
        error = sent.answer.exception()
        if error is None:
            line.was_sent_on = False
            self._note_made(request.command, sent.answer.result(), link)
            if not request.answer.done():
                request.answer.set_result(sent.answer.result())
        elif (
            isinstance(error, SessionError)
            and self._learn(line, line.session, link, error)
            and not self._closed
            and not self._is_given_up(request, link)
        ):
            request.repeated = request.repeated or isinstance(error, Unreachable)
            request.hops += 1
            insort(line.waiting, request, key=lambda request: request.command.id)
        elif not request.answer.done():
            request.answer.set_exception(_in_doubt(request, error))
        if line.waiting and not line.sent:
            hops = line.waiting[0].hops
            is_sent_on = line.was_sent_on and hops <= MAX_HOPS
            self._move(key, line, 0.0 if is_sent_on or not hops else _delay_s(hops))
        elif not line.waiting and not line.sent:
            self._lines.pop(key, None)

    def _is_given_up(self, request: _Request, link: Link | None) -> bool:
        """Was *request*, which has failed at the host of *link* or could not be sent, served by no
        host for too long? One that waits for a long turn may lose host after host."""
        was_served = link is not None and link.heard_at > request.sent_at + MAX_DELAY_S
        if request.give_up is None or was_served:
            request.give_up = self._now() + self._patience_s
        return self._now() >= request.give_up

    def _learn(
        self, line: _Line | None, session: str | None, link: Link, error: SessionError
    ) -> bool:
        """Note what *error*, of the host at *link*, says of where *session* is. False if it says
        nothing, so that the caller gets it."""
        address = getattr(error, "address", None)
        if isinstance(error, SessionInUse | SessionMoved) and address is not None:
            if session is not None:
                self._route(session, address)
            if line is not None:
                line.was_sent_on = True
            return True
        if not isinstance(error, Unreachable | SessionInUse):
            return False
        if line is not None:
            line.was_sent_on = False
        if isinstance(error, SessionInUse):
            return True  # by a host that is gone, and whose lease is not over yet
        for known, other in self._links.items():
            if other is link:
                self._skip(known)
                self._silent.add(known)
                if session is not None and self._routes.get(session) == known:
                    del self._routes[session]
        return True

    def _note_made(self, command: w.Command[Any], body: msgspec.Raw, link: Link) -> None:
        """Remember which host has a session that was made or opened."""
        if isinstance(command, w.Create | w.Fork | w.Open):
            session = msgspec.json.decode(body, type=w.Opened).session
            for address, other in self._links.items():
                if other is link:
                    self._route(session, address)

    def _move(self, key: str | int, line: _Line, delay_s: float) -> None:
        """Send what waits in *line*, after *delay_s*, to the host that is known then."""
        if not line.is_moving:
            line.is_moving = True
            self._start(self._send_waiting(key, line, delay_s))

    async def _send_waiting(self, key: str | int, line: _Line, delay_s: float) -> None:
        hops = 0
        while True:
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
            try:
                link = await self._link_of(line.session)
                break
            except SessionError as error:
                hops += 1
                delay_s = _delay_s(hops)
                is_over = not isinstance(error, Unreachable)
                for request in tuple(line.waiting):
                    if is_over or self._is_given_up(request, None):
                        line.waiting.remove(request)
                        fail(request, error)
                if not line.waiting:
                    line.is_moving = False
                    self._lines.pop(key, None)
                    return
        line.is_moving = False
        waiting, line.waiting = line.waiting, []
        opens = isinstance(waiting[0].command, w.Open | w.Create)
        if line.was_sent_on and line.session is not None and not opens:
            self._open_here(line.session, link)
        for request in waiting:
            self._send(key, line, request, link)

    def _open_here(self, session: str, link: Link) -> None:
        """Tell the host at *link* that another one sent us there."""
        opening = link.ask(w.Open(id=link.new_id(), session=session, here=True))
        opening.answer.add_done_callback(_retrieve)  # the commands behind it get the same error

    # Subscriptions.

    def subscribe(self, id: int, sink: EventSink) -> None:
        """Give *sink* its events, from whichever host serves its session."""
        if self._closed:
            sink.fail(SessionClosed("the connection was closed"))
            return
        relay = self._relays[id] = _Relay(self, id, sink, sink.subscribe_again(id).session)
        link = self._known_link(relay.session)
        if link is None:
            self.subscribe_again(relay, None, 0.0)
        else:
            relay.begin(link)

    def unsubscribe(self, id: int) -> None:
        """Give its sink nothing more."""
        relay = self._relays.pop(id, None)
        if relay is not None:
            relay.stop()

    def subscribe_again(self, relay: _Relay, error: SessionError | None, delay_s: float) -> None:
        """Let *relay* go on at the host that is known after *delay_s*."""
        self.reconnects += error is not None
        self._start(self._subscribe(relay, delay_s))

    async def _subscribe(self, relay: _Relay, delay_s: float) -> None:
        await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
        try:
            link = await self._link_of(relay.session)
        except SessionError as error:
            relay.fail(error)
            return
        if relay.id in self._relays:
            if relay.was_sent_on:
                self._open_here(relay.session, link)
            relay.begin(link)

    def learn(self, relay: _Relay, link: Link | None, error: SessionError) -> bool:
        """See ``_learn``, for a subscription that ended with *error*."""
        if link is None:  # no host could be reached
            return isinstance(error, Unreachable)
        is_known = self._learn(None, relay.session, link, error)
        relay.was_sent_on = is_known and getattr(error, "address", None) is not None
        return is_known

    def drop(self, relay: _Relay) -> None:
        """Nothing comes of *relay* any more."""
        self._relays.pop(relay.id, None)

    # Hosts.

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def patience_s(self) -> float:
        """How long a session may be served by no host."""
        return self._patience_s

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _route(self, session: str, address: str) -> None:
        self._routes.pop(session, None)
        self._routes[session] = address
        self._silent.discard(address)  # somebody says that it is there
        if len(self._routes) > MAX_ROUTES:
            self._routes.popitem(last=False)
        if address not in self._addresses:
            self._addresses.append(address)

    def _skip(self, address: str) -> None:
        """Ask the host at *address* last."""
        if address in self._addresses:
            self._addresses.remove(address)
            self._addresses.append(address)

    def _known_link(self, session: str | None) -> Link | None:
        """The link for *session*, where no connection has to be made first."""
        return self._links.get(self._address_of(session))

    def _address_of(self, session: str | None) -> str:
        """Where *session* was served last, else where it is placed, else any host."""
        if session is None:
            return self._addresses[0]
        address = self._routes.get(session)
        if address is None:
            is_whole = session.startswith(self._namespace)
            placed = host_of(self._view, session if is_whole else self._namespace + session)
            address = None if placed is None else placed.address
        return self._addresses[0] if address is None or address in self._silent else address

    async def _link_of(self, session: str | None) -> Link:
        """The link for *session*. Raises as ``begin``; then the next call asks another host."""
        address = self._address_of(session)
        try:
            return await self._link_to(address)
        except SessionError:
            self._skip(address)
            self._silent.add(address)
            if session is not None:
                self._routes.pop(session, None)
            raise

    async def _link_to(self, address: str) -> Link:
        if address in self._links:
            return self._links[address]
        task = self._connecting.get(address)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._connect(address))
            self._connecting[address] = task
            task.add_done_callback(lambda _: self._connecting.pop(address, None))
        return await asyncio.shield(task)

    async def _connect(self, address: str) -> Link:
        link = self._make(address)
        # The first host may take its time: without it there is no client.
        await link.begin(hello_s=2 * self._silence_s if self._links else None)
        await asyncio.sleep(0)  # now it sends at once, so commands keep their order
        self._links[address] = link
        self._note_hosts(address, link.cluster)
        return link

    def _note_hosts(self, address: str, found: w.ClusterHosts | None) -> None:
        """Note the hosts that the one at *address* knows."""
        self._silent.discard(address)
        if found is None or found.view <= self._view.version:
            return
        hosts = (
            Host(host.name, host.address, _STATES.get(host.state, "draining"), "")
            for host in found.hosts
        )
        self._view, self._namespace = View(found.view, tuple(hosts)), found.namespace
        known = dict.fromkeys((*self._given, *(host.address for host in self._view.hosts)))
        kept = [each for each in self._addresses if each in known]
        self._addresses = [*kept, *(each for each in known if each not in kept)]


class _Relay:
    """The sink of one subscription at the hosts, one after the other. It holds the reader's sink
    weakly, as a ``Link`` does."""

    def __init__(self, links: ClusterLink, id: int, sink: EventSink, session: str) -> None:
        self._links = links
        self.id = id
        self.session = session
        self._sink = weakref.ref(sink)
        self._link: Link | None = None
        self._link_id = 0
        self._refusals = 0
        self._give_up: float | None = None
        self.was_sent_on = False

    def begin(self, link: Link) -> None:
        """Subscribe at the host of *link*."""
        self._link, self._link_id = link, link.new_id()
        link.subscribe(self._link_id, self)

    def stop(self) -> None:
        """Unsubscribe."""
        if self._link is not None:
            self._link.unsubscribe(self._link_id)

    # Called by the link of one host.

    def subscribe_again(self, id: int) -> w.Subscribe:
        """See ``EventSink``."""
        sink = self._sink()
        if sink is None:  # its first event ends it
            return w.Subscribe(id=id, session=self.session)
        return sink.subscribe_again(id)

    def begun(self, cursor: int) -> None:
        """See ``EventSink``."""
        self._refusals, self._give_up, self.was_sent_on = 0, None, False
        sink = self._sink()
        if sink is not None:
            sink.begun(cursor)

    def event(self, event: w.Event) -> None:
        """See ``EventSink``."""
        sink = self._sink()
        if sink is None:
            self._links.unsubscribe(self.id)
        else:
            sink.event(event)

    def lag(self) -> None:
        """See ``EventSink``."""
        self._links.drop(self)
        sink = self._sink()
        if sink is not None:
            sink.lag()

    def end(self, *, moved: bool = False) -> None:
        """See ``EventSink``. Of a session that moved, the same host says where it is."""
        sink = self._sink()
        if sink is None or not moved:
            self._links.drop(self)
            if sink is not None:
                sink.end()
            return
        self._links.subscribe_again(self, SessionMoved("moved"), 0.0)

    def fail(self, error: SessionError) -> None:
        """See ``EventSink``."""
        now = asyncio.get_running_loop().time()
        if self._give_up is None:
            self._give_up = now + self._links.patience_s
        self._refusals += 1
        if (
            self._sink() is None
            or now >= self._give_up
            or not self._links.learn(self, self._link, error)
        ):
            self.give_up(error)
        else:
            is_sent_on = self.was_sent_on and self._refusals <= MAX_HOPS
            self._links.subscribe_again(
                self, error, 0.0 if is_sent_on else _delay_s(self._refusals)
            )

    def give_up(self, error: SessionError) -> None:
        """End, because of *error*."""
        self._links.drop(self)
        sink = self._sink()
        if sink is not None:
            sink.fail(error)


def _in_doubt(request: _Request, error: BaseException) -> BaseException:
    """*error*, unless it says that nothing was done, and an earlier host may have done it.

    Refusals that a session itself decides are certain: it knows the commands that it has done.
    """
    is_certain = not isinstance(error, SessionInUse | SessionMoved | Overloaded)
    if is_certain or not request.repeated or getattr(request.command, "command_id", None) is None:
        return error
    unknown = Unreachable(f"a repeat was refused, so nobody knows if it was done: {error}")
    unknown.__cause__ = error
    return unknown


def _delay_s(refusals: int) -> float:
    delay_s: float = FIRST_DELAY_S * 2 ** min(refusals, 10)
    return min(delay_s, MAX_DELAY_S)


def _retrieve(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled():
        answer.exception()
