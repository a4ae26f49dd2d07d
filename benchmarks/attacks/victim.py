"""The service that is attacked, and what it measures of itself, as a process of its own.

``python -m benchmarks.attacks.victim KIND ADDRESS``: *service*, or *echo*, which sends back each
line, or each message of gRPC, as it came, and what is no line as it comes. It says its address in
one line. To each line of its input it answers with its figures since the one before, as JSON, and
it ends when that closes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec

from benchmarks.recorded import Replays, recorded_message
from benchmarks.report import percentile
from benchmarks.transport_server import grpc_echo, line_echo
from llmsession import MemoryStore, SessionConfig, SessionManager
from llmsession.cli.common.collector import seldom_full_collections
from llmsession.transport import GrpcServer, Service, SocketServer

__all__ = ["Figures"]

PROBE_S = 0.005
REPLY = (recorded_message(1, "assistant", "a reply of a few words"),)


class Figures(msgspec.Struct, frozen=True):
    """Of one time: how late the event loop ran, in seconds; CPU seconds; memory in bytes; and how
    many commands the service took."""

    lag_p99_s: float
    lag_max_s: float
    cpu_s: float
    memory_bytes: int
    admitted: int = 0


class Probe:
    """Asks the event loop for a timer every 5 ms, and notes how late it comes."""

    def __init__(self) -> None:
        self.service: Service | None = None
        self._admitted = 0
        self._lags: list[float] = []
        self._cpu_s = time.process_time()

    async def run(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + PROBE_S
            await asyncio.sleep(PROBE_S)
            self._lags.append(loop.time() - due)

    def figures(self) -> Figures:
        """Since the last time."""
        lags, self._lags = self._lags or [0.0], []
        before, self._cpu_s = self._cpu_s, time.process_time()
        taken, admission = self._admitted, self.service and self.service.admission
        self._admitted = admission.commands - admission.overloaded if admission else 0
        return Figures(
            percentile(lags, 0.99),
            max(lags),
            self._cpu_s - before,
            memory_of_this_process(),
            self._admitted - taken,
        )


def memory_of_this_process() -> int:
    """What it has in memory now, in bytes."""
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * resource.getpagesize()


@asynccontextmanager
async def _service(address: str, probe: Probe) -> AsyncIterator[str]:
    server = GrpcServer if address.startswith("grpc:") else SocketServer
    provider = Replays(REPLY, delta_chars=8, delay_s=0.0)
    async with (
        SessionManager(provider=provider, store=MemoryStore()) as manager,
        Service(manager) as service,
        server(service, address) as serving,
    ):
        await manager.create(SessionConfig(model="m"), session_id="s")
        probe.service = service
        yield serving.address


def _serving(kind: str, address: str, probe: Probe) -> AbstractAsyncContextManager[str]:
    if kind == "service":
        return _service(address, probe)
    return grpc_echo(address) if address.startswith("grpc:") else line_echo(address)


async def _run(kind: str, address: str) -> None:
    # The service bounds its log by a rule of its own. asyncio writes a line for each write of the
    # echo to a peer that is gone.
    logging.disable(logging.CRITICAL)
    probe = Probe()
    with seldom_full_collections():  # as ``llmsession serve``
        await _serve(kind, address, probe)


async def _serve(kind: str, address: str, probe: Probe) -> None:
    async with _serving(kind, address, probe) as where:
        probing = asyncio.ensure_future(probe.run())
        os.write(1, f"{where}\n".encode())
        while await asyncio.to_thread(sys.stdin.readline):
            os.write(1, msgspec.json.encode(probe.figures()) + b"\n")
        probing.cancel()


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], sys.argv[2]))
