"""A session is handed over while it is in use: another owner goes on, and nothing is done twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from llmsession import (
    InvalidInput,
    LLMSession,
    MemoryStore,
    SessionClosed,
    SessionConfig,
    SessionManager,
    SessionMoved,
    SessionNotFound,
    Tool,
    ToolResult,
)
from llmsession.store import Owner
from llmsession.testing.scripted import Scripted, ScriptedProvider, call, never, say
from llmsession.turns import records as r
from tests.session.actors import check_log, settled
from tests.session.probes import log_of

CALLER = Tool(name="ask", input_schema={"type": "object"})


class Shared(MemoryStore):
    """The store of two managers: leaving one of them does not close it."""

    async def aclose(self) -> None:
        pass


class Work:
    """A tool that ends when it is let."""

    def __init__(self) -> None:
        self.runs = 0
        self.started, self.may_end = anyio.Event(), anyio.Event()

    async def __call__(self) -> str:
        self.runs += 1
        self.started.set()
        await self.may_end.wait()
        return "worked"

    @property
    def tool(self) -> Tool:
        return Tool(name="work", input_schema={"type": "object"}, run=self.__call__)


class Owners:
    """Two managers on one store; the first one has the session ``s``."""

    def __init__(
        self, here: SessionManager, there: SessionManager, asked: tuple[ScriptedProvider, ...]
    ) -> None:
        self.here, self.there = here, there
        self.requests_here, self.requests_there = (one.requests for one in asked)
        self.session: LLMSession


@asynccontextmanager
async def owners(
    here: list[Scripted], there: list[Scripted], *tools: Tool
) -> AsyncIterator[Owners]:
    store = Shared()
    providers = ScriptedProvider(here), ScriptedProvider(there)
    async with (
        SessionManager(provider=providers[0], store=store, tools=tools) as first,
        SessionManager(provider=providers[1], store=store, tools=tools) as second,
    ):
        both = Owners(first, second, providers)
        both.session = await first.create(SessionConfig(model="m", tools=tools), session_id="s")
        yield both
        check_log(await log_of(store, "s"))


async def test_between_two_steps_no_request_is_repeated_and_no_tool_runs_twice() -> None:
    work = Work()
    async with owners([call("work", {}, id="c1")], [say("done")], work.tool) as on:
        await on.session.send("go")
        await work.started.wait()
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: on.here.hand_over("s", when="step"))
            await settled()
            assert on.here.live == ("s",)
            work.may_end.set()
        assert on.here.live == ()
        session = await on.there.open("s", unbound="caller")
        assert await session.turn(1).text() == "done"
        assert (len(on.requests_here), len(on.requests_there), work.runs) == (1, 1, 1)
        results = [m for m in session.conversation() if m.role == "user"][1:]
        assert [result.synthetic for result in results] == [()]


async def test_calls_that_wait_for_the_caller_go_along_at_once() -> None:
    async with owners([call("ask", {}, id="c1")], [say("thanks")], CALLER) as on:
        await on.session.send("go")
        await settled()
        await on.here.hand_over("s")
        session = await on.there.open("s", unbound="caller")
        assert [use.id for use in session.open_calls()] == ["c1"]
        await session.submit_tool_results([ToolResult("c1", "the answer")])
        assert await session.turn(1).text() == "thanks"
        assert (len(on.requests_here), len(on.requests_there)) == (1, 1)


@pytest.mark.parametrize("recovery", ["drop", "resume"])
async def test_sends_that_wait_go_along_in_their_order(recovery: str) -> None:
    async with owners([never()], [say("a"), say("b"), say("c")]) as on:
        await on.session.configure(recovery=recovery)
        for number in range(1, 4):
            await on.session.send(f"message {number}", command_id=f"id {number}")
        await settled()
        await on.here.hand_over("s", when="now")
        session = await on.there.open("s")
        turns = [await session.send(f"message {n}", command_id=f"id {n}") for n in range(1, 4)]
        assert [str(turn.id) for turn in turns] == ["u1", "u2", "u3"]
        with anyio.fail_after(1):
            assert [await turn.text() for turn in turns] == ["a", "b", "c"]


async def test_a_send_that_replaces_the_running_turn_comes_first_at_the_next_owner() -> None:
    async with owners([never()], [say("first"), say("second")]) as on:
        await on.session.send("one")
        await settled()
        async with anyio.create_task_group() as group:
            group.start_soon(on.here.hand_over, "s")
            await settled()
            await on.session.send("two")
            await on.session.send("three", when_busy="interrupt")
        session = await on.there.open("s")
        assert await session.turn(3).text() == "first"
        assert await session.turn(2).text() == "second"


async def test_a_session_is_handed_over_between_two_turns_when_the_first_has_ended() -> None:
    async with owners([say("first").slow(1.0)], [say("second")]) as on:
        one = await on.session.send("one")
        await on.session.send("two")
        assert (await on.here.hand_over("s", when="idle")).session == "s"
        assert await one.text() == "first"
        session = await on.there.open("s")
        assert await session.turn(2).text() == "second"
        assert (len(on.requests_here), len(on.requests_there)) == (1, 1)


async def test_at_once_the_running_request_is_repeated_by_the_next_owner() -> None:
    async with owners([say("half of a long reply").slow(1.0)], [say("a whole reply")]) as on:
        turn = await on.session.send("go")
        await anyio.sleep(2)
        await on.here.hand_over("s", when="now")
        with pytest.raises(SessionMoved):
            await turn.outcome()
        session = await on.there.open("s")
        assert await session.turn(1).text() == "a whole reply"


async def test_at_once_a_running_tool_is_cut_off_and_the_model_is_told() -> None:
    work = Work()
    async with owners([call("work", {}, id="c1")], [say("I see")], work.tool) as on:
        await on.session.send("go")
        await work.started.wait()
        await on.here.hand_over("s", when="now")
        session = await on.there.open("s")
        assert await session.turn(1).text() == "I see"
        assert work.runs == 1
        assert b"unknown" in bytes(on.requests_there[0].messages[-1].body)


async def test_a_more_urgent_call_brings_the_hand_over_forward() -> None:
    async with owners([never()], [say("hi")]) as on:
        await on.session.send("go")
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: on.here.hand_over("s", when="idle"))
            await anyio.sleep(10)
            await on.here.hand_over("s", when="now")
            # A less urgent one does not put it off.
        session = await on.there.open("s")
        assert await session.turn(1).text() == "hi"


async def test_a_subscriber_goes_on_at_the_next_owner_without_a_gap_or_a_repeat() -> None:
    async with owners([call("ask", {}, id="c1")], [say("thanks")], CALLER) as on:
        before = on.session.subscribe(after=0)
        await on.session.send("go")
        await settled()
        await on.here.hand_over("s")
        seen = [event async for event in before]
        session = await on.there.open("s", unbound="caller")
        after = session.subscribe(after=before.cursor)
        await session.submit_tool_results([ToolResult("c1", "the answer")])
        await session.turn(1).outcome()
        await session.close()
        seen += [event async for event in after]
        records = [event for event in seen if isinstance(event, r.RecordBase)]
        assert [record.seq for record in records] == list(range(1, records[-1].seq + 1))
        assert [type(record) for record in records].count(r.SessionHandedOver) == 1


async def test_commands_that_come_meanwhile_are_done_or_raise_that_the_session_moved() -> None:
    async with owners([say("one").slow(1.0)], [say("two"), say("three")]) as on:
        await on.session.send("first")
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: on.here.hand_over("s", when="idle"))
            await anyio.sleep(1)
            await on.session.send("second")
        with pytest.raises(SessionMoved, match="'s' was handed over"):
            await on.session.send("third", command_id="third")
        session = await on.there.open("s")
        third = await session.send("third", command_id="third")
        assert await third.text() == "three"
        assert [m.text for m in session.conversation() if m.role == "user"] == [
            "first",
            "second",
            "third",
        ]


async def test_an_interrupt_ends_turns_that_wait_for_the_hand_over() -> None:
    async with owners([never()], []) as on:
        turn = await on.session.send("go")
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: on.here.hand_over("s", when="idle"))
            await anyio.sleep(1)
            await on.session.interrupt()
        assert (await turn.outcome()).status == "aborted"
        assert on.here.live == ()


async def test_a_close_meanwhile_closes_the_session() -> None:
    async with owners([never()], []) as on:
        turn = await on.session.send("go")
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: on.here.hand_over("s", when="idle"))
            await anyio.sleep(1)
            await on.session.close()
        assert (await turn.outcome()).status == "aborted"
        with pytest.raises(SessionClosed):
            await on.session.send("more")


async def test_a_hand_over_of_a_session_that_another_owner_took_raises_that_it_moved() -> None:
    async with owners([never()], []) as on:
        await on.session.send("go")
        await on.here.store.acquire("s", Owner("third"), takeover=True)
        with pytest.raises(SessionMoved):
            await on.here.hand_over("s", when="now")
        await on.here.store.release(await on.here.store.acquire("s", Owner("third")))


async def test_a_session_that_is_not_live_here_is_left_as_it_is() -> None:
    async with owners([], []) as on:
        await on.here.hand_over("s")
        assert (await on.here.hand_over("s", when="now")).still_running == ()
        assert await on.there.open("s") is not None
        await on.here.hand_over("s")
        assert on.there.live == ("s",)


async def test_what_cannot_be_handed_over_is_said() -> None:
    async with owners([], []) as on:
        with pytest.raises(SessionNotFound):
            await on.here.hand_over("nobody")
        with pytest.raises(InvalidInput, match="when is 'soon'; it must be one of idle, step, now"):
            await on.here.hand_over("s", when="soon")  # type: ignore[arg-type]  # that is the point


async def test_a_crash_of_the_next_owner_is_a_crash_again() -> None:
    async with owners([never()], [never()]) as on:
        await on.session.send("one")
        await on.session.send("two")
        await settled()
        await on.here.hand_over("s", when="now")
        await on.there.open("s")
        await settled()
        session = await on.here.open("s", takeover=True)
        assert (await session.turn(1).outcome()).status == "aborted"
        assert (await session.turn(2).outcome()).status == "aborted"
