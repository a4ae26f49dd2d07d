"""The callers of one session under stress: they send, steer, interrupt, repeat and disconnect."""

from __future__ import annotations

from random import Random
from typing import Any

import anyio
from anyio.abc import TaskGroup

from llmsession.errors import SessionError
from llmsession.session.core.subscriptions import Lagged
from llmsession.session.handles.session import LLMSession, Turn, live_state
from llmsession.session.values.outcome import Closed
from llmsession.transport.interface import TurnInterface
from llmsession.turns.previews import ToolUse

from ..recording.entries import ObservedEvent, SubscriptionLog
from ..workload.client import FixedClient, LocalClient
from ..workload.model import LAST
from ..workload.subscribers import observed
from ..workload.tools import words
from .plan import StressPlan

__all__ = ["Callers", "LocalCallers"]

SENDERS = 3
"""Tasks that send at once: enough that sends meet, and the queue is not always full."""
_POLICIES = (None, "drop_turn", "keep_steps", "keep_text")


class Callers:
    """The callers of one session. Each choice depends on the seed, on *key*, which names the
    session in every run of the plan, and on the number of the send that it belongs to."""

    modes: tuple[str, ...] = ("queue",) * 9 + ("steer",) * 3 + ("interrupt", "reject")
    lengths: tuple[int, ...] = (10, 60)
    """The lengths of texts, in characters."""
    heads = bursts = blanks = follows = detached = 0.0
    """The share of sends that name the turn before them, that come in a burst, that are blank,
    whose events are read, and whose outcome another task awaits."""

    def __init__(self, client: FixedClient, plan: StressPlan, key: str) -> None:
        self._client = client
        self._recorder = client.recorder
        self._plan = plan
        self._key = key
        self._seed = f"{plan.seed}/{key}"
        self._next = 0
        random = Random(f"{self._seed}/interrupts")
        self._interrupts = [random.randrange(plan.turns) for _ in range(plan.interrupts)]

    async def run(self) -> None:
        """Until every send was made, or the time is over, and everybody was answered."""
        async with anyio.create_task_group() as group:
            for _ in range(SENDERS):
                group.start_soon(self._send_all, group)

    async def _send_all(self, group: TaskGroup) -> None:
        plan = self._plan
        while self._next < plan.turns and self._recorder.now() < plan.seconds:
            number, self._next = self._next, self._next + 1
            random = Random(f"{self._seed}/send/{number}")
            for index in range(self._interrupts.count(number)):
                group.start_soon(self._interrupt, Random(f"{self._seed}/{number}/{index}"))
            await self._send(str(number), random, group)

    async def _send(self, number: str, random: Random, group: TaskGroup) -> None:
        options: dict[str, Any] = {"when_busy": random.choice(self.modes)}
        if random.random() < 0.3:
            options["command_id"] = f"send {number}"
            self._repeat(number, options, random, group)
        if random.random() < self.heads:
            options["head"] = self._head()
        # If the caller of a repeated send gave up, nobody could tell which call was accepted.
        gives_up = "command_id" not in options and random.random() < 0.07
        patience_s = random.uniform(0, 0.002) if gives_up else None
        if random.random() < self.bursts:
            self._burst(number, random, group)
        is_blank = random.random() < self.blanks
        turn = await self._send_text(number, is_blank=is_blank, patience_s=patience_s, **options)
        if turn is not None and not isinstance(turn, SessionError):
            if random.random() < self.follows:
                group.start_soon(self._follow, turn)
            if random.random() < self.detached:
                group.start_soon(self._await, turn)
            else:
                await self._await(turn)
        await anyio.sleep(random.choice((0.0, 0.001, 0.01, 0.02)))

    def _head(self) -> int | None:
        """The turn that a send is said to follow."""
        return None

    def _burst(self, number: str, random: Random, group: TaskGroup) -> None:
        """Sends, an interrupt and more sends, before the session has read any of them."""
        options: dict[str, Any] = {"when_busy": "queue"}
        group.start_soon(self._send_later, 0.0, f"{number}a", options)
        group.start_soon(self._interrupt_once, None, {"policy": random.choice(_POLICIES)})
        group.start_soon(self._send_later, 0.0, f"{number}b", options)

    def _repeat(
        self, number: str, options: dict[str, Any], random: Random, group: TaskGroup
    ) -> None:
        """Repeat a send under the same command id, or send another text under it."""
        kind = random.random()
        delay_s = random.choice((0.0, 0.0, 0.02))
        if kind < 0.5:
            group.start_soon(self._send_later, delay_s, number, options)
        elif kind < 0.7:
            group.start_soon(self._send_later, delay_s + 0.001, f"{number}x", options)

    async def _send_later(self, delay_s: float, number: str, options: dict[str, Any]) -> None:
        if delay_s:
            await anyio.sleep(delay_s)
        turn = await self._send_text(number, **options)
        if turn is not None and not isinstance(turn, SessionError):
            await self._await(turn)

    async def _send_text(self, number: str, *, is_blank: bool = False, **options: Any) -> Any:
        # The text depends on the number alone, so that a repeat sends the same text.
        random, token = Random(f"{self._key}#{number}"), f"{self._client.name}#{number}"
        text = f"{token}: {words(random, random.choice(self.lengths))}"
        return await self._client.send(token, "  " if is_blank else text, **options)

    async def _await(self, turn: TurnInterface) -> None:
        await self._recorder.await_outcome(self._client.session, turn)

    async def _follow(self, turn: TurnInterface) -> None:
        """Read the events of *turn*, to its end."""
        seen: list[ObservedEvent] = []
        place = self._recorder.place()
        async for event in turn:
            if not isinstance(event, ToolUse | Lagged):
                seen.append(observed(event))
        self._recorder.note(
            SubscriptionLog(
                session=self._client.name,
                subscriber=-turn.id.number,
                after=0,
                cursor=max((event.seq for event in seen), default=0),
                ending="terminal",
                turn=turn.id.number,
                seen=tuple(seen),
                **place,
            )
        )

    async def _interrupt(self, random: Random) -> None:
        await anyio.sleep(random.choice((0.0, 0.001, 0.01, 0.05, 0.1)))
        options: dict[str, Any] = {"policy": random.choice(_POLICIES)}
        turn = self._target(random)
        if random.random() < 0.2:
            options["command_id"] = f"stop {random.random()}"
        times = random.choice((1, 1, 1, 2)) if "command_id" not in options else 1
        async with anyio.create_task_group() as group:
            for _ in range(times):
                group.start_soon(self._interrupt_once, turn, options)
        if "command_id" in options and random.random() < 0.5:
            await self._interrupt_once(turn, options)

    def _target(self, random: Random) -> int | None:
        """The turn that an interrupt names; None for everything."""
        return None

    async def _interrupt_once(self, turn: int | None, options: dict[str, Any]) -> None:
        await self._client.interrupt(turn, **options)


