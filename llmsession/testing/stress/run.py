"""Stress: many sessions at once, on the real actors, in real time; then the record is checked.

What is asked, answered and broken is chosen from the seed. How the tasks interleave is not: a
breach may need several runs of its seed to come again, and that is why it shows its record.
"""

from __future__ import annotations

from random import Random

import anyio
import msgspec
from anyio.abc import TaskGroup

from llmsession.session.manager import SessionManager
from llmsession.session.values.config import CompactionConfig, SessionConfig
from llmsession.session.values.outcome import Closed
from llmsession.turns.machine import TurnLimits
from llmsession.turns.request import Profile, Request, StepTag

from ..checker.checker import MARGIN_S, check
from ..recording.entries import Begun, Ended, LeftBehind, Logged, Recording, Rewritten
from ..recording.keeping_store import KeepingStore
from ..recording.recorder import Recorder
from ..scripted import ScriptedProvider
from ..workload.model import Model, stress_tools
from ..workload.subscribers import Subscribers
from .callers import Callers
from .plan import StressPlan, StressReport, count, latencies_ms, percentile

__all__ = ["StressPlan", "StressReport", "run_stress"]

GRACE_S = 0.1
PATIENCE_S = 30.0
"""How long after its time a run may take to come to its end. Who waits then was forgotten."""


async def run_stress(plan: StressPlan, *, margin_s: float = MARGIN_S) -> StressReport:
    """Run *plan* and check its record. Raises InvalidInput for a plan that cannot be run."""
    recording, seconds = await _Run(plan.checked()).perform()
    latencies = latencies_ms(recording)
    return StressReport(
        plan=plan,
        counts=count(recording),
        violations=check(recording, margin_s=margin_s),
        seconds=seconds,
        interrupt_p50_ms=round(percentile(latencies, 0.5), 3),
        interrupt_p99_ms=round(percentile(latencies, 0.99), 3),
        recording=recording,
    )


class _Run:
    def __init__(self, plan: StressPlan) -> None:
        self._plan = plan
        profile = Profile(name="stress")
        self._recorder = Recorder(profile)
        model = Model(plan.seed, self._requested)
        self._provider = ScriptedProvider(model, name="stress", profile=profile)
        self._store = KeepingStore()
        self._lag_s = 0.0
        asked = msgspec.to_builtins(plan)
        self._recorder.note(Begun(seed=plan.seed, plan=asked, profile=profile, grace_s=GRACE_S))

    def _requested(self, session: str, request: Request, tag: StepTag) -> None:
        self._recorder.requested(session, request, tag)
        # The recording has it; kept here, a long run would fill the memory.
        self._provider.requests.clear()
        self._provider.tags.clear()

    async def perform(self) -> tuple[Recording, float]:
        """The recording, and the seconds that the work took, without the checking."""
        async with anyio.create_task_group() as listening:
            watch = anyio.CancelScope()
            listening.start_soon(self._watch_clock, watch)
            async with SessionManager(provider=self._provider, store=self._store) as manager:
                await self._work(manager, listening)
                seconds = self._recorder.now()
                for closed in await manager.close():
                    self._note_end(manager, closed)
                watch.cancel()
            # Every session is closed, so every subscriber is told so, and ends.
            listening.cancel_scope.deadline = anyio.current_time() + PATIENCE_S
        left = [info.name for info in anyio.get_running_tasks() if info.name is not None]
        self._recorder.note(
            LeftBehind(
                after_exit=tuple(name for name in left if name.startswith("llmsession ")),
                open_streams=self._provider.open_streams,
                late_reports=sum(
                    session.status().late_reports for session in self._recorder.sessions.values()
                ),
                lag_s=round(self._lag_s, 6),
            )
        )
        await self._write_ends()
        return Recording(self._recorder.entries), seconds

    async def _work(self, manager: SessionManager, listening: TaskGroup) -> None:
        callers = []
        for number in range(self._plan.sessions):
            session = await manager.create(self._config(number), session_id=f"s{number}")
            self._recorder.sessions[session.id] = session
            watchers = Subscribers(self._recorder, session, self._plan.seed)
            watchers.start(listening)
            callers.append((Callers(self._recorder, session, self._plan), watchers))
        with anyio.move_on_after(self._plan.seconds + PATIENCE_S):
            async with anyio.create_task_group() as group:
                for number, (caller, watchers) in enumerate(callers):
                    group.start_soon(self._work_one, manager, number, caller, watchers)

    async def _watch_clock(self, until: anyio.CancelScope) -> None:
        """Measure by how much a short sleep is late, at worst."""
        with until:
            while True:
                before = anyio.current_time()
                await anyio.sleep(0.005)
                self._lag_s = max(self._lag_s, anyio.current_time() - before - 0.005)

    def _note_end(self, manager: SessionManager, closed: Closed) -> None:
        suffix = f" in {closed.session}"
        running = [name for name in manager.running_works if name.endswith(suffix)]
        ended = Ended(
            session=closed.session,
            still_running=closed.still_running,
            running=tuple(running),
            **self._recorder.place(),
        )
        self._recorder.note(ended)

    async def _work_one(
        self, manager: SessionManager, number: int, callers: Callers, watchers: Subscribers
    ) -> None:
        await callers.run()
        watchers.stop()
        # Of three sessions one is closed in the midst of a turn, one idle, one by the manager.
        if number % 3 < 2:
            closed = await callers.close(with_turn=number % 3 == 0)
            if isinstance(closed, Closed):
                self._note_end(manager, closed)

    def _config(self, number: int) -> SessionConfig:
        random = Random(f"{self._plan.seed}/config/{number}")
        return SessionConfig(
            model="stress-1",
            system=f"s{number} is a session under stress",
            tools=stress_tools(),
            max_tokens=1000,
            window_tokens=random.choice((5000, 8000, 12000)),
            interrupt_policy=random.choice(("drop_turn", "drop_turn", "keep_steps", "keep_text")),
            on_failure=random.choice(("keep_steps", "drop")),
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
            ),
        )

    async def _write_ends(self) -> None:
        """The state that each session ended in, and its log."""
        for name, session in self._recorder.sessions.items():
            self._recorder.read_history(session)
            self._recorder.read_state(session)
            replaced = self._store.replaced.get(name, {})
            for stored in await self._store.read(name):
                seq, body = stored.seq, stored.body
                logged = msgspec.Raw(replaced.get(seq, body))
                self._recorder.note(Logged(session=name, seq=seq, body=logged))
                if seq in replaced:
                    rewritten = Rewritten(session=name, seq=seq, body=msgspec.Raw(body))
                    self._recorder.note(rewritten)
