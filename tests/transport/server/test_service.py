"""Limits, tenants, backpressure, and the orderly end of a service."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import itertools
import os
import socket
import stat
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from llmsession import (
    InvalidInput,
    KeyReused,
    LLMSession,
    MemoryStore,
    Overloaded,
    SessionConfig,
    SessionInUse,
    SessionManager,
    SessionMoved,
    connect,
    records,
)
from llmsession.session.manager import runtime_of
from llmsession.testing import ScriptedProvider
from llmsession.testing.scripted import Script, never, say
from llmsession.transport import GrpcServer, Limits, Service, SocketServer
from llmsession.transport.server import socket_server
from llmsession.transport.wire import messages as w
from tests.transport.places import CONFIG, place_at, serving, unserved, until
from tests.transport.server.test_fuzz import HELLO, Raw

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]


# Limits.


@pytest.mark.parametrize("transport", [SocketServer, GrpcServer])
async def test_a_service_that_was_not_entered_says_so_where_it_is_used(
    transport: Any, tmp_path: Path
) -> None:
    async with SessionManager(provider=ScriptedProvider([])) as manager:
        service = Service(manager)
        with pytest.raises(InvalidInput, match=r"^enter the Service first: async with Service"):
            service.connect("peer", lambda: None)
        address = f"unix:{tmp_path / 's'}" if transport is SocketServer else "grpc://127.0.0.1:0"
        with pytest.raises(InvalidInput, match=r"^enter the Service first: async with Service"):
            async with transport(service, address):
                pass


async def test_too_many_connections_are_refused_with_a_hint() -> None:
    async with place_at("unix", limits=Limits(connections=2)) as place:
        async with place.connect():
            with pytest.raises(Overloaded) as caught:
                async with place.connect():
                    pass
            assert caught.value.retry_after_s
        await until(lambda: place.service.statistics().connections == 1)
        async with place.connect() as again:
            assert await again.list() == ()


async def test_too_many_commands_a_second_are_refused_with_a_hint() -> None:
    async with place_at("unix", limits=Limits(commands_per_s=5.0), overloaded_s=0) as place:
        session = await place.session()
        asked = [asyncio.ensure_future(session.read_status()) for _ in range(15)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        hints = [each.retry_after_s for each in answers if isinstance(each, Overloaded)]
        assert 0 < len(hints) < 15
        assert all(hint is not None and 0 < hint <= 0.2 for hint in hints)


async def test_the_first_command_beyond_its_rate_is_refused_too() -> None:
    async with place_at("unix", limits=Limits(commands_per_s=0.01)) as place:
        client: Any = SimpleNamespace(
            rate_key=object(), slow_down=lambda pause_s: None, open_requests=1
        )
        place.service.admission.check(client, w.Status(id=1, session="s"))
        with pytest.raises(Overloaded):
            place.service.admission.check(client, w.Status(id=2, session="s"))


async def test_hosts_of_a_cluster_share_the_rate_of_a_tenant_and_not_that_of_a_connection() -> None:
    async with place_at("unix", limits=Limits(commands_per_s=8.0)) as place:
        admission, names = place.service.admission, itertools.count()

        def burst(key: object) -> int:
            """How many commands are let in at once."""
            client: Any = SimpleNamespace(rate_key=key, slow_down=lambda pause_s: None)
            return next(count for count in range(100) if admission.count_frame(client) is not None)

        client: Any = SimpleNamespace(rate_key="acme", slow_down=lambda pause_s: None)
        admission.count_frame(client)
        await until(lambda: burst(f"tenant {next(names)}") == burst(object()) == 16)
        admission.router = cast(Any, SimpleNamespace(hosts_up=4))
        await until(lambda: burst(f"tenant {next(names)}") == 4)
        assert burst("acme") < 16, "it had a rate before there were so many hosts"
        await until(lambda: burst(object()) == 16)
        admission.router = cast(Any, SimpleNamespace(hosts_up=0))  # as long as it joins
        await until(lambda: burst(f"tenant {next(names)}") == 16)
        admission.router = cast(Any, SimpleNamespace(hosts_up=1_000))
        await until(lambda: burst(f"tenant {next(names)}") == 1)
        admission.router = None


async def test_too_many_sessions_and_subscriptions_are_refused() -> None:
    limits = Limits(sessions_per_connection=1, subscriptions_per_connection=1)
    async with place_at("unix", limits=limits, overloaded_s=0) as place:
        session = await place.session()
        with pytest.raises(Overloaded, match="sessions are in use"):
            await place.sessions.create(CONFIG, session_id="t")
        with pytest.raises(Overloaded, match="sessions are in use"):
            await session.fork()
        assert [row.session for row in await place.sessions.list()] == ["s"]
        await session.read_status()
        one = session.subscribe(after=0)
        await anext(one)
        with pytest.raises(Overloaded):
            await anext(session.subscribe(after=0))
        one.close()
        two = session.subscribe(after=0)
        await anext(two)
        two.close()


async def test_sessions_that_are_being_made_count_as_used() -> None:
    limits = Limits(sessions_per_connection=3)
    async with place_at("unix", limits=limits, overloaded_s=0) as place:
        makings = [place.sessions.create(CONFIG) for _ in range(8)]
        made = await asyncio.gather(*makings, return_exceptions=True)
        assert sum(isinstance(each, Overloaded) for each in made) == 5
        assert len(await place.sessions.list()) == 3


async def test_too_many_open_turns_are_refused_and_interrupts_are_not() -> None:
    limits = Limits(open_turns=3)
    async with place_at(
        "unix", lambda request, tag: never(), limits=limits, overloaded_s=0
    ) as place:
        session = await place.session()
        for _ in range(3):
            await session.send("hi")
        with pytest.raises(Overloaded):
            await session.send("hi")
        await session.interrupt()
        await asyncio.sleep(0.3)  # counted again
        await session.send("hi")
        await session.interrupt()


@pytest.mark.parametrize("anyio_backend", [("asyncio", {})])  # a clock that sees it
async def test_a_service_that_runs_late_takes_no_new_turns_and_says_so() -> None:
    async with place_at("unix", [never()], limits=Limits(max_lag_s=0.05), overloaded_s=0) as place:
        await place.manager.create(CONFIG, session_id="s")
        session, turn = await place.sessions.open("s"), None
        while turn is None:
            with suppress(Overloaded):  # the machine may hold it up, too
                turn = await session.send("hi")
        loop = asyncio.get_running_loop()
        late = loop.time() + 0.4
        while loop.time() < late:
            pass
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="late") as caught:
            for _ in range(100):
                await session.send("ho", command_id="c")
                await session.interrupt()
        assert caught.value.retry_after_s
        await session.interrupt(turn.id)


# Backpressure.


@asynccontextmanager
async def stopped_peers(
    folder: Path, script: Script, outgoing_bytes: int, many: int = 1
) -> AsyncIterator[tuple[Service, LLMSession, list[Raw]]]:
    """A service with a session, and *many* peers that have said hello and do not read."""
    path = f"{folder}/s.sock"
    limits = Limits(outgoing_bytes=outgoing_bytes)
    async with serving(f"unix:{path}", script, limits=limits) as served:
        session = await served.manager.create(CONFIG, session_id="s")
        peers = [Raw(*await asyncio.open_unix_connection(path, limit=1 << 26)) for _ in range(many)]
        for peer in peers:
            await peer.say(HELLO)
            await peer.hear_a(w.Welcome)
            peer.transport.pause_reading()
        yield served.service, session, peers
        for peer in peers:
            peer.transport.abort()


async def test_a_subscriber_that_stops_reading_costs_bounded_bytes_and_then_lags(
    tmp_path: Path,
) -> None:
    script = lambda request, tag: say("x" * 20_000).slow(0.0, delta_chars=200)  # noqa: E731
    async with stopped_peers(tmp_path, script, 200_000) as (service, session, (peer,)):
        await peer.say(b'{"type":"subscribe","id":1,"session":"s","after":0}\n')
        most = 0
        for _ in range(120):
            await (await session.send("go on")).outcome()
            most = max(most, service.statistics().outgoing_bytes)
        print(f"{session.status().seq} records, at most {most:,} bytes waited")
        assert most <= 200_000
        statistics = service.statistics()
        assert statistics.lagged == 1
        assert statistics.previews_lost > 0
        assert statistics.subscriptions == 0
        peer.transport.resume_reading()
        seqs, cursor = [], None
        while cursor is None:
            message = await peer.hear()
            if isinstance(message, w.Event) and message.seq:
                seqs.append(message.seq)
            elif isinstance(message, w.Lagged):
                cursor = message.cursor
        assert seqs == list(range(1, cursor + 1))
        # Again after the cursor: the log has the rest, however slowly it is read.
        await peer.say(b'{"type":"subscribe","id":2,"session":"s","after":%d}\n' % cursor)
        while seqs[-1] < session.status().seq:
            message = await peer.hear()
            if isinstance(message, w.Event) and message.seq:
                seqs.append(message.seq)
        assert seqs == list(range(1, session.status().seq + 1))


async def test_a_reader_of_a_long_log_that_stops_costs_bounded_bytes(tmp_path: Path) -> None:
    async with stopped_peers(tmp_path, (), 400_000, many=4) as (service, session, peers):
        for number in range(2000):
            await session.label({f"name {n}": f"{number}" * 60 for n in range(8)})
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for peer in peers:
                for number in range(5):
                    frame = b'{"type":"subscribe","id":%d,"session":"s","after":0}\n'
                    await peer.say(frame % number)
            await asyncio.sleep(0.5)
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        outgoing = service.statistics().outgoing_bytes
        print(f"4 readers that stopped: {outgoing:,} bytes wait, {grown:,} in all")
        assert outgoing <= 4 * 400_000
        assert grown < 12_000_000  # the log is as large five times over
        assert service.statistics().lagged == 0


async def test_answers_that_nobody_reads_stop_the_reading_of_commands(tmp_path: Path) -> None:
    script = lambda request, tag: "y" * 30_000  # noqa: E731
    async with stopped_peers(tmp_path, script, 300_000) as (service, session, (peer,)):
        await (await session.send("hi")).outcome()
        frame = b'{"type":"conversation","id":%d,"session":"s"}' + b" " * 1000 + b"\n"
        peer.writer.write(b"".join(frame % number for number in range(2000)))
        await asyncio.sleep(0.5)
        assert 0 < service.statistics().outgoing_bytes < 300_000
        assert service.statistics().commands < 400
        peer.transport.resume_reading()
        replies = [await peer.hear() for _ in range(2000)]
        assert [reply.id for reply in replies if isinstance(reply, w.Reply)] == list(range(2000))


async def test_a_command_that_is_answered_at_once_is_not_read_before_its_answer_has_room(
    tmp_path: Path,
) -> None:
    script = lambda request, tag: "hello"  # noqa: E731
    async with stopped_peers(tmp_path, script, 300_000) as (service, _, (peer,)):
        frame = b'{"type":"status","id":%d,"session":"s"}' + b" " * 1000 + b"\n"
        peer.writer.write(b"".join(frame % number for number in range(2000)))
        await until(lambda: service.statistics().outgoing_bytes > 60_000)
        for _ in range(2000):  # in so many passes all of them could be read
            await asyncio.sleep(0)
        assert service.statistics().open_requests == 0
        assert service.statistics().commands < 2000
        assert service.statistics().outgoing_bytes < 150_000


# Its end.


async def test_a_service_that_drains_takes_no_new_turns_and_ends_the_open_ones() -> None:
    async with place_at("unix", [say("done").slow(0.05)], overloaded_s=0) as place:
        session = await place.session()
        turn = await session.send("hi")
        draining = asyncio.ensure_future(place.service.drain(10))
        await asyncio.sleep(0.01)
        with pytest.raises(Overloaded, match="goes down"):
            await session.send("ho")
        with pytest.raises(Overloaded):
            await place.sessions.create(CONFIG)
        assert await turn.text() == "done"
        assert await draining == ()


async def test_a_session_that_nobody_uses_is_let_go_and_comes_back(monkeypatch: Any) -> None:
    from llmsession.transport.server import service as module

    monkeypatch.setattr(module, "DETACH_IDLE_S", 0.1)
    async with place_at("unix", ["one"]) as place:
        session = await place.session()
        await session.read_status()
        service = place.service
        await until(lambda: service.statistics().sessions == 0)
        await runtime_of(place.manager).evict_idle()
        assert place.manager.live == ()
        assert await (await session.send("hi")).text() == "one"


async def test_clients_of_a_service_that_lost_a_session_to_another_are_told_by_name() -> None:
    store = MemoryStore()
    async with (
        place_at("unix", [never()], store=store) as here,
        place_at("unix", ["theirs"], store=store) as there,
    ):
        session = await here.session()
        turn, events = await session.send("hi"), session.subscribe(after=0)
        waiting = asyncio.ensure_future(turn.outcome())
        await anext(events)
        with pytest.raises(SessionInUse):
            await there.sessions.open("s")
        taken = await there.sessions.open("s", takeover=True)
        assert (await taken.turn(1).outcome()).stop_reason == "crash"
        with pytest.raises(SessionMoved):
            await session.send("too late")
        with pytest.raises(SessionMoved):
            await waiting
        with pytest.raises(SessionMoved):
            await session.turn(1).outcome()  # asked after it was lost
        assert (await session.read_status()).phase == "moved"
        kinds = [type(event) async for event in events]
        assert records.TurnAborted not in kinds  # the other one wrote that
        assert await (await taken.send("hi")).text() == "theirs"


# The socket.


async def test_the_socket_is_its_owners_alone_and_goes_with_the_service(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    async with unserved() as service:
        async with SocketServer(service, f"unix:{path}"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            with pytest.raises(InvalidInput, match="somebody listens there"):
                async with SocketServer(service, f"unix:{path}"):
                    pass
            async with connect(f"unix:{path}") as sessions:
                assert await sessions.list() == ()
        assert not path.exists()


async def test_a_socket_that_was_left_behind_is_replaced_and_a_file_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    assert path.exists()
    async with unserved() as service:
        async with SocketServer(service, f"unix:{path}"), connect(f"unix:{path}") as sessions:
            assert await sessions.list() == ()
        path.write_text("precious")
        with pytest.raises(InvalidInput, match="no socket"):
            async with SocketServer(service, f"unix:{path}"):
                pass
        assert path.read_text() == "precious"
        for wrong in (f"unix:{tmp_path}/no/s.sock", f"unix:{tmp_path}/{'x' * 200}"):
            with pytest.raises(InvalidInput, match="cannot listen"):
                async with SocketServer(service, wrong):
                    pass
        with pytest.raises(InvalidInput):
            SocketServer(service, "grpc://127.0.0.1:0")


async def test_a_start_does_not_hang_where_the_sockets_folder_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_server, "MAX_LOCK_S", 0.05)
    address = f"unix:{tmp_path / 's.sock'}"
    held = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(held, fcntl.LOCK_EX)
    async with unserved() as service:
        with pytest.raises(InvalidInput, match=f"{tmp_path}.*another process holds the lock"):
            async with SocketServer(service, address):
                pass
        os.close(held)
        async with SocketServer(service, address), connect(address) as sessions:
            assert await sessions.list() == ()


async def test_two_hundred_clients_connect_at_once() -> None:
    limits = Limits(max_lag_s=30.0)
    async with place_at("unix", lambda request, tag: "hello", limits=limits) as place:

        async def live(number: int) -> None:
            async with place.connect() as sessions:
                session = await sessions.create(SessionConfig(model="m"), session_id=f"c{number}")
                assert await (await session.send("hi")).text() == "hello"

        await asyncio.gather(*(live(number) for number in range(200)))
        service = place.service
        await until(lambda: service.statistics().connections == 1)


async def test_a_repeat_on_another_connection_is_the_same_command() -> None:
    async with place_at("unix", ["one", "two"]) as place, place.connect() as other:
        session = await place.session()
        there = await other.open("s")
        turns = await asyncio.gather(
            session.send("hi", command_id="c"), there.send("hi", command_id="c")
        )
        assert {turn.id.number for turn in turns} == {1}
        with pytest.raises(KeyReused):
            await there.send("ho", command_id="c")
        assert msgspec.json.encode(await turns[0].outcome()) == msgspec.json.encode(
            await turns[1].outcome()
        )


async def test_an_error_that_nobody_waits_for_any_more_is_no_complaint_of_the_loop() -> None:
    complaints: list[dict[str, Any]] = []
    async with place_at("unix", [never()]) as at:
        session = await at.sessions.create(CONFIG)
        await session.send("hi")
        asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
        waiting = asyncio.ensure_future(session.clear())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        del waiting  # its traceback holds the answer
        await session.read_status()  # answered in their order
        gc.collect()
        assert complaints == []
        await session.interrupt()
