"""Random lives of a session in virtual time: scripts with tools, interrupts, resends, and
changes of the whole history. What the model says and calls in turn 7 has the word ``mark7x``.

Every life is a function of its seed. It drives the public API alone.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel

from llmsession.errors import InvalidInput, ProviderError, SessionBusy, SessionError
from llmsession.session.core.subscriptions import Subscription
from llmsession.session.handles.session import LLMSession, Turn, live_state
from llmsession.session.log.state import fold
from llmsession.session.manager import SessionManager, runtime_of
from llmsession.session.values import commands as c
from llmsession.session.values.config import (
    CompactionConfig,
    SessionConfig,
    Tool,
    ToolOutput,
    ToolResult,
)
from llmsession.session.values.outcome import InterruptOutcome
from llmsession.store.memory import MemoryStore
from llmsession.testing.scripted import ScriptedProvider, ScriptedReply, block, call, say, think
from llmsession.turns.machine import TurnLimits
from llmsession.turns.previews import ToolUse
from llmsession.turns.records import (
    CompactionApplied,
    ContextWarned,
    InterruptPolicy,
    Record,
    TurnAborted,
    TurnCommitted,
    TurnFailed,
    decode_record,
)
from llmsession.turns.request import Profile, Request, StepTag
from llmsession.turns.usage import Usage
from tests.session.actors import Raising, SwallowingCancellation
from tests.session.probes import differences

__all__ = ["Life"]

POLICIES: tuple[InterruptPolicy, ...] = ("drop_turn", "keep_steps", "keep_text")
TOOLS = ("quick", "slow", "stubborn", "failing", "mine", "never")


class Life:
    """One session's life. ``quiet`` is called wherever the session has come to rest; ``changes``
    is how often, of such times, the whole history is changed."""

    def __init__(
        self,
        seed: int,
        *,
        turns: int = 3,
        changes: float = 0.5,
        quiet: Callable[[Life], Awaitable[None]] | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.changing = random.Random(f"{seed}/changes")
        self.compacting = random.Random(f"{seed}/compaction")
        self.is_tight = seed % 3 == 0
        """Is there little room, so that all means of our own policy are needed?"""
        self.turns = turns
        self.changes = changes
        self.quiet = quiet
        self.seen: Counter[str] = Counter()
        profile = Profile(name="scripted", thinking_opens_tool_loop=self.rng.random() < 0.2)
        self.provider = ScriptedProvider(self._reply, profile=profile)
        self.store = MemoryStore()
        self.manager: SessionManager
        self.session: LLMSession

    # The model's side.

    def _reply(self, request: Request, tag: StepTag) -> ScriptedReply:
        rng = self.rng
        reply = ScriptedReply(usage=self._usage(request))
        if rng.random() < 0.4 or self.provider._profile.thinking_opens_tool_loop:
            reply += think("let me think about it", f"sig{rng.randrange(10**6)}")
        mark = f"mark{tag.turn}x"
        if rng.random() < 0.6:
            more = " and some more of them" * (150 if self.is_tight else 0)
            reply += say(f"{mark} some words on the way{more}")
        if rng.random() < (0.75 if tag.step < 4 else 0.2):
            for number in range(rng.randint(1, 4)):
                given: dict[str, Any] = {"x": number, "mark": mark}
                if self.is_tight and self.compacting.random() < 0.2:
                    given["text"] = f"{mark} " + "long argument " * 250
                reply += call(rng.choice(TOOLS), given, id=f"call_{number}")
        elif not reply.blocks or rng.random() < 0.8:
            reply += say(f"{mark} in the end")
        reply = reply.slow(rng.choice((0.0, 0.0, 0.01, 0.2)), delta_chars=rng.choice((3, 16, 99)))
        return self._with_trouble(reply)

    def _usage(self, request: Request) -> Usage:
        """About what was sent, and mostly cached; or nonsense."""
        rng, few = self.compacting, self.rng.randrange(50)
        if not self.is_tight or rng.random() < 0.3:
            return Usage(input_tokens=few, output_tokens=3)
        tokens = int(len(request.encode()) / rng.choice((2.0, 2.7, 4.0)))
        return Usage(tokens // 10, 30, tokens * 8 // 10, tokens // 10)

    def _with_trouble(self, reply: ScriptedReply) -> ScriptedReply:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.05:
            error = ProviderError("overloaded", kind=rng.choice(("retryable", "fatal", "overflow")))
            return reply.raising(error, rng.randrange(8))
        if kind < 0.08:
            return reply.stopping(rng.choice(("max_tokens", "refusal", "odd")))
        if kind < 0.10:
            paused = block({"type": "server_tool_use", "id": "st", "name": "web", "input": {}})
            return (say("looking") + paused).stopping("pause_turn")
        if kind < 0.13:
            return reply.hanging(rng.randrange(6))
        if kind < 0.16:
            return reply.ignoring_cancellation(0.4, rng.randrange(6))
        return reply

    # The tools.

    async def _quick(self, mark: str, **_: Any) -> ToolOutput:
        content = f"quick {mark} result\n" * 40
        return ToolOutput(content=content, compact_summary=f"{mark} was quick")

    async def _slow(self, mark: str, **_: Any) -> str:
        await anyio.sleep(self.rng.choice((0.05, 0.3)))
        return f"slow {mark} result\n" * 100

    def tools(self) -> list[Tool]:
        return [
            Tool(name="quick", run=self._quick),
            Tool(name="slow", run=self._slow),
            Tool(name="stubborn", run=SwallowingCancellation(0.35, "stubborn result")),
            Tool(name="failing", run=Raising()),
            Tool(name="mine"),
            Tool(name="never", deadline_s=0.5),
        ]

    def _config(self) -> SessionConfig:
        rng = self.rng
        return SessionConfig(
            model="m",
            tools=tuple(self.tools()),
            window_tokens=2_500 if self.is_tight else 20_000,
            max_tokens=1000,
            on_failure=rng.choice(("keep_steps", "drop")),
            limits=TurnLimits(
                max_steps=rng.choice((2, 4, 8)),
                max_seconds=rng.choice((None, None, 1.0)),
                max_retries=1,
            ),
            compaction=self._compaction(),
        )

    def _compaction(self) -> CompactionConfig:
        swaps = self.compacting.random() < 0.5
        return CompactionConfig(
            policy="swap_tool_results" if swaps else "balanced",
            schedule="cache" if self.compacting.random() < 0.25 else "at_once",
            threshold=0.05,
            keep_recent_turns=1,
            keep_recent_steps=2,
            cap_chars=800,
        )

    def _count_compactions(self, records: Iterable[Record]) -> None:
        for record in records:
            if isinstance(record, CompactionApplied):
                self.seen["compacted"] += 1
                self.seen[f"compacted {record.trigger}"] += 1
                self.seen["prefix_summaries"] += record.prefix_summary is not None
                self.seen["inputs shortened"] += len(record.inputs)
                self.seen["texts cut"] += len(record.texts)
            self.seen["warned"] += isinstance(record, ContextWarned)

    # The life.

    async def __call__(self) -> Counter[str]:
        async with SessionManager(provider=self.provider, store=self.store) as self.manager:
            self.session = await self.manager.create(self._config(), session_id="s")
            events = self.session.subscribe()
            with anyio.fail_after(1000):
                async with anyio.create_task_group() as group:
                    group.start_soon(self._listen, events)
                    for number in range(self.turns):
                        await self._episode(number)
                        await self._rest()
                    events.close()
        log = await self.store.read("s")
        self._count_compactions(decode_record(stored.body) for stored in log)
        assert runtime_of(self.manager).running_works == ()
        assert self.provider.open_streams == 0
        return self.seen

    async def _listen(self, events: Subscription) -> None:
        """Nothing of a turn comes after its terminal event, previews included."""
        ended: set[int] = set()
        async for event in events:
            number = getattr(event, "turn", None)
            assert number not in ended, event
            if isinstance(event, TurnCommitted | TurnAborted | TurnFailed):
                ended.add(event.turn)

    async def _rest(self) -> None:
        await anyio.sleep(2.0)  # past every grace, every stubborn tool
        if self.quiet is not None:
            await self.quiet(self)

    async def _episode(self, number: int) -> None:
        """A send, perhaps more of them, interrupts at random moments, and a resend."""
        rng = self.rng
        async with anyio.create_task_group() as group:
            group.start_soon(self._turn, f"do {number}", "queue")
            for extra in range(rng.choice((0, 0, 1, 2))):
                await self._moment()
                mode = rng.choice(("queue", "steer", "interrupt", "reject"))
                group.start_soon(self._turn, f"more {number}.{extra}", mode)
            for _ in range(rng.choice((1, 1, 2, 3))):
                await self._moment()
                self._count(await self.session.interrupt(policy=rng.choice(POLICIES)))
            if rng.random() < 0.15:
                await self._moment()
                group.start_soon(self.session.compact)
            if self.changing.random() < 0.15:
                await self._moment()
                group.start_soon(self._change)
            # Whatever is still open, and might wait for a result that never comes.
            await anyio.sleep(rng.choice((0.0, 0.5, 3.0)))
            self._count(await self.session.interrupt(policy=rng.choice(POLICIES)))
        if rng.random() < 0.2 and not self.session.status().turn:
            await self.session.clear()
            self.seen["cleared"] += 1
        await self._change()

    async def _change(self) -> None:
        """Perhaps a change of the whole history, or a fork of it."""
        changes = (self._label, self._rewind, self._fork, self._forget, self._purge)
        if self.changing.random() < self.changes:
            change = self.changing.choices(changes, (1, 2, 2, 2, 0.5))[0]
            try:
                await change(self.changing.choice(("interrupt", "interrupt", "reject")))
            except (SessionBusy, InvalidInput) as error:  # another one came first
                self.seen[type(error).__name__] += 1

    async def _label(self, _: c.IfBusy) -> None:
        await self.session.label({"seen": f"{self.seen.total()}"})

    async def _rewind(self, when_busy: c.IfBusy) -> None:
        turns = dict.fromkeys(message.turn for message in self.session.conversation())
        await self.session.rewind(self.changing.choice([0, *turns]), when_busy=when_busy)
        self.seen["rewound"] += 1

    async def _forget(self, when_busy: c.IfBusy) -> None:
        turns = dict.fromkeys(message.turn for message in self.session.conversation())
        before = self.changing.choice([1e12, *turns, *turns])
        await self.session.forget(before, when_busy=when_busy)
        await self._check_forgotten(self.session)

    async def _purge(self, when_busy: c.IfBusy) -> None:
        await self.session.clear(purge=True, when_busy=when_busy)
        await self._check_forgotten(self.session)

    async def _check_forgotten(self, session: LLMSession) -> None:
        """Nothing that was said in a turn that is forgotten is in any body of the log."""
        state = live_state(session)
        bodies = b"".join([each.body for each in await self.store.read(session.id)])
        gone = state.ended.keys() - state.accepted_time.keys()
        assert not [turn for turn in gone if b"mark%dx" % turn in bodies]
        self.seen["forgotten"] += bool(gone)

    async def _fork(self, when_busy: c.IfBusy) -> None:
        """A fork at any turn there was, which lives for a while and is closed."""
        places = list(live_state(self.session).committed_at)
        at = self.changing.choice([None, *places, *places])
        fork = await self.session.fork(at, when_busy=when_busy)
        turn = await fork.send("in the fork")
        await self._moment()
        await fork.interrupt(policy=self.changing.choice(POLICIES))
        await turn.outcome()
        if self.changing.random() < 0.3:
            await fork.forget(turn.id if len(fork.conversation()) > 9 else 1e12)
            await self._check_forgotten(fork)
        log = [decode_record(stored.body) for stored in await self.store.read(fork.id)]
        assert differences(live_state(fork), fold(fork.id, log)) == []
        self.seen["forked"] += 1
        await fork.close()

    async def _moment(self) -> None:
        """Some turns of the event loop, or some time."""
        rng = self.rng
        if rng.random() < 0.6:
            for _ in range(rng.randrange(80)):
                await anyio.lowlevel.checkpoint()
        else:
            await anyio.sleep(rng.choice((0.005, 0.03, 0.15, 0.6, 1.2)))

    def _count(self, outcome: InterruptOutcome) -> None:
        self.seen[str(outcome.result)] += 1
        if any(turn.calls for turn in outcome.dropped):
            self.seen["dropped with calls"] += 1
        if any(turn.still_running for turn in outcome.turns):
            self.seen["left running"] += 1

    async def _turn(self, text: str, mode: Any) -> None:
        try:
            turn = await self.session.send(text, when_busy=mode)
        except SessionBusy:
            return
        async with anyio.create_task_group() as group:
            async for event in turn:
                if isinstance(event, ToolUse) and event.name == "mine":
                    group.start_soon(partial(self._answer, turn, event.id))
        self.seen[(await turn.outcome()).stop_reason] += 1

    async def _answer(self, turn: Turn, call_id: str) -> None:
        await self._moment()
        try:
            await self.session.submit_tool_results([ToolResult(call_id, "my result " * 30)])
        except SessionError as error:  # the turn may have ended meanwhile
            self.seen[type(error).__name__] += 1
