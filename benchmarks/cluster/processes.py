"""The processes that are measured: hosts of clusters and single services, over one PostgreSQL.

All are ``llmsession serve``, with the settings and the event loop that it has. CPU is that of a
process by its own clock, so what else the machine does is not in it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from benchmarks.recorded import recorded_message
from llmsession.cluster.directory import Directory
from llmsession.transcripts import Conversation, write_own
from tests.store.postgres.server import PostgresServer, running_server

__all__ = [
    "DELTA",
    "READY_S",
    "Host",
    "Stage",
    "cpu_s",
    "following",
    "is_unseen_possible",
    "staged",
    "until_hosts",
]

CLUSTER = "bench"
DELAY_S = 0.05
DELTA = "12345"
READY_S = 60.0

SETTINGS = f"""\
idle_s = 3600.0
[limits]
commands_per_s = "none"
max_lag_s = 60.0
[providers.short]
kind = "replay"
file = "short.jsonl"
models = ["short"]
[providers.paced]
kind = "replay"
file = "long.jsonl"
models = ["paced"]
delta_chars = {len(DELTA)}
delay_s = {DELAY_S}
[providers.slow]
kind = "replay"
file = "long.jsonl"
models = ["slow"]
delta_chars = {len(DELTA)}
delay_s = 1.0
"""
"""The clients ask as fast as they can: that is what is measured."""
REPLIES = {"short": "Hello.", "long": DELTA * 4000}
"""The long one is longer than anybody listens."""


def cpu_s(pid: int) -> float:
    """The CPU seconds that process *pid* has used; 0 if it has ended. In Linux."""
    with suppress(OSError):
        return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3)
    return 0.0


class Host:
    """A service that runs, alone or as a host of a cluster."""

    def __init__(self, name: str, address: str, process: subprocess.Popen[str], pid: int) -> None:
        self.name = name
        self.address = address
        self.pid = pid
        """Its pid as it is seen here. *process* may be a program that started it."""
        self._process = process

    def cpu_s(self) -> float:
        """The CPU seconds that it has used."""
        return cpu_s(self.pid)

    def signal(self, number: int) -> None:
        """Send it the signal *number*."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it, as ``kill -9`` does."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class Stage:
    """One PostgreSQL, and the hosts on it: see ``staged``. A new database for each cluster."""

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        self.server = server
        self._folder = folder
        self._databases = 0
        self._started = 0
        self.hosts: list[Host] = []

    def database(self) -> str:
        """The address of a new, empty database."""
        self._databases += 1
        name = f"bench{self._databases}"
        self.server.sql(f"CREATE DATABASE {name}")
        return self.server.dsn.replace("/postgres?", f"/{name}?")

    def start(self, dsn: str, *names: str, unseen: bool = False) -> list[Host]:
        """Start a host for each of *names*, or a single service, and wait until all are ready.

        *unseen*: in a pid namespace of its own, as on another machine, so that no other process can
        tell if it has ended.
        """
        starting = [self._begin(dsn, name, unseen) for name in names or ("",)]
        hosts = [self._ready(*started, unseen=unseen) for started in starting]
        self.hosts += hosts
        return hosts

    def _begin(self, dsn: str, name: str, unseen: bool) -> tuple[str, str, subprocess.Popen[str]]:
        self._started += 1
        address = f"unix:{self._folder}/{self._started}.sock"
        command = [sys.executable, "-m", "llmsession", "serve", "--config", "serve.toml"]
        command += ["--store", dsn, "--listen", address, "--log-level", "error"]
        if name:
            command += ["--cluster", CLUSTER, "--host-name", name]
        if unseen:
            command = ["unshare", "--pid", "--fork", "--mount-proc", *command]
        root = str(Path(__file__).parents[2])
        with (self._folder / "log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": root},
            )
        return name, address, process

    def _ready(
        self, name: str, address: str, process: subprocess.Popen[str], *, unseen: bool
    ) -> Host:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == "ready":
                pid = _child_of(process.pid) if unseen else process.pid
                return Host(name, address, process, pid)
        process.wait()
        told = (self._folder / "log").read_text("utf-8")
        raise RuntimeError(f"a service did not start: {told[-2000:]}")

    def stop(self, hosts: Collection[Host]) -> None:
        """Kill *hosts*."""
        for host in hosts:
            host.kill()
            self.hosts.remove(host)

    def postgres_cpu(self) -> dict[int, float]:
        """The CPU seconds of each process of PostgreSQL, by pid."""
        pid = int((self.server.data / "postmaster.pid").read_text("utf-8").split()[0])
        return {each: cpu_s(each) for each in (pid, *_children_of(pid))}

    def postgres_cpu_since(self, before: dict[int, float]) -> float:
        """The CPU seconds of PostgreSQL since ``postgres_cpu`` said *before*."""
        return sum(spent - before.get(pid, 0.0) for pid, spent in self.postgres_cpu().items())

    def watch(self, dsn: str) -> Directory:
        """The directory of the cluster at *dsn*, to follow which hosts it has."""
        return Directory(dsn, CLUSTER, poll_s=0.2)


@contextmanager
def staged() -> Iterator[Stage]:
    """A stage whose processes end with the block. Raises NoServer."""
    with running_server() as server, tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "serve.toml").write_text(SETTINGS, "utf-8")
        for name, reply in REPLIES.items():
            messages = (recorded_message(1, "user", "hi"), recorded_message(1, "assistant", reply))
            recorded = Conversation(id="b", format="own", messages=messages)
            (folder / f"{name}.jsonl").write_bytes(write_own(recorded))
        stage = Stage(server, folder)
        try:
            yield stage
        finally:
            stage.stop(tuple(stage.hosts))


def is_unseen_possible() -> bool:
    """Can a process be started in a pid namespace of its own?"""
    tried = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    if shutil.which(tried[0]) is None:
        return False
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


@asynccontextmanager
async def following(stage: Stage, dsn: str, *states: str) -> AsyncIterator[Directory]:
    """The directory of the cluster at *dsn*, once its hosts are in *states*, in any order."""
    async with stage.watch(dsn) as directory:
        await until_hosts(directory, *states)
        yield directory


async def until_hosts(directory: Directory, *states: str) -> None:
    """Wait until the hosts in *directory* are in *states*, in any order."""
    changed = asyncio.Event()
    directory.watch(lambda before, after: changed.set())
    async with asyncio.timeout(READY_S):
        while sorted(host.state for host in directory.view.hosts) != sorted(states):
            changed.clear()
            await changed.wait()


def _children_of(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            text = stat.read_text("utf-8", "replace")
            if int(text[text.rindex(")") + 2 :].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found


def _child_of(pid: int) -> int:
    [child] = _children_of(pid)
    return child
