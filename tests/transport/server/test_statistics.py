"""``statistics``: what a client is told of the whole service, over each transport."""

from __future__ import annotations

from typing import Any

import grpc
import msgspec
import pytest

from llmsession import TextDelta
from llmsession.testing.scripted import say
from llmsession.transport import GrpcServer, RemoteManager
from llmsession.transport.v1.session_pb2 import Command
from llmsession.transport.v1.session_pb2_grpc import SessionServiceStub
from llmsession.transport.wire.messages import ServiceSnapshot
from tests.transport.places import PLACES, first, place_at

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]


@pytest.mark.parametrize("kind", [kind for kind in PLACES if kind != "embedded"])
async def test_it_tells_what_is_live_and_what_it_came_to_and_opens_nothing(kind: str) -> None:
    async with place_at(kind, lambda request, tag: say("so far, so good").hanging(at=3)) as place:
        sessions: Any = place.sessions
        assert isinstance(sessions, RemoteManager)
        session = await place.session()
        turn = await session.send("go on")
        await first(turn, TextDelta)
        told = await sessions.statistics()
        (figures,) = told.sessions
        assert (told.live, told.running) == (1, 1)
        assert (figures.session, figures.phase, figures.turn) == ("s", "running", 1)
        await session.interrupt()
        told = await sessions.statistics()
        assert (told.running, told.sessions[0].interrupts) == (0, 1)
        assert told.service is not None
        assert told.service.connections == 1
        assert (await sessions.statistics(limit=0)).sessions == ()
        assert place.manager.live == ("s",)


async def test_a_single_call_of_grpc_tells_the_same() -> None:
    async with place_at("unix", ["hello"]) as place:
        session = await place.session()
        await (await session.send("hi")).text()
        async with GrpcServer(place.service, "grpc://127.0.0.1:0") as server:
            target = server.address.removeprefix("grpc://")
            async with grpc.aio.insecure_channel(target) as channel:
                calls: Any = SessionServiceStub(channel)
                answer = await calls.Statistics(Command(body=b'{"limit": 10}'))
                told = msgspec.json.decode(answer.body, type=ServiceSnapshot)
                assert (told.live, told.running) == (1, 0)
                assert told.sessions == place.service.snapshot(None, 10).sessions
                assert told.service is not None
                assert told.service.connections == 2  # the socket's, and this one
                none = await calls.Statistics(Command(body=b'{"limit": 0}'))
                assert msgspec.json.decode(none.body, type=ServiceSnapshot).sessions == ()