class LocalCallers(Callers):
    """The callers of a session in this process. They read its state and change its history."""

    modes = ("queue",) * 9 + ("steer",) * 4 + ("interrupt", "reject", "reject")
    lengths = (10, 60, 300)
    heads, bursts, blanks, follows, detached = 0.05, 0.03, 0.02, 0.3, 0.25

    def __init__(self, client: LocalClient, plan: StressPlan) -> None:
        super().__init__(client, plan, client.name)
        self._local = client
        self._session = client.local
        self._is_busy = True

    async def run(self) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._change_things)
            await super().run()
            self._is_busy = False
        self._local.read()

    async def close(self, *, with_turn: bool) -> Closed | SessionError | None:
        """Close the session; *with_turn* right after a send, so that a turn is open."""
        if with_turn:
            await self._send_text(LAST.removeprefix("#"))
            await anyio.sleep(0.03)
        return await self._recorder.call(self._session, "close", self._session.close)

    def _head(self) -> int | None:
        return live_state(self._session).head_turn or 1

    def _target(self, random: Random) -> int | None:
        kind, newest = random.random(), live_state(self._session).counter.last
        if kind < 0.6 or not newest:
            return None
        running = live_state(self._session).running()
        if kind < 0.85 and running is not None:
            return running.number
        return random.randint(max(1, newest - 3), newest + 2)

    async def _await(self, turn: TurnInterface) -> None:
        reason = await self._recorder.await_outcome(self._session, turn)
        self._local.local_recorder.read_history(self._session)
        if reason == "context_too_large":
            await self._make_room()

    async def _make_room(self) -> None:
        for _ in range(5):
            if await self._local.change("clear") is None:
                return
            await self._interrupt(Random(0))

    async def _interrupt_once(self, turn: int | None, options: dict[str, Any]) -> None:
        await super()._interrupt_once(turn, options)
        self._local.local_recorder.read_history(self._session)

    # Everything else that can be asked.

    async def _change_things(self) -> None:
        random = Random(f"{self._seed}/fiddle")
        while self._is_busy:
            await anyio.sleep(random.uniform(0.002, 0.05))
            kind = random.random()
            if kind < 0.25:
                await self._local.compact()
            elif kind < 0.4:
                await self._configure(random)
            elif kind < 0.45:
                await self._local.change("clear")
            elif kind < 0.55:
                await self._change_history(random)
            elif kind < 0.6:
                calls = list(live_state(self._session).call_turns)[-20:] or ["none"]
                call_id = random.choice(("never_offered", *calls))
                summaries = {call_id: f"summary {random.randrange(100)}"}
                await self._local.change("summaries", summaries)
            elif kind < 0.65:
                self._session.cancel_compaction()
            elif kind < 0.85:
                self._local.local_recorder.read_state(self._session)
            else:
                self._local.local_recorder.read_history(self._session)
                self._session.status()

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
        await self._local.change("configure", changes)

    async def _change_history(self, random: Random) -> None:
        """Change the whole history, or fork it."""
        options: dict[str, Any] = {"when_busy": random.choice(("interrupt", "reject"))}
        turns = list(dict.fromkeys(message.turn for message in self._session.conversation()))
        if random.random() < 0.3:
            options["command_id"] = f"change {random.random()}"
        match random.choice(("rewind", "rewind", "forget", "forget", "purge", "fork", "label")):
            case "rewind":
                turn = random.choice([0, *turns[-3:], 10_000])
                await self._local.change("rewind", turn, **options)
            case "forget":
                await self._local.change("forget", random.choice([1e12, *turns]), **options)
            case "purge":
                await self._local.change("purge", **options)
            case "fork":
                await self._fork(random, options)
            case _:
                await self._local.change("label", {"at": f"{random.random()}"})
        self._local.local_recorder.read_history(self._session)

    async def _fork(self, random: Random, options: dict[str, Any]) -> None:
        """Fork the session at any of its turns, send something to the fork, and close it."""
        turn = random.choice([None, *live_state(self._session).committed_at])
        name = f"{self._session.id}-{random.randrange(1 << 30)}"
        fork = await self._local.change("fork", (turn, name), **options)
        if not isinstance(fork, LLMSession):
            return
        recorder = self._local.local_recorder
        recorder.sessions[name] = fork
        client = LocalClient(recorder, fork)
        await client.change("configure", {"system": f"{name} is a fork"})
        answer = await client.send(f"{name}#0", f"{name}#0: go on")
        if isinstance(answer, Turn):
            await recorder.await_outcome(fork, answer)
        client.read()
        await recorder.call(fork, "close", fork.close)
