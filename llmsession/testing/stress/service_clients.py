"""Stress at a service: clients send, steer, interrupt, repeat, vanish and come back; what they saw
is checked. Nothing is known here but what clients are told."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random
from typing import Any, TypeVar

import anyio
import msgspec

from llmsession.errors import SessionError, SessionNotFound
from llmsession.session import SessionConfig, ToolResult
from llmsession.session.core.subscriptions import Lagged
from llmsession.session.log.state import SessionState
from llmsession.session.values.outcome import InterruptOutcome
from llmsession.transport.interface import ManagerInterface, SessionInterface, TurnInterface
from llmsession.turns import records as r
from llmsession.turns.previews import ToolUse
from llmsession.turns.records import encode_record

from ..checker.checker import MARGIN_S, check
from ..recording.entries import (
    Abandoned,
    Begun,
    Invoked,
    LeftBehind,
    Logged,
    ObservedEvent,
    OutcomeSeen,
    Recording,
    Refused,
    Returned,
    SubscriptionLog,
)
from ..recording.recorder import Notes, ends_of
from ..recording.violation import Violation
from ..workload.model import CALLER_TOOLS, stress_tools, words
from ..workload.subscribers import observed
from .plan import StressPlan, StressReport, count, latencies_ms, percentile

__all__ = ["run_stress_at"]

T = TypeVar("T")
SENDERS = 3
GRACE_S = 0.1
CATCH_UP_S = 10.0
PATIENCE_S = 60.0
"""How long after its time a run may take: another's model answers."""
_MODES = ("queue",) * 9 + ("steer",) * 3 + ("interrupt", "reject")
_POLICIES = (None, "drop_turn", "keep_steps", "keep_text")


async def run_stress_at(
    clients: Sequence[ManagerInterface],
    plan: StressPlan,
    *,
    model: str,
    margin_s: float = MARGIN_S,
) -> StressReport:
    """Run *plan* at the service of *clients*, in new sessions, and check what they were told; the
    sessions are deleted afterwards. Its provider answers, as *model*.

    The log is what a new subscriber reads; so interrupts, answers and subscribers are held against
    it, and the history against its fold. Raises InvalidInput for a plan that cannot be run, and
    TransportError.
    """
    run = _Run(plan.checked(), clients, model)
    seconds, violations = await run.perform()
    recording = Recording(run.entries)
    latencies = latencies_ms(recording)
    return StressReport(
        plan=plan,
        counts=count(recording),
        violations=(*check(recording, margin_s=margin_s), *violations),
        seconds=seconds,
        interrupt_p50_ms=round(percentile(latencies, 0.5), 3),
        interrupt_p99_ms=round(percentile(latencies, 0.99), 3),
        recording=recording,
    )


class _Run(Notes):
    def __init__(self, plan: StressPlan, clients: Sequence[ManagerInterface], model: str) -> None:
        super().__init__()
        self.plan = plan
        self._clients = clients
        self._model = model
        self._name = f"stress-{uuid.uuid4().hex[:8]}"
        self._calls = 0
        asked = msgspec.to_builtins(plan)
        self.note(Begun(seed=plan.seed, plan=asked, grace_s=GRACE_S))

    async def perform(self) -> tuple[float, list[Violation]]:
        """The seconds that the work took, and what the logs say about the histories."""
        callers: list[_Caller] = []
        violations: list[Violation] = []
        lag_s = 0.0

        async def watch_clock() -> None:
            nonlocal lag_s
            while True:
                before = anyio.current_time()
                await anyio.sleep(0.005)
                lag_s = max(lag_s, anyio.current_time() - before - 0.005)

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(watch_clock)
                await self._work(callers)
                group.cancel_scope.cancel()
            seconds = self.now()
            self.note(LeftBehind(lag_s=round(lag_s, 6)))
            for caller in callers:
                violations += await caller.read_log()
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(PATIENCE_S):
                for caller in callers:
                    await self._delete(caller.session.id)
        return seconds, violations

    async def _work(self, callers: list[_Caller]) -> None:
        with anyio.move_on_after(self.plan.seconds + PATIENCE_S):
            async with anyio.create_task_group() as group:
                for number in range(self.plan.sessions):
                    client = self._clients[number % len(self._clients)]
                    other = self._clients[(number + 1) % len(self._clients)]
                    session = await client.create(self._config(), session_id=self._id(number))
                    caller = _Caller(self, session, await other.open(session.id))
                    callers.append(caller)
                    group.start_soon(caller.run)

    def _id(self, number: int) -> str:
        return f"{self._name}-{number}"

    def _config(self) -> SessionConfig:
        tools = [tool for tool in stress_tools() if tool.name in CALLER_TOOLS]
        return SessionConfig(
            model=self._model,
            system="This is a test of the machinery around you. Answer in a few words.",
            tools=tuple(tools),
            max_tokens=200,
            grace_s=GRACE_S,
        )

    async def _delete(self, session: str) -> None:
        try:
            await self._clients[0].delete(session)
        except SessionNotFound:
            return


