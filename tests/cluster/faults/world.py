"""Hosts of a cluster as processes, each on a machine of its own, over a real PostgreSQL.

A machine is a pid namespace: its hosts see no pid of another machine, and nobody sees theirs. So
the lease decides there, as it does between real machines. Each host reaches PostgreSQL through a
wire of its own, and is reached through another one.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import uuid
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmsession.cluster import connect_cluster
from llmsession.store.postgres.store import PostgresStore
from llmsession.testing.checker.histories import History, LogRecord, check_history
from llmsession.testing.stress.client_load import ClientLoad, LoadPlan, read_log
from llmsession.transcripts import write_own
from tests.cluster.faults.network import Wire, running_wire
from tests.store.postgres.server import PostgresServer
from tests.testing.conversations import call, recording, result, text

__all__ = ["DEADLINE_S", "TALK", "HostProcess", "World", "a_world", "observed_load"]

CLUSTER = "c"
OWN_PIDS = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
DEADLINE_S = 300.0
"""After so long a test has failed, on a busy machine too."""
BUSY = ("Overloaded", "the service runs")
"""What a host on a busy machine may answer to anything. The second one is in the error of a repeat
that it refused, and that another host may have carried out."""
LONG = "The quick brown fox jumps over the lazy dog. " * 30


@cache
def _has_machines() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*OWN_PIDS, "true"], capture_output=True, check=False).returncode == 0


class HostProcess(msgspec.Struct):
    """A host, and the two wires that it hangs on."""

    name: str
    process: Process
    pid: int
    """Of the service itself, seen from here."""
    to_postgres: Wire
    to_clients: Wire

    @property
    def address(self) -> str:
        """Where clients and other hosts reach it."""
        return f"tcp://127.0.0.1:{self.to_clients.port}"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the service."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def ended(self) -> int:
        """Wait for its end."""
        return await self.process.wait()


class World:
    """A cluster of the tests. *on_machines*: each host has a machine of its own."""

    def __init__(
        self, server: PostgresServer, folder: Path, stack: AsyncExitStack, *, on_machines: bool
    ) -> None:
        self.server = server
        self._folder = folder
        self._stack = stack
        self._on_machines = on_machines
        self._database = f"faults_{uuid.uuid4().hex}"
        self.hosts: dict[str, HostProcess] = {}
        self.server.sql(f"CREATE DATABASE {self._database}")
        (folder / "talk.jsonl").write_bytes(write_own(TALK))

    def dsn(self, wire: Wire | None = None) -> str:
        """The database, by the socket of the server or through *wire*."""
        if wire is None:
            return f"postgresql://postgres@/{self._database}?host={self.server.folder}"
        return f"postgresql://postgres@127.0.0.1:{wire.port}/{self._database}?sslmode=disable"

    async def start(self, *names: str) -> None:
        """Start hosts, at once, and wait until they are ready. One of an earlier name is new."""
        started = await asyncio.gather(*(self._start(name) for name in names))
        self.hosts.update(zip(names, started, strict=True))

    async def _start(self, name: str) -> HostProcess:
        earlier = self.hosts.get(name)
        socket = self._folder / f"{name}-{uuid.uuid4().hex[:6]}.sock"
        if earlier is None:
            to_postgres = await self._stack.enter_async_context(
                running_wire(str(self.server.socket))
            )
            to_clients = await self._stack.enter_async_context(running_wire(str(socket)))
        else:
            to_postgres, to_clients = earlier.to_postgres, earlier.to_clients
            to_clients.target = str(socket)
        log = (self._folder / f"{name}.log").open("ab")
        process = await asyncio.create_subprocess_exec(
            *(OWN_PIDS if self._on_machines else ()),
            *(sys.executable, "-m", "llmsession", "serve"),
            *("--cluster", CLUSTER, "--host-name", name, "--store", self.dsn(to_postgres)),
            *("--listen", f"unix:{socket}"),
            *("--advertise", f"tcp://127.0.0.1:{to_clients.port}"),
            *("--replay", str(self._folder / "talk.jsonl"), "--replay-delay", "0.02"),
            *("--grace", "20"),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=log,
            env={**os.environ, "LLMSESSION_SERVE_LOG_LEVEL": "info"},
        )
        log.close()
        self._stack.push_async_callback(_end, process)
        assert process.stdout is not None
        async for line in process.stdout:
            if line.strip() == b"ready":
                pid = _child_of(process.pid) if self._on_machines else process.pid
                return HostProcess(name, process, pid, to_postgres, to_clients)
        raise AssertionError(f"host {name} did not start: {self.log(name)}")

    def log(self, name: str) -> str:
        """What the host *name* logged."""
        return (self._folder / f"{name}.log").read_text("utf-8")

    @property
    def addresses(self) -> list[str]:
        """Those of all hosts."""
        return [host.address for host in self.hosts.values()]

    def end_connections(self) -> None:
        """End every connection to the database."""
        ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1"
        self.server.sql(ends, self._database)

    async def cli(self, *arguments: str) -> str:
        """What ``llmsession cluster`` prints. It has to succeed."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "llmsession", "cluster", *arguments),
            *("--cluster", CLUSTER, "--store", self.dsn()),
            stdout=PIPE,
            stderr=PIPE,
        )
        out, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        return out.decode()

    def load(
        self, seed: int, *, allows: tuple[str, ...] = (), **fields: Any
    ) -> AbstractAsyncContextManager[ClientLoad]:
        """See ``observed_load``."""
        return observed_load(self.addresses, self.dsn(), self._folder, seed, allows, **fields)


