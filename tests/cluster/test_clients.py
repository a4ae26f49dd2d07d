"""One client of all hosts: it finds a session, follows it, and misses and repeats no event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    closing,
    suppress,
)
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from llmsession import (
    InvalidConfig,
    InvalidInput,
    ProtocolError,
    SessionError,
    SessionInUse,
    SessionMoved,
    Unreachable,
    connect,
    records,
)
from llmsession.cluster.clients import ClusterLink, connect_cluster
from llmsession.cluster.placement import Host, host_of
from llmsession.testing.scripted import never
from llmsession.transport import RemoteManager
from llmsession.transport.client.pending_requests import PendingRequest
from llmsession.transport.wire import messages as w
from llmsession.transport.wire.errors import to_wire
from llmsession.transport.wire.framing import decode_from_client, encode, lines_of
from tests.cluster.hosts import LocalHost, local_host, refresh
from tests.store.conftest import Database
from tests.transport.places import CONFIG

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]


@asynccontextmanager
async def two_hosts(database: Database, folder: Path) -> AsyncIterator[tuple[LocalHost, LocalHost]]:
    async with (
        asyncio.timeout(100),
        local_host(database, folder, "a", lambda request, tag: "said") as a,
        local_host(database, folder, "b", lambda request, tag: "said") as b,
    ):
        await refresh(a, b)
        yield a, b


async def move(session: str, source: LocalHost, target: LocalHost) -> None:
    source.routing.hand_over_to(session, target.name)
    await source.manager.hand_over(session)


async def test_a_client_of_any_host_reaches_a_session_at_its_own(
    database: Database, tmp_path: Path
) -> None:
    async with two_hosts(database, tmp_path) as (a, b), connect_cluster([b.address]) as sessions:
        await a.manager.create(CONFIG, session_id="s")
        session = await sessions.open("s")
        assert await (await session.send("hi")).text() == "said"
        assert (a.manager.live, b.manager.live) == (("s",), ())


async def test_a_new_session_is_made_at_the_host_that_it_is_placed_on(
    database: Database, tmp_path: Path
) -> None:
    async with two_hosts(database, tmp_path) as (a, b), connect_cluster([a.address]) as sessions:
        made = [(await sessions.create(CONFIG)).id for _ in range(12)]
        for host in (a, b):
            placed = {
                s
                for s in made
                if host_of(a.directory.view, s) == host.directory.view.by_name(host.name)
            }
            assert placed
            assert set(host.manager.live) == placed
        assert a.routing.handed_over == b.routing.handed_over == 0


async def test_a_client_that_was_given_one_host_knows_the_others_when_that_one_is_gone(
    database: Database, tmp_path: Path
) -> None:
    async with (
        asyncio.timeout(100),
        local_host(database, tmp_path, "b", lambda request, tag: "said") as b,
        AsyncExitStack() as stack,
    ):
        a = await stack.enter_async_context(local_host(database, tmp_path, "a"))
        await refresh(a, b)
        async with connect_cluster([a.address], patience_s=10.0) as sessions:
            await stack.aclose()
            session = await sessions.create(CONFIG)
            assert await (await session.send("hi")).text() == "said"
            assert b.manager.live == (session.id,)


async def test_commands_and_subscribers_follow_a_session_from_host_to_host(
    database: Database, tmp_path: Path
) -> None:
    async with two_hosts(database, tmp_path) as (a, b), connect_cluster([a.address]) as sessions:
        await a.manager.create(CONFIG, session_id="s")  # wherever it is placed
        session = await sessions.open("s")
        events = session.subscribe(after=0)
        source, target = a, b
        for _ in range(4):
            sent = await session.send("hi")
            assert await sent.text() == "said"
            await move("s", source, target)
            source, target = target, source
        assert await (await session.send("last")).text() == "said"
        seqs = []
        async for event in events:
            if (seq := getattr(event, "seq", 0)) and isinstance(event, records.Record):
                seqs.append(seq)
            if isinstance(event, records.TurnCommitted) and event.turn == 5:
                break
        else:
            pytest.fail(f"the subscription ended after record {seqs[-1]}")
        assert seqs == list(range(1, seqs[-1] + 1))


async def test_commands_that_were_sent_while_a_session_moved_are_performed_once_and_in_order(
    database: Database, tmp_path: Path
) -> None:
    async with two_hosts(database, tmp_path) as (a, b), connect_cluster([a.address]) as sessions:
        await a.manager.create(CONFIG, session_id="s")  # wherever it is placed
        session = await sessions.open("s")
        sends = [asyncio.create_task(session.send(f"m{number}")) for number in range(5)]
        await asyncio.sleep(0)
        moving = asyncio.create_task(move("s", a, b))
        sends += [asyncio.create_task(session.send(f"m{number}")) for number in range(5, 20)]
        await moving
        # The client learns only by refusals of these that the session is elsewhere.
        sends += [asyncio.create_task(session.send(f"m{number}")) for number in range(20, 30)]
        turns = [await send for send in sends]
        assert [turn.id.number for turn in turns] == list(range(1, 31))
        for turn in turns:
            assert await turn.text() == "said"
        history = await session.read_conversation()
        asked = [bytes(message.body).decode() for message in history if message.role == "user"]
        assert [f'"m{number}"' in text for number, text in enumerate(asked)] == [True] * 30


async def test_a_send_that_meets_the_end_of_a_hand_over_does_not_bring_the_session_back(
    database: Database, tmp_path: Path
) -> None:
    async with two_hosts(database, tmp_path) as (a, b), connect_cluster([a.address]) as sessions:
        session = await sessions.create(CONFIG, session_id="s")
        events = session.subscribe(after=0)
        source, target = (a, b) if a.manager.live else (b, a)
        for _ in range(12):
            await b.directory.ask_to_move("s", view_of(source), target.name)
            async for event in events:
                if isinstance(event, records.SessionHandedOver):
                    break
            assert await (await session.send("hi")).text() == "said"
            assert (source.manager.live, target.manager.live) == ((), ("s",))
            async for event in events:  # so the subscription is there, too
                if isinstance(event, records.TurnCommitted):
                    break
            source, target = target, source


def view_of(host: LocalHost) -> Host:
    found = host.directory.view.by_name(host.name)
    assert found is not None
    return found


async def test_a_command_that_was_served_for_long_is_not_given_up_when_its_session_moves(
    database: Database, tmp_path: Path
) -> None:
    async with (
        asyncio.timeout(100),
        local_host(database, tmp_path, "a", lambda request, tag: never()) as a,
        local_host(database, tmp_path, "b", lambda request, tag: never()) as b,
        local_host(database, tmp_path, "c", lambda request, tag: "said") as c,
        connect_cluster([a.address], patience_s=1.0) as sessions,
    ):
        await refresh(a, b, c)
        await a.manager.create(CONFIG, session_id="s")
        session = await sessions.open("s")
        turn = await session.send("hi")
        outcome = asyncio.create_task(turn.outcome())
        await session.read_status()  # so the host has the question
        for source, target in ((a, b), (b, c)):
            source.routing.hand_over_to("s", target.name)
            await source.manager.hand_over("s", when="now")
            for _ in range(30):  # in all longer than the client is patient
                await session.read_status()
                if target is c:
                    break
                await asyncio.sleep(0.05)
        assert (await outcome).status == "committed"
        assert c.manager.live == ("s",)


@asynccontextmanager
async def host_that(
    address: str, does: Callable[[w.Command[Any]], bytes | None]
) -> AsyncIterator[None]:
    """Says hello to its first client, and answers each command with what *does* returns. It is
    silent for "", and for None ends the connection. Later clients get nothing."""
    tasks: list[asyncio.Task[Any] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        await reader.readline()
        if len(tasks) > 1:
            writer.close()
            return
        welcome = w.Welcome(version=w.VERSION, server="", max_frame_bytes=1 << 20, keepalive_s=60.0)
        writer.write(lines_of([encode(welcome)]))
        async for line in reader:
            command = decode_from_client(line.strip())
            answer = does(command) if isinstance(command, w.Command) else b""
            if answer is None:
                break
            if answer:
                writer.write(lines_of([answer]))
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async with await asyncio.start_unix_server(serve, address.removeprefix("unix:")):
        try:
            yield
        finally:
            await asyncio.gather(*(task for task in tasks if task is not None))


class ToldLink:
    """A link to a host that answers when a test says so."""

    default_model = cluster = None
    heard_at = 0.0

    def __init__(self) -> None:
        self.asked: list[PendingRequest] = []

    async def begin(self, *, hello_s: float | None = None) -> None: ...

    def new_id(self) -> int:
        return len(self.asked)

    def ask(self, command: w.Command[Any]) -> PendingRequest:
        self.asked.append(PendingRequest(command, asyncio.get_running_loop().create_future()))
        return self.asked[-1]

    def refuse(self, number: int) -> None:
        """Say that the session is at the host b now."""
        self.asked[number].answer.set_exception(SessionMoved("moved", address="unix:b"))

    @property
    def sends(self) -> list[str]:
        commands = (request.command for request in self.asked)
        return [each.command_id or "" for each in commands if isinstance(each, w.Send)]

    async def aclose(self) -> None: ...


@asynccontextmanager
async def told_links() -> AsyncIterator[tuple[ToldLink, ToldLink, ClusterLink]]:
    """The links to the hosts a and b, and a client that knows a alone."""
    links: dict[str, Any] = {"unix:a": ToldLink(), "unix:b": ToldLink()}
    client = ClusterLink(("unix:a",), links.__getitem__, patience_s=100.0)
    await client.begin()
    yield links["unix:a"], links["unix:b"], client
    await client.aclose()


def send(client: ClusterLink, name: str) -> None:
    content = msgspec.Raw(b'"hi"')
    client.ask(w.Send(id=client.new_id(), session="s", command_id=name, content=content))


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("is_done", [False, True])
async def test_a_command_waits_for_an_earlier_one_that_is_on_its_way_to_the_host_before(
    is_done: bool,
) -> None:
    async with told_links() as (a, b, client):
        send(client, "first")
        client.ask(w.Outcome(id=client.new_id(), session="s", turn=1))
        a.refuse(1)  # so the client knows where the session is before the first one is answered
        await settled()
        send(client, "second")
        await settled()
        assert b.sends == []
        if is_done:
            a.asked[0].answer.set_result(msgspec.Raw(b"null"))
        else:
            a.refuse(0)
        await settled()
        assert b.sends == (["second"] if is_done else ["first", "second"])


async def test_a_command_does_not_overtake_one_that_the_host_before_has_still_to_refuse() -> None:
    async with told_links() as (a, b, client):
        send(client, "first")
        send(client, "second")
        a.refuse(0)
        await settled()
        send(client, "third")
        await settled()
        assert b.sends == []
        a.refuse(1)
        await settled()
        assert b.sends == ["first", "second", "third"]


async def test_a_command_to_a_host_that_is_silent_goes_on_at_another_one(
    database: Database, tmp_path: Path
) -> None:
    silent = f"unix:{tmp_path}/silent.sock"
    async with (
        host_that(silent, lambda _: b""),
        two_hosts(database, tmp_path) as (a, _),
        connect_cluster([silent, a.address], silence_s=0.5) as sessions,
    ):
        await sessions.create(CONFIG, session_id="s")
        assert [row.session for row in await sessions.list()] == ["s"]


async def test_a_subscription_at_a_host_that_falls_silent_goes_on_at_another_one(
    database: Database, tmp_path: Path
) -> None:
    """It waits, and nothing else does. The host's keepalive would say so after two minutes."""

    def open_and_subscribe(command: w.Command[Any]) -> bytes:
        body = w.Opened("s", 1) if isinstance(command, w.Open) else w.Subscribed(0)
        return encode(w.Reply(id=command.id, body=msgspec.Raw(msgspec.json.encode(body))))

    silent = f"unix:{tmp_path}/silent.sock"
    async with (
        host_that(silent, open_and_subscribe),
        two_hosts(database, tmp_path) as (a, _),
        connect_cluster([a.address]) as others,
        connect_cluster([silent, a.address], silence_s=0.5) as sessions,
    ):
        session = await others.create(CONFIG, session_id="s")
        await (await session.send("hi")).outcome()
        with closing((await sessions.open("s")).subscribe(after=0)) as events:
            async for event in events:
                if isinstance(event, records.TurnCommitted):
                    break