class _Caller:
    """All that one session is asked, by one client, and what it and another one see of it."""

    def __init__(self, run: _Run, session: SessionInterface, elsewhere: SessionInterface) -> None:
        self._run = run
        self.session = session
        self._elsewhere = elsewhere
        self._seed = f"{run.plan.seed}/{session.id.rpartition('-')[2]}"
        self._next = 0
        self._busy = True
        self._cursor = 0
        """Where the subscriber is that began with the first record, ..."""
        self._whole = False
        """... and whether it should have all."""
        self._subscribers = 0
        random = Random(f"{self._seed}/interrupts")
        self._interrupts = [random.randrange(run.plan.turns) for _ in range(run.plan.interrupts)]

    async def run(self) -> None:
        async with anyio.create_task_group() as watching:
            watching.start_soon(self._answer_calls)
            watching.start_soon(self._come_and_go)
            async with anyio.create_task_group() as senders:
                for _ in range(SENDERS):
                    senders.start_soon(self._send_all, senders.start_soon)
            self._busy = False
            await self._catch_up()
            watching.cancel_scope.cancel()

    # What is asked.

    async def _call(
        self,
        command: str,
        perform: Callable[[], Awaitable[T]],
        answer: Callable[[T], dict[str, Any]],
        *,
        patience_s: float | None = None,
        **asked: Any,
    ) -> T | None:
        run, name = self._run, self.session.id
        call = run.next_call()
        run.note(Invoked(session=name, call=call, command=command, **asked, **run.place()))
        with anyio.move_on_after(patience_s):
            try:
                value = await perform()
            except SessionError as error:
                kind = type(error).__name__
                told = Refused(session=name, call=call, error=kind, text=str(error)[:200])
                run.note(msgspec.structs.replace(told, **run.place()))
                return None
            placed = run.place()
            seq = (await self.session.read_status()).seq
            run.note(Returned(session=name, call=call, seq=seq, **answer(value), **placed))
            return value
        run.note(Abandoned(session=name, call=call, **run.place()))
        return None

    async def _send_all(self, start: Any) -> None:
        plan = self._run.plan
        while self._next < plan.turns and self._run.now() < plan.seconds:
            number, self._next = self._next, self._next + 1
            random = Random(f"{self._seed}/send/{number}")
            for at in range(self._interrupts.count(number)):
                start(self._interrupt, Random(f"{self._seed}/{number}/{at}"))
            await self._send(number, random, start)

    async def _send(self, number: int, random: Random, start: Any) -> None:
        token = f"{self.session.id}#{number}"
        asked: dict[str, Any] = {"when_busy": random.choice(_MODES)}
        vanishes = random.random() < 0.07
        if not vanishes and random.random() < 0.3:
            asked["command_id"] = f"send {number}"
            start(self._ask, token, asked)
        patience_s = random.uniform(0, 0.002) if vanishes else None
        turn = await self._ask(token, asked, patience_s)
        if turn is not None:
            await self._await(turn)
        await anyio.sleep(random.choice((0.0, 0.001, 0.01)))

    async def _ask(
        self, token: str, asked: dict[str, Any], patience_s: float | None = None
    ) -> TurnInterface | None:
        said = Random(token.rpartition("-")[2])
        text = f"{token}: {words(said, said.choice((10, 60)))}"
        return await self._call(
            "send",
            partial(self.session.send, text, **asked),
            lambda turn: {"turn": turn.id.number},
            patience_s=patience_s,
            token=token,
            **asked,
        )

    async def _await(self, turn: TurnInterface) -> None:
        outcome = await turn.outcome()
        told = OutcomeSeen(
            session=self.session.id,
            turn=turn.id.number,
            status=outcome.status,
            stop_reason=outcome.stop_reason,
            unread_steers=len(outcome.unread_steers),
            **self._run.place(),
        )
        self._run.note(told)

    async def _interrupt(self, random: Random) -> None:
        await anyio.sleep(random.choice((0.0, 0.001, 0.01, 0.05, 0.1)))
        asked: dict[str, Any] = {"policy": random.choice(_POLICIES)}
        if random.random() < 0.2:
            asked["command_id"] = f"stop {random.random()}"

        def answer(outcome: InterruptOutcome) -> dict[str, Any]:
            return {
                "result": str(outcome.result),
                "turn": outcome.turn.number if outcome.turn else None,
                "ended": ends_of(outcome.turns),
            }

        for _ in range(2 if "command_id" in asked else 1):
            ask = partial(self.session.interrupt, **asked)
            await self._call("interrupt", ask, answer, **asked)

    # What is seen.

    async def _answer_calls(self) -> None:
        """From the first record on, answering calls on the way; after ``Lagged`` again."""
        after: int | None = 0
        while after is not None:
            after = await self._listen(self.session, after, answering=True)

    async def _come_and_go(self) -> None:
        """Another client reads a little, vanishes, and goes on from its cursor."""
        random, after = Random(f"{self._seed}/vanishing"), 0
        while self._busy:
            after = await self._listen(self._elsewhere, after, at_most=random.choice((5, 40))) or 0
            await anyio.sleep(random.uniform(0, 0.05))

    async def _listen(
        self,
        session: SessionInterface,
        after: int,
        *,
        at_most: int | None = None,
        answering: bool = False,
    ) -> int | None:
        events = session.subscribe(after=after)
        self._subscribers += 1
        subscriber, place, seen = self._subscribers, self._run.place(), list[ObservedEvent]()
        ending = "vanished"
        try:
            async for event in events:
                if isinstance(event, Lagged):
                    ending = "lagged"
                    break
                if not isinstance(event, ToolUse):
                    seen.append(observed(event))
                elif answering:
                    await self._answer(event)
                if answering:
                    self._cursor = events.cursor
                if at_most is not None and len(seen) >= at_most:
                    break
            else:
                ending = "closed"
        finally:
            cursor = events.cursor
            events.close()
            if answering and self._whole:
                ending = "closed"
            self._run.note(
                SubscriptionLog(
                    session=self.session.id, subscriber=subscriber, after=after, cursor=cursor,
                    ending=ending, seen=tuple(seen), **place,
                )
            )  # fmt: skip
        return None if ending == "closed" else cursor

    async def _answer(self, use: ToolUse) -> None:
        result = ToolResult(use.id, words(Random(use.id), 60))
        try:
            await self.session.submit_tool_results([result])
        except SessionError:
            return  # its turn is over, or somebody was faster

    async def _catch_up(self) -> None:
        """Until the subscriber that began with the first record has what there is. One that does
        not get it is written down as whole, and found out by the checker."""
        with anyio.move_on_after(CATCH_UP_S):
            while True:
                status = await self.session.read_status()
                if status.turn is None and not status.jobs and self._cursor >= status.seq:
                    break
                await anyio.sleep(0.01)
        self._whole = True

    # The log, as somebody reads it who comes new.

    async def read_log(self) -> list[Violation]:
        last = (await self._elsewhere.read_status()).seq
        state, name = SessionState(self.session.id), self.session.id
        events = self._elsewhere.subscribe(after=0)
        async for event in events:
            if isinstance(event, r.RecordBase):
                body = msgspec.Raw(encode_record(event))
                self._run.note(Logged(session=name, seq=event.seq, body=body))
                state.apply(event)
                if event.seq >= last:
                    break
        events.close()
        if state.history != await self.session.read_conversation():
            told = "the history that a client reads is not the fold of the log that it reads"
            return [Violation(12, name, told, ())]
        return []