@asynccontextmanager
async def observed_load(
    addresses: Sequence[str],
    dsn: str,
    folder: Path,
    seed: int,
    allows: tuple[str, ...] = (),
    *,
    deadline_s: float = DEADLINE_S,
    **fields: object,
) -> AsyncIterator[ClientLoad]:
    """Clients that use sessions meanwhile, once each session works. Afterwards everything has
    ended, *deadline_s* later at most, and the history of what they saw is right: without an error,
    but those whose classes *allows* names."""
    plan = msgspec.convert({"seed": seed, **fields}, LoadPlan)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect_cluster(addresses)) for _ in range(3)]
        load = ClientLoad(clients, plan)
        history = load.history({})
        try:
            async with asyncio.timeout(deadline_s), asyncio.TaskGroup() as group:
                running = group.create_task(load.run())
                await load.started.wait()
                yield load
                load.stop()
                await running
            history = load.history(await _logs(dsn, load.sessions))
        except BaseException as error:
            history = load.history({})
            if isinstance(error, TimeoutError):
                said = "\n".join(("the clients wait:", *_waiting(history), *load.errors))
                raise AssertionError(said) from error
            raise
        finally:
            # For whoever looks for the cause: see docs/contributing/testing.md.
            path = folder / f"history-{seed}.json"
            path.write_bytes(msgspec.json.encode(history))
    errors = (*load.errors, *load.troubles)
    found = [
        *check_history(history),
        *(error for error in errors if not any(name in error for name in (*allows, *BUSY))),
    ]
    if found:
        pytest.fail("\n".join(found))


def _waiting(history: History) -> Iterator[str]:
    """What has no answer, and how far subscribers have read."""
    for operation in history.operations:
        if operation.completed is None:
            yield f"{operation.kind} in {operation.session} since {operation.invoked:.1f}"
    for client in sorted({subscription.client for subscription in history.subscriptions}):
        read = [
            each.seen[-1].seq
            for each in history.subscriptions
            if each.client == client and each.seen
        ]
        yield f"{client} has read {max(read, default=0)}"


async def _logs(dsn: str, sessions: Sequence[str]) -> dict[str, tuple[LogRecord, ...]]:
    store = PostgresStore(dsn)
    try:
        return {session: await read_log(store.read, session) for session in sessions}
    finally:
        await store.aclose()


def _child_of(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    return int(children[0])


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


_SHORT = [[text("hi")], [text("hello there")]]
TALK = recording(
    _SHORT,
    [[text("hi")], [text(LONG)]],
    [[text("hi")], [text("I look."), call("c1")], [result("c1")], [text(LONG[:200])]],
    _SHORT,
    [[text("hi")], [call("c2")], [result("c2")], [call("c3")], [result("c3")], [text("done")]],
)


@asynccontextmanager
async def a_world(
    server: PostgresServer, folder: Path, *, on_machines: bool = True
) -> AsyncIterator[World]:
    """An empty cluster; its hosts are killed at the end."""
    if on_machines and not _has_machines():
        pytest.skip("a machine of its own needs a pid namespace, and unshare cannot make one here")
    async with AsyncExitStack() as stack:
        yield World(server, folder, stack, on_machines=on_machines)
