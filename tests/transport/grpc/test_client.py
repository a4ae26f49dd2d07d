"""What is gRPC's own of a client; its link is tried with the sockets', in client/test_link.py."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from typing import Any

import pytest

from llmsession import (
    InvalidConfig,
    SessionConfig,
    connect,
)
from llmsession.transport import GrpcServer, RemoteManager
from llmsession.transport.client.link import Link
from llmsession.transport.connecting import dial_of
from llmsession.transport.grpc.client import GrpcChannel
from llmsession.transport.grpc.peer import GrpcPeer
from llmsession.transport.wire.addresses import parse_address
from tests.transport.places import serving, unserved

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]


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
    async with unserved() as service:
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


class Blocked:
    """A call whose peer reads nothing. As gRPC's own, its write is cancelled with the call."""

    def __init__(self) -> None:
        self.is_writing = asyncio.Event()
        self._cancelled = asyncio.Event()

    async def write(self, _frames: object) -> None:
        self.is_writing.set()
        await self._cancelled.wait()
        raise asyncio.CancelledError

    async def read(self) -> Any:
        try:
            await self._cancelled.wait()
        finally:
            self.cancel()

    def cancel(self) -> None:
        self._cancelled.set()


class Nothing:
    async def close(self) -> None:
        pass


async def test_a_channel_whose_write_was_cancelled_with_its_call_is_closed_all_the_same() -> None:
    call: Any = Blocked()
    nothing: Any = Nothing()
    channel = GrpcChannel(nothing, call)
    channel.send(b"{}")
    await call.is_writing.wait()
    reading = asyncio.ensure_future(channel.receive())
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    await channel.aclose()  # it raised CancelledError, which ended the task of the link


async def test_a_client_connects_again_though_the_last_connection_took_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    receive, peers = GrpcPeer._receive, list[GrpcPeer]()

    async def received(peer: GrpcPeer, raw: bytes) -> None:
        await receive(peer, raw)
        peers.append(peer)
        if peer is peers[0]:
            await asyncio.Event().wait()  # it reads its hello, and nothing more

    monkeypatch.setattr(GrpcPeer, "_receive", received)
    config = SessionConfig(model="m", system="x" * 1_000_000)
    async with serving("grpc://127.0.0.1:0") as served:
        link = Link(
            dial_of(parse_address(served.address), None), token=None, patience_s=100.0, client="t"
        )
        await link.begin()
        try:
            sessions = RemoteManager(link)
            names = [f"s{number}" for number in range(6)]
            made = asyncio.gather(*(sessions.create(config, session_id=name) for name in names))
            channel: Any = link._channel
            while channel is None or not (peers and 0 < len(channel._waiting) < len(names)):
                await asyncio.sleep(0.002)  # until the first is more than HTTP/2 lets through
                channel = link._channel
            link.drop_connection()
            assert [session.id for session in await made] == names
        finally:
            await link.aclose()
