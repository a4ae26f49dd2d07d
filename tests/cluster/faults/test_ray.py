"""Each part of a real Ray cluster of two nodes is killed under load, and the sessions go on.

Ray runs in processes of its own. Nothing of it is imported into the process of the tests.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from llmsession.cluster.directory import Directory
from llmsession.cluster.supervisor import node_of
from llmsession.store.liveness import start_of
from llmsession.transcripts import write_own
from tests.cluster.faults.ray_cluster import RayCluster, parent_of, ray_cluster
from tests.cluster.faults.world import TALK, observed_load
from tests.cluster.test_up import program
from tests.store.conftest import Database

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.sockets,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="Ray has no wheel for this Python on this machine",
    ),
]

WAIT_S = 240.0
"""For one change of the cluster, on a busy machine too."""
LOOK_S = 0.2


@pytest.fixture
def ray() -> Iterator[RayCluster]:
    # Sockets need a short path.
    with (
        tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as place,
        ray_cluster(Path(place)) as ray,
    ):
        yield ray


class Watched:
    """The hosts as *directory* has them."""

    def __init__(self, database: Database, directory: Directory) -> None:
        self._database = database
        self._directory = directory
        self.hosts: dict[str, int] = {}
        """The processes of the hosts, by name."""
        self.incarnations: set[str] = set()

    async def look(self) -> None:
        """Read the directory."""
        await self._directory.refresh()
        view = self._directory.view
        found = {host.name: self._directory.process_of(host) for host in view.hosts}
        self.hosts = {name: owner.pid for name, owner in found.items() if owner}
        self.incarnations = {host.incarnation for host in view.hosts}

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until *holds*, which reads ``hosts``. It is called in another thread."""
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    await self.look()
                    if await asyncio.to_thread(holds):
                        return
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            pytest.fail(f"it does not become so; the hosts are {self.hosts}")

    @property
    def addresses(self) -> list[str]:
        """Where clients reach the hosts."""
        return [host.address for host in self._directory.view.hosts]

    async def call(self, *arguments: str, after: Sequence[str] = ()) -> str:
        """What ``llmsession cluster`` prints. It has to succeed."""
        command = [*program(self._database, *arguments), *after]
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        out, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        return out.decode()


def lives(pid: int) -> bool:
    return start_of(pid) is not None


def keepers(ray: RayCluster, node: str) -> set[int]:
    return {pid for pid, line in ray.pids_of(node).items() if "ray::KeeperActor" in line}


def send(number: signal.Signals, pids: Collection[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def on_nodes(cluster: Watched) -> list[str]:
    """The nodes of the hosts."""
    return sorted(map(node_of, cluster.hosts))


async def comes_back(ray: RayCluster, cluster: Watched, host: int) -> None:
    """The node n2 comes back: its keeper adopts the host, and the one too many ends."""
    await asyncio.to_thread(ray.start_node, "n2")
    await cluster.until(lambda: on_nodes(cluster) == ["n1", "n2"])
    assert cluster.hosts["n2-1"] == host


async def test_sessions_go_on_without_a_host_its_keeper_the_supervisor_a_node_and_the_control_store(
    database: Database, ray: RayCluster, tmp_path: Path, seed: int
) -> None:
    talk = tmp_path / "talk.jsonl"
    talk.write_bytes(write_own(TALK))
    async with Directory(database.dsn, database.schema) as directory:
        cluster = Watched(database, directory)
        said = await cluster.call(
            *("up", "--hosts", "2", "--ray", ray.address, "--listen", "tcp://127.0.0.1:0"),
            *("--folder", f"{ray.folder}/hosts", "--replay", str(talk)),
            after=("--", "--replay-delay", "0.02"),
        )
        assert said.count("  up  ") == 2
        await cluster.look()
        assert on_nodes(cluster) == ["n1", "n2"]
        async with observed_load(
            *(cluster.addresses, database.dsn, tmp_path, seed),
            name=f"ray-{database.schema}",
            pause_s=0.4,
            deadline_s=700.0,
        ) as load:
            first = dict(cluster.hosts)

            # A host: its keeper starts it again.
            ray.kill(first["n2-1"])
            await cluster.until(
                lambda: (
                    cluster.hosts.keys() == first.keys() and cluster.hosts["n2-1"] != first["n2-1"]
                )
            )
            await load.progressed(2)
            hosts = dict(cluster.hosts)
            assert hosts["n1-1"] == first["n1-1"]

            # A keeper: the supervisor makes a new one, which adopts the host: it counts in
            # `scale`.
            keeper = await asyncio.to_thread(parent_of, hosts["n2-1"])
            ray.kill(keeper)
            await load.progressed(2)
            await cluster.until(lambda: bool(keepers(ray, "n2") - {keeper}))
            assert await asyncio.to_thread(lives, hosts["n2-1"])

            # The supervisor: Ray starts it again.
            ray.kill(await asyncio.to_thread(ray.find, "ray::SupervisorActor"))
            await cluster.call("scale", "3")
            await cluster.until(lambda: len(cluster.hosts) == 3)
            assert hosts.items() <= cluster.hosts.items()
            await load.progressed(2)
            await cluster.call("scale", "2")
            await cluster.until(lambda: len(cluster.hosts) == 2)
            await load.progressed(2)

            # A node, perhaps with the supervisor: its host is declared dead, and one is started
            # on the other node. But the machine lives, and so does the host: it enters again.
            hosts, before = dict(cluster.hosts), set(cluster.incarnations)
            ray.kill(await asyncio.to_thread(ray.raylet_of, "n2"))
            await cluster.until(lambda: on_nodes(cluster) == ["n1", "n1", "n2"])
            assert before <= cluster.incarnations
            assert await asyncio.to_thread(lives, hosts["n2-1"])
            await load.progressed(2)
            await comes_back(ray, cluster, hosts["n2-1"])
            await load.progressed(2)

            # The machine of a node freezes. Its host finds out when it goes on.
            hosts, before = dict(cluster.hosts), set(cluster.incarnations)
            frozen = {*await asyncio.to_thread(ray.pids_of, "n2"), hosts["n2-1"]}
            send(signal.SIGSTOP, frozen)
            await cluster.until(lambda: on_nodes(cluster) == ["n1", "n1"])
            await load.progressed(2)
            send(signal.SIGCONT, frozen)
            await cluster.until(lambda: on_nodes(cluster) == ["n1", "n1", "n2"])
            assert before <= cluster.incarnations
            await load.progressed(2)
            await comes_back(ray, cluster, hosts["n2-1"])
            await load.progressed(2)

            # Ray's control store: hosts go on, and their keepers start them again.
            hosts = dict(cluster.hosts)
            ray.kill(await asyncio.to_thread(ray.find, "gcs_server"))
            await load.progressed(2)
            ray.kill(hosts["n1-1"])
            await cluster.until(
                lambda: (
                    cluster.hosts.keys() == hosts.keys() and cluster.hosts["n1-1"] != hosts["n1-1"]
                )
            )
            await load.progressed(2)
            assert await asyncio.to_thread(lives, hosts["n2-1"])

        # And they end without it.
        hosts = dict(cluster.hosts)
        await cluster.call("down")
        await cluster.until(lambda: not cluster.hosts)
        await cluster.until(lambda: not any(map(lives, hosts.values())))
