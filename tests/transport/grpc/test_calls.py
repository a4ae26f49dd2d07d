"""The calls of SessionService, as a program with generated stubs makes them."""

from __future__ import annotations

import asyncio
import gc
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from llmsession import (
    InvalidInput,
    MemoryStore,
    Overloaded,
    SessionManager,
    Unauthenticated,
    connect,
)
from llmsession.store import SessionRow
from llmsession.testing.scripted import ScriptedProvider, call, never, say
from llmsession.transport import Credentials, GrpcServer, Limits, Service
from llmsession.transport.grpc.calls import SINGLE_COMMANDS, call_of
from llmsession.transport.grpc.decoding import MAX_FIELDS, decode_message
from llmsession.transport.v1 import session_pb2
from llmsession.transport.v1.session_pb2 import Command, Envelope, Frames
from llmsession.transport.v1.session_pb2_grpc import SessionServiceStub
from llmsession.transport.wire import messages as w
from llmsession.transport.wire.framing import decode_from_server, encode
from tests.transport.places import CONFIG, Served, serving, until

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]

HELLO = encode(w.Hello(versions=(w.VERSION,)))


class Stubs:
    """A program that has nothing but the generated code."""

    def __init__(self, served: Served) -> None:
        self.manager = served.manager
        self.service = served.service
        self.server = served.server
        self.channel = grpc.aio.insecure_channel(served.address.removeprefix("grpc://"))
        self.calls: Any = SessionServiceStub(self.channel)

    async def ask(self, name: str, session: str = "s", **fields: Any) -> Envelope:
        command_id = fields.pop("command_id", "")
        body = json.dumps(fields).encode() if fields else b""
        command = Command(session=session, command_id=command_id, body=body)
        answer: Envelope = await getattr(self.calls, name)(command)
        return answer


@asynccontextmanager
async def stubs(script: Any = (), **service: Any) -> AsyncIterator[Stubs]:
    """A service with a session ``s``, on gRPC."""
    async with serving("grpc://127.0.0.1:0", script, **service) as served:
        await served.manager.create(CONFIG, session_id="s")
        on = Stubs(served)
        try:
            yield on
        finally:
            await on.channel.close()


