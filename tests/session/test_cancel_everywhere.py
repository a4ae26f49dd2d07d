"""An interrupt at every point of a turn that uses tools, under every policy."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from itertools import product
from typing import Any

import anyio
import pytest

from llmsession.errors import DuplicateToolResult, TurnNotOpen
from llmsession.session.actor.actor import Actor
from llmsession.session.handles.session import LLMSession, Turn
from llmsession.session.log.state import fold
from llmsession.session.manager import SessionManager, runtime_of
from llmsession.session.tasks.promise import Promise
from llmsession.session.values.config import SessionConfig, Tool, ToolResult
from llmsession.session.values.outcome import InterruptOutcome
from llmsession.store.memory import MemoryStore
from llmsession.store.protocol import AppendResult, Batch
from llmsession.testing.scripted import ScriptedProvider, ScriptedReply, call, say, think
from llmsession.turns.previews import ToolUse
from llmsession.turns.records import InterruptPolicy
from llmsession.turns.request import Request, StepTag
from llmsession.turns.stream import StreamEvent
from tests.session.actors import check_log
from tests.session.probes import (
    assert_request_is_sound,
    differences,
    live_state,
    log_of,
    run_virtually,
    said,
    settle,
    unpaired,
)
from tests.virtual_time import BACKENDS

POLICIES: tuple[InterruptPolicy, ...] = ("drop_turn", "keep_steps", "keep_text")
GRACE_S = 0.004
"""Short, because a tool that swallows its cancellation keeps the loop busy for so long."""


class Points:
    """Counts the points that a run passes; at the one that is wanted, it interrupts."""

    def __init__(self, wanted: int, policy: InterruptPolicy) -> None:
        self.wanted = wanted
        self.policy = policy
        self.passed = 0
        self.names: list[str] = []
        self.actor: Actor | None = None
        self.answer: Promise[InterruptOutcome] | None = None

    def arm(self, session: LLMSession) -> None:
        """Count from now on, also what the actor of *session* reads."""
        self.actor = actor = session.reference.actor
        read = actor.mailbox.next_nowait

        def next_nowait() -> Any:
            item = read()
            if item is not None:
                self.hit("mailbox")
            return item

        actor.mailbox.next_nowait = next_nowait  # type: ignore[method-assign]  # the hook

    def hit(self, name: str) -> None:
        if self.actor is None:
            return
        self.passed += 1
        self.names.append(name)
        if self.passed == self.wanted:
            self.answer = self.actor.put_interrupt(None, self.policy, None)

    @property
    def reached(self) -> bool:
        return self.answer is not None


class PointedProvider(ScriptedProvider):
    points: Points

    async def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        self.points.hit("opening")
        stream = super().stream(request, tag)
        try:
            async for event in stream:
                self.points.hit(type(event).__name__)
                yield event
        finally:
            await stream.aclose()
            self.points.hit("closed")


class PointedStore(MemoryStore):
    points: Points

    def append(self, batch: Batch, done: Callable[[AppendResult], None]) -> None:
        self.points.hit("append")

        def answered(result: AppendResult) -> None:
            done(result)
            self.points.hit("appended")

        super().append(batch, answered)


def _reply(request: Request, _tag: StepTag) -> ScriptedReply:
    """By what was said last, because an interrupted turn may not have asked at all."""
    last = bytes(request.messages[-1].body)
    if b"go on" in last or b"first" in last:
        return say("hello")
    if b"tool_result" in last:
        return say("all done")
    reply = think("hm") + say("let me see") + call("slow", {}, id="c") + call("mine", {}, id="d")
    return reply.slow(0.0, delta_chars=5)


class Run:
    """One turn with two steps and two tools, interrupted at the *wanted*-th point."""

    def __init__(self, wanted: int, policy: InterruptPolicy, *, stubborn: bool) -> None:
        self.points = Points(wanted, policy)
        self.store, self.provider = PointedStore(), PointedProvider(_reply)
        self.store.points = self.provider.points = self.points
        self.stubborn = stubborn

    async def _slow(self) -> str:
        self.points.hit("tool started")
        until = anyio.current_time() + 0.5
        while (left := until - anyio.current_time()) > 0:
            try:
                await anyio.sleep(left)
            except anyio.get_cancelled_exc_class():  # it is the misbehaviour
                if not self.stubborn:
                    raise
        self.points.hit("tool ended")
        return "slow ran"

    async def _answer_calls(self, turn: Turn) -> None:
        async for event in turn:
            if isinstance(event, ToolUse) and event.runner == "caller":
                self.points.hit("offered")
                # Once it is interrupted, the turn may have ended under the result.
                with suppress(TurnNotOpen, DuplicateToolResult):
                    await self.session.submit_tool_results([ToolResult(event.id, "42")])
                self.points.hit("submitted")

    async def __call__(self) -> tuple[bool, list[str], str]:
        tools = (Tool(name="slow", run=self._slow), Tool(name="mine"))
        config = SessionConfig(model="m", tools=tools, grace_s=GRACE_S)
        async with SessionManager(provider=self.provider, store=self.store) as manager:
            session = await manager.create(config, session_id="s")
            with anyio.fail_after(60):
                await (await session.send("first")).text()
                self.base, self.session = session.conversation(), session
                self.points.arm(session)
                turn = await session.send("use tools")
                await self._answer_calls(turn)
                outcome = await turn.outcome()
                await settle()
                self.points.actor = None
                result = "undisturbed"
                assert self.points.reached or len(session.conversation()) == len(self.base) + 4
                if self.points.answer is not None:
                    answer = await self.points.answer.wait()
                    result = answer.result.value
                    self._assert_end(answer, outcome.status)
                await self._assert_goes_on(manager)
        assert runtime_of(manager).running_works == ()
        assert self.provider.open_streams == 0
        return self.points.reached, self.points.names, result

    def _assert_end(self, answer: InterruptOutcome, status: str) -> None:
        history = self.session.conversation()
        assert all(old is new for old, new in zip(self.base, history, strict=False))
        assert unpaired(said(history)) == []
        left = [work for turn in answer.turns for work in turn.still_running]
        assert self.stubborn or left == []
        match answer.result:
            case "aborted":
                assert status == "aborted"
                assert history is self.base
            case "kept":
                assert status == "committed"
                assert self.points.policy != "drop_turn"
                assert answer.turns[0].stop_reason == "cancelled"
                assert history[len(self.base) :] == answer.turns[0].messages
            case _:
                assert status == "committed"
                assert len(history) == len(self.base) + 4

    async def _assert_goes_on(self, manager: SessionManager) -> None:
        sent = len(self.provider.requests)
        following = await self.session.send("go on")
        outcome = await following.outcome()
        assert outcome.status == "committed"
        assert len(self.provider.requests) > sent
        for request in self.provider.requests:
            assert_request_is_sound(request, self.provider.profile("m"))
        await settle(2.0)
        assert runtime_of(manager).running_works == ()
        log = await log_of(self.store, "s")
        check_log(log)
        assert not fold("s", log).open
        assert differences(live_state(self.session), fold("s", log)) == []
        status = self.session.status()
        assert (status.phase, status.queued, status.still_running) == ("idle", 0, ())


def every_case() -> Iterator[Any]:
    """Each policy with both kinds of tools on one of the backends, all of which differ from their
    neighbours in it; the long version has the other one, too."""
    for number, (policy, stubborn) in enumerate(product(POLICIES, (False, True))):
        for backend in BACKENDS:
            quick = backend == BACKENDS[(number + number // 2) % 2]
            name = f"{backend}-{policy}-{'stubborn' if stubborn else 'obedient'}"
            yield pytest.param(
                backend, policy, stubborn, id=name, marks=[] if quick else [pytest.mark.long]
            )


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("backend", "policy", "stubborn"), [*every_case()])
def test_an_interrupt_at_every_point_of_a_turn_leaves_it_whole_or_gone(
    backend: str, policy: InterruptPolicy, stubborn: bool
) -> None:
    results: set[str] = set()
    named: set[str] = set()
    reached, wanted = True, 0
    while reached:
        wanted += 1
        run = Run(wanted, policy, stubborn=stubborn)
        reached, names, result = run_virtually(backend, run)
        results.add(result)
        named.update(names)
    assert wanted > 50
    assert named == {
        "append", "appended", "mailbox", "offered", "submitted", "opening", "closed",
        "tool started", "tool ended",
        "ReplyStarted", "BlockStarted", "BlockDelta", "BlockStopped", "ReplyEnded",
    }  # fmt: skip
    kept = {"kept"} if policy != "drop_turn" else set()
    # Before the first step is journaled there is nothing to keep.
    assert results == {"undisturbed", "aborted", "too_late", "not_running"} | kept
