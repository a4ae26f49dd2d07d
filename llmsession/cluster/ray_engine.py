"""Hosts on the nodes of a Ray cluster. This is the only file that imports ray.

One supervisor actor follows the directory; Ray starts it again wherever it can. It has one keeper
actor on each node, which runs the hosts there as children. Ray does not start a keeper again: the
supervisor sees that it is dead, and makes a new one, which adopts the hosts. Nothing of a turn
passes through Ray. So hosts go on while a keeper, the supervisor or Ray's control store is gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from llmsession.errors import InvalidInput, SessionError, Unreachable
from llmsession.session.core.session_log import default_logger

from .directory import Directory
from .keeper import HostCommand, Keeper
from .supervisor import Node, Seen, SupervisedHost, follow, node_of

__all__ = ["SETTINGS", "Plan", "start_on_ray"]

SETTINGS = {
    "RAY_worker_niceness": "0",
    "RAY_kill_child_processes_on_worker_exit": "0",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "3600",
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "300",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}
"""The environment that ``ray start`` needs on every node. Hosts have the usual niceness; they
outlive their keeper; workers wait an hour for Ray's control store; and a node that is gone is
noticed after 2 seconds, where the network is good."""

NAMESPACE = "llmsession"
LOOK_S = 10.0
"""How long a keeper may take to answer. What it said last counts until then."""
START_S = 180.0


class Plan(msgspec.Struct, frozen=True):
    """What the supervisor and its keepers are made with."""

    store: str
    command: HostCommand
    """``0.0.0.0`` in its ``listen`` stands for the address of each node."""
    folder: str
    """The keeper of a node uses a folder in it that is named after the node."""
    schema: str = "llmsession"

    @property
    def supervisor_name(self) -> str:
        """The name of the supervisor's actor."""
        return f"supervisor/{self.command.cluster}"


class _NodeInfo(msgspec.Struct, frozen=True):
    """A live node of Ray."""

    id: str
    name: str
    address: str
    slots: int


class KeeperActor:
    """The keeper of one node."""

    async def __init__(self, plan: Plan, node: _NodeInfo) -> None:  # type: ignore[misc]  # Ray waits
        log = default_logger()
        for name, value in SETTINGS.items():
            if os.environ.get(name) != value:
                log.warning("cluster.ray_setting_missing", setting=f"{name}={value}")
        listen = plan.command.listen.replace("//0.0.0.0:", f"//{node.address}:")
        command = msgspec.structs.replace(plan.command, listen=listen)
        folder = Path(plan.folder) / node.name
        self._directory = Directory(plan.store, command.cluster, schema=plan.schema)
        await self._directory.__aenter__()
        self._keeper = Keeper(
            self._directory, command, folder, node=node.name, slots=node.slots, niceness=0
        )
        await self._keeper.__aenter__()
        self._ending: asyncio.Task[None] | None = None
        self._directory.watch(lambda _before, _after: self._end_if_none_is_wanted())

    def _end_if_none_is_wanted(self) -> None:
        """The supervisor says so, too. But it can tell nobody while Ray's control store is gone."""
        if self._directory.wanted == 0 and self._ending is None and self._keeper.hosts:
            self._ending = asyncio.get_running_loop().create_task(self._keeper.end())
            self._ending.add_done_callback(self._ended)

    def _ended(self, _ending: asyncio.Task[None]) -> None:
        self._ending = None
        self._end_if_none_is_wanted()  # it may have been asked again meanwhile

    async def hosts(self) -> tuple[SupervisedHost, ...]:
        """The hosts that it keeps."""
        return self._keeper.hosts

    async def start(self, host: str) -> None:
        """See ``Supervisor``."""
        await self._keeper.start(node_of(host), host)

    async def stop(self, host: str) -> None:
        """See ``Supervisor``."""
        await self._keeper.stop(host)


class SupervisorActor:
    """Keeps as many hosts running as the directory says, and ends when none is wanted."""

    async def __init__(self, plan: Plan) -> None:  # type: ignore[misc]  # Ray waits for it
        self._plan = plan
        self._log = default_logger()
        self._directory = Directory(plan.store, plan.command.cluster, schema=plan.schema)
        await self._directory.__aenter__()
        self._nodes = _RayNodes(plan, self._log)
        self._following = asyncio.get_running_loop().create_task(self._follow())

    async def _follow(self) -> None:
        await follow(self._directory, self._nodes, asyncio.Event(), logger=self._log)
        self._nodes.end_keepers()
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    async def plan(self) -> Plan:
        """What it was made with."""
        return self._plan

    async def hosts(self) -> tuple[SupervisedHost, ...]:
        """The hosts that keepers keep, as they were when they were last looked at."""
        return self._nodes.hosts


