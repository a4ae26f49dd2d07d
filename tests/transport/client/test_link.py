"""A client outlives its connections: nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmsession import (
    InvalidInput,
    Overloaded,
    ProtocolError,
    SessionClosed,
    SessionConfig,
    SessionError,
    SessionManager,
    SqliteStore,
    TextDelta,
    ToolResult,
    ToolUse,
    Unreachable,
    connect,
    records,
)
from llmsession.testing.scripted import call, never, say
from llmsession.transport import (
    Credentials,
    Limits,
    RemoteManager,
    RemoteSession,
    Service,
    connecting,
)
from llmsession.transport.client.link import Link
from llmsession.transport.server import connection
from llmsession.transport.wire import messages as w
from llmsession.transport.wire.addresses import parse_address
from llmsession.transport.wire.framing import encode
from tests.transport.cutting import CuttingProxy
from tests.transport.places import CONFIG, first, serving, until

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]

PATIENCE_S = 100.0


class Served:
    """A service, on a Unix socket if nothing else is said, that can be taken away and brought back
    over one store."""

    def __init__(self, folder: Path, script: Any, kind: str = "unix") -> None:
        self.folder = folder
        self.path = str(folder / "s.sock")
        self.address = f"unix:{self.path}" if kind == "unix" else "grpc://127.0.0.1:0"
        self.script = script
        self.manager: SessionManager

    @asynccontextmanager
    async def up(self, limits: Limits | None = None) -> AsyncIterator[Service]:
        store = SqliteStore(self.folder / "sessions.db")
        async with serving(self.address, self.script, store=store, limits=limits) as served:
            self.manager, self.address = served.manager, served.address
            yield served.service

    @asynccontextmanager
    async def with_session(
        self, limits: Limits | None = None
    ) -> AsyncIterator[tuple[Service, Link, RemoteManager, RemoteSession]]:
        """The service, and a client of it with a session ``s``."""
        async with self.up(limits) as service, linked(self.address) as (link, sessions):
            yield service, link, sessions, await sessions.create(CONFIG, session_id="s")


@asynccontextmanager
async def linked(
    address: str, patience_s: float = PATIENCE_S
) -> AsyncIterator[tuple[Link, RemoteManager]]:
    """As ``connect``, with the link in hand."""
    dial = connecting.dial_of(parse_address(address), None)
    link = Link(dial, token=None, patience_s=patience_s, client="test", overloaded_s=PATIENCE_S)
    await link.begin()
    try:
        yield link, RemoteManager(link)
    finally:
        await link.aclose()


def cuts(kind: str, seed: int, many: int) -> Iterator[int]:
    chance = random.Random(seed)
    yield 3000  # the first connection has to be made
    # Long enough for a hello and its welcome, mostly, which are longer in HTTP/2: or nothing would
    # be asked, and the next try comes later each time.
    short, long = (400, 200) if kind == "unix" else (1200, 1200)
    for _ in range(many):
        yield chance.choice([chance.randrange(20, short), chance.randrange(long, 6000)])


@asynccontextmanager
async def cut_off(
    folder: Path, kind: str, seed: int
) -> AsyncIterator[tuple[Served, CuttingProxy, Link, RemoteManager]]:
    """A service, and a client of it whose connections are cut."""
    script = lambda request, tag: say("word " * 30).slow(0.001, delta_chars=10)  # noqa: E731
    served = Served(folder, script, kind)
    listen = f"unix:{folder}/p.sock" if kind == "unix" else "grpc://127.0.0.1:0"
    async with served.up():
        proxy = CuttingProxy(listen, served.address, cuts(kind, seed, 40))
        async with proxy.running(), linked(proxy.address) as (link, sessions):
            yield served, proxy, link, sessions


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, 9))]
)
@pytest.mark.parametrize("kind", ["unix", "grpc"])
async def test_cut_at_random_bytes_every_send_is_taken_once_and_every_event_seen_once(
    tmp_path: Path, kind: str, seed: int
) -> None:
    async with cut_off(tmp_path, kind, seed) as (served, proxy, link, sessions):

        async def live(name: str) -> None:
            session = await sessions.create(CONFIG, session_id=name)
            watching = asyncio.ensure_future(watch(session.subscribe(after=0), 6))
            for number in range(6):
                turn = await session.send(f"{name} says {number}")
                assert await turn.text() == "word " * 30
            seen = await watching
            log = [records.decode_record(row.body) for row in await served.manager.store.read(name)]
            assert seen == log[: len(seen)]
            said = [m.text for m in await session.read_conversation() if m.is_user]
            assert said == [f"{name} says {number}" for number in range(6)]

        await asyncio.gather(*(live(f"s{number}") for number in range(5)))
        assert link.reconnects >= 10
        assert proxy.cut >= 10


async def watch(events: Any, commits: int) -> list[Any]:
    """The durable events, up to that many commits; previews of a step make its text, once."""
    seen: list[Any] = []
    text: dict[tuple[int, int, int], str] = {}
    async for event in events:
        if isinstance(event, TextDelta):
            step = (event.turn, event.step, event.attempt)
            text[step] = text.get(step, "") + event.text
            assert ("word " * 30).startswith(text[step]), text[step]
            continue
        seen.append(event)
        commits -= isinstance(event, records.TurnCommitted)
        if not commits:
            events.close()
            return seen
    raise AssertionError("the events ended")


@pytest.mark.parametrize("kind", ["unix", "grpc"])
async def test_previews_are_not_shown_twice_after_the_connection_was_lost(
    tmp_path: Path, kind: str
) -> None:
    whole = "".join(f"{number}," for number in range(120))
    served = Served(tmp_path, [say(whole).slow(0.005, delta_chars=4)], kind)
    async with served.with_session() as (_, link, _, session):
        turn = await session.send("hi")
        text = ""
        async for event in turn:
            if isinstance(event, TextDelta):
                before = len(text) // 100
                text += event.text
                if len(text) // 100 > before:
                    link.drop_connection()
        assert link.reconnects >= 2
        # The end may be missing, where it came while the connection was away: the record has it.
        assert whole.startswith(text)
        assert len(text) > 200
        assert await turn.text() == whole
        assert [m.text for m in await session.read_conversation()] == ["hi", whole]


async def test_a_dropped_connection_cancels_nothing(tmp_path: Path) -> None:
    served = Served(tmp_path, [say("done").slow(0.05)])
    async with served.up() as service:
        async with connect(served.address) as sessions:
            session = await sessions.create(CONFIG, session_id="s")
            turn = await session.send("hi")
            waiting = asyncio.ensure_future(turn.outcome())
            watching = asyncio.ensure_future(anext(session.subscribe(after=99)))
            await asyncio.sleep(0)
        results = await asyncio.gather(waiting, watching, return_exceptions=True)
        assert all(isinstance(result, SessionError) for result in results)
        await until(lambda: service.statistics().connections == 0)
        embedded = await served.manager.open("s")
        assert await embedded.turn(1).text() == "done"


@pytest.mark.parametrize("kind", ["unix", "grpc"])
async def test_clients_live_through_a_service_that_goes_down_in_order_and_comes_back(
    tmp_path: Path, kind: str
) -> None:
    served = Served(tmp_path, lambda request, tag: say("hello").slow(0.002), kind)
    async with AsyncExitStack() as clients:
        async with served.up():
            link, sessions = await clients.enter_async_context(linked(served.address))
            session = await sessions.create(CONFIG, session_id="s")
            watching = asyncio.ensure_future(watch_turns(session.subscribe(after=0), 6))
            for _ in range(3):
                await (await session.send("hi")).text()
        sending = [asyncio.ensure_future(session.send("ho")) for _ in range(3)]
        await asyncio.sleep(0.2)
        async with served.up():
            for sent in sending:
                assert await (await sent).text() == "hello"
            assert await watching == [1, 2, 3, 4, 5, 6]
            assert link.reconnects == 1


@pytest.mark.parametrize("kind", ["unix", "grpc"])
async def test_a_send_that_is_refused_because_the_service_goes_down_is_taken_by_the_next_one(
    tmp_path: Path, kind: str
) -> None:
    served = Served(tmp_path, lambda request, tag: say("hello").slow(0.05), kind)
    async with AsyncExitStack() as clients:
        async with served.up() as service:
            link, sessions = await clients.enter_async_context(linked(served.address))
            session = await sessions.create(CONFIG, session_id="s")
            turn = await session.send("hi")
            draining = asyncio.ensure_future(service.drain(PATIENCE_S))
            await asyncio.sleep(0)
            sending = asyncio.ensure_future(session.send("ho"))
            await until(lambda: service.statistics().overloaded == 1)
            assert await turn.text() == "hello"
            assert await draining == ()
        async with served.up():
            second = await sending
            assert (second.id.number, await second.text()) == (2, "hello")
            assert link.reconnects == 1


@pytest.mark.parametrize("kind", ["unix", "grpc"])
async def test_what_a_late_service_refuses_is_done_once_in_order_when_it_is_not_late_any_more(
    tmp_path: Path, kind: str
) -> None:
    served = Served(tmp_path, lambda request, tag: "hello", kind)
    limits = Limits(max_lag_s=0.05)
    async with served.with_session(limits) as (service, link, sessions, session):
        service.admission.lag.lag_s = 0.4
        sending = [asyncio.ensure_future(session.send(f"{number}")) for number in range(3)]
        made = asyncio.ensure_future(sessions.create(CONFIG, session_id="t"))
        await until(lambda: service.statistics().overloaded == 4)
        late = asyncio.ensure_future(session.send("3"))
        for sent in (*sending, late):
            await (await sent).outcome()
        said = [m.text for m in await session.read_conversation() if m.is_user]
        assert said == ["0", "1", "2", "3"]
        assert (await made).id == "t"
        assert link.reconnects == 0


async def test_a_subscription_that_was_refused_and_then_lost_its_connection_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(tmp_path, lambda request, tag: "hello")
    async with served.with_session() as (service, link, _, session):
        watching = asyncio.ensure_future(watch_turns(session.subscribe(after=0), 2))
        await (await session.send("hi")).outcome()
        await until(lambda: service.statistics().subscriptions == 1)

        def refuse(connection: Any, command: w.Command[Any]) -> None:
            if isinstance(command, w.Subscribe):
                raise Overloaded("busy", retry_after_s=0.1)

        with monkeypatch.context() as patched:
            patched.setattr(service.admission, "check", refuse)
            link.drop_connection()
            await until(lambda: service.statistics().overloaded == 1)
        link.drop_connection()
        await until(lambda: service.statistics().subscriptions == 1)
        await asyncio.sleep(0.2)  # when it would have been asked for again
        assert not watching.done()
        await (await session.send("ho")).outcome()
        assert await watching == [1, 2]


def refuse_twice(
    service: Service, kind: type[w.Command[Any]], monkeypatch: pytest.MonkeyPatch
) -> list[float]:
    """Let *service* refuse the next two commands of *kind*. The list has an item for each that is
    left."""
    left = [0.01, 0.01]

    def check(connection: Any, command: w.Command[Any]) -> None:
        if isinstance(command, kind) and left:
            raise Overloaded("busy", retry_after_s=left.pop())

    monkeypatch.setattr(service.admission, "check", check)
    return left


async def test_a_new_subscription_that_a_busy_service_refuses_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(tmp_path, lambda request, tag: "hello")
    async with served.with_session() as (service, _, _, session):
        left = refuse_twice(service, w.Subscribe, monkeypatch)
        assert isinstance(await anext(session.subscribe(after=0)), records.SessionCreated)
        assert not left


async def test_an_unsubscribe_that_a_busy_service_refuses_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(tmp_path, lambda request, tag: "hello")
    async with served.with_session() as (service, _, _, session):
        left = refuse_twice(service, w.Unsubscribe, monkeypatch)
        subscription = session.subscribe(after=0)
        await anext(subscription)
        subscription.close()
        await until(lambda: service.statistics().subscriptions == 0)
        assert not left


async def test_events_that_nobody_asked_for_are_unsubscribed_though_that_was_answered_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(tmp_path, lambda request, tag: "hello")
    async with served.with_session() as (service, _, _, session):
        unsubscribe = connection.ROUTES[w.Unsubscribe]
        lost: list[w.Unsubscribe] = []

        def lose_the_first(of: connection.Connection, command: w.Unsubscribe) -> None:
            if not lost:
                lost.append(command)
                command = msgspec.structs.replace(command, subscription=0)
            unsubscribe(of, command)

        routes: dict[Any, Any] = {**connection.ROUTES, w.Unsubscribe: lose_the_first}
        monkeypatch.setattr(connection, "ROUTES", routes)
        subscription = session.subscribe(after=0)
        await anext(subscription)
        subscription.close()
        await session.read_status()
        assert (service.statistics().subscriptions, len(lost)) == (1, 1)
        await (await session.send("hi")).outcome()
        await until(lambda: service.statistics().subscriptions == 0)


async def watch_turns(events: Any, turns: int) -> list[int]:
    """The turns that ended, in order."""
    ended: list[int] = []
    async for event in events:
        if records.is_terminal(event):
            ended.append(event.turn)
        if len(ended) == turns:
            events.close()
            break
    return ended


async def test_a_service_that_stays_away_is_named_and_the_next_call_tries_anew(
    tmp_path: Path,
) -> None:
    served = Served(tmp_path, lambda request, tag: "hello")
    async with AsyncExitStack() as clients:
        async with served.up():
            _, sessions = await clients.enter_async_context(linked(served.address, patience_s=0.3))
            session = await sessions.create(CONFIG, session_id="s")
            subscription = session.subscribe()
            assert (await session.read_status()).phase == "idle"
        with pytest.raises(Unreachable):
            await session.send("hi")
        with pytest.raises(Unreachable):
            async for _ in subscription:
                pass
        async with served.up():
            assert await (await session.send("hi")).text() == "hello"


class SlowChannel:
    """A channel on which a large frame comes: its first *parts* parts, and then nothing."""

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self.looked = 0
        self.sent: list[bytes] = []
        welcome = w.Welcome(
            version=w.VERSION, server="test", max_frame_bytes=1000, keepalive_s=0.001
        )
        self._frames = [encode(welcome)]

    def send(self, frame: bytes) -> None:
        self.sent.append(frame)

    async def receive(self) -> list[bytes]:
        if not self._frames:
            await asyncio.Event().wait()
        frames, self._frames = self._frames, []
        return frames

    def progress(self) -> tuple[int, int]:
        self.looked += 1
        return min(self.looked, self._parts), 0

    async def aclose(self) -> None:
        """Nothing is open."""


async def test_a_client_waits_for_a_large_frame_as_long_as_parts_of_it_come() -> None:
    channels: list[SlowChannel] = []

    async def dial() -> SlowChannel:
        channels.append(SlowChannel(parts=10))
        return channels[-1]

    link = Link(dial, token=None, patience_s=100.0, client="test")
    await link.begin()
    await until(lambda: len(channels) > 1)
    await link.aclose()
    assert channels[0].looked == 12  # ten parts, a ping in silence, and no answer to that
    assert channels[0].sent.count(encode(w.Ping())) == 11  # the service hears of it, too


async def test_nobody_at_the_address_is_said_at_once(tmp_path: Path) -> None:
    for address in (f"unix:{tmp_path}/none.sock", "tcp://127.0.0.1:1", "grpc://127.0.0.1:1"):
        with pytest.raises(Unreachable):
            async with connect(address):
                pass
    for address in ("unix:", "http://x", "tcp://x", "unix://x/y", "grpc", ""):
        with pytest.raises(InvalidInput):
            async with connect(address):
                pass


async def test_calls_that_wait_are_told_once_however_often_the_connection_is_lost(
    tmp_path: Path,
) -> None:
    served = Served(tmp_path, [call("ls", id="c1"), "done"])
    async with served.up(), linked(served.address) as (link, sessions):
        config = SessionConfig(model="m", tools=[{"name": "ls"}])
        session = await sessions.create(config, session_id="s")
        turn = await session.send("look")
        events = aiter(turn)
        use = await first(events, ToolUse)
        told = [use.id]
        for _ in range(3):
            link.drop_connection()
            await session.read_status()
        await session.submit_tool_results([ToolResult("c1", "x")])
        async for event in events:
            if isinstance(event, ToolUse):
                told.append(event.id)
        assert told == ["c1"]
        assert await turn.text() == "done"


async def test_a_subscription_that_nobody_holds_is_given_up(tmp_path: Path) -> None:
    served = Served(tmp_path, [say("x" * 400).slow(0.005, delta_chars=2), never()])
    async with (
        served.up() as service,
        connect(served.address) as sessions,
    ):
        session = await sessions.create(CONFIG, session_id="s")
        turn = await session.send("hi")
        async for _ in turn:
            break
        assert service.statistics().subscriptions == 1
        await until(lambda: service.statistics().subscriptions == 0)
        await session.interrupt()


async def test_subscriptions_to_a_quiet_session_that_readers_drop_do_not_pile_up(
    tmp_path: Path,
) -> None:
    served = Served(tmp_path, [])
    async with served.up() as service, connect(served.address) as sessions:
        session = await sessions.create(CONFIG, session_id="s")
        gc.disable()
        try:
            for _ in range(10):
                async for _ in session.subscribe(after=0):
                    break
                assert service.statistics().subscriptions <= 2
        finally:
            gc.enable()


async def test_polls_of_an_outcome_that_give_up_leave_one_command_at_the_service(
    tmp_path: Path,
) -> None:
    served = Served(tmp_path, [never()])
    async with served.with_session() as (service, _, _, session):
        turn = await session.send("hi")
        for _ in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await session.turn(turn.id).outcome()
        await session.read_status()
        assert service.statistics().open_requests == 1
        await session.interrupt()
        assert (await session.turn(turn.id).outcome()).status == "aborted"


async def test_a_client_that_leaves_at_once_leaves_no_connection_behind(tmp_path: Path) -> None:
    served = Served(tmp_path, ())
    async with served.up() as service:
        async with linked(f"unix:{served.path}"):
            pass
        gc.collect()  # a socket that was not closed warns
        await until(lambda: not service.statistics().connections)


@pytest.mark.parametrize("kind", ["unix", "grpc"])
async def test_a_command_that_is_larger_than_the_service_takes_fails_alone(
    tmp_path: Path, kind: str
) -> None:
    served = Served(tmp_path, lambda request, tag: "fine", kind)
    async with served.with_session(Limits(frame_bytes=100_000)) as (_, link, _, session):
        before = await session.send("hi")
        with pytest.raises(InvalidInput, match="at most 100,000"):
            await session.send("x" * 100_000)
        assert await before.text() == "fine"
        assert await (await session.send("x" * 90_000)).text() == "fine"
        assert link.reconnects == 0


async def test_a_large_command_that_waited_for_a_connection_fails_when_there_is_one(
    tmp_path: Path,
) -> None:
    served = Served(tmp_path, lambda request, tag: "fine")
    limits = Limits(frame_bytes=100_000)
    async with AsyncExitStack() as clients:
        async with served.up(limits):
            link, sessions = await clients.enter_async_context(linked(served.address))
            session = await sessions.create(CONFIG, session_id="s")
        await until(lambda: link._channel is None)
        sending = asyncio.ensure_future(session.send("x" * 100_000))
        async with served.up(limits):
            with pytest.raises(InvalidInput, match="at most 100,000"):
                await sending
            assert await (await session.send("hi")).text() == "fine"


async def test_what_ends_its_connection_with_an_error_is_not_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    routes: dict[Any, Any] = dict(connection.ROUTES)
    routes[w.Statistics] = fail
    served = Served(tmp_path, lambda request, tag: "fine")
    async with served.with_session() as (service, link, sessions, session):
        with monkeypatch.context() as patched:
            patched.setattr(connection, "ROUTES", routes)
            events = session.subscribe()
            with pytest.raises(ProtocolError, match="the service failed"):
                await sessions.statistics()
            with pytest.raises(ProtocolError, match="the service failed"):
                await first(events, TextDelta)
        assert (link.reconnects, service.statistics().protocol_errors) == (0, 1)
        assert await (await session.send("hi")).text() == "fine"


class Closing:
    """Lets clients in until it fails."""

    error: SessionError | None = None

    def authenticate(self, _credentials: Credentials) -> str | None:
        if self.error is not None:
            raise self.error
        return None


async def test_an_error_of_any_kind_that_refuses_the_next_connection_reaches_all_who_wait(
    tmp_path: Path,
) -> None:
    closing = Closing()
    async with (
        serving(f"unix:{tmp_path}/s.sock", lambda *_: never(), authenticator=closing) as served,
        linked(served.address) as (link, sessions),
    ):
        session = await sessions.create(CONFIG, session_id="s")
        turn = await session.send("hi")
        waiting = asyncio.ensure_future(turn.outcome())
        closing.error = SessionClosed("moved to another place")
        link.drop_connection()
        with pytest.raises(SessionClosed, match="another place"):
            await waiting
        closing.error = None
        await session.interrupt()
        assert (await turn.outcome()).status == "aborted"