async def test_nobody_is_told_that_nothing_was_done_where_a_host_may_have_done_it(
    tmp_path: Path,
) -> None:
    """The first host ends the connection without an answer, and the next one refuses."""

    def in_use(command: w.Command[Any]) -> bytes:
        return encode(to_wire(SessionInUse("s", "an owner"), id=command.id))

    one, other = f"unix:{tmp_path}/one.sock", f"unix:{tmp_path}/other.sock"
    async with (
        asyncio.timeout(100),
        host_that(one, lambda _: None),
        host_that(other, in_use),
        connect_cluster([one, other], patience_s=0.3) as sessions,
    ):
        with pytest.raises(Unreachable, match="nobody knows if it was done"):
            await sessions.create(CONFIG, session_id="s")


async def test_the_first_host_may_be_gone(database: Database, tmp_path: Path) -> None:
    nobody = f"unix:{tmp_path}/nobody.sock"
    async with (
        two_hosts(database, tmp_path) as (a, _),
        connect_cluster([nobody, a.address]) as sessions,
    ):
        await sessions.create(CONFIG, session_id="s")
        assert [row.session for row in await sessions.list()] == ["s"]
    with pytest.raises(Unreachable, match=f"no host can be reached; {nobody}: "):
        async with connect_cluster([nobody], patience_s=0.0):
            pass


