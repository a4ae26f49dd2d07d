"""The hosts of a simulated cluster: simulated processes that join a directory, are reached over a
network, hand sessions over, and are watched for what they begin after they have lost a session."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any

import anyio
import msgspec

from llmsession.cluster.host import ClusterHost
from llmsession.cluster.placement import View
from llmsession.errors import SessionError, SessionInUse, SessionMoved, StoreError
from llmsession.session.actor.tool_runner import tool_around
from llmsession.session.handles.session import LLMSession, live_state
from llmsession.session.manager import runtime_of
from llmsession.session.values.commands import HandOverWhen
from llmsession.session.values.config import Tool

from .directory import DirectoryLink, DirectoryRows
from .disk import DiskLink
from .network import CLIENTS, HostClock, Network, host_name
from .processes import Host, Incarnation, World
from .shared_store import HostLink, SharedDisk

__all__ = ["Cluster", "ClusterIncarnation", "SimulatedHost"]

RATES = (0.91, 0.97, 1.0, 1.0, 1.03, 1.09)
"""How fast the clocks of hosts go. A lease allows for a tenth."""
NOTICED_S = 0.02
"""How long a keeper takes to say that a process ended."""
DRAIN_S = 0.2


class Cluster:
    """What the hosts share beside the world: the store with its leases, the network, the rows of
    the directory, and who runs on which machine."""

    def __init__(self, disk: SharedDisk, seed: int) -> None:
        self.disk = disk
        self.network = Network(seed)
        self.rows = DirectoryRows(disk)
        self.hosts: list[SimulatedHost] = []
        self.random = Random(f"cluster {seed}")
        self.machines = self.random.choice((1, 2, 3))
        self._pids = 0

    def link(self, world: World, number: int, clock: HostClock) -> HostLink:
        """The store of the next process of the host *number*."""
        self._pids += 1
        return HostLink(
            self.disk,
            world.group,
            self.network,
            host=host_name(number),
            pid=self._pids,
            machine=f"machine{number % self.machines}",
            clock=clock,
        )

    def reached(self, one: int, other: int) -> bool:
        """Whether the host *other* answers the host *one*."""
        life = self.hosts[other].life
        return life is not None and self.network.reaches(host_name(one), host_name(other))


class ClusterIncarnation(Incarnation):
    """One incarnation of a host."""

    link: HostLink

    def __init__(self, cluster: Cluster, world: World, number: int, clock: HostClock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._watches: dict[str, _PreviewWatch] = {}
        self.host: ClusterHost
        super().__init__(world, number)
        self.directory = DirectoryLink(
            cluster.rows, self.link, cluster.network, world.group, self._silent
        )

    def _new_link(self, world: World) -> DiskLink:
        return self._cluster.link(world, self.number, self._clock)

    @property
    def owner(self) -> str:
        """Its name as an owner of sessions."""
        return runtime_of(self.manager).owner.name

    def _silent(self, view: View) -> Sequence[str]:
        hosts = {host_name(host.number): host.number for host in self._cluster.hosts}
        return [
            host.incarnation
            for host in view.hosts
            if hosts[host.name] != self.number
            and not self._cluster.reached(self.number, hosts[host.name])
        ]

    async def begin(self) -> None:
        group = self._world.group
        logger = self._world.coverage.logger(lambda: self.owner_is_dead)
        name = host_name(self.number)
        self.host = ClusterHost(self.manager, self.directory, name, logger=logger)
        group.start_soon(self.link.renew)
        while not self.link.is_over:
            try:
                await self.directory.join(self.number, runtime_of(self.manager).owner)
                break
            except StoreError:
                await anyio.sleep(NOTICED_S)
        group.start_soon(self.directory.follow)

    async def finish(self) -> None:
        with suppress(StoreError):  # its lease runs out
            await self.directory.leave()

    # What clients ask.

    async def admitted(self, session: str, *, is_sent_here: bool) -> LLMSession:
        """A handle of *session*, if it is served here: see ``Admission.open``. Raises
        SessionInUse and SessionMoved, with the address of the host that serves it."""
        routing = self.host.routing
        try:
            await routing.check(session, is_sent_here=is_sent_here)
            handle = await self.opened(session)
        except (SessionInUse, SessionMoved) as error:
            raise (error if error.address else await routing.located(session, error)) from error
        self._watch(handle)
        return handle

    async def opened(self, session: str, *, takeover: bool = False) -> LLMSession:
        handle = self.handles.get(session)
        if handle is not None and handle.status().phase == "cold":
            del self.handles[session]  # a service opens it, and so finds out who has it
        handle = await super().opened(session, takeover=takeover)
        self._watch(handle)
        return handle

    async def hand_over(self, session: str, target: str, when: HandOverWhen) -> None:
        """Hand *session* over, if it is here, and send its clients to *target*."""
        if session in self.manager.live:
            self.host.routing.hand_over_to(session, target)
            with suppress(SessionError):  # its clients find it
                await self.manager.hand_over(session, when=when)

    # What must not begin.

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(self._watched_tool(tool) for tool in self._world.tools)

    def _watched_tool(self, tool: Tool) -> Tool:
        run: Any = tool.run
        if run is None:
            return tool

        async def watched(**arguments: Any) -> Any:
            session = next((name for name in self.link.held_epochs if tool_around(name)), "")
            self.begins("a tool", session)
            return await run(**arguments)

        return msgspec.structs.replace(tool, run=watched)

    def begins(self, what: str, session: str) -> None:
        if self.owner_is_dead:
            return
        epoch = self.link.held_epochs.get(session, 0)
        why = self._cluster.disk.loss_known_to(self.owner, session, epoch)
        if why:
            self._world.report(6, f"{what} began at host {self.number}, although {why}", session)

    def _watch(self, handle: LLMSession) -> None:
        """Watch the previews of a session from now on."""
        subscriptions = runtime_of(self.manager).subscriptions
        earlier = self._watches.get(handle.id)
        if earlier is not None:
            subscriptions.remove(handle.id, earlier)
        watch = self._watches[handle.id] = _PreviewWatch(self, handle.id)
        subscriptions.add(handle.id, watch, live_state(handle).head)


class _PreviewWatch:
    """An ``EventSink`` that looks whether a preview may be published at that moment."""

    def __init__(self, incarnation: ClusterIncarnation, session: str) -> None:
        self._incarnation = incarnation
        self._session = session

    def offer_preview(self, preview: object) -> None:
        self._incarnation.begins("a preview", self._session)

    def offer_record(self, record: object) -> None: ...

    def offer_restart(self, restart: object) -> None: ...

    def lag(self) -> None: ...

    def end(self, *, moved: bool = False) -> None: ...


class SimulatedHost(Host):
    """A host, which keeps its name and its clock when it starts again."""

    _life: ClusterIncarnation

    def __init__(self, cluster: Cluster, world: World, number: int) -> None:
        self._cluster = cluster
        random = cluster.random
        self.clock = HostClock(random.choice(RATES), random.uniform(0, 1000))
        super().__init__(world, number)

    def _new_life(self) -> Incarnation:
        return ClusterIncarnation(self._cluster, self._world, self.number, self.clock)

    @property
    def life(self) -> ClusterIncarnation | None:
        """The running incarnation; None while there is none, or while it is stopped."""
        is_running = self.is_up and self._life.has_begun and self._life.link.flows.is_set()
        return self._life if is_running else None

    async def incarnation(self) -> ClusterIncarnation:
        life = await super().incarnation()
        assert isinstance(life, ClusterIncarnation)  # as ``_new_life`` makes it
        return life

    def reached_by_clients(self) -> bool:
        """Whether clients can connect."""
        return self.is_up and self._cluster.network.reaches(CLIENTS, host_name(self.number))

    def disconnect(self) -> None:
        """Break the connections of all clients."""
        if self.is_up:
            self._life.disconnect()

    async def kill_seen(self, down_s: float, *, is_seen: bool) -> None:
        """Kill the host. If a keeper has *is_seen* it, it declares it dead."""
        if not self.is_up:
            return
        life = self._life
        await life.ready()
        if is_seen and not life.owner_is_dead:
            self._world.group.start_soon(self._declare, life.owner)
        await self.kill(down_s)

    async def _declare(self, incarnation: str) -> None:
        await anyio.sleep(NOTICED_S)
        self._cluster.rows.declare_dead(incarnation)

    async def freeze(self, seconds: float) -> None:
        if self.is_up and self._life.link.flows.is_set():
            self.clock.stop(seconds)
        await super().freeze(seconds)

    async def drain(self) -> None:
        """Hand everything over, end in order, and start again: an upgrade."""
        if not self.is_up:
            return
        life = self._life
        await life.ready()
        if life.owner_is_dead:
            return
        await life.within(lambda: life.host.hand_over_all(DRAIN_S))
        if life is self._life and not life.owner_is_dead and self.is_up:
            self._up = anyio.Event()
            await life.end(leave_open=True)
            life.disconnect()
            self._start()
