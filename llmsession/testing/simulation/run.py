"""One run of one story: the real managers, actors, machine, compaction and fold, in a world that is
made up. Everything in it is decided by the story."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random

import anyio
import msgspec
from anyio.abc import TaskGroup

from llmsession.session.tasks.worker_thread import in_virtual_threads
from llmsession.session.values.config import CompactionConfig, SessionConfig, SummariserConfig
from llmsession.turns.machine import TurnLimits

from ..checker.checker import check
from ..recording.entries import Begun, LeftBehind, Logged, Recording, Rewritten
from ..recording.recorder import Recorder
from ..recording.violation import Violation
from .clients import SimSession
from .coverage import Coverage
from .disk import SimDisk
from .model import SimModel, counted_tools
from .processes import Host, World
from .schedule import (
    Change,
    Clock,
    Disk,
    Evict,
    Freeze,
    Interrupt,
    Kill,
    Move,
    Schedule,
    Send,
    Step,
)
from .subscribers import Subscribers
from .user_parts import UserParts, config_of, told_of_errors, tools_of
from .virtual_time import run_seeded

__all__ = ["SimRun", "run_schedule"]

GRACE_S = 0.1
MARGIN_S = 0.05
"""What an interrupt may take beside its grace: two or three writes, or the way back from cold."""
MAX_WAITS = 3
"""How often what the story keeps back may stand in one interrupt's way."""
STORM_S = 60.0
"""Virtual seconds in which every command of a story has to be answered."""
MAX_PATIENT_S = 0.5
"""Virtual seconds that an act waits for its phase; then it happens all the same."""
CALM_S = 60.0
PROCESSES = 2


