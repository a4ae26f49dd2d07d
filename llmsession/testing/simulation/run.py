"""One run of one schedule: the real managers, actors, turn machine, compaction and fold, in a
simulated world. The schedule decides everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random

import anyio
import msgspec
from anyio.abc import TaskGroup

from llmsession.errors import InvalidInput
from llmsession.session.actor.snapshot_writer import snapshots_every
from llmsession.session.tasks.worker_thread import in_virtual_threads
from llmsession.session.values.config import SessionConfig

from ..checker.checker import check
from ..recording.entries import Begun, LeftBehind, Recording
from ..recording.recorder import LocalRecorder, tasks_left
from ..recording.violation import Violation
from ..workload.model import Model
from ..workload.subscribers import Subscribers
from ..workload.tools import GRACE_S, OWN_TOOLS, THREAD_TOOL, counted_tools, random_config
from .clients import SimClient
from .cluster_clients import ClusterClient
from .coverage import Coverage
from .disk import SimDisk
from .hosts import Cluster, SimulatedHost
from .network import CLIENTS, RENEWALS, STORE, host_name
from .processes import PROFILE, Host, World
from .schedule import (
    Change,
    Clock,
    Cut,
    DeclareDead,
    Delay,
    Disk,
    Drain,
    Evict,
    Freeze,
    HandOver,
    Interrupt,
    Kill,
    Move,
    Schedule,
    Send,
    Step,
)
from .shared_store import LEASE_S, SharedDisk
from .user_parts import UserParts, config_of, count_errors, tools_of
from .virtual_time import run_seeded

__all__ = ["SimRun", "run_schedule"]

MARGIN_S = 0.05
"""How much longer than its grace an interrupt may take: two or three writes, or an activation."""
LEASE_RETRY_S = 1.0
"""How long an owner may wait until it asks again whether its lease is valid."""
MAX_WAITS = 3
"""How often the faults of a schedule may delay one interrupt."""
CHAOS_S = 60.0
"""Virtual seconds in which every command of a schedule has to be answered."""
QUIESCENCE_S = 60.0
"""Virtual seconds in which everything has to end after the last fault."""
MAX_PHASE_WAIT_S = 0.5
"""Virtual seconds that a step waits for its phase. After that it happens in any phase."""
PROCESSES = 2
RECORDS_BETWEEN_SNAPSHOTS = 6
"""Sessions here have short logs: so few that an opening mostly finds a snapshot."""


class SimRun(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one schedule. ``seconds`` are virtual."""

    schedule: Schedule
    violations: tuple[Violation, ...]
    reached: Counter[str]
    recording: Recording
    seconds: float
    turns: int


def run_schedule(schedule: Schedule, parts: UserParts | None = None) -> SimRun:
    """Run *schedule* and check its recording.

    Raises InvalidInput if trio is not installed, within an event loop, and for parts that cannot be
    used or that use threads. Raises InvalidConfig for a configuration that cannot be used.
    """
    kind = _ClusterRun if schedule.hosts else _Run
    run = kind(schedule, parts or UserParts())
    seconds = run_seeded(schedule.seed, run.perform)
    recording = Recording(run.recorder.entries)
    return SimRun(
        schedule=schedule,
        violations=check(recording, margin_s=_margin_s(schedule)),
        reached=run.coverage.counts + run.disk.snapshots,
        recording=recording,
        seconds=seconds,
        turns=len(run.disk.tokens),
    )


