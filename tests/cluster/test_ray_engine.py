"""Hosts on a real Ray cluster of two nodes: each part of it is killed, and the hosts go on.

Ray runs in processes of its own. Nothing of it is imported into the process of the tests.
"""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from llmsession.cluster.directory import Directory
from llmsession.cluster.supervisor import node_of
from llmsession.store.liveness import start_of
from tests.cli.stores import run
from tests.cluster.ray_cluster import SETTINGS, RayCluster, parent_of, ray_cluster
from tests.store.conftest import Database

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="Ray has no wheel for this Python on this machine",
)

TALK = Path(__file__).parents[2] / "examples" / "recordings" / "talk.jsonl"
WAIT_S = 120.0


class Watched:
    """The cluster as its directory has it. All of this waits, in the thread of the test."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.hosts: dict[str, int] = {}
        """The processes of the hosts, by name."""
        self.incarnations: set[str] = set()

    def look(self) -> None:
        """Read the directory."""

        async def act() -> None:
            async with Directory(self._database.dsn, self._database.schema) as directory:
                found = {host.name: directory.process_of(host) for host in directory.view.hosts}
                self.hosts = {name: owner.pid for name, owner in found.items() if owner}
                self.incarnations = {host.incarnation for host in directory.view.hosts}

        asyncio.run(act())

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until *holds*, which reads ``hosts``."""
        limit = time.monotonic() + WAIT_S
        while True:
            self.look()
            if holds():
                return
            assert time.monotonic() < limit, self.hosts
            time.sleep(0.2)

    def call(self, *arguments: str) -> str:
        """``llmsession cluster``."""
        return subprocess.run(
            [
                *(sys.executable, "-m", "llmsession", "cluster", *arguments),
                *("--cluster", self._database.schema, "--store", self._database.dsn),
            ],
            check=True,
            capture_output=True,
            text=True,
        ).stdout


def lives(pid: int) -> bool:
    return start_of(pid) is not None


def found(ray: RayCluster, text: str, *, below: int) -> bool:
    try:
        ray.find(text, below=below)
    except LookupError:
        return False
    return True


@needs_ray
@pytest.mark.long
@pytest.mark.timeout(900)
def test_hosts_survive_the_keeper_the_supervisor_a_node_and_the_control_store(
    database: Database,
) -> None:
    cluster = Watched(database)
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        with ray_cluster(folder) as ray:
            said = cluster.call(
                *("up", "--hosts", "2", "--ray", ray.address, "--listen", "tcp://127.0.0.1:0"),
                *("--folder", str(folder / "hosts"), "--replay", str(TALK)),
            )
            assert said.count("  up  ") == 2
            cluster.look()
            assert {node_of(host) for host in cluster.hosts} == {"n1", "n2"}
            first = dict(cluster.hosts)

            # A host: its keeper starts it again.
            ray.kill(first["n2-1"])
            cluster.until(
                lambda: (
                    cluster.hosts.keys() == first.keys() and cluster.hosts["n2-1"] != first["n2-1"]
                )
            )
            hosts = dict(cluster.hosts)
            assert hosts["n1-1"] == first["n1-1"]

            # A keeper: the supervisor makes a new one, which adopts the host: it counts in `scale`.
            keeper = parent_of(hosts["n2-1"])
            raylet = parent_of(keeper)
            ray.kill(keeper)
            cluster.until(lambda: found(ray, "ray::KeeperActor", below=raylet))
            assert keeper not in ray.pids()
            assert lives(hosts["n2-1"])

            # The supervisor: Ray starts it again.
            supervisor = ray.find("ray::SupervisorActor")
            ray.kill(supervisor)
            cluster.call("scale", "3")
            cluster.until(lambda: len(cluster.hosts) == 3)
            assert hosts.items() <= cluster.hosts.items()
            cluster.call("scale", "2")
            cluster.until(lambda: len(cluster.hosts) == 2)

            # A node without its supervisor or not: its host is declared dead, and one is started on
            # the other node. But the machine lives, and so does the host: it enters again.
            hosts = dict(cluster.hosts)
            before = set(cluster.incarnations)
            ray.kill(raylet)
            cluster.until(
                lambda: (
                    len(cluster.hosts) == 3
                    and {node_of(host) for host in cluster.hosts.keys() - hosts.keys()} == {"n1"}
                )
            )
            assert before <= cluster.incarnations
            assert all(map(lives, hosts.values()))

            # The node comes back: its keeper adopts the host, and the one too many ends.
            ray.start_node("n2")
            cluster.until(lambda: len(cluster.hosts) == 2)
            assert {node_of(host) for host in cluster.hosts} == {"n1", "n2"}
            assert cluster.hosts["n2-1"] == hosts["n2-1"]

            # Ray's control store: hosts go on, and their keepers start them again.
            hosts = dict(cluster.hosts)
            ray.kill(ray.find("gcs_server"))
            ray.kill(hosts["n1-1"])
            cluster.until(
                lambda: (
                    cluster.hosts.keys() == hosts.keys() and cluster.hosts["n1-1"] != hosts["n1-1"]
                )
            )
            assert lives(hosts["n2-1"])

            # And they end without it.
            hosts = dict(cluster.hosts)
            cluster.call("down")
            cluster.until(lambda: not cluster.hosts)
            cluster.until(lambda: not any(map(lives, hosts.values())))


@needs_ray
def test_the_settings_of_the_tests_and_of_the_documents_are_those_of_the_code() -> None:
    code = "from llmsession.cluster.ray_engine import SETTINGS; print(SETTINGS)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(SETTINGS)
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "run-a-cluster.md").read_text("utf-8")
    for name, value in SETTINGS.items():
        assert f"export {name}={value}" in page


def test_where_ray_is_not_installed_one_line_says_what_to_install(
    database: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ray" else found_spec(name)
    )
    refusal = run(capsys, "cluster", "up", "--hosts", "2", "--store", database.dsn).refusal
    assert "pip install 'llmsession[cluster]'" in refusal
