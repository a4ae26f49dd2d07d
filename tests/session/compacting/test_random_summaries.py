"""Random sessions with a summariser that misbehaves: no message is lost, no work is left, the log
folds to the same state, and every request is charged."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest

from llmsession import (
    CompactionConfig,
    InvalidInput,
    LLMSession,
    Profile,
    ProviderError,
    Refused,
    Request,
    SessionManager,
    StepTag,
    SummariserConfig,
    TurnEnded,
)
from llmsession.session.handles.session import live_state
from llmsession.session.manager import runtime_of
from llmsession.testing.scripted import ScriptedProvider, ScriptedReply, call, never, say
from llmsession.turns import records as r
from tests.session.actors import Quick, Stage, same_as_its_log, stage
from tests.session.probes import run_virtually

ACTIONS = 60
ACTION_NAMES = (
    *["say"] * 8, "steer", "interrupt", "compact", "set_summary", "set_summary", "clear", "rewind",
    "forget", "cancel", "store", "configure", "evict",
)  # fmt: skip


class RandomSession:
    """One session, many callers at once, and a summariser that often fails."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        profile = Profile(window_tokens=self.random.choice([6_000, 30_000, 200_000]))
        self.provider = ScriptedProvider(self._talk)
        self.summariser = ScriptedProvider(self._summarise, profile=profile)

    def _talk(self, request: Request, tag: StepTag) -> ScriptedReply:
        chance = self.random.random()
        if tag.step < 4 and chance < 0.5:
            return call("t", id=f"c{tag.turn}_{tag.step}").slow(0.2)
        if chance < 0.08:
            return never()
        return say(f"answer {tag.turn} " + "word " * self.random.randrange(300)).slow(0.05)

    def _summarise(self, request: Request, tag: StepTag) -> ScriptedReply:
        kind: Any = self.random.choice(["fatal", "retryable", "overflow"])
        failures = [
            say("").stopping("refusal"),
            never(),
            say("late").ignoring_cancellation(40),
            say("").raising(ProviderError("no", kind=kind)),
            say("word " * 9_000),
        ]
        good = say("a summary " * self.random.randrange(1, 60)).slow(self.random.random())
        return self.random.choice([*failures, *[good] * 15])

    async def __call__(self) -> None:
        pick = self.random.choice
        model = SummariserConfig(
            model="small",
            improve_results=True,
            deadline_s=pick([1.0, 30.0]),
            max_requests=pick([2, 8]),
        )
        compaction = CompactionConfig(
            keep_recent_turns=pick([1, 2, 5]),
            keep_recent_steps=pick([1, 3, 20]),
            schedule=pick(["cache", "at_once"]),
            summariser=model,
        )
        async with stage(
            provider=self.provider, summariser=self.summariser, compaction=compaction,
            window_tokens=12_000, max_tokens=2_000, tool=Quick("a line of output\n" * 400),
        ) as on:  # fmt: skip
            async with anyio.create_task_group() as group:
                for number in range(ACTIONS):
                    group.start_soon(self._action, on.manager, on.session, number)
                group.start_soon(self._end_what_hangs, on.session)
            await anyio.sleep(200)
            await self._check(on)
        assert self.summariser.open_streams == 0

    async def _end_what_hangs(self, session: LLMSession) -> None:
        for _ in range(40):
            await anyio.sleep(10)
            await session.interrupt()

    async def _action(self, manager: SessionManager, session: LLMSession, number: int) -> None:
        await anyio.sleep(self.random.random() * 100)
        history, pick = session.conversation(), self.random.choice
        turn = pick(sorted({message.turn for message in history}) or [1])
        calls = [use.id for message in history for use in message.tool_calls] or ["none"]
        busy: Any = pick(["interrupt", "reject"])
        actions: dict[str, Callable[[], Awaitable[Any]]] = {
            "say": lambda: _say(session, "please " * self.random.randrange(1, 400)),
            "steer": lambda: session.send("also", when_busy="steer"),
            "interrupt": session.interrupt,
            "compact": session.compact,
            "set_summary": lambda: session.set_summary(f"told {number}", upto=turn),
            "clear": lambda: session.clear(when_busy=busy, purge=number % 2 == 0),
            "rewind": lambda: session.rewind(turn, when_busy=busy),
            "forget": lambda: session.forget(turn, when_busy=busy),
            "store": lambda: session.store_compact_summaries({pick(calls): "the caller's"}),
            "configure": lambda: session.configure(system=str(number)),
            "evict": runtime_of(manager).evict_idle,
        }
        name = pick(ACTION_NAMES)
        if name == "clear" and number % 5:
            name = "cancel"
        if name == "cancel":
            session.cancel_compaction()
            return
        with suppress(InvalidInput, Refused, TurnEnded):
            await actions[name]()

    async def _check(self, on: Stage) -> None:
        log, state = await on.log(), live_state(on.session)
        await same_as_its_log(on, on.session)
        charged = [request for record in log for request in getattr(record, "requests", ())]
        assert len(charged) == len(self.summariser.requests) == len(state.summary_requests)
        stored = [record for record in log if isinstance(record, r.SummariesStored)]
        modelled = [call_id for record in stored if record.requests for call_id in record.summaries]
        assert len(modelled) == len(set(modelled))


async def _say(session: LLMSession, text: str) -> None:
    await (await session.send(text)).outcome()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_meanwhile_summaries_are_of_what_is_there_and_paid_once(seed: int) -> None:
    run_virtually(("asyncio", "trio")[seed % 2], RandomSession(seed))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 300))
def test_the_same_in_many_random_sessions(seed: int) -> None:
    run_virtually(("asyncio", "trio")[seed % 2], RandomSession(seed))