class _Run:
    def __init__(self, schedule: Schedule, parts: UserParts) -> None:
        self._schedule = schedule
        self._parts = parts
        self.disk = self._new_disk()
        self._threads = Random(f"threads {schedule.seed}")
        self._tool_runs: Counter[str] = Counter()
        self.coverage = Coverage()
        self._configs = [self._config(number) for number in range(schedule.sessions)]
        self._tools = tools_of(parts, self._configs) or counted_tools(self._tool_runs)

    def _new_disk(self) -> SimDisk:
        return SimDisk(self._schedule.seed)

    async def perform(self) -> float:
        """Run the schedule. Returns the virtual seconds that it took."""
        schedule = self._schedule
        self.recorder = LocalRecorder(PROFILE)
        self.recorder.note(
            Begun(
                seed=schedule.seed,
                plan=msgspec.to_builtins(schedule),
                profile=PROFILE,
                grace_s=GRACE_S,
                margin_s=_margin_s(schedule),
            )
        )
        # Nothing orders threads, so the model calls no tool that needs one.
        tools = tuple(name for name in OWN_TOOLS if name != THREAD_TOOL)
        model = Model(schedule.seed, token=self._token, tools=tools, calls=self._parts.calls)
        with in_virtual_threads(self._thread), snapshots_every(RECORDS_BETWEEN_SNAPSHOTS):
            async with anyio.create_task_group() as group:
                self._world = World(
                    disk=self.disk,
                    recorder=self.recorder,
                    model=model,
                    tools=self._tools,
                    group=group,
                    coverage=self.coverage,
                )
                await self._play()
        self._note_left()
        for row in await self.disk.truth.rows():
            await self.recorder.note_log(self.disk.truth, row.session, self.disk.written_at)
        return self.recorder.now()

    def _token(self, session: str, turn: int) -> str:
        return self.disk.tokens.get((session, turn), f"{session}/{turn}")

    async def _thread(self) -> None:
        await anyio.sleep(self._threads.choice((0.0, 0.001, 0.02, 0.1)))

    async def _play(self) -> None:
        hosts = self._hosts = self._new_hosts()
        self._clients = [
            self._client(f"s{number}", number % len(hosts))
            for number in range(self._schedule.sessions)
        ]
        for client, config in zip(self._clients, self._configs, strict=True):
            await client.create(config)
        async with anyio.create_task_group() as listening:
            for client in self._clients:
                seed = f"{self._schedule.seed}/{client.name}"
                subscribers = Subscribers(client, self.recorder, seed)
                listening.start_soon(subscribers.follow)
                listening.start_soon(partial(subscribers.follow, is_vanishing=True))
                listening.start_soon(subscribers.answer_calls)
            await self._run_chaos()
            await self._run_quiescence()
            # The subscribers are told of the end, and read what is left.
            listening.cancel_scope.deadline = anyio.current_time() + QUIESCENCE_S
        for host in self._hosts:
            await (await host.incarnation()).end()

    def _new_hosts(self) -> Sequence[Host]:
        return [Host(self._world, number) for number in range(PROCESSES)]

    def _client(self, name: str, home: int) -> SimClient:
        return SimClient(self._world, self._hosts, name, home, f"{self._schedule.seed}")

    async def _run_chaos(self) -> None:
        start = anyio.current_time()
        with anyio.move_on_after(CHAOS_S) as scope:
            async with anyio.create_task_group() as group:
                for step in self._schedule.steps:
                    # Steps of one moment begin in any order.
                    if anyio.current_time() < start + step.at:
                        await anyio.sleep_until(start + step.at)
                    group.start_soon(self._perform, step, group)
        if scope.cancelled_caught:
            self._world.report(13, f"a command was not answered in {CHAOS_S:.0f} virtual seconds")

    async def _run_quiescence(self) -> None:
        """Stop all faults. After that, every session must answer and close."""
        self._stop_faults()
        with anyio.move_on_after(QUIESCENCE_S) as scope:
            clients = [one for client in self._clients for one in (client, *client.forks)]
            async with anyio.create_task_group() as group:
                for client in clients:
                    group.start_soon(client.check_quiescent)
            for client in [*clients, *await self._unknown(clients)]:
                await client.finish()
        if scope.cancelled_caught:
            self._world.report(13, "all faults are over, and somebody still waits")

    def _stop_faults(self) -> None:
        self.disk.stop_faults()

    async def _unknown(self, known: Sequence[SimClient]) -> list[SimClient]:
        """Sessions whose creation got no answer, such as a fork with a lost answer."""
        names = {client.name for client in known}
        rows = await self.disk.truth.rows()
        return [self._client(row.session, 0) for row in rows if row.session not in names]

    async def _perform(self, step: Step, group: TaskGroup) -> None:
        coverage = self.coverage
        if step.phase is not None:
            number = getattr(step, "session", None)
            with anyio.move_on_after(MAX_PHASE_WAIT_S):
                await coverage.entered(step.phase, "" if number is None else f"s{number}")
        await self._happen(step, group)

    async def _happen(self, step: Step, group: TaskGroup) -> None:
        coverage = self.coverage
        match step:
            case Send() | Interrupt() | Change():
                coverage.struck(step.kind_name, f"s{step.session}")
                await self._clients[step.session].play(step)
            case Evict():
                coverage.struck("evict", f"s{step.session}")
                await self._clients[step.session].evict()
            case Move():
                coverage.struck(f"move, {step.how}", f"s{step.session}")
                await self._clients[step.session].move(step.how)
            case Kill():
                names = [client.name for client in self._clients_at(step.process)]
                for name in names:
                    coverage.struck("kill", name)
                coverage.lost_turns(names)
                await self._hosts[step.process].kill(step.down_s)
            case Freeze():
                await self._freeze(step, group)
            case Disk():
                coverage.struck(f"disk {step.kind}")
                self.disk.fail(step.kind, step.seconds)
            case Clock():
                coverage.struck("clock back" if step.seconds < 0 else "clock forward")
                self._world.skew_s += step.seconds
            case _:
                raise InvalidInput(f"a schedule without hosts has the step {step}")

    def _clients_at(self, process: int) -> list[SimClient]:
        return [client for client in self._clients if client.home == process]

    async def _freeze(self, step: Freeze, group: TaskGroup) -> None:
        clients = self._clients_at(step.process)
        for client in clients:
            self.coverage.struck("freeze, taken" if step.taken else "freeze", client.name)
        if step.taken:
            for client in clients:
                group.start_soon(client.move, "take")
        await self._hosts[step.process].freeze(step.seconds)

    def _note_left(self) -> None:
        open_streams = self._world.open_streams
        self.recorder.note(LeftBehind(after_exit=tasks_left(), open_streams=open_streams))
        for session, bug in self.coverage.bugs:
            if "a bug of the provider" not in bug:
                self._world.report(13, f"an error was logged: {bug}", session)
        for invariant, session, text in self.disk.violations:
            self._world.report(invariant, text, session)
        for call, times in sorted(self._tool_runs.items()):
            if times > 1:
                self._world.report(13, f"the tool {call} was run {times} times for one call")

    def _config(self, number: int) -> SessionConfig:
        random, parts = Random(f"config {self._schedule.seed}/{number}"), self._parts
        if parts.config is not None:
            config = config_of(parts, random)
        else:
            config = random_config(random, parts.tools or counted_tools(Counter()), may_crash=True)
        system = f"s{number} is a session under simulation"
        config = msgspec.structs.replace(config, system=system)
        return count_errors(config, self.coverage.counts)