async def status_of(asked: Any) -> tuple[grpc.StatusCode, str, Any, Any]:
    """Code and text of the failure of *asked*, its ErrorInfo and its RetryInfo."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asked
    error = caught.value
    info = retry = None
    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # as the documentation says
    for detail in status.details if status else ():
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            info = error_details_pb2.ErrorInfo()
            detail.Unpack(info)
        else:
            retry = error_details_pb2.RetryInfo()
            assert detail.Unpack(retry)
    return error.code(), error.details() or "", info, retry


async def heard_on(stream: Any) -> list[w.FromServer]:
    """All messages up to the end of *stream*."""
    heard: list[w.FromServer] = []
    while (message := await stream.read()) is not grpc.aio.EOF:
        heard += map(decode_from_server, message.frames)
    return heard


# Single commands.


def test_every_command_of_the_wire_is_a_call_and_the_other_way_round() -> None:
    service = session_pb2.DESCRIPTOR.services_by_name["SessionService"]
    calls = {method.name for method in service.methods}
    assert calls == {*map(call_of, SINGLE_COMMANDS), "Connect", "Subscribe"}
    assert {*SINGLE_COMMANDS, w.Subscribe, w.Unsubscribe} == set(w.COMMANDS)


async def test_a_conversation_goes_by_single_calls() -> None:
    script = [say("I look") + call("ls", id="c1"), "two files"]
    async with stubs(script) as on:
        config = {"model": "m", "tools": [{"name": "ls"}]}
        made = await on.ask("Create", "t", config=config, command_id="c1")
        assert (made.session, made.kind) == ("t", "create")
        sent = await on.ask("Send", "t", content="look", command_id="c2")
        assert (sent.session, sent.kind, sent.turn, sent.body) == ("t", "send", 1, b'{"turn":1}')
        again = await on.ask("Send", "t", content="look", command_id="c2")
        assert again.turn == 1
        held = await on.manager.open("t")
        await until(lambda: bool(held.open_calls()))
        offered = json.loads((await on.ask("OpenCalls", "t")).body)
        assert [use["id"] for use in offered] == ["c1"]
        await on.ask("Submit", "t", results=[{"call_id": "c1", "content": "a b"}])
        ended = await on.ask("Outcome", "t", turn=1)
        assert (ended.turn, json.loads(ended.body)["stop_reason"]) == (1, "end_turn")
        page = json.loads((await on.ask("Conversation", "t", limit=2)).body)
        assert (len(page["messages"]), page["next"]) == (2, 2)
        for name in ("Context", "Status", "Usage", "Summary", "Compact"):
            assert (await on.ask(name, "t")).kind == name.lower()
        fork = await on.ask("Fork", "t", fork="f")
        assert fork.session == "f"
        await on.ask("Label", "t", labels={"a": "b"})
        await on.ask("Configure", "t", changes={"model": "n"})
        await on.ask("Rewind", "t", to=0)
        await on.ask("Clear", "t", purge=True)
        rows = msgspec.json.decode((await on.ask("List", "")).body, type=list[SessionRow])
        assert [row.session for row in rows] == ["f", "s", "t"]
        await on.ask("CloseSession", "t")
        assert (await on.ask("Open", "t")).session == "t"
        assert (await on.ask("Delete", "t")).body == b"null"
        assert on.service.statistics().connections == 1  # of all these calls


async def test_an_error_is_a_status_with_the_errors_name_and_attributes() -> None:
    async with stubs([never()]) as on:
        code, text, info, retry = await status_of(on.ask("Status", "none"))
        assert (code, text) == (grpc.StatusCode.NOT_FOUND, "no session 'none' in this store")
        assert (info.reason, info.domain) == ("SessionNotFound", "llmsession")
        assert retry is None
        await on.ask("Send", content="hi", command_id="c")
        code, _, info, _ = await status_of(on.ask("Send", content="ho", command_id="c"))
        assert (code, info.reason) == (grpc.StatusCode.ALREADY_EXISTS, "KeyReused")
        assert json.loads(info.metadata["command_id"]) == "c"
        code, _, info, _ = await status_of(on.ask("Send", content="x", expected_head=7))
        assert (code, info.reason) == (grpc.StatusCode.ABORTED, "HeadMoved")
        await on.ask("Interrupt")


async def test_a_limit_says_when_to_come_back() -> None:
    async with stubs(limits=Limits(commands_per_s=0.5)) as on:
        await on.ask("Status")
        code, _, info, retry = await status_of(on.ask("Status"))
        assert (code, info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "Overloaded")
        assert 0 < retry.retry_delay.ToNanoseconds() <= 2e9
        assert info.metadata["retryable"] == "true"


async def test_a_call_that_is_cancelled_or_too_late_takes_nothing_back() -> None:
    async with stubs([say("done").slow(0.3), never()]) as on:
        await on.ask("Send", content="hi")
        waiting = on.calls.Outcome(Command(session="s", body=b'{"turn":1}'))
        await asyncio.sleep(0.02)
        assert waiting.cancel()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await on.calls.Outcome(Command(session="s", body=b'{"turn":1}'), timeout=0.02)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        session = await on.manager.open("s")
        assert await session.turn(1).text() == "done"
        watching = on.calls.Subscribe(Command(session="s"))
        await watching.read()
        await on.ask("Send", content="ho")
        watching.cancel()
        await until(lambda: on.service.statistics().subscriptions == 0)
        assert session.status().phase != "idle"
        await on.ask("Interrupt")


async def test_a_wait_that_its_client_gives_up_ends_at_the_service() -> None:
    async with stubs(lambda *_: never()) as on:
        await on.ask("Send", content="hi")
        body = json.dumps({"turn": 1}).encode() + b" " * 50_000
        for _ in range(3):
            waiting = on.calls.Outcome(Command(session="s", body=body))
            await until(lambda: on.service.statistics().open_requests == 1)
            waiting.cancel()
            await until(lambda: on.service.statistics().open_requests == 0)
        await until(lambda: on.service.statistics().incoming_bytes == 0)
        late = on.calls.Outcome(Command(session="s", body=body), timeout=0.05)
        assert (await status_of(late))[0] is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: on.service.statistics().open_requests == 0)
        waiting = on.calls.Outcome(Command(session="s", body=body))
        await on.ask("Interrupt")
        assert json.loads((await waiting).body)["status"] == "aborted"
        assert on.service.statistics().open_requests == 0


async def test_bodies_that_are_wrong_are_refused_and_named() -> None:
    async with stubs() as on:
        for body in (
            b"{", b"[]", b'"x"', b"7", b"null", b"\xff\xfe", b"[" * 90_000,
            b'{"content":"\xc3\x28"}',
            b'{"a":' * 50_000, b'{"type":"delete"}', b'{"session":"t","content":"x"}',
            b'{"id":1,"content":"x"}', b'{"command_id":"c","content":"x"}', b'{"content":5}',
            b'{"content":"x","color":"red"}', b'{"content":"x","when_busy":"never"}', b"{}", b"",
        ):  # fmt: skip
            asked = on.calls.Send(Command(session="s", body=body))
            code, text, info, _ = await status_of(asked)
            assert code is grpc.StatusCode.INVALID_ARGUMENT, body[:40]
            assert info.reason in ("InvalidInput", "InvalidMessage")
            assert text
        code, *_ = await status_of(on.calls.Status(Command(session="s", command_id="c")))
        assert code is grpc.StatusCode.INVALID_ARGUMENT  # it takes none
        sent = await on.calls.Send(Command(session="s", body=b'{"content":"a\\ud800"}'))
        assert sent.turn == 1
        bodies = [row.body for row in await on.manager.store.read("s")]
        assert sum(b"a\xef\xbf\xbd" in body for body in bodies) == 1


async def test_random_envelopes_are_answered_and_leave_nothing_behind() -> None:
    chance = random.Random(11)
    bodies = [
        b'{"content":"x"}', b'{"after":0}', b'{"turn":1}', b'{"limit":3}', b'{"to":0}', b"{}",
        b'{"labels":{"a":"b"}}', b'{"results":[{"call_id":"c","content":"x"}]}',
    ]  # fmt: skip

    fitting = {"Send": bodies[0], "Rewind": bodies[4], "Label": bodies[6]}

    def mangled(name: str) -> Command:
        # Or hardly one would be right; about 12 of the 500 are answered with OK.
        fits = chance.random() < 0.5
        body = bytearray(fitting.get(name, b"{}") if fits else chance.choice(bodies))
        for _ in range(chance.choice((0, 0, 1, 2, 3))):
            at = chance.randrange(len(body) + 1)
            match chance.randrange(3):
                case 0:
                    body[at:at] = bytes(chance.choices(b'{}[]",:\\\xff0e\x00', k=2))
                case 1:
                    del body[at : at + 3]
                case _:
                    body[at : at + 1] = bytes([chance.randrange(256)])
        session = chance.choice(["s", "s", "", "none", "\x00", "x" * 300])
        return Command(session=session, command_id=chance.choice(["", "c", "\n"]), body=bytes(body))

    calls = [
        name
        for name in map(call_of, SINGLE_COMMANDS)
        if name not in ("CloseSession", "Delete", "Outcome")
    ]
    codes: set[grpc.StatusCode] = set()
    async with stubs(lambda request, tag: "fine") as on:

        async def attack() -> None:
            name = chance.choice(calls)
            try:
                await getattr(on.calls, name)(mangled(name), timeout=100)
                codes.add(grpc.StatusCode.OK)
            except grpc.aio.AioRpcError as error:
                codes.add(error.code())

        for _ in range(20):
            await asyncio.gather(*(attack() for _ in range(25)))
        assert grpc.StatusCode.OK in codes
        told = {
            grpc.StatusCode.INTERNAL,
            grpc.StatusCode.UNKNOWN,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        }
        assert not codes & told
        statistics = on.service.statistics()
        assert (statistics.open_requests, statistics.connections) == (0, 1)
        assert (await on.ask("Status")).kind == "status"


async def test_a_fault_of_ours_is_not_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with stubs() as on:

        async def broken(*_: Any) -> Any:
            raise RuntimeError("/srv/secret")

        monkeypatch.setattr(on.service.manager, "list", broken)
        code, text, _, _ = await status_of(on.ask("List", ""))
        assert code is grpc.StatusCode.INTERNAL
        assert "secret" not in text
        assert [line.message for line in caplog.records] == ["command.crashed"]


# Events.


async def test_events_are_envelopes_round_the_records_of_the_log() -> None:
    async with stubs([say("hello, friend").slow(0.01, delta_chars=4)]) as on:
        await on.ask("Send", content="hi")
        events = [
            event async for event in on.calls.Subscribe(Command(session="s", body=b'{"turn":1}'))
        ]
        assert (events[0].kind, events[0].seq) == ("subscribed", 1)
        durable = [event for event in events[1:] if event.seq]
        log = {row.seq: row.body for row in await on.manager.store.read("s")}
        assert [event.body for event in durable] == [log[event.seq] for event in durable]
        assert [event.kind for event in durable] == ["turn.accepted", "turn.committed"]
        assert {event.turn for event in durable} == {1}
        text = ""
        for event in events:
            if event.kind == "preview.text":
                assert event.offset == len(text)
                text += json.loads(event.body)["text"]
        assert text == "hello, friend"


async def test_calls_to_run_come_with_their_event() -> None:
    async with stubs([call("ls", id="c1")]) as on:
        watching = on.calls.Subscribe(Command(session="s", body=b'{"after":0}'))
        await on.ask("Configure", changes={"tools": [{"name": "ls"}]})
        await on.ask("Send", content="look")
        async for event in watching:
            if event.calls:
                break
        assert [json.loads(use)["id"] for use in event.calls] == ["c1"]
        watching.cancel()
        await on.ask("Interrupt")


async def test_a_subscription_that_cannot_be_is_an_error_of_its_call() -> None:
    async with stubs() as on:
        for session, body, reason in (
            ("none", b"{}", "SessionNotFound"),
            ("s", b'{"after":99}', "InvalidInput"),
            ("s", b'{"after":"x"}', "InvalidInput"),
        ):
            asked = on.calls.Subscribe(Command(session=session, body=body)).read()
            assert (await status_of(asked))[2].reason == reason
        await until(lambda: on.service.statistics().connections == 0)


async def test_a_subscriber_that_stops_reading_costs_bounded_bytes_and_then_lags() -> None:
    limits = Limits(outgoing_bytes=200_000)
    script = lambda request, tag: say("x" * 120_000).slow(0.0, delta_chars=6_000)  # noqa: E731
    async with stubs(script, limits=limits) as on:
        session = await on.manager.open("s")

        async def grown_by_turns() -> tuple[int, int]:
            """By how much memory grows with 150 turns, and how much waited at most."""
            gc.collect()
            before, most = resident_bytes(), 0
            for _ in range(150):
                await (await session.send("go on")).outcome()
                most = max(most, on.service.statistics().outgoing_bytes)
            gc.collect()
            return resident_bytes() - before, most

        grown: list[int] = []
        # Room that the process has left from earlier tests is taken first, and not seen as growth:
        # so both are measured again where they differ.
        while not grown or (grown[-1] >= 24_000_000 and len(grown) < 3):
            alone, _ = await grown_by_turns()
            cursor = session.status().seq
            body = b'{"after":%d}' % cursor
            watching = on.calls.Subscribe(Command(session="s", body=body))
            assert (await watching.read()).kind == "subscribed"
            watched, most = await grown_by_turns()
            print(f"{alone:,} bytes more without, {watched:,} with it; at most {most:,} waited")
            assert most <= 200_000
            grown.append(watched - alone)
        assert grown[-1] < 24_000_000, grown  # it would have been sent three times as much
        statistics = on.service.statistics()
        assert (statistics.lagged, statistics.subscriptions) == (len(grown), 0)
        seqs, last = [], None
        while (event := await watching.read()) is not grpc.aio.EOF:
            if event.seq and event.kind != "lagged":
                seqs.append(event.seq)
            last = event
        assert last is not None
        assert (last.kind, last.seq) == ("lagged", seqs[-1])
        assert seqs == list(range(cursor + 1, last.seq + 1))


def resident_bytes() -> int:
    """Memory of this process, gRPC's own included."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError("this system does not say")


