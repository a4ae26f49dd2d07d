"""A Ray cluster of two nodes on this machine: its processes, which are found, killed and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from llmsession.testing.local_service import free_port

SETTINGS = {
    "RAY_worker_niceness": "0",
    "RAY_kill_child_processes_on_worker_exit": "0",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "3600",
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "300",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}
"""Those of the documentation, which are compared with the code's."""
START_S = 60
STARTS = 8
"""So often a node is started. Ray ends one whose agents take longer than 15 seconds to start, on a
busy machine, and that cannot be set (ray-project/ray issue 65983)."""
END_S = 60.0


class RayCluster:
    """Ray in the folder *folder*, which the line of its processes and their environment name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        self._starts = 0
        self._marks: dict[str, str] = {}
        """By node: what is in the environment of what its last start started."""
        self._environ = {
            **os.environ,
            **SETTINGS,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": str(START_S),
            "LLMSESSION_TEST_FOLDER": str(folder),
        }

    def start_head(self, name: str) -> None:
        """Start the node with Ray's control store."""
        port = self.address.rpartition(":")[2]
        place = (f"--port={port}", f"--temp-dir={self.folder}", "--include-dashboard=false")
        self._start(name, "--head", *place)

    def start_node(self, name: str) -> None:
        """Start another node."""
        self._start(name, f"--address={self.address}")

    def _start(self, name: str, *options: str) -> None:
        ray = Path(sys.executable).with_name("ray")
        sizes = ("--num-cpus=1", "--object-store-memory=80000000")
        command = [str(ray), "start", f"--node-name={name}", "--disable-usage-stats", *sizes]
        said = ""
        for _ in range(STARTS):
            self._starts += 1
            start = f"{self.folder}/start/{self._starts}/"
            done = subprocess.run(
                [*command, *options],
                env={**self._environ, "LLMSESSION_TEST_START": start},
                check=False,
                capture_output=True,
                text=True,
            )
            if done.returncode == 0:
                self._marks[name] = start
                return
            said = f"{done.stdout}{done.stderr}"
            self._end(start)
        raise AssertionError(said)

    def pids(self) -> dict[int, str]:
        """The processes of this cluster, and what they started, with their command lines."""
        return _marked(str(self.folder).encode())

    def find(self, text: str) -> int:
        """The process whose line has *text*. Raises LookupError if there is none."""
        for pid, line in self.pids().items():
            if text in line:
                return pid
        raise LookupError(text)

    def pids_of(self, node: str) -> dict[int, str]:
        """The processes of a node since it was started last, as ``pids`` gives them."""
        return _marked(self._marks[node].encode())

    def raylet_of(self, node: str) -> int:
        """The process that makes a node one of the cluster."""
        return next(pid for pid, line in self.pids_of(node).items() if "/raylet/raylet " in line)

    def kill(self, pid: int) -> None:
        """kill -9."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill all of it, and wait until nothing is left."""
        self._end(str(self.folder))

    def _end(self, mark: str) -> None:
        until = time.monotonic() + END_S
        while pids := _marked(mark.encode()):
            assert time.monotonic() < until, pids
            for pid in pids:
                self.kill(pid)
            time.sleep(0.1)


def _marked(mark: bytes) -> dict[int, str]:
    """The processes that have *mark* in their line or their environment, and what they started,
    with their lines."""
    found, parents, lines = set[int](), dict[int, int](), dict[int, str]()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            pid, line = int(place.name), (place / "cmdline").read_bytes()
            stat = (place / "stat").read_bytes()
            fields = stat[stat.rindex(b")") + 2 :].split()
            if fields[0] in (b"Z", b"X") or pid == os.getpid():
                continue
            parents[pid], lines[pid] = int(fields[1]), line.replace(b"\0", b" ").decode()
            if mark in line or mark in (place / "environ").read_bytes():
                found.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: lines[pid] for pid in found}


def parent_of(pid: int) -> int:
    """The parent of the process *pid*; 0 if it has ended."""
    with suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return int(stat[stat.rindex(b")") + 2 :].split()[1])
    return 0


@contextmanager
def ray_cluster(folder: Path) -> Iterator[RayCluster]:
    """A cluster of the nodes ``n1``, which has Ray's control store, and ``n2``."""
    cluster = RayCluster(folder)
    try:
        cluster.start_head("n1")
        cluster.start_node("n2")
        yield cluster
    finally:
        cluster.end()
