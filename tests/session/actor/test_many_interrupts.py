"""Many interrupts at once: one abort, every caller answered, no later send touched."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial

import anyio
import pytest
from anyio.lowlevel import checkpoint

from llmsession.session.handles.session import LLMSession, Turn
from llmsession.session.manager import SessionManager
from llmsession.session.values.config import SessionConfig, Tool
from llmsession.session.values.outcome import InterruptOutcome
from llmsession.testing.scripted import ScriptedProvider, call, never, say
from llmsession.turns import records as r
from tests.session.actors import at_once
from tests.session.probes import BACKENDS, log_of, run_virtually, settle

CONFIG = SessionConfig(model="m", tools=[Tool(name="mine")])


@pytest.mark.parametrize("aim", ["everything", "the turn", "both"])
async def test_two_hundred_interrupts_of_one_turn_abort_it_once_and_are_all_answered(
    aim: str,
) -> None:
    provider = ScriptedProvider([say("hello"), call("mine", id="c"), say("still here")])
    async with SessionManager(provider=provider) as manager:
        session = await manager.create(CONFIG, session_id="s")
        await (await session.send("hi")).text()
        base = session.conversation()
        turn = await session.send("use the tool")
        await settle()
        aims = {"everything": (None, None), "the turn": (turn.id, turn.id), "both": (None, turn.id)}
        with anyio.fail_after(10):
            answers = await at_once(*(partial(session.interrupt, id) for id in aims[aim] * 100))
            outcome = await turn.outcome()
            assert len(answers) == 200
            assert {answer.result.value for answer in answers} == {"aborted"}
            assert all(answer.turns == (outcome,) for answer in answers)
            assert session.conversation() is base
            log = await log_of(manager.store, "s")
            assert [each.turn for each in log if isinstance(each, r.TurnAborted)] == [2]
            assert await (await session.send("and now?")).text() == "still here"


class Race:
    """Twenty tasks that send, and interrupts between them. ``order`` is who asked when."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.order: list[tuple[str, str]] = []
        self.turns: dict[str, Turn] = {}
        self.answers: dict[str, InterruptOutcome] = {}
        self.seen: Counter[str] = Counter()

    async def __call__(self) -> Counter[str]:
        # The first turn never ends by itself, so what is queued behind it stays queued.
        provider = ScriptedProvider(lambda request, tag: never())
        async with SessionManager(provider=provider) as manager:
            self.session: LLMSession = await manager.create(CONFIG, session_id="s")
            with anyio.fail_after(100):
                async with anyio.create_task_group() as group:
                    for task in range(20):
                        group.start_soon(partial(self._send, f"send {task}"))
                    for task in range(4):
                        group.start_soon(partial(self._interrupt, f"interrupt {task}"))
                await settle()
                await self._assert_marks()
                await self.session.interrupt()
                for turn in self.turns.values():
                    assert (await turn.outcome()).status == "aborted"
        return self.seen

    async def _wait_a_little(self) -> None:
        for _ in range(self.rng.randrange(30)):
            await checkpoint()

    async def _send(self, name: str) -> None:
        await self._wait_a_little()
        # Between this line and the number that the call takes there is no await.
        self.order.append(("send", name))
        self.turns[name] = await self.session.send(name)

    async def _interrupt(self, name: str) -> None:
        await self._wait_a_little()
        self.order.append(("interrupt", name))
        self.answers[name] = await self.session.interrupt()

    async def _assert_marks(self) -> None:
        """A send is aborted exactly if an interrupt was asked for after it."""
        last = max(at for at, (what, _) in enumerate(self.order) if what == "interrupt")
        open_now = self.session.reference.actor.turns.runs
        for at, (what, name) in enumerate(self.order):
            if what != "send":
                continue
            turn = self.turns[name]
            if at < last:
                outcome = await turn.outcome()
                assert (outcome.status, outcome.stop_reason) == ("aborted", "interrupt"), name
                self.seen["aborted"] += 1
            else:
                assert turn.id.number in open_now, name
                self.seen["spared"] += 1
        self._assert_answers()

    def _assert_answers(self) -> None:
        """An answer tells of no turn whose send came after the last interrupt."""
        last = max(at for at, (what, _) in enumerate(self.order) if what == "interrupt")
        spared = {self.turns[name].id for what, name in self.order[last:] if what == "send"}
        told = {outcome.turn for answer in self.answers.values() for outcome in answer.turns}
        assert not told & spared
        ended = {self.turns[name].id for what, name in self.order[:last] if what == "send"}
        assert told == ended


def test_an_interrupt_ends_exactly_the_sends_that_were_asked_for_before_it() -> None:
    seen: Counter[str] = Counter()
    for seed in range(40):
        seen.update(run_virtually(BACKENDS[seed % 2], Race(seed)))
    print(dict(seen))
    assert seen["aborted"] > 200
    assert seen["spared"] > 40