async def test_a_client_of_frames_that_stops_reading_costs_bounded_bytes() -> None:
    limits = Limits(outgoing_bytes=200_000)
    script = lambda request, tag: say("x" * 120_000).slow(0.0, delta_chars=6_000)  # noqa: E731
    async with stubs(script, limits=limits) as on:
        session = await on.manager.open("s")
        stream = on.calls.Connect()
        await stream.write(Frames(frames=[HELLO]))
        await stream.read()
        subscribe = encode(w.Subscribe(id=1, session="s", after=0))
        await stream.write(Frames(frames=[subscribe]))
        most = 0
        for _ in range(75):
            await (await session.send("go on")).outcome()
            most = max(most, on.service.statistics().outgoing_bytes)
        print(f"at most {most:,} bytes waited")
        assert most <= 200_000
        assert on.service.statistics().lagged == 1
        # Commands whose answers nobody takes are not read either.
        page = [encode(w.Conversation(id=2 + n, session="s")) for n in range(300)]
        for frame in page:
            await stream.write(Frames(frames=[frame]))
        await asyncio.sleep(0.3)
        statistics = on.service.statistics()
        assert statistics.outgoing_bytes <= 200_000 + 2_000_000  # beside one answer
        assert statistics.commands < 50
        stream.cancel()
        await until(lambda: on.service.statistics().connections == 0)