class _ClusterRun(_Run):
    """A run on the hosts of a cluster."""

    disk: SharedDisk
    _hosts: Sequence[SimulatedHost]

    def _new_disk(self) -> SimDisk:
        return SharedDisk(self._schedule.seed)

    def _new_hosts(self) -> Sequence[Host]:
        self._cluster = Cluster(self.disk, self._schedule.seed)
        self._cluster.hosts = [
            SimulatedHost(self._cluster, self._world, number)
            for number in range(self._schedule.hosts)
        ]
        return self._cluster.hosts

    def _client(self, name: str, home: int) -> SimClient:
        return ClusterClient(self._world, self._hosts, name, home, f"{self._schedule.seed}")

    def _config(self, number: int) -> SessionConfig:
        # Each host runs its own tools, which it watches.
        config = super()._config(number)
        bare = [msgspec.structs.replace(tool, run=None) for tool in config.bound_tools.values()]
        return msgspec.structs.replace(config, tools=tuple(bare))

    def _stop_faults(self) -> None:
        super()._stop_faults()
        self._cluster.network.heal()

    async def _happen(self, step: Step, group: TaskGroup) -> None:
        coverage = self.coverage
        match step:
            case Cut():
                coverage.struck(f"cut off from {step.from_whom}")
                self._cut(step)
            case Delay():
                coverage.struck("views and notices late")
                self._cluster.network.delay(step.seconds)
            case DeclareDead():
                coverage.struck("wrongly declared dead")
                life = await self._hosts[step.process].incarnation()
                if not life.owner_is_dead:
                    self._cluster.rows.declare_dead(life.owner)
            case HandOver():
                coverage.struck(f"hand-over, {step.when}", f"s{step.session}")
                await self._hand_over(step)
            case Drain():
                coverage.struck("drain")
                await self._hosts[step.process].drain()
            case Kill():
                coverage.struck("kill")
                await self._hosts[step.process].kill_seen(step.down_s, is_seen=step.seen)
            case Freeze():
                coverage.struck("freeze")
                await self._hosts[step.process].freeze(step.seconds)
            case _:
                await super()._happen(step, group)

    def _cut(self, step: Cut) -> None:
        network, host = self._cluster.network, self._hosts[step.process]
        name = host_name(step.process)
        match step.from_whom:
            case "store":
                network.cut(name, STORE, step.seconds)
            case "renewals":
                network.cut(name, RENEWALS, step.seconds)
            case "clients":
                network.cut(name, CLIENTS, step.seconds)
                host.disconnect()
            case "hosts":
                for other in self._hosts:
                    if other is not host:
                        network.cut(name, host_name(other.number), step.seconds)

    async def _hand_over(self, step: HandOver) -> None:
        client, target = self._clients[step.session], host_name(step.to)
        for host in self._hosts:
            life = host.life
            if life is not None and life.owns(client.name):
                await life.within(partial(life.hand_over, client.name, target, step.when))


def _margin_s(schedule: Schedule) -> float:
    # In a cluster a lost session is found again once a lease has run out.
    lease_s = LEASE_S + LEASE_RETRY_S if schedule.hosts else 0.0
    return MARGIN_S + lease_s + MAX_WAITS * schedule.worst_wait_s
