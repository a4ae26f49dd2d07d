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
    connect,
)
from llmsession.transport import GrpcServer
from llmsession.transport.grpc.client import GrpcChannel
from tests.transport.places import unserved

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