# Who calls, and the server around it.


class OneToken:
    def authenticate(self, credentials: Credentials) -> str | None:
        if credentials.token != "right":
            raise Unauthenticated("the token is not known")
        return "anna"


async def test_the_token_is_in_the_metadata() -> None:
    async with stubs(authenticator=OneToken()) as on:
        right = (("authorization", "Bearer right"),)
        made = await on.calls.Create(Command(body=b'{"config":{"model":"m"}}'), metadata=right)
        assert made.session.startswith("anna/")
        for metadata in ((), (("authorization", "Bearer wrong"),)):
            for asked in (
                on.calls.List(Command(), metadata=metadata),
                on.calls.Subscribe(Command(session="s"), metadata=metadata).read(),
                on.calls.Connect(metadata=metadata).read(),
            ):
                code, text, info, _ = await status_of(asked)
                assert code is grpc.StatusCode.UNAUTHENTICATED
                assert (text, info.reason) == ("the token is not known", "Unauthenticated")
        other = on.calls.List(Command(), metadata=(("authorization", "Basic right"),))
        assert (await status_of(other))[0] is grpc.StatusCode.INVALID_ARGUMENT
        assert on.service.statistics().connections == 1


async def test_frames_are_the_frames_of_the_socket() -> None:
    async with stubs(["hello"]) as on:
        stream = on.calls.Connect()
        send = w.Send(id=1, session="s", content=msgspec.Raw(b'"hi"'))
        await stream.write(Frames(frames=[HELLO, encode(send)]))
        await stream.done_writing()
        heard = [type(each) for each in await heard_on(stream)]
        assert heard == [w.Welcome, w.Reply, w.Goodbye]


