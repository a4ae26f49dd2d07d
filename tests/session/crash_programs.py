"""Random programs that can be played on after a crash: what a client does who means to get his
turns done, whatever dies meanwhile.

A program is a function of its seed: turns, their steps, and which of them are steered, queued
together or interrupted once. The model answers by turn and step, the tools by their input, so that
however often it is cut and played on, the history at the end has to be the same.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import anyio

from llmsession.session.handles.session import LLMSession, Turn
from llmsession.session.manager import SessionManager, runtime_of
from llmsession.session.values.config import (
    CompactionConfig,
    Recovery,
    SessionConfig,
    Tool,
    ToolResult,
)
from llmsession.session.values.outcome import TurnOutcome
from llmsession.store.protocol import Store
from llmsession.testing.scripted import ScriptedProvider, ScriptedReply, block, call, say, think
from llmsession.turns.messages import Message
from llmsession.turns.previews import ToolUse
from llmsession.turns.records import InterruptPolicy
from llmsession.turns.request import Profile, Request, StepTag
from llmsession.turns.usage import Usage
from tests.session.probes import live_state, settle

__all__ = ["Player", "Program", "base_of", "plain"]

TOOLS = ("mine", "mine", "mine", "quick", "slow", "failing")


class _Turn:
    """One turn of a program. ``steered``: steps at whose first call of the caller a steer is sent.
    ``interrupted``: how, and at which step."""

    def __init__(self, steps: list[ScriptedReply]) -> None:
        self.steps = steps
        self.steered: set[int] = set()
        self.interrupted: tuple[int, InterruptPolicy] | None = None
        self.brings_next = False


class Program:
    """``compacts``: the context is compacted now and then, and requests are no function of the
    history any more."""

    def __init__(self, seed: int, *, turns: int = 3) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.compacts = seed % 3 == 2
        self.thinks = seed % 5 == 4
        self.turns = [self._turn(number) for number in range(turns)]
        for this, following in zip(self.turns, self.turns[1:], strict=False):
            # A turn that is dropped and sent again would come behind the one that it brought.
            this.brings_next = this.interrupted is None and self.rng.random() < 0.3
            if this.brings_next and following.interrupted:
                this.brings_next = False

    def _turn(self, number: int) -> _Turn:
        rng = self.rng
        turn = _Turn([self._step(number, step) for step in range(1, rng.randint(1, 4))])
        asking = [
            at
            for at, reply in enumerate(turn.steps, 1)
            if b'"name":"mine"' in b"".join(reply.blocks)
        ]
        turn.steered = {step for step in asking if rng.random() < 0.25}
        if asking and rng.random() < 0.35:
            turn.interrupted = rng.choice(asking), rng.choice(("drop_turn", "keep_steps"))
        turn.steps.append(self._thought() + say(f"the end of {number}"))
        return turn

    def _step(self, number: int, step: int) -> ScriptedReply:
        rng = self.rng
        if rng.random() < 0.2:
            server = block({"type": "server_tool_use", "id": "st", "name": "web", "input": {}})
            return (self._thought() + say("looking") + server).stopping("pause_turn")
        reply = self._thought()
        if rng.random() < 0.5:
            reply += say("let me see")
        for at in range(rng.randint(1, 4)):
            what = f"{number}-{step}-{at}"
            reply += call(rng.choice(TOOLS), {"what": what}, id=f"call-{what}")
        return reply

    def _thought(self) -> ScriptedReply:
        usage = Usage(input_tokens=self.rng.randrange(1, 50), output_tokens=3)
        reply = ScriptedReply(usage=usage)
        if self.thinks or self.rng.random() < 0.3:
            reply += think("let me think", f"sig{self.rng.randrange(10**6)}")
        return reply

    def config(self, recovery: Recovery) -> SessionConfig:
        compaction = CompactionConfig(enabled=False)
        if self.compacts:
            compaction = CompactionConfig(
                threshold=0.02, keep_recent_turns=1, keep_recent_steps=1, min_gain=0.0
            )
        names = dict.fromkeys(TOOLS)
        return SessionConfig(
            model="m",
            tools=[Tool(name=name) for name in names],
            recovery=recovery,
            compaction=compaction,
            window_tokens=20_000,
            max_tokens=1000,
        )


class Player:
    """Plays *program* on one store, from wherever its log stands."""

    def __init__(self, program: Program, store: Store) -> None:
        self.program = program
        self.store = store
        profile = Profile(name="scripted", thinking_opens_tool_loop=program.thinks)
        self.provider = ScriptedProvider(self._reply, profile=profile)
        self.ran: Counter[str] = Counter()
        """How often each call of a callable was run, by what it was asked."""
        self.sent: dict[tuple[int, int], set[bytes]] = {}
        """The requests by turn of the program and step."""
        self.conversation: tuple[Message, ...] = ()
        self.spent = Usage()

    # The model, and the session's tools.

    def _reply(self, request: Request, tag: StepTag) -> ScriptedReply:
        said = [bytes(message.body) for message in request.messages]
        number = int(re.findall(rb"turn (\d+); please", b"".join(said))[-1])
        self.sent.setdefault((number, tag.step), set()).add(request.encode())
        return self.program.turns[number].steps[tag.step - 1]

    async def _quick(self, what: str) -> str:
        self.ran[what] += 1
        return f"quick {what} " * 60

    async def _slow(self, what: str) -> str:
        self.ran[what] += 1
        await anyio.sleep(0.004)
        return f"slow {what}"

    async def _failing(self, what: str) -> str:
        self.ran[what] += 1
        raise LookupError(what)

    def _tools(self) -> list[Tool]:
        runs = {"quick": self._quick, "slow": self._slow, "failing": self._failing}
        return [Tool(name=name, run=run) for name, run in runs.items()]

    # The client.

    async def create(self) -> None:
        """Begin, and play to the end."""
        async with SessionManager(provider=self.provider, store=self.store) as manager:
            await (await manager.create(self.program.config("drop"), session_id="s")).close()
        await self.play("drop")

    async def play(self, recovery: Recovery) -> None:
        """Open the session and do what is left to be done of the program."""
        with anyio.fail_after(10_000):
            async with SessionManager(provider=self.provider, store=self.store) as manager:
                session = await manager.open("s", tools=self._tools(), recovery=recovery)
                for number in range(len(self.program.turns)):
                    await self._turn(session, number)
                self.conversation = session.conversation()
                self.spent = session.usage().total
            assert runtime_of(manager).running_works == ()
        assert self.provider.open_streams == 0

    async def _turn(self, session: LLMSession, number: int) -> None:
        """Send until it is committed. Every command has an id, so that nothing is done twice."""
        interrupted = False
        for attempt in range(20):
            turn = await session.send(_words(number), command_id=f"{number}.{attempt}")
            is_open = turn.id.number in live_state(session).open
            if self.program.turns[number].brings_next and not attempt and is_open:
                await session.send(_words(number + 1), command_id=f"{number + 1}.0")
            outcome = await self._follow(session, turn, number, interrupted)
            if outcome.status == "committed":
                return
            assert outcome.stop_reason in ("crash", "interrupt"), outcome
            interrupted = interrupted or outcome.stop_reason == "interrupt"
        raise AssertionError(f"turn {number} never came to its end")

    async def _follow(
        self, session: LLMSession, turn: Turn, number: int, interrupted: bool
    ) -> TurnOutcome:
        async with anyio.create_task_group() as group:
            async for event in turn:
                if isinstance(event, ToolUse) and event.runner == "caller":
                    group.start_soon(self._answer, session, turn, number, event, interrupted)
        return await turn.outcome()

    async def _answer(
        self, session: LLMSession, turn: Turn, number: int, use: ToolUse, interrupted: bool
    ) -> None:
        """Answer a call, if it still waits: the later it stands, the later."""
        at, mine = int(use.input["what"].rpartition("-")[2]), self.program.turns[number]
        await settle(0.002 * (at + 1))
        if use.id not in {waiting.id for waiting in session.open_calls()}:
            return
        waiting = [each.id for each in session.open_calls() if each.runner == "caller"]
        if use.step in mine.steered and use.id == waiting[0]:
            said = f"steer {number}-{use.step}"
            await session.send(said, when_busy="steer", command_id=f"{said} of {turn.id}")
        if mine.interrupted and mine.interrupted[0] == use.step and not interrupted:
            await settle(0.02)  # the session's own tools have ended
            policy = mine.interrupted[1]
            await session.interrupt(turn.id, policy=policy, command_id=f"stop {turn.id}")
            return
        if use.id in {waiting.id for waiting in session.open_calls()}:
            content = f"answer to {use.input['what']} " * 50
            await session.submit_tool_results([ToolResult(use.id, content)])


def _words(number: int) -> str:
    return f"turn {number}; please"


def base_of(call_id: str) -> str:
    """A call's id without the suffix that it got because its turn was sent again."""
    return call_id.partition("_")[0]


def plain(history: Sequence[Message], unknown: set[str]) -> list[Any]:
    """A history without what may differ: TurnIds, message ids, times, receipts, suffixes of call
    ids, and the results of the calls *unknown*, by their bases."""
    found: list[Any] = []
    for message in history:
        blocks = []
        for at, fields in enumerate(json.loads(bytes(message.body))):
            if at in message.synthetic and fields["type"] == "text":
                continue
            if fields["type"] == "tool_use":
                fields["id"] = base_of(fields["id"])
            if fields["type"] == "tool_result":
                fields["tool_use_id"] = base_of(fields["tool_use_id"])
                if fields["tool_use_id"] in unknown:
                    fields.update(content="unknown", is_error=None)
            blocks.append(fields)
        found.append((message.role, message.stop_reason, message.usage, message.model, blocks))
    return found
