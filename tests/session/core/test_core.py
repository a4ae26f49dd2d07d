"""What sessions of one manager share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from llmsession import LLMSession, MemoryStore, SessionConfig, SessionManager, Tool
from llmsession.testing.scripted import ScriptedProvider


def config(temperature: float, run: Any = None) -> SessionConfig:
    tool = Tool(name="look", input_schema={"type": "object", "title": "t"}, run=run)
    return SessionConfig(model="m", tools=[tool], options={"temperature": temperature})


@asynccontextmanager
async def two_of(*configs: SessionConfig) -> AsyncIterator[list[LLMSession]]:
    async with SessionManager(provider=ScriptedProvider([]), store=MemoryStore()) as manager:
        yield [await manager.create(each) for each in configs]


async def test_sessions_of_equal_configurations_keep_one() -> None:
    async with two_of(config(1), config(1)) as (first, second):
        held = [session.reference.actor.core.config for session in (first, second)]
        assert held[0] is held[1]
        assert first.config == held[0]
        await second.configure(system="other")
        assert first.config.system is None
        assert second.config.system == "other"


async def test_who_changes_what_config_returns_changes_no_request() -> None:
    async with two_of(config(1), config(1)) as (first, _):
        before, mine = first.context().encode(), first.config
        mine.options["temperature"] = 0
        assert isinstance(mine.tools[0], Tool)
        mine.tools[0].input_schema["title"] = "another"
        assert first.context().encode() == before


async def test_configurations_that_are_equal_but_not_sent_alike_stay_apart() -> None:
    async with two_of(config(1), config(1.0)) as (first, second):
        assert b'"temperature":1}' in first.context().encode()
        assert b'"temperature":1.0}' in second.context().encode()


async def test_configurations_with_other_callables_stay_apart() -> None:
    async with two_of(config(1, run=len), config(1, run=max)) as sessions:
        assert [session.config.tools[0].run for session in sessions] == [len, max]  # type: ignore[union-attr]
