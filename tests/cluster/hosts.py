"""Hosts of a cluster: as processes, or in one process, each with a manager, a service and a
directory of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from llmsession import SessionManager
from llmsession.cluster.directory import Directory
from llmsession.cluster.host import ClusterHost, joined
from llmsession.cluster.routing import Routing
from llmsession.testing.scripted import Script, ScriptedProvider
from llmsession.transport import Service, SocketServer
from llmsession.transport.hosting.service_runner import CLUSTER_READERS
from tests.store.conftest import Database

LONG_S = 1000.0


class LocalHost(msgspec.Struct):
    """A host of the tests. Its process is seen to live as long as the tests do."""

    name: str
    address: str
    manager: SessionManager
    service: Service
    directory: Directory
    host: ClusterHost
    routing: Routing
    provider: ScriptedProvider


@asynccontextmanager
async def local_host(
    database: Database, folder: Path, name: str, script: Script = (), *, settle_s: float = 0.0
) -> AsyncIterator[LocalHost]:
    """A host that joined the cluster ``c``. It is up once another refresh has seen it settle."""
    provider = ScriptedProvider(script)
    directory = Directory(
        database.dsn,
        "c",
        schema=database.schema,
        lease_s=LONG_S,
        settle_s=settle_s,
        poll_s=LONG_S,
    )
    async with (
        database.store(readers=CLUSTER_READERS) as store,
        SessionManager(provider=provider, store=store) as manager,
        Service(manager) as service,
        SocketServer(service, f"unix:{folder}/{name}.sock") as server,
        joined(directory, manager, service, [server.address], name=name, address=None) as host,
    ):
        await directory.refresh()
        yield LocalHost(
            name, server.address, manager, service, directory, host, host.routing, provider
        )


async def refresh(*hosts: LocalHost) -> None:
    """Let each host know of the others."""
    for _ in range(2):
        for host in hosts:
            await host.directory.refresh()


async def started_host(database: Database, folder: Path, name: str, *arguments: str) -> Process:
    """``llmsession serve`` as a host of the cluster ``c``, once it is ready. It replays
    ``talk.jsonl`` in *folder*, and has its socket there; *arguments* are further ones."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "llmsession", "serve", "--cluster", "c", "--host-name", name),
        *("--store", database.dsn, "--listen", f"unix:{folder}/{name}.sock"),
        *("--replay", str(folder / "talk.jsonl"), *arguments),
        stdout=PIPE,
        stderr=DEVNULL,
        env={**os.environ, "LLMSESSION_SERVE_LOG_LEVEL": "error"},
    )
    assert process.stdout is not None
    async for line in process.stdout:
        if line.strip() == b"ready":
            return process
    raise AssertionError(f"host {name} did not start")
