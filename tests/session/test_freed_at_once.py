"""What a session is done with is freed at once: nothing of it waits for the garbage collector.

An error's traceback has the frames that it went through. Where one of these keeps the error, both
are in a cycle, with all that the other frames have: the command, the request, perhaps a handle.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import TypeAlias

import anyio
import pytest

from llmsession import ProviderError, SessionConfig, SessionError, Tool, ToolResult, tool
from llmsession.session.manager import runtime_of
from llmsession.testing.scripted import Script, ScriptedProvider, call, never, say
from llmsession.turns.request import Request, StepTag
from llmsession.turns.stream import StreamEvent
from tests.session.actors import Stage, settled, stage

pytestmark = pytest.mark.anyio

Life: TypeAlias = Callable[[Stage], Awaitable[object]]


class Failing(ScriptedProvider):
    """Its first attempt at each step raises a new *error*, after two events."""

    def __init__(self, error: Callable[[], Exception]) -> None:
        super().__init__(lambda request, tag: "a long reply")
        self._error = error

    async def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        seen = 0
        async with aclosing(super().stream(request, tag)) as events:
            async for event in events:
                if seen == 2 and tag.attempt == 1:
                    raise self._error()
                seen += 1
                yield event


@tool
async def breaks() -> str:
    """It fails."""
    raise ValueError("broken")


@tool
def breaks_in_a_thread() -> str:
    """It fails in a thread."""
    raise ValueError("broken")


@tool
async def sleeps() -> str:
    """It takes long."""
    await anyio.sleep(1000)
    return "awake"


TOOLS = (breaks, breaks_in_a_thread, sleeps, Tool(name="offered"))


def playing(script: Script) -> Callable[[], ScriptedProvider]:
    return lambda: ScriptedProvider(script)


def calls(name: str) -> Callable[[], ScriptedProvider]:
    """Its turns call the tool *name* once."""
    return playing(lambda _, tag: call(name, id=f"c{tag.turn}") if tag.step == 1 else "done")


def fails(error: Callable[[], Exception]) -> Callable[[], ScriptedProvider]:
    return lambda: Failing(error)


hangs = playing(lambda request, tag: never())
replies = playing(lambda request, tag: "a reply")


async def a_turn(on: Stage) -> None:
    await on.outcome("go")


async def an_interrupt(on: Stage) -> None:
    await (await on.interrupted("go")).outcome()


async def an_interrupt_by_a_send(on: Stage) -> None:
    await on.begin("go")
    await on.begin("go there", when_busy="interrupt")
    await on.session.interrupt()


async def a_wait_that_is_given_up(on: Stage) -> None:
    turn = await on.session.send("go")
    with anyio.move_on_after(5):
        await turn.outcome()
    await on.session.interrupt()


async def refusals(on: Stage) -> None:
    await on.begin("go")
    session = on.session
    refused: list[Callable[[], Awaitable[object]]] = [
        lambda: session.send(""),
        lambda: session.send("x", expected_head=9),
        lambda: session.send("x", when_busy="reject"),
        lambda: session.rewind(9),
        session.clear,
        lambda: session.turn(99_999).outcome(),
        lambda: session.submit_tool_results([ToolResult("none", "x")]),
    ]
    for ask in refused:
        with suppress(SessionError):
            await ask()
            raise AssertionError("it was not refused")
    await session.interrupt()


async def results_from_outside(on: Stage) -> None:
    turn = await on.offered("go")
    results = [ToolResult(f"c{turn.id.number}", "x")]
    await on.session.submit_tool_results(results)
    with suppress(SessionError):
        await on.session.submit_tool_results(results)
    await turn.outcome()


async def a_compaction(on: Stage) -> None:
    await on.outcome("go")
    await on.session.compact()


async def an_eviction(on: Stage) -> None:
    turn = await on.outcome("go")
    assert turn.status == "committed"
    del on.session
    assert await runtime_of(on.manager).evict_idle() == 1
    on.session = await on.manager.open("s")


async def a_close(on: Stage) -> None:
    session = await on.manager.create(SessionConfig(model="m"))
    await (await session.send("go")).outcome()
    await session.close()
    assert session.status().phase == "closed"


async def a_close_in_the_middle(on: Stage) -> None:
    session = await on.manager.create(SessionConfig(model="m"))
    await session.send("go")
    await settled()
    await session.close()


async def a_hand_over(on: Stage) -> None:
    session = await on.manager.create(SessionConfig(model="m"))
    await on.manager.hand_over(session.id)


LIVES: dict[str, tuple[Callable[[], ScriptedProvider], Life]] = {
    "a turn": (replies, a_turn),
    "a compaction": (replies, a_compaction),
    "an interrupt of a stream": (hangs, an_interrupt),
    "an interrupt by a send": (hangs, an_interrupt_by_a_send),
    "an interrupt of a tool": (calls("sleeps"), an_interrupt),
    "an interrupt of a stream that ignores it": (
        playing(lambda request, tag: say("a long reply").ignoring_cancellation(1, at=1)),
        an_interrupt,
    ),
    "a wait that is given up": (hangs, a_wait_that_is_given_up),
    "refused commands": (hangs, refusals),
    "an eviction": (replies, an_eviction),
    "a close": (replies, a_close),
    "a close in the middle of a reply": (hangs, a_close_in_the_middle),
    "a hand-over": (replies, a_hand_over),
    "a tool that fails": (calls("breaks"), a_turn),
    "a tool that fails in a thread": (calls("breaks_in_a_thread"), a_turn),
    "results from outside": (calls("offered"), results_from_outside),
    "a stream that is repeated": (fails(lambda: ProviderError("away", kind="retryable")), a_turn),
    "a stream that fails": (fails(lambda: ProviderError("no", kind="fatal")), a_turn),
    "a provider with a bug": (fails(lambda: ValueError("a bug")), a_turn),
}


@contextmanager
def uncollected() -> Iterator[Counter[str]]:
    """What has become unreachable in the body and was not freed, by type; filled at its end."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.collect()  # what the first one let go
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found.update(type(each).__name__ for each in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("name", LIVES)
async def test_nothing_that_a_session_is_done_with_waits_for_the_collector(name: str) -> None:
    provider, life = LIVES[name]
    async with stage(provider=provider(), tools=TOOLS) as on:
        for _ in range(2):  # what is made once
            await life(on)
        await settled()
        with uncollected() as found:
            for _ in range(3):
                await life(on)
            await anyio.sleep(10)
            await settled()
        assert found == {}


class Agent:
    """Its method is a tool of the session that it holds."""

    async def search(self) -> str:
        return "found"

    async def begin(self, on: Stage) -> None:
        tools = (Tool(name="search", run=self.search),)
        self.session = await on.manager.create(SessionConfig(model="m", tools=tools))
        await (await self.session.send("hello")).outcome()


@pytest.mark.parametrize("end", ["closed", "its manager left"])
async def test_an_agent_that_holds_its_session_is_freed_when_that_is(end: str) -> None:
    async with stage(lambda _, tag: "hello") as on:
        agent, other = Agent(), Agent()
        await agent.begin(on)
        await other.begin(on)  # the manager keeps the newest configuration
        freed = weakref.ref(agent)
        if end == "closed":
            await agent.session.close()
            del agent
            gc.collect()
            assert freed() is None
    if end != "closed":
        del agent
        gc.collect()
        assert freed() is None
