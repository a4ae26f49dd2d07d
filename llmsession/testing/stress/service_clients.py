"""Stress at a service: clients send, steer, interrupt, repeat, disconnect and come back. What they
saw is checked. Nothing is known here but what a service tells its clients."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial

import anyio
import msgspec

from llmsession.errors import SessionNotFound
from llmsession.session import SessionConfig
from llmsession.session.log.state import SessionState
from llmsession.transport.interface import ManagerInterface, SessionInterface
from llmsession.turns import records as r
from llmsession.turns.records import encode_record

from ..checker.checker import MARGIN_S
from ..recording.entries import Begun, LeftBehind, Logged, Recording
from ..recording.recorder import Recorder
from ..recording.violation import Violation
from ..workload.client import Connection, FixedClient
from ..workload.subscribers import Subscribers
from ..workload.tools import CALLER_TOOLS, GRACE_S, workload_tools
from .callers import Callers
from .plan import LagMeter, StressPlan, StressReport, report_of

__all__ = ["run_stress_at"]

CATCH_UP_S = 10.0
PATIENCE_S = 60.0
"""How long after its time a run may take: a real model answers."""


async def run_stress_at(
    clients: Sequence[ManagerInterface],
    plan: StressPlan,
    *,
    model: str,
    margin_s: float = MARGIN_S,
) -> StressReport:
    """Run *plan* on the service of *clients*, in new sessions, and check what the clients saw. The
    service's provider answers, as *model*. The sessions are deleted afterwards.

    The log is what a new subscriber reads. Interrupts, answers and subscribers are compared with
    it, and the history with its fold. Raises InvalidInput for a plan that cannot be run, and
    TransportError.
    """
    run = _Run(plan.checked(), clients, model)
    seconds, violations = await run.perform()
    recording = Recording(run.recorder.entries)
    return report_of(plan, recording, seconds=seconds, margin_s=margin_s, more=violations)


class _Run:
    def __init__(self, plan: StressPlan, clients: Sequence[ManagerInterface], model: str) -> None:
        self._plan = plan
        self.recorder = Recorder()
        self._clients = clients
        self._model = model
        self._name = f"stress-{uuid.uuid4().hex[:8]}"
        self.recorder.note(Begun(seed=plan.seed, plan=msgspec.to_builtins(plan), grace_s=GRACE_S))

    async def perform(self) -> tuple[float, list[Violation]]:
        """The seconds that the work took, and the histories that differ from their logs."""
        sessions: list[_Session] = []
        violations: list[Violation] = []
        lag = LagMeter()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(lag.run)
                await self._work(sessions)
                lag.scope.cancel()
            seconds = self.recorder.now()
            self.recorder.note(LeftBehind(lag_s=round(lag.worst_s, 6)))
            for session in sessions:
                violations += await session.read_log()
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(PATIENCE_S):
                for session in sessions:
                    await self._delete(session.name)
        return seconds, violations

    async def _work(self, sessions: list[_Session]) -> None:
        with anyio.move_on_after(self._plan.seconds + PATIENCE_S):
            async with anyio.create_task_group() as group:
                for number in range(self._plan.sessions):
                    client = self._clients[number % len(self._clients)]
                    other = self._clients[(number + 1) % len(self._clients)]
                    name = f"{self._name}-{number}"
                    remote = await client.create(self._config(), session_id=name)
                    session = _Session(self.recorder, remote, await other.open(name))
                    sessions.append(session)
                    group.start_soon(session.run, self._plan, str(number))

    def _config(self) -> SessionConfig:
        tools = tuple(tool for tool in workload_tools() if tool.name in CALLER_TOOLS)
        return SessionConfig(
            model=self._model,
            system="This is a test of the machinery around you. Answer in a few words.",
            tools=tools,
            max_tokens=200,
            grace_s=GRACE_S,
        )

    async def _delete(self, session: str) -> None:
        try:
            await self._clients[0].delete(session)
        except SessionNotFound:
            return


class _RemoteConnection(Connection):
    """A session of a service is not closed at the end, so no subscription ends by itself."""

    knows_now = False
    is_whole = False
    """Every subscriber that reads everything should have everything."""

    def ending(self, *, is_complete: bool) -> str:
        return "closed" if is_complete or self.is_whole else "vanished"


class _Session:
    """One session of the service, used by one client and watched by another one."""

    def __init__(
        self, recorder: Recorder, session: SessionInterface, elsewhere: SessionInterface
    ) -> None:
        self.name = session.id
        self._recorder = recorder
        self._session = session
        self._connection = _RemoteConnection(session)
        self._client = FixedClient(recorder, session)
        self._client.connection = self._connection
        self._elsewhere = elsewhere
        self._other = FixedClient(recorder, elsewhere)
        self._other.connection = _RemoteConnection(elsewhere)

    async def run(self, plan: StressPlan, key: str) -> None:
        """Use the session as *plan* says. *key* names it in every run of the plan."""
        subscribers = Subscribers(
            self._client, self._recorder, f"{plan.seed}/{key}", is_prompt=True
        )
        async with anyio.create_task_group() as listening:
            listening.start_soon(subscribers.follow)
            listening.start_soon(subscribers.answer_calls)
            vanishing = partial(subscribers.follow, is_vanishing=True, client=self._other)
            listening.start_soon(vanishing)
            await Callers(self._client, plan, key).run()
            await self._catch_up(subscribers)
            listening.cancel_scope.cancel()

    async def _catch_up(self, subscribers: Subscribers) -> None:
        """Wait until the first subscriber has read everything. If it does not get everything, it
        is recorded as whole all the same, so that the checker sees what it lacks."""
        with anyio.move_on_after(CATCH_UP_S):
            while True:
                status = await self._session.read_status()
                if status.turn is None and not status.jobs and subscribers.cursor >= status.seq:
                    break
                await anyio.sleep(0.01)
        self._connection.is_whole = True

    async def read_log(self) -> list[Violation]:
        """Record the log, as a new subscriber reads it, and compare the history with its fold."""
        last = (await self._elsewhere.read_status()).seq
        state = SessionState(self.name)
        events = self._elsewhere.subscribe(after=0)
        async for event in events:
            if isinstance(event, r.RecordBase):
                body = msgspec.Raw(encode_record(event))
                self._recorder.note(Logged(session=self.name, seq=event.seq, body=body))
                state.apply(event)
                if event.seq >= last:
                    break
        events.close()
        if state.history != await self._session.read_conversation():
            text = "the history that a client reads is not the fold of the log that it reads"
            return [Violation(12, self.name, text)]
        return []