async def test_what_is_no_frame_ends_its_connection_and_no_other() -> None:
    limits = Limits(frame_bytes=100_000)
    async with stubs(limits=limits) as on:
        for bad in (b"", b"hello", b"[" * 90_000, b"\xff", HELLO, b" " * 100_001, b"\x00" * 900):
            stream = on.calls.Connect()
            await stream.write(Frames(frames=[HELLO]))
            await stream.write(Frames(frames=[bad, b'{"type":"status","id":1,"session":"s"}']))
            heard = await heard_on(stream)
            assert [type(each) for each in heard] == [w.Welcome, w.Error, w.Goodbye]
        code, *_ = await status_of(on.calls.Send(Command(session="s", body=b" " * 500_000)))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED  # gRPC itself does not read it
        # The client of that call is known for a while.
        await until(lambda: on.service.statistics().connections == 1)


async def test_a_client_that_says_nothing_is_dropped() -> None:
    async with stubs(limits=Limits(hello_s=0.1, keepalive_s=0.1)) as on:
        silent = on.calls.Connect()
        heard = await heard_on(silent)
        assert [type(each) for each in heard] == [w.Error, w.Goodbye]
        await until(lambda: on.service.statistics().connections == 0)
    # A hello has to come through gRPC's threads first.
    async with stubs(limits=Limits(hello_s=1.0, keepalive_s=0.2)) as on:
        authenticated = on.calls.Connect()
        await authenticated.write(Frames(frames=[HELLO]))
        heard = await heard_on(authenticated)
        assert [type(each) for each in heard] == [w.Welcome, w.Ping]
        await until(lambda: on.service.statistics().connections == 0)