async def test_the_first_address_may_be_that_of_something_else(
    database: Database, tmp_path: Path
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    place = str(tmp_path / "else.sock")
    async with (
        await asyncio.start_unix_server(answer, place),
        two_hosts(database, tmp_path) as (a, _),
    ):
        async with connect_cluster([f"unix:{place}", a.address]) as sessions:
            assert not await sessions.list()
        with pytest.raises(ProtocolError):
            async with connect_cluster([f"unix:{place}"]):
                pass


@pytest.mark.parametrize("connects", [connect, lambda address: connect_cluster([address])])
def test_on_trio_a_client_says_that_it_works_on_asyncio_only(
    connects: Callable[[str], AbstractAsyncContextManager[RemoteManager]],
) -> None:
    async def main() -> None:
        async with connects("unix:x.sock"):
            pass

    with pytest.raises(InvalidConfig, match="asyncio only"):
        trio.run(main)


async def test_what_is_no_tls_is_refused() -> None:
    wrong: Any = "ca.pem"
    with pytest.raises(InvalidInput, match=r"ClientTls\(ca=FILE\), not 'ca.pem'"):
        async with connect_cluster(["tcp://127.0.0.1:1"], tls=wrong):
            pass


async def test_an_error_of_the_session_is_the_callers(database: Database, tmp_path: Path) -> None:
    async with two_hosts(database, tmp_path) as (a, _), connect_cluster([a.address]) as sessions:
        with pytest.raises(SessionError, match="no session 'x'"):
            await sessions.open("x")
        session = await sessions.create(CONFIG)
        with pytest.raises(InvalidInput):
            await session.turn(7).outcome()


async def test_what_is_no_list_of_addresses_is_refused() -> None:
    for wrong in ("unix:x", [], ["nowhere"]):
        with pytest.raises(InvalidInput):
            async with connect_cluster(wrong):
                pass
