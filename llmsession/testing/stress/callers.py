"""The callers of one session under stress: they send, steer, interrupt, repeat and vanish."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import anyio
from anyio.abc import TaskGroup

from llmsession.errors import SessionError
from llmsession.session.core.subscriptions import Lagged
from llmsession.session.handles.session import LLMSession, Turn, live_state
from llmsession.session.values.outcome import Closed, CompactionOutcome, InterruptOutcome
from llmsession.turns.previews import ToolUse

from ..recording.entries import ObservedEvent, SubscriptionLog
from ..recording.recorder import Recorder, ends_of
from ..workload.model import words
from ..workload.subscribers import observed
from .plan import StressPlan

__all__ = ["Callers"]

SENDERS = 3
"""Tasks that send at once: enough that sends meet, and the queue is not always full."""
_MODES = ("queue",) * 9 + ("steer",) * 4 + ("interrupt", "reject", "reject")
_POLICIES = (None, "drop_turn", "keep_steps", "keep_text")


class Callers:
    """All that one session is asked. Each choice comes from the seed, the session and the
    number of the send that it belongs to."""

    def __init__(self, recorder: Recorder, session: LLMSession, plan: StressPlan) -> None:
        self._recorder = recorder
        self._session = session
        self._plan = plan
        self._next = 0
        self._until = recorder.now() + plan.seconds
        self._seed = f"{plan.seed}/{session.id}"
        self._call = partial(recorder.call, session)
        random = Random(f"{self._seed}/interrupts")
        self._interrupts = [random.randrange(plan.turns) for _ in range(plan.interrupts)]
        self._busy = True

    async def run(self) -> None:
        """Until every send was made, or the time is over, and everybody was answered."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._fiddle)
            async with anyio.create_task_group() as senders:
                for _ in range(SENDERS):
                    senders.start_soon(self._send_all, senders)
            self._busy = False
        self._recorder.read_history(self._session)
        self._recorder.read_state(self._session)

    async def close(self, *, with_turn: bool) -> Closed | SessionError | None:
        """Close the session; *with_turn* right after a send, so that a turn is open."""
        if with_turn:
            token = f"{self._session.id}#last"
            await self._ask(token, Random(0), {"when_busy": "queue"})
            await anyio.sleep(0.03)
        return await self._call("close", self._session.close)

    async def _send_all(self, group: TaskGroup) -> None:
        while self._next < self._plan.turns and self._recorder.now() < self._until:
            number, self._next = self._next, self._next + 1
            random = Random(f"{self._seed}/send/{number}")
            for at in range(self._interrupts.count(number)):
                group.start_soon(self._interrupt, Random(f"{self._seed}/{number}/{at}"))
            await self._send(number, random, group)

    async def _send(self, number: int, random: Random, group: TaskGroup) -> None:
        token = f"{self._session.id}#{number}"
        asked: dict[str, Any] = {"when_busy": random.choice(_MODES)}
        if random.random() < 0.3:
            asked["command_id"] = f"send {number}"
            self._repeat(token, asked, random, group)
        if random.random() < 0.05:
            asked["expected_head"] = live_state(self._session).head_turn or 1
        # Of a repeated send whose caller vanished nobody could say which call was accepted.
        vanishes = "command_id" not in asked and random.random() < 0.07
        patience_s = random.uniform(0, 0.002) if vanishes else None
        if random.random() < 0.03:
            self._burst(token, random, group)
        turn = await self._ask(token, random, asked, patience_s=patience_s)
        if isinstance(turn, Turn):
            if random.random() < 0.3:
                group.start_soon(self._follow, turn)
            if random.random() < 0.75:
                await self._await(turn)
            else:
                group.start_soon(self._await, turn)
        await anyio.sleep(random.choice((0.0, 0.001, 0.01, 0.02)))

    def _burst(self, token: str, random: Random, group: TaskGroup) -> None:
        """Sends, an interrupt and more sends, before the session has read any of them."""
        asked: dict[str, Any] = {"when_busy": "queue"}
        stop = {"policy": random.choice(_POLICIES), "command_id": None}
        group.start_soon(self._ask_later, 0.0, f"{token}a", asked)
        group.start_soon(self._interrupt_once, None, stop)
        group.start_soon(self._ask_later, 0.0, f"{token}b", asked)

    def _repeat(self, token: str, asked: dict[str, Any], random: Random, group: TaskGroup) -> None:
        """Say it again under the same id, or something else under it."""
        repeated = dict(asked)
        kind = random.random()
        delay_s = random.choice((0.0, 0.0, 0.02))
        if kind < 0.5:
            group.start_soon(self._ask_later, delay_s, token, repeated)
        elif kind < 0.7:
            group.start_soon(self._ask_later, delay_s + 0.001, f"{token}x", repeated)

    async def _ask_later(self, delay_s: float, token: str, asked: dict[str, Any]) -> None:
        if delay_s:
            await anyio.sleep(delay_s)
        turn = await self._ask(token, Random(0), asked)
        if isinstance(turn, Turn):
            await self._await(turn)

    async def _ask(
        self, token: str, random: Random, asked: dict[str, Any], **how: Any
    ) -> Turn | SessionError | None:
        # What is said depends on the token alone: a repeat says the same.
        said = Random(token)
        text = f"{token}: {words(said, said.choice((10, 60, 300)))}"
        if random.random() < 0.02:
            text = "  "
        return await self._call(
            "send",
            lambda: self._session.send(text, **asked),
            answer=lambda turn: {"turn": turn.id.number},
            token=token,
            when_busy=asked["when_busy"],
            command_id=asked.get("command_id"),
            **how,
        )

    async def _await(self, turn: Turn) -> None:
        reason = await self._recorder.await_outcome(self._session, turn)
        if reason == "context_too_large":
            await self._make_room()

    async def _make_room(self) -> None:
        for _ in range(5):
            if await self._clear() is None:
                return
            await self._interrupt(Random(0))

    async def _follow(self, turn: Turn) -> None:
        """Read one turn's own events, to its end."""
        seen: list[ObservedEvent] = []
        place = self._recorder.place()
        async for event in turn:
            if not isinstance(event, ToolUse | Lagged):
                seen.append(observed(event))
        self._recorder.note(
            SubscriptionLog(
                session=self._session.id,
                subscriber=-turn.id.number,
                after=0,
                cursor=max((sighting.seq for sighting in seen), default=0),
                ending="terminal",
                turn=turn.id.number,
                seen=tuple(seen),
                **place,
            )
        )

    # Interrupts.

    async def _interrupt(self, random: Random) -> None:
        await anyio.sleep(random.choice((0.0, 0.001, 0.01, 0.05, 0.1)))
        asked: dict[str, Any] = {"policy": random.choice(_POLICIES), "command_id": None}
        turn = self._target(random)
        if random.random() < 0.2:
            asked["command_id"] = f"stop {random.random()}"
        times = random.choice((1, 1, 1, 2)) if asked["command_id"] is None else 1
        async with anyio.create_task_group() as group:
            for _ in range(times):
                group.start_soon(self._interrupt_once, turn, asked)
        if asked["command_id"] is not None and random.random() < 0.5:
            await self._interrupt_once(turn, asked)

    def _target(self, random: Random) -> int | None:
        kind, newest = random.random(), live_state(self._session).counter.last
        if kind < 0.6 or not newest:
            return None
        status = live_state(self._session).running()
        if kind < 0.85 and status is not None:
            return status.number
        return random.randint(max(1, newest - 3), newest + 2)

    async def _interrupt_once(self, turn: int | None, asked: dict[str, Any]) -> None:
        def answer(outcome: InterruptOutcome) -> dict[str, Any]:
            return {
                "result": str(outcome.result),
                "turn": outcome.turn.number if outcome.turn else None,
                "ended": ends_of(outcome.turns),
            }

        ask = partial(self._session.interrupt, turn, **asked)
        await self._call("interrupt", ask, answer=answer, turn=turn, **asked)
        self._recorder.read_history(self._session)

    # Everything else.

    async def _fiddle(self) -> None:
        random = Random(f"{self._seed}/fiddle")
        while self._busy:
            await anyio.sleep(random.uniform(0.002, 0.05))
            kind = random.random()
            if kind < 0.25:
                await self._compact(random)
            elif kind < 0.4:
                await self._configure(random)
            elif kind < 0.45:
                await self._clear()
            elif kind < 0.55:
                await self._change(random)
            elif kind < 0.6:
                await self._summarise(random)
            elif kind < 0.65:
                self._session.cancel_compaction()
            elif kind < 0.85:
                self._recorder.read_state(self._session)
            else:
                self._recorder.read_history(self._session)
                self._session.status()

    async def _compact(self, random: Random) -> None:
        def answer(outcome: CompactionOutcome) -> dict[str, Any]:
            return {
                "result": "applied" if outcome.applied else f"not applied, {outcome.reason}",
                "tokens_before": outcome.tokens_before,
                "tokens_after": outcome.tokens_after,
            }

        await self._call("compact", self._session.compact, answer=answer)

    async def _configure(self, random: Random) -> None:
        changes: dict[str, Any] = random.choice(
            (
                {"system": f"{self._session.id} variant {random.randrange(3)}"},
                {"options": {"temperature": random.choice((0.0, 1.0))}},
                {"max_tokens": random.choice((900, 1000))},
                {"model": ""},
                {"interrupt_policy": random.choice(_POLICIES[1:])},
            )
        )
        await self._call("configure", lambda: self._session.configure(**changes))

    async def _change(self, random: Random) -> None:
        """A change of the whole history, or a fork of it."""
        session, busy = self._session, random.choice(("interrupt", "reject"))
        turns = list(dict.fromkeys(message.turn for message in session.conversation()))
        asked: dict[str, Any] = {"when_busy": busy}
        if random.random() < 0.3:
            asked["command_id"] = f"change {random.random()}"
        match random.choice(("rewind", "rewind", "forget", "forget", "purge", "fork", "label")):
            case "rewind":
                to = random.choice([0, *turns[-3:], 10_000])
                await self._call("rewind", partial(session.rewind, to, **asked), **asked)
            case "forget":
                before = random.choice([1e12, *turns])
                await self._call("forget", partial(session.forget, before, **asked), **asked)
            case "purge":
                purge = partial(session.clear, purge=True, **asked)
                await self._call("clear", purge, **asked)
            case "fork":
                await self._fork(random, asked)
            case _:
                await self._call("label", partial(session.label, {"at": f"{random.random()}"}))
        self._recorder.read_history(session)

    async def _fork(self, random: Random, asked: dict[str, Any]) -> None:
        """A fork of any turn there was; it says something itself, and is closed."""
        at = random.choice([None, *live_state(self._session).committed_at])
        name = f"{self._session.id}-{random.randrange(1 << 30)}"
        ask = partial(self._session.fork, at, session_id=name, **asked)
        fork = await self._call("fork", ask, **asked)
        if not isinstance(fork, LLMSession):
            return
        self._recorder.sessions[fork.id] = fork
        call = partial(self._recorder.call, fork)
        await call("configure", partial(fork.configure, system=f"{fork.id} is a fork"))
        said = f"{fork.id}#0: go on"
        turn = await call(
            "send",
            partial(fork.send, said),
            answer=lambda turn: {"turn": turn.id.number},
            token=f"{fork.id}#0",
            when_busy="queue",
        )
        if isinstance(turn, Turn):
            await self._recorder.await_outcome(fork, turn)
        self._recorder.read_state(fork)
        await call("close", fork.close)

    async def _clear(self) -> SessionError | None:
        return await self._call("clear", self._session.clear)

    async def _summarise(self, random: Random) -> None:
        calls = list(live_state(self._session).call_turns)[-20:] or ["none"]
        call_id = random.choice(("never_offered", *calls))
        summaries = {call_id: f"summary {random.randrange(100)}"}
        store = partial(self._session.store_compact_summaries, summaries)
        await self._call("summaries", store)