class _RayNodes:
    """A ``Supervisor`` over Ray's nodes."""

    def __init__(self, plan: Plan, log: Any) -> None:
        self._plan = plan
        self._log = log
        self._keepers: dict[str, Any] = {}
        """By the id of its node: the keeper's actor."""
        self._said: dict[str, tuple[SupervisedHost, ...]] = {}
        """Likewise: the hosts that the keeper named last."""
        self._since: dict[str, float] = {}
        """Likewise: when the node was first seen, by ``time.monotonic``."""
        self._ids: dict[str, str] = {}
        """The ids of live nodes by name."""

    @property
    def hosts(self) -> tuple[SupervisedHost, ...]:
        """The hosts that the keepers named last."""
        return tuple(host for said in self._said.values() for host in said)

    async def look(self) -> Seen:
        """See ``Supervisor``."""
        nodes, lost = await self._nodes()
        now, live = time.monotonic(), {node.id for node in nodes}
        for left in self._said.keys() - live:
            del self._said[left]
        for left in self._keepers.keys() - live:
            del self._keepers[left]
        self._ids = {node.name: node.id for node in nodes}
        await asyncio.gather(*(self._ask(node) for node in nodes))
        known = [
            Node(node.name, node.slots, now - self._since.setdefault(node.id, now))
            for node in nodes
            if node.id in self._said  # its keeper has answered once
        ]
        return Seen(tuple(known), self.hosts, lost, is_whole=len(known) == len(nodes))

    async def start(self, node: str, host: str) -> None:
        """See ``Supervisor``."""
        await self._tell(node, "start", host)

    async def stop(self, host: str) -> None:
        """See ``Supervisor``."""
        await self._tell(node_of(host), "stop", host)

    def end_keepers(self) -> None:
        """End the keepers, which keep no host any more."""
        for keeper in self._keepers.values():
            ray.kill(keeper)

    async def _nodes(self) -> tuple[list[_NodeInfo], frozenset[str]]:
        """The live nodes that have room for hosts, and the names of those that Ray lost."""
        try:
            rows = await asyncio.to_thread(ray.nodes)
        except Exception as error:  # it raises what its layers raise
            raise Unreachable(f"Ray's control store does not answer: {error}") from error
        live = [row for row in rows if row["Alive"]]
        names = [row["NodeName"] for row in live]
        nodes = []
        for row in live:
            name, slots = row["NodeName"], int(row["Resources"].get("CPU", 0))
            if names.count(name) > 1:
                name = f"{name}_{row['NodeID'][:6]}"
            if slots:  # a node that was started with --num-cpus 0 is to run none
                nodes.append(_NodeInfo(row["NodeID"], name, row["NodeManagerAddress"], slots))
        lost = {row["NodeName"] for row in rows if not row["Alive"]}
        return nodes, frozenset(lost - set(names))

    async def _ask(self, node: _NodeInfo) -> None:
        """Let the keeper of *node* name its hosts; make a keeper where none lives."""
        try:
            async with asyncio.timeout(LOOK_S):
                if node.id not in self._keepers:
                    self._keepers[node.id] = await asyncio.to_thread(_made, self._plan, node)
                self._said[node.id] = await self._keepers[node.id].hosts.remote()
        except (RayError, ValueError, TimeoutError) as error:
            # A dead one is made anew with the next look. What is slow is asked again.
            if not isinstance(error, TimeoutError):
                self._keepers.pop(node.id, None)
            why = " ".join(str(error).split()) or "it does not answer"
            self._log.warning("cluster.keeper_silent", node=node.name, why=why)

    async def _tell(self, node: str, what: str, host: str) -> None:
        keeper = self._keepers.get(self._ids.get(node, ""))
        if keeper is None:
            return  # the next look makes one
        try:
            async with asyncio.timeout(LOOK_S):
                await getattr(keeper, what).remote(host)
        except (RayError, TimeoutError) as error:
            raise Unreachable(f"the keeper of node {node} does not answer") from error


def _made(plan: Plan, node: _NodeInfo) -> Any:
    """The keeper of *node*: the one that lives, or a new one. Its place is that node alone."""
    actor: Any = ray.remote(KeeperActor)
    return actor.options(
        name=f"keeper/{plan.command.cluster}/{node.id}",
        namespace=NAMESPACE,
        lifetime="detached",  # it outlives the supervisor
        get_if_exists=True,
        max_restarts=0,  # so that a call to a dead one fails in milliseconds
        num_cpus=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
    ).remote(plan, node)


def start_on_ray(plan: Plan, address: str) -> tuple[SupervisedHost, ...]:
    """Let a supervisor follow the directory on the Ray cluster at *address*. Waits until all of the
    wanted hosts are up, and returns them; they go on when this process ends.

    Raises InvalidInput if there is no Ray cluster, if a supervisor runs with another plan, or if a
    host does not start: then it is tried again until ``cluster down``.
    """
    try:
        ray.init(
            address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        said = " ".join(str(error).split())
        raise InvalidInput(f"no Ray cluster answers at {address!r}: {said}") from error
    try:
        actor: Any = ray.remote(SupervisorActor)
        supervisor = actor.options(
            name=plan.supervisor_name,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            num_cpus=0,
        ).remote(plan)
        return _all_up(supervisor, plan)
    finally:
        ray.shutdown()


def _all_up(supervisor: Any, plan: Plan) -> tuple[SupervisedHost, ...]:
    until = time.monotonic() + START_S
    try:
        if ray.get(supervisor.plan.remote(), timeout=START_S) != plan:
            raise InvalidInput(
                f"cluster {plan.command.cluster!r} runs with other settings; use cluster down first"
            )
        while time.monotonic() < until:
            hosts: tuple[SupervisedHost, ...] = ray.get(supervisor.hosts.remote(), timeout=START_S)
            failed = next((host for host in hosts if host.failures), None)
            if failed is not None:
                raise InvalidInput(f"host {failed.name} did not start: {failed.why}")
            if hosts and all(host.state == "up" for host in hosts):
                return hosts
            time.sleep(0.2)
    except (ActorDiedError, GetTimeoutError) as error:
        said = str(error).strip().splitlines()
        raise SessionError(f"the supervisor on Ray did not start: {said[-1]}") from error
    raise SessionError(f"no host was up on Ray after {START_S:g} s; look at Ray's logs")
