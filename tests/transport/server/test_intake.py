"""What one client sends costs the others neither memory nor the time of the event loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from llmsession import Overloaded, SessionConfig, connect
from llmsession.testing.scripted import never
from llmsession.transport import Connection, Credentials, Limits
from llmsession.transport.grpc.client import channel_options
from llmsession.transport.server import backlog, intake
from llmsession.transport.server import connection as connection_module
from llmsession.transport.server.intake import (
    FREE_BYTES,
    IncomingBytes,
    PendingHello,
    PendingHellos,
    ReadingTurns,
)
from llmsession.transport.server.limits import HELLO_FRAMES, RateLimit
from llmsession.transport.v1.session_pb2_grpc import SessionServiceStub
from llmsession.transport.wire import messages as w
from llmsession.transport.wire.addresses import parse_address
from llmsession.transport.wire.framing import decode_from_client, decode_from_server, encode
from tests.transport.places import CONFIG, address_of, serving, until
from tests.transport.server.test_connection import Bare, bare
from tests.transport.server.test_fuzz import HELLO, Raw

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]


# Frames.

FLOODS: dict[str, Callable[[Connection], None]] = {
    "pings": lambda connection: connection.receive(encode(w.Ping())),
    "pongs": lambda connection: connection.receive(encode(w.Pong())),
    "empty lines": lambda connection: connection.receive(None),
    "wrong commands": lambda connection: connection.receive(b'{"type":"status","id":1,"x":1}'),
    "commands": lambda connection: connection.receive(b'{"type":"status","id":1,"session":"s"}'),
}


@pytest.mark.parametrize("kind", FLOODS)
async def test_every_frame_counts_and_who_is_too_fast_is_read_no_faster(kind: str) -> None:
    async with bare(limits=Limits(commands_per_s=10.0)) as on:
        flood, connection = FLOODS[kind], on.connection
        frames = 0
        while not connection._must_pause and frames < 1_000:
            flood(connection)
            frames += 1
            while connection.take() is not None:  # the client reads its answers
                pass
        assert 20 <= frames <= 40  # a burst, and what the machine let pass meanwhile
        assert not connection.has_room
        await connection.wait_for_room()
        assert not connection._must_pause


def test_what_exceeds_a_rate_is_due_one_after_the_other_over_all_connections() -> None:
    now = [50.0]
    rate = RateLimit(10.0, lambda: now[0])
    assert [round(rate.exceed(), 3) for _ in range(3)] == [0.1, 0.2, 0.3]
    now[0] += 10
    assert round(rate.exceed(), 3) == 0.1
    assert RateLimit(None, lambda: now[0]).exceed() == 0.0


@pytest.mark.parametrize("kind", ["pings", "pongs", "empty lines"])
async def test_before_the_hello_a_handful_of_frames_is_read(kind: str) -> None:
    async with bare() as on:
        early = Bare(on.service)
        for _ in range(HELLO_FRAMES):
            FLOODS[kind](early.connection)
        assert not early.connection.is_closing
        FLOODS[kind](early.connection)
        assert early.connection.is_closing
        last = [decode_from_server(frame) for frame in iter(early.connection.take, None)][-2:]
        assert [type(message) for message in last] == [w.Error, w.Goodbye]
        early.connection.close()


async def test_readers_leave_the_loop_to_others_and_have_their_turns_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, passes, turns, order = [0.0], [0], ReadingTurns(), list[int]()
    monkeypatch.setattr(intake, "perf_counter", lambda: now[0])

    async def read(number: int) -> None:
        for _ in range(4):
            while not turns.has_time:
                await turns.wait()
                break
            since = now[0]
            now[0] += intake.PASS_S  # a slow frame
            turns.spend(since)
            order.append(number)

    async def others() -> None:
        while True:
            passes[0] += 1
            await asyncio.sleep(0)

    watching = asyncio.ensure_future(others())
    async with asyncio.timeout(100):
        await asyncio.gather(*(read(number) for number in range(40)))
    watching.cancel()
    assert sorted(order) == sorted(list(range(40)) * 4)
    # At most so many frames in one pass, and nobody has three before another one has one.
    assert passes[0] >= 4 * 40 / intake.WOKEN_AT_ONCE
    assert set(order[:80]) == set(range(40))


# Bytes.


def test_bytes_are_bounded_for_one_client_and_in_all_and_given_back() -> None:
    chance, taken = random.Random(5), list[tuple[object, int]]()
    incoming, refused = IncomingBytes(1000, 400), 0
    for _ in range(3000):
        if taken and chance.random() < 0.5:
            incoming.give_back(*taken.pop(chance.randrange(len(taken))))
            continue
        charge: tuple[object, int] = (chance.choice("abcd"), chance.randrange(1, 200))
        try:
            incoming.take(*charge)
        except Overloaded:
            refused += 1
        else:
            taken.append(charge)
        assert incoming.bytes == sum(size for _, size in taken) <= 1000
        for key in "abcd":
            assert sum(size for owner, size in taken if owner == key) <= 400
    assert refused
    for charge in taken:
        incoming.give_back(*charge)
    assert (incoming.bytes, dict(incoming._by_key)) == (0, {})


LIMITS = Limits(
    frame_bytes=200_000, incoming_bytes=300_000, incoming_bytes_per_client=250_000, hello_s=30.0
)


async def hold(path: str, size: int, hello: bytes = HELLO) -> Raw:
    """A peer that has sent *size* bytes of a frame that does not end."""
    peer = Raw(*await asyncio.open_unix_connection(path, limit=1 << 20))
    await peer.say(hello)
    await peer.hear_a(w.Welcome)
    await peer.say(b" " * size)
    return peer


async def test_frames_that_do_not_end_are_bounded_in_sum_and_given_back(tmp_path: Path) -> None:
    path = f"{tmp_path}/s.sock"
    async with serving(f"unix:{path}", lambda *_: "fine", limits=LIMITS) as served:
        service = served.service
        async with connect(f"unix:{path}") as other:
            session = await other.create(CONFIG, session_id="s")
            peers = [await hold(path, 140_000) for _ in range(2)]
            await until(lambda: service.statistics().incoming_bytes == 2 * (140_000 - FREE_BYTES))
            third = await hold(path, 140_000)
            error, goodbye = await third.hear_all()
            assert isinstance(error, w.Error)
            assert (error.code, bool(error.retry_after_s)) == ("Overloaded", True)
            assert isinstance(goodbye, w.Goodbye)
            assert goodbye.retry_after_s
            # Commands of the usual size are taken whatever others hold.
            assert await (await session.send("x" * 10_000)).text() == "fine"
            await peers[0].close()
            await until(lambda: service.statistics().incoming_bytes == 140_000 - FREE_BYTES)
            await peers[1].say(b"\n")
            await until(lambda: service.statistics().incoming_bytes == 0)
            assert await (await session.send("x" * 150_000)).text() == "fine"
            for peer in (peers[1], third):
                await peer.close()


class ByName:
    """A token is the name of its tenant."""

    def authenticate(self, credentials: Credentials) -> str | None:
        return credentials.token


async def test_a_tenant_has_a_budget_of_bytes_for_all_of_its_connections(tmp_path: Path) -> None:
    path = f"{tmp_path}/s.sock"
    limits = msgspec.structs.replace(LIMITS, incoming_bytes_per_client=200_000)
    async with serving(f"unix:{path}", limits=limits, authenticator=ByName()) as served:
        anna, ben = (encode(w.Hello(versions=(2,), token=name)) + b"\n" for name in ("anna", "ben"))
        first = await hold(path, 140_000, anna)
        await until(lambda: served.service.statistics().incoming_bytes > 0)
        second = await hold(path, 140_000, anna)
        assert isinstance((await second.hear_all())[0], w.Error)
        third = await hold(path, 140_000, ben)
        held = 2 * (140_000 - FREE_BYTES)
        await until(lambda: served.service.statistics().incoming_bytes == held)
        for peer in (first, second, third):
            await peer.close()


@pytest.mark.parametrize("kind", ["unix", "grpc"])
async def test_large_commands_in_a_row_are_read_as_they_are_performed_and_not_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "ANSWERLESS_BYTES", 0)
    async with serving(address_of(kind, tmp_path), lambda *_: "fine", limits=LIMITS) as served:
        async with connect(served.address, overloaded_s=0) as sessions:
            session = await sessions.create(SessionConfig(model="m"), session_id="s")
            sends = [session.send("x" * 150_000) for _ in range(8)]
            for turn in await asyncio.gather(*sends):
                assert await turn.text() == "fine"
        await until(lambda: served.service.statistics().incoming_bytes == 0)


async def test_a_large_command_past_the_budget_is_overloaded_and_the_connection_stays() -> None:
    limits = Limits(incoming_bytes=100_000)
    async with bare(["fine"], limits=limits) as on:
        content = msgspec.Raw(b'"%s"' % (b"x" * 150_000))
        on.say(w.Send(id=1, session="s", content=content))
        error = await on.hear_a(w.Error)
        assert (error.id, error.code, bool(error.retry_after_s)) == (1, "Overloaded", True)
        on.say(w.Status(id=2, session="s"))
        await on.hear_a(w.Reply)


async def test_what_a_command_held_is_given_back_however_it_ends() -> None:
    async with bare(lambda *_: never()) as on:
        padding = b" " * 50_000

        def incoming() -> int:
            return on.service.statistics().incoming_bytes

        on.say(w.Send(id=1, session="s", content=msgspec.Raw(b'"hi"')))
        await on.hear_a(w.Reply)
        other = Bare(on.service)
        other.say(w.Hello(versions=(2,)))
        await other.hear_a(w.Welcome)
        for id, frame in enumerate(
            (
                b'{"type":"outcome","id":%d,"session":"s","turn":1}',
                b'{"type":"status","id":%d,"session":"s"}',
                b'{"type":"status","id":%d,"session":"none"}',
                b'{"type":"subscribe","id":%d,"session":"s"}',
                b'{"type":"unsubscribe","id":%d,"subscription":3}',
                b'{"type":"list","id":%d}',
            )
        ):
            other.connection.receive(frame % id + padding)
        held: Any = intake.excess_of(len(padding))
        await until(lambda: held <= incoming() < 2 * held)  # who waits for the outcome
        other.connection.close()
        await until(lambda: incoming() == 0)
        session = await on.service.manager.open("s")
        await session.interrupt()


# Connections without a hello.


def test_of_one_peer_a_few_connections_wait_for_their_hello_and_the_oldest_makes_room() -> None:
    now, dropped = [10.0], list[int]()
    pending = PendingHellos(5, 3, lambda: now[0])

    def enter(peer: str, number: int) -> PendingHello:
        return pending.enter(peer, lambda: dropped.append(number))

    first = [enter(f"10.0.0.1:{number}", number) for number in range(3)]
    with pytest.raises(Overloaded) as caught:
        enter("10.0.0.1:9", 9)
    assert caught.value.retry_after_s
    now[0] += intake.PATIENCE_S
    enter("10.0.0.1:3", 3)
    assert dropped == [0]
    first[1].leave()
    first[1].leave()
    assert pending.count == 2
    others = [enter(f"10.0.0.2:{number}", 20 + number) for number in range(3)]
    with pytest.raises(Overloaded):  # of all peers
        enter("10.0.0.3:1", 30)
    for place in (*first, *others):
        place.leave()
    assert (pending.count, dropped) == (1, [0])


@pytest.mark.parametrize("kind", ["unix", "tcp", "grpc"])
async def test_connections_without_a_hello_take_no_place_from_clients(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "PATIENCE_S", 0.0)
    limits = Limits(connections=2, connections_before_hello=2, hello_s=50.0)
    async with serving(address_of(kind, tmp_path), limits=limits) as served:
        statistics, closing = served.service.statistics, []
        for _ in range(6):
            closing.append(await silent_at(served.address))
            await until(lambda: statistics().connected == len(closing))
            await until(lambda: statistics().connections <= 2)
        async with connect(served.address) as one, connect(served.address) as two:
            assert await one.list() == await two.list() == ()
            with pytest.raises(Overloaded):
                async with connect(served.address):
                    pass
        for close in closing:
            await close()


async def silent_at(address: str) -> Callable[[], Any]:
    """A connection that says nothing; returns how to close it."""
    parsed = parse_address(address)
    if parsed.scheme == "grpc":
        channel = grpc.aio.insecure_channel(f"{parsed.host}:{parsed.port}", channel_options())
        call: Any = SessionServiceStub(channel).Connect()
        await call.wait_for_connection()
        return channel.close
    if parsed.scheme == "unix":
        peer = Raw(*await asyncio.open_unix_connection(parsed.path))
    else:
        peer = Raw(*await asyncio.open_connection(parsed.host, parsed.port))
    return peer.close


async def test_a_command_past_the_rate_is_refused_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with bare(limits=Limits(commands_per_s=10.0)) as on:
        connection, read = on.connection, list[bytes]()

        def noting(frame: bytes) -> Any:
            read.append(frame)
            return decode_from_client(frame)

        monkeypatch.setattr(connection_module, "decode_from_client", noting)
        for id in range(60):
            connection.receive(b'{"type":"status","session":"none","color":1,"id":%d}' % id)
        refused = [decode_from_server(frame) for frame in iter(connection.take, None)]
        too_many = [m for m in refused if isinstance(m, w.Error) and m.code == "Overloaded"]
        assert len(too_many) == 60 - len(read) >= 30
        assert {m.id for m in too_many} <= set(range(60))
        assert all(m.retryable and m.retry_after_s == 0.1 for m in too_many)
        assert on.service.admission.overloaded == len(too_many)
        # What is no command is answered as ever.
        connection.receive(b'{"type":"ping"}')
        assert [type(decode_from_server(f)) for f in iter(connection.take, None)] == [w.Pong]


def test_a_rate_that_is_dry_fills_again() -> None:
    now = [50.0]
    rate = RateLimit(10.0, lambda: now[0])
    assert [rate.take() for _ in range(20)] == [None] * 20
    assert rate.is_dry
    assert rate.is_dry  # asking takes nothing
    now[0] += 0.1001
    assert not rate.is_dry
    assert rate.take() is None
    assert not RateLimit(None, lambda: now[0]).is_dry