async def test_a_client_that_stops_reading_and_answers_no_ping_is_dropped() -> None:
    script = lambda request, tag: "x" * 200_000  # noqa: E731
    async with stubs(script, limits=Limits(hello_s=1.0, keepalive_s=0.2)) as on:
        session = await on.manager.open("s")
        stream = on.calls.Connect()
        subscribe = encode(w.Subscribe(id=1, session="s", after=0))
        await stream.write(Frames(frames=[HELLO, subscribe]))
        await until(lambda: on.service.statistics().subscriptions == 1)
        while on.service.statistics().connections:
            await (await session.send("go on")).outcome()
        assert on.service.statistics().outgoing_bytes == 0
        other = on.calls.Connect()  # and others are served
        await other.write(Frames(frames=[HELLO]))
        assert (await other.read()).frames
        other.cancel()


async def test_past_the_limit_of_connections_idle_ones_of_single_calls_make_room() -> None:
    async with stubs(limits=Limits(connections=2)) as on:
        await on.ask("Status")
        address = on.server.address
        async with connect(address), connect(address):
            with pytest.raises(Overloaded):
                async with connect(address):
                    pass


async def test_past_the_limit_idle_ones_of_single_calls_make_room_for_other_transports() -> None:
    async with stubs(limits=Limits(connections=1)) as on:
        await on.ask("Status")
        other = on.service.connect("a socket", lambda: None)
        other.authenticate()
        with pytest.raises(Overloaded):
            on.service.connect("another socket", lambda: None)
        other.close()


async def test_health_and_reflection_answer_as_everywhere() -> None:
    async with stubs(authenticator=OneToken()) as on:
        health: Any = health_pb2_grpc.HealthStub(on.channel)
        name = "llmsession.v1.SessionService"
        for service in ("", name):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        channel: Any = on.channel
        reflect: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        stream = reflect.ServerReflectionInfo()
        await stream.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = (await stream.read()).list_services_response.service
        assert name in {service.name for service in listed}
        await stream.done_writing()
        await on.server.stop_listening()
        answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        code, _, info, retry = await status_of(on.ask("List", ""))
        assert (code, info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "Overloaded")
        assert retry is not None


async def test_a_server_that_ends_says_so_to_every_call() -> None:
    async with (
        asyncio.timeout(100),
        SessionManager(provider=ScriptedProvider([never()]), store=MemoryStore()) as manager,
        Service(manager) as service,
    ):
        session = await manager.create(CONFIG, session_id="s")
        async with GrpcServer(service, "grpc://127.0.0.1:0") as server:
            on = Stubs(Served(manager, service, server, server.address))
            await session.send("hi")
            waiting = asyncio.ensure_future(on.ask("Outcome", turn=1))
            watching = on.calls.Subscribe(Command(session="s"))
            stream = on.calls.Connect()
            await stream.write(Frames(frames=[HELLO]))
            await stream.read()
            await watching.read()
        for asked in (waiting, drained(watching)):
            assert (await status_of(asked))[2].reason == "Overloaded"
        heard = await heard_on(stream)
        assert [type(each) for each in heard] == [w.Goodbye]
        await on.channel.close()
        assert session.status().phase != "idle"  # nothing was cancelled
        await session.interrupt()


