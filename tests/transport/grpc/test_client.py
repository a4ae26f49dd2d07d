"""The gRPC client's link: it outlives its connections, as the sockets' does."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmsession import (
    InvalidConfig,
    MemoryStore,
    SessionManager,
    SqliteStore,
    TextDelta,
    Unreachable,
    connect,
)
from llmsession.testing.scripted import ScriptedProvider, say
from llmsession.transport import GrpcServer, RemoteManager, Service, connecting
from llmsession.transport.client.link import Link
from llmsession.transport.wire.addresses import parse_address
from tests.transport.client.test_link import watch_turns
from tests.transport.places import CONFIG

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]

PATIENCE_S = 100.0


async def linked(address: str, patience_s: float = PATIENCE_S) -> Link:
    dial = connecting.dial_of(parse_address(address), None)
    link = Link(dial, token=None, patience_s=patience_s, client="test")
    await link.begin()
    return link


async def test_clients_live_through_a_restart_and_see_every_turn_once(tmp_path: Path) -> None:
    address = "grpc://127.0.0.1:0"
    link: Any = None
    watching: Any = None

    async def one_life(first: bool) -> None:
        nonlocal address, link, watching
        provider = ScriptedProvider(lambda request, tag: say("hello").slow(0.002))
        store = SqliteStore(tmp_path / "sessions.db")
        async with (
            SessionManager(provider=provider, store=store) as manager,
            Service(manager) as service,
            GrpcServer(service, address) as server,
        ):
            if first:
                address = server.address
                link = await linked(address)
                session = await RemoteManager(link).create(CONFIG, session_id="s")
                watching = asyncio.ensure_future(watch_turns(session.subscribe(after=0), 6))
            session = await RemoteManager(link).open("s")
            for _ in range(3):
                assert await (await session.send("hi")).text() == "hello"
            if not first:
                assert await watching == [1, 2, 3, 4, 5, 6]

    async with asyncio.timeout(PATIENCE_S):
        await one_life(True)
        await one_life(False)
        assert link.reconnects == 1
        await link.aclose()


async def test_a_connection_that_is_lost_again_and_again_loses_and_repeats_nothing() -> None:
    whole = "".join(f"{number}," for number in range(120))
    provider = ScriptedProvider(lambda request, tag: say(whole).slow(0.01, delta_chars=4))
    async with (
        asyncio.timeout(PATIENCE_S),
        SessionManager(provider=provider, store=MemoryStore()) as manager,
        Service(manager) as service,
        GrpcServer(service, "grpc://127.0.0.1:0") as server,
    ):
        link = await linked(server.address)
        session = await RemoteManager(link).create(CONFIG, session_id="s")
        turn = await session.send("hi")
        text = ""
        async for event in turn:
            if isinstance(event, TextDelta):
                before = len(text) // 100
                text += event.text
                if len(text) // 100 > before:
                    link.drop_connection()
        assert link.reconnects >= 2
        assert whole.startswith(text)
        assert await turn.text() == whole
        assert [m.text for m in await session.read_conversation()] == ["hi", whole]
        await link.aclose()


async def test_nobody_at_the_address_is_said_at_once() -> None:
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(Unreachable):
            async with connect("grpc://127.0.0.1:1"):
                pass


async def test_without_the_extra_one_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "grpc" else found(name)
    )
    with pytest.raises(InvalidConfig, match=r"pip install 'llmsession\[grpc\]'"):
        async with connect("grpc://127.0.0.1:1"):
            pass
    async with (
        SessionManager(provider=ScriptedProvider([])) as manager,
        Service(manager) as service,
    ):
        with pytest.raises(InvalidConfig, match=r"pip install 'llmsession\[grpc\]'"):
            GrpcServer(service, "grpc://127.0.0.1:0")


def test_the_package_is_imported_without_grpc() -> None:
    program = "import sys, llmsession.transport; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "llmsession" in loaded
    assert not loaded & {"grpc", "google", "grpc_health", "grpc_reflection", "grpc_status"}