class SimRun(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one story. ``seconds`` are virtual."""

    schedule: Schedule
    violations: tuple[Violation, ...]
    reached: Counter[str]
    recording: Recording
    seconds: float
    turns: int


def run_schedule(schedule: Schedule, parts: UserParts | None = None) -> SimRun:
    """Play *story* and check its record. Raises InvalidInput where trio is not there, within an
    event loop, for a cast that cannot play and one that uses threads; InvalidConfig for a
    configuration that cannot be kept."""
    run = _Run(schedule, parts or UserParts())
    seconds = run_seeded(schedule.seed, run.perform)
    recording = Recording(run.recorder.entries)
    return SimRun(
        schedule=schedule,
        violations=check(recording, margin_s=_margin_s(schedule)),
        reached=run.reached.counts,
        recording=recording,
        seconds=seconds,
        turns=len(run.disk.tokens),
    )


class _Run:
    def __init__(self, schedule: Schedule, parts: UserParts) -> None:
        self._schedule = schedule
        self._parts = parts
        self.disk = SimDisk(schedule.seed)
        self._threads = Random(f"threads {schedule.seed}")
        self._ran: Counter[str] = Counter()
        self.reached = Coverage()
        self._configs = [self._config(number) for number in range(schedule.sessions)]
        self._tools = tools_of(parts, self._configs) or counted_tools(self._ran)

    async def perform(self) -> float:
        schedule = self._schedule
        model = SimModel(schedule.seed, self._token, calls=self._parts.calls)
        self.recorder = Recorder(model.profile)
        asked = msgspec.to_builtins(schedule)
        self.recorder.note(
            Begun(
                seed=schedule.seed,
                plan=asked,
                profile=model.profile,
                grace_s=GRACE_S,
                margin_s=_margin_s(schedule),
            )
        )
        with in_virtual_threads(self._thread):
            async with anyio.create_task_group() as group:
                self._world = World(
                    disk=self.disk,
                    recorder=self.recorder,
                    model=model,
                    tools=self._tools,
                    group=group,
                    reached=self.reached,
                )
                await self._play()
        self._note_left()
        await self._write_ends()
        return self.recorder.now()

    def _token(self, session: str, turn: int) -> str:
        return self.disk.tokens.get((session, turn), f"{session}/{turn}")

    async def _thread(self) -> None:
        await anyio.sleep(self._threads.choice((0.0, 0.001, 0.02, 0.1)))

    async def _play(self) -> None:
        world = self._world
        self._hosts = [Host(world, number) for number in range(PROCESSES)]
        self._sessions = [
            SimSession(world, self._hosts, f"s{at}", at % PROCESSES, f"{self._schedule.seed}")
            for at in range(self._schedule.sessions)
        ]
        for at, session in enumerate(self._sessions):
            await session.create(self._configs[at])
        async with anyio.create_task_group() as listening:
            for session in self._sessions:
                audience = Subscribers(session, world.recorder, f"{self._schedule.seed}")
                listening.start_soon(audience.follow)
                listening.start_soon(partial(audience.follow, vanishing=True))
                listening.start_soon(audience.answer_calls)
            await self._storm()
            await self._calm(listening)
        for process in self._hosts:
            await (await process.incarnation()).end()

    async def _storm(self) -> None:
        began = anyio.current_time()
        with anyio.move_on_after(STORM_S) as scope:
            async with anyio.create_task_group() as group:
                for step in self._schedule.steps:
                    # Acts of one moment begin in any order.
                    if anyio.current_time() < began + step.at:
                        await anyio.sleep_until(began + step.at)
                    group.start_soon(self._act, step, group)
        if scope.cancelled_caught:
            self._world.found(13, f"a command was not answered in {STORM_S:.0f} virtual seconds")

    async def _calm(self, listening: TaskGroup) -> None:
        self.disk.calm()
        with anyio.move_on_after(CALM_S) as scope:
            sessions = [each for session in self._sessions for each in (session, *session.forks)]
            async with anyio.create_task_group() as group:
                for session in sessions:
                    group.start_soon(session.calm)
            for session in [*sessions, *await self._unknown(sessions)]:
                await session.finish()
        if scope.cancelled_caught:
            self._world.found(13, "the storm is over, and somebody still waits")
        # Who listens is told of the end, and reads what there is.
        listening.cancel_scope.deadline = anyio.current_time() + CALM_S

    async def _unknown(self, known: Sequence[SimSession]) -> list[SimSession]:
        """Sessions that somebody made and was not told of, as forks whose answer was lost."""
        names = {session.name for session in known}
        return [
            SimSession(self._world, self._hosts, row.session, 0, f"{self._schedule.seed}")
            for row in await self.disk.truth.rows()
            if row.session not in names
        ]

    async def _act(self, step: Step, group: TaskGroup) -> None:
        reached = self.reached
        if step.phase is not None:
            at = getattr(step, "session", None)
            with anyio.move_on_after(MAX_PATIENT_S):
                await reached.entered(step.phase, "" if at is None else f"s{at}")
        match step:
            case Send(session=at):
                reached.struck(f"send {step.when_busy}", f"s{at}")
                await self._sessions[at].send(step)
            case Interrupt(session=at):
                reached.struck(f"interrupt {step.policy or 'configured'}", f"s{at}")
                await self._sessions[at].interrupt(step)
            case Change(session=at):
                reached.struck(step.kind, f"s{at}")
                await self._sessions[at].change(step)
            case Evict(session=at):
                reached.struck("let go", f"s{at}")
                await self._sessions[at].evict()
            case Move(session=at):
                reached.struck(f"move, {step.how}", f"s{at}")
                await self._sessions[at].move(step.how)
            case Kill():
                homes = self._homes(step.process)
                for session in homes:
                    reached.struck("kill", session.name)
                reached.ended_lives([session.name for session in homes])
                await self._hosts[step.process].kill(step.down_s)
            case Freeze():
                await self._freeze(step, group)
            case Disk():
                reached.struck(f"disk {step.kind}")
                self.disk.fail(step.kind, step.seconds)
            case Clock():
                reached.struck("clock back" if step.seconds < 0 else "clock forward")
                self._world.skew_s += step.seconds

    def _homes(self, process: int) -> list[SimSession]:
        return [session for session in self._sessions if session.home == process]

    async def _freeze(self, step: Freeze, group: TaskGroup) -> None:
        homes = self._homes(step.process)
        for session in homes:
            self.reached.struck("freeze, taken" if step.taken else "freeze", session.name)
        if step.taken:
            for session in homes:
                group.start_soon(session.move, "take")
        await self._hosts[step.process].freeze(step.seconds)

    def _note_left(self) -> None:
        left = [info.name for info in anyio.get_running_tasks() if info.name is not None]
        self.recorder.note(
            LeftBehind(
                after_exit=tuple(name for name in left if name.startswith("llmsession ")),
                open_streams=self._world.open_streams,
            )
        )
        for session, bug in self.reached.bugs:
            if "a bug of the provider" not in bug:
                self._world.found(13, f"a fault was logged: {bug}", session)
        for invariant, session, told in self.disk.found:
            self._world.found(invariant, told, session)
        for call, times in sorted(self._ran.items()):
            if times > 1:
                self._world.found(13, f"the tool {call} was run {times} times for one call")

    async def _write_ends(self) -> None:
        truth, truth_at = self.disk.truth, self.disk.written_at
        for row in await truth.rows():
            replaced = truth.replaced.get(row.session, {})
            for stored in await truth.read(row.session):
                seq, body = stored.seq, stored.body
                logged = msgspec.Raw(replaced.get(seq, body))
                at = self.recorder.since_beginning(truth_at.get((row.session, seq)))
                self.recorder.note(Logged(session=row.session, seq=seq, body=logged, at=at))
                if seq in replaced:
                    raw = msgspec.Raw(body)
                    self.recorder.note(Rewritten(session=row.session, seq=seq, body=raw))

    def _config(self, number: int) -> SessionConfig:
        random = Random(f"config {self._schedule.seed}/{number}")
        made = _config(random) if self._parts.config is None else config_of(self._parts, random)
        if self._parts.config is None and self._parts.tools:
            made = msgspec.structs.replace(made, tools=self._parts.tools)
        made = msgspec.structs.replace(made, system=f"s{number} is a session under simulation")
        return told_of_errors(made, self.reached.counts)


def _margin_s(schedule: Schedule) -> float:
    return MARGIN_S + MAX_WAITS * schedule.worst_wait_s


def _config(random: Random) -> SessionConfig:
    summariser = SummariserConfig(model="sim-1", deadline_s=2.0, max_requests=3)
    return SessionConfig(
        model="sim-1",
        tools=counted_tools(Counter()),
        max_tokens=1000,
        window_tokens=random.choice((5000, 8000, 12000)),
        interrupt_policy=random.choice(("drop_turn", "drop_turn", "keep_steps", "keep_text")),
        on_failure=random.choice(("keep_steps", "drop")),
        recovery=random.choice(("drop", "resume")),
        limits=TurnLimits(
            max_steps=random.choice((4, 6)),
            max_seconds=random.choice((0.4, 0.8)),
            max_tokens=random.choice((None, None, 20_000)),
            max_retries=random.choice((1, 4)),
        ),
        tool_deadline_s=0.15,
        grace_s=GRACE_S,
        queue_limit=random.choice((3, 32)),
        compaction=CompactionConfig(
            policy=random.choice(("balanced", "balanced", "swap_tool_results")),
            schedule=random.choice(("cache", "at_once")),
            threshold=random.choice((0.3, 0.5)),
            low=random.choice((0.15, 0.25)),
            keep_recent_turns=random.choice((1, 2)),
            keep_recent_steps=random.choice((1, 3)),
            cap_chars=2500,
            summary_chars=200,
            mode=random.choice(("summarize", "summarize", "redact")),
            summariser=random.choice((None, summariser)),
        ),
    )