async def drained(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


# Bytes that are no messages.


def raw_call(channel: Any, path: str) -> Any:
    """A call whose request and answer are bytes, as a program without stubs makes it."""
    return channel.stream_stream(path)


NO_PROTOBUF = {
    "an end too early": b"\x0a\xff\xff\xff\x7f",
    "a number without end": b"\xff" * 50,
    "invalid UTF-8 in a text": b"\x0a\x02\xff\xfe",
    "a group": b"\x0b" * 50,
    "a field without a number": b"\x00\x00",
}
METHODS = (
    "/llmsession.v1.SessionService/Status",
    "/llmsession.v1.SessionService/Subscribe",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)


async def failure_of(stream: Any, *sent: bytes) -> tuple[grpc.StatusCode, str]:
    """How *stream* ends after *sent*, or before all of that was sent."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        for raw in sent:
            await stream.write(raw)
        await stream.done_writing()
        while await stream.read() is not grpc.aio.EOF:
            pass
    return caught.value.code(), caught.value.details() or ""


@pytest.mark.parametrize("path", METHODS, ids=lambda path: path.rpartition("/")[2])
async def test_bytes_that_are_no_protobuf_are_invalid_and_leave_no_traceback(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with stubs() as on:
        for raw in NO_PROTOBUF.values():
            code, details = await failure_of(raw_call(on.channel, path)(), raw)
            assert code is grpc.StatusCode.INVALID_ARGUMENT, details
            assert "protobuf" in details
            assert "Exception" not in details
        assert not any(record.exc_info for record in caplog.records)
        assert (await on.ask("Status")).kind == "status"


async def test_frames_that_are_no_protobuf_end_their_call_with_an_error_and_its_status() -> None:
    async with stubs() as on:
        hello = Frames(frames=[HELLO]).SerializeToString()
        for raw in (*NO_PROTOBUF.values(), b"\x0a\x00" * (MAX_FIELDS + 1)):
            if raw == NO_PROTOBUF["invalid UTF-8 in a text"]:
                continue  # a frame is no text
            connect_call = raw_call(on.channel, "/llmsession.v1.SessionService/Connect")
            code, _ = await failure_of(connect_call(), hello, raw)
            assert code is grpc.StatusCode.INVALID_ARGUMENT
        await until(lambda: on.service.statistics().connections == 0)


async def test_a_request_is_read_after_its_client_has_authenticated() -> None:
    async with stubs(authenticator=OneToken()) as on:
        for method in ("Status", "Subscribe", "Connect"):
            path = f"/llmsession.v1.SessionService/{method}"
            code, _ = await failure_of(raw_call(on.channel, path)(), b"\xff" * 50)
            assert code is grpc.StatusCode.UNAUTHENTICATED


def test_a_message_of_many_fields_is_refused_after_as_many_as_are_allowed() -> None:
    class Counted(bytes):
        read = 0

        def __getitem__(self, place: Any) -> Any:
            Counted.read += 1
            return super().__getitem__(place)

    pong = b'\x0a\x0f{"type":"pong"}'
    assert len(decode_message(Frames, pong * MAX_FIELDS).frames) == MAX_FIELDS
    with pytest.raises(InvalidInput, match="more than 4,096"):
        decode_message(Frames, Counted(pong * 200_000))
    assert Counted.read <= 2 * (MAX_FIELDS + 1)


async def test_two_million_frames_in_one_message_are_refused_and_the_others_are_served() -> None:
    async with stubs(["fine"]) as on:
        session = await on.manager.open("s")
        flood = Frames(frames=[HELLO]).SerializeToString(), b'\x0a\x0f{"type":"pong"}' * 2_000_000
        call = raw_call(on.channel, "/llmsession.v1.SessionService/Connect")()
        code, _ = await failure_of(call, *flood)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert await (await session.send("still there?")).text() == "fine"


async def test_a_stream_of_a_session_that_moves_ends_with_where_to_go_on() -> None:
    async with asyncio.timeout(100), stubs(["hello"]) as on:
        stream = on.calls.Subscribe(Command(session="s", body=b'{"after":0}'))
        events = aiter(stream)
        assert (await anext(events)).kind == "subscribed"
        sent = await on.calls.Send(Command(session="s", body=b'{"content":"hi"}'))
        await on.calls.Outcome(Command(session="s", body=b'{"turn":%d}' % sent.turn))
        await on.manager.hand_over("s")
        *before, last = [event async for event in events]
        seqs = [event.seq for event in before if event.seq]
        assert seqs == list(range(1, seqs[-1] + 1))
        assert (last.kind, last.seq) == ("moved", seqs[-1])


async def test_a_stream_of_a_session_that_is_closed_does_not_say_that_it_moved() -> None:
    async with asyncio.timeout(100), stubs() as on:
        stream = on.calls.Subscribe(Command(session="s", body=b'{"after":0}'))
        events = aiter(stream)
        assert (await anext(events)).kind == "subscribed"
        await on.calls.CloseSession(Command(session="s"))
        assert "moved" not in [event.kind async for event in events]
