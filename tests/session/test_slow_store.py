"""A store that takes its time: nothing is told or answered before it is durable."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest

from llmsession.session.handles.session import LLMSession
from llmsession.session.manager import SessionManager
from llmsession.session.values.config import CompactionConfig, SessionConfig, Tool, ToolResult
from llmsession.store.memory import MemoryStore
from llmsession.testing.faulty_store import FaultyStore
from llmsession.testing.scripted import ScriptedProvider, ScriptedReply, call, say
from llmsession.turns.request import Request, StepTag
from tests.session.actors import meanwhile
from tests.session.probes import delivering, settle


def _reply(request: Request, _tag: StepTag) -> ScriptedReply:
    last = bytes(request.messages[-1].body)
    if b"use tools" in last:
        return say("let me see") + call("mine", id="c") + call("mine", id="d")
    return say("fine")


CONFIG = SessionConfig(model="m", tools=[Tool(name="mine")])


@asynccontextmanager
async def slow_session(
    script: Callable[[Request, StepTag], ScriptedReply] = _reply, config: SessionConfig = CONFIG
) -> AsyncIterator[tuple[LLMSession, FaultyStore]]:
    """A session, and its store, which the test holds up."""
    store = FaultyStore(MemoryStore())
    provider = ScriptedProvider(script)
    async with SessionManager(provider=provider, store=store) as manager, delivering(store):
        yield await manager.create(config, session_id="s"), store


async def answer_when_durable(store: FaultyStore, command: Callable[[], Awaitable[Any]]) -> Any:
    """The answer of *command*, which does not come before what it wrote is durable."""
    store.delay()
    with anyio.fail_after(100):
        async with meanwhile(command) as answers:
            await store.wait_delayed()
            await settle(5.0)
            assert answers == []
            store.deliver()
    (answer,) = answers
    return answer


@pytest.mark.parametrize(
    "command", ["send", "queue", "steer", "submit", "configure", "clear", "summaries"]
)
async def test_a_command_is_answered_when_it_is_durable_and_not_before(command: str) -> None:
    async with slow_session() as (session, store):
        if command in ("queue", "steer", "submit", "summaries"):
            await session.send("use tools")
            await settle()
        commands: dict[str, Callable[[], Awaitable[Any]]] = {
            "send": lambda: session.send("hello"),
            "queue": lambda: session.send("hello"),
            "steer": lambda: session.send("hello", when_busy="steer"),
            "submit": lambda: session.submit_tool_results([ToolResult("c", "42")]),
            "configure": lambda: session.configure(system="new"),
            "clear": session.clear,
            "summaries": lambda: session.store_compact_summaries({"d": "short"}),
        }
        await answer_when_durable(store, commands[command])
        with anyio.fail_after(100):
            await session.interrupt()


async def test_a_logged_interrupt_of_an_idle_session_is_answered_when_its_answer_is_durable() -> (
    None
):
    async with slow_session() as (session, store):
        interrupt = partial(session.interrupt, command_id="i1")
        assert (await answer_when_durable(store, interrupt)).result == "not_running"


async def test_an_interrupt_of_one_queued_turn_is_answered_when_its_end_is_durable() -> None:
    async with slow_session() as (session, store):
        await session.send("use tools")
        queued = await session.send("queued")
        await settle()
        interrupt = partial(session.interrupt, queued.id)
        assert (await answer_when_durable(store, interrupt)).result == "aborted"


async def test_a_compaction_is_answered_when_it_is_durable_and_not_before() -> None:
    def script(request: Request, tag: StepTag) -> ScriptedReply:
        return call("t", id=f"c{tag.turn}") if tag.step == 1 else say("done")

    async def long_output() -> str:
        return "a line of output that says something\n" * 200

    config = SessionConfig(
        model="m",
        tools=[Tool(name="t", run=long_output)],
        compaction=CompactionConfig(keep_recent_turns=1, threshold=0.99),
    )
    async with slow_session(script, config) as (session, store):
        for _ in range(3):
            await (await session.send("work")).text()
        assert (await answer_when_durable(store, session.compact)).applied
