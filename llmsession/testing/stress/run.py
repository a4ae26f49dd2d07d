"""Runs many real sessions at the same time, in real time, and checks the recording.

The seed decides commands, replies and faults. It does not decide how the tasks interleave, so it
may take several runs of a seed to reproduce a violation. That is why a violation has its proof.
"""

from __future__ import annotations

import time
from functools import partial
from random import Random

import anyio
import msgspec
from anyio.abc import TaskGroup

from llmsession.session.manager import SessionManager
from llmsession.session.values.config import SessionConfig
from llmsession.session.values.outcome import Closed
from llmsession.turns.request import Profile, Request, StepTag

from ..checker.checker import MARGIN_S
from ..recording.entries import Begun, LeftBehind, Recording
from ..recording.recorder import KeepingStore, LocalRecorder, tasks_left
from ..scripted import ScriptedProvider, ScriptedReply
from ..workload.client import LocalClient
from ..workload.model import Model
from ..workload.subscribers import Subscribers
from ..workload.tools import GRACE_S, random_config, workload_tools
from .callers import LocalCallers
from .plan import LagMeter, StressPlan, StressReport, report_of

__all__ = ["StressPlan", "StressReport", "run_stress"]

PATIENCE_S = 30.0
"""How long a run may take to end after its time is over. A caller that still waits then was never
answered."""
PAUSE = 4
"""How much longer, at most, a pause between two blocks of the event loop is than a block."""


async def run_stress(plan: StressPlan, *, margin_s: float = MARGIN_S) -> StressReport:
    """Run *plan* and check its recording. Raises InvalidInput for a plan that cannot be run."""
    run = _Run(plan.checked())
    seconds = await run.perform()
    recording = Recording(run.recorder.entries)
    return report_of(plan, recording, seconds=seconds, margin_s=margin_s)


class _Run:
    def __init__(self, plan: StressPlan) -> None:
        self._plan = plan
        profile = Profile(name="stress")
        self.recorder = LocalRecorder(profile)
        self._model = Model(plan.seed)
        self._provider = ScriptedProvider(self._reply, name="stress", profile=profile)
        self._store = KeepingStore()
        fields = msgspec.to_builtins(plan)
        self.recorder.note(Begun(seed=plan.seed, plan=fields, profile=profile, grace_s=GRACE_S))

    def _reply(self, request: Request, tag: StepTag) -> ScriptedReply:
        session = (request.system or "").partition(" ")[0]
        self.recorder.requested(session, request, tag)
        # The recording has the request already. The provider would keep another copy of it.
        self._provider.requests.clear()
        self._provider.tags.clear()
        return self._model.reply(session, request, tag)

    async def perform(self) -> float:
        """Run the plan. Returns the seconds that the work took."""
        lag = LagMeter()
        async with anyio.create_task_group() as listening:
            listening.start_soon(lag.run)
            if self._plan.block:
                listening.start_soon(self._block, lag.scope)
            async with SessionManager(provider=self._provider, store=self._store) as manager:
                await self._work(manager, listening)
                seconds = self.recorder.now()
                for closed in await manager.close():
                    self.recorder.note_end(manager, closed)
                lag.scope.cancel()
            # Every session is closed now, so every subscription ends.
            listening.cancel_scope.deadline = anyio.current_time() + PATIENCE_S
        sessions = self.recorder.sessions
        late_reports = sum(session.status().late_reports for session in sessions.values())
        self.recorder.note(
            LeftBehind(
                after_exit=tasks_left(),
                open_streams=self._provider.open_streams,
                late_reports=late_reports,
                lag_s=round(lag.worst_s, 6),
            )
        )
        for name, session in sessions.items():
            LocalClient(self.recorder, session).read()
            await self.recorder.note_log(self._store, name)
        return seconds

    async def _block(self, until: anyio.CancelScope) -> None:
        random = Random(f"{self._plan.seed}/block")
        while not until.cancel_called:
            await anyio.sleep(random.uniform(0, self._plan.block * PAUSE))
            time.sleep(random.uniform(0, self._plan.block))  # noqa: ASYNC251  # that is what it does

    async def _work(self, manager: SessionManager, listening: TaskGroup) -> None:
        clients = []
        for number in range(self._plan.sessions):
            session = await manager.create(self._config(number), session_id=f"s{number}")
            self.recorder.sessions[session.id] = session
            client = LocalClient(self.recorder, session)
            clients.append(client)
            subscribers = Subscribers(client, self.recorder, f"{self._plan.seed}/{session.id}")
            for pause_s in (0.0, 0.002):
                listening.start_soon(partial(subscribers.follow, pause_s=pause_s))
            listening.start_soon(partial(subscribers.follow, is_vanishing=True))
            listening.start_soon(subscribers.answer_calls)
        with anyio.move_on_after(self._plan.seconds + PATIENCE_S):
            async with anyio.create_task_group() as group:
                for number, client in enumerate(clients):
                    group.start_soon(self._work_one, manager, number, client)

    async def _work_one(self, manager: SessionManager, number: int, client: LocalClient) -> None:
        callers = LocalCallers(client, self._plan)
        await callers.run()
        client.is_over = True
        # Of three sessions, one is closed during a turn, one when idle, and one by the manager.
        if number % 3 < 2:
            closed = await callers.close(with_turn=number % 3 == 0)
            if isinstance(closed, Closed):
                self.recorder.note_end(manager, closed)

    def _config(self, number: int) -> SessionConfig:
        random = Random(f"{self._plan.seed}/config/{number}")
        config = random_config(random, workload_tools(), may_crash=False)
        return msgspec.structs.replace(config, system=f"s{number} is a session under stress")
