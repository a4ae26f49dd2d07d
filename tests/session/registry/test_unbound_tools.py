"""Tools that the session ran before and that nobody binds at ``open``: named, not waited for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from llmsession import (
    InvalidInput,
    SessionConfig,
    SessionManager,
    Store,
    Tool,
    ToolResult,
    ToolsUnbound,
)
from llmsession.session.unfinished import recover_unfinished
from llmsession.store import MemoryStore
from llmsession.store.protocol import Owner
from llmsession.testing.scripted import ScriptedProvider, call
from tests.session.actors import Quick, Stage, stage
from tests.session.core.test_session_log import recorder

TOOL = Tool(name="t", run=Quick("by the session"))


@asynccontextmanager
async def ran_before(script: Any = (), **options: Any) -> AsyncIterator[Stage]:
    """A manager that has not opened the session ``s`` yet, which ran its tool ``t`` before."""
    store = MemoryStore()
    async with stage([call("t", id="c"), "ok"], tools=[TOOL], store=store) as on:
        await on.say("go")
    provider = ScriptedProvider(script)
    async with SessionManager(provider=provider, store=store, **options) as manager:
        yield Stage(manager, provider, store)


async def records(store: Store) -> int:
    row = await store.row("s")
    assert row.owner is None
    return row.head


async def test_open_names_the_tools_that_the_session_ran_and_nobody_binds() -> None:
    async with ran_before() as on:
        before = await records(on.store)
        with pytest.raises(ToolsUnbound, match=r"'t'.*unbound=\"caller\"") as caught:
            await on.manager.open("s")
        assert (caught.value.session, caught.value.tools) == ("s", ("t",))
        assert isinstance(caught.value, InvalidInput)
        # Nothing was changed, and nobody holds the session.
        assert await records(on.store) == before
        assert on.manager.live == ()


async def test_a_tool_that_open_or_the_manager_binds_is_run_by_the_session() -> None:
    async with ran_before([call("t", id="d"), "fine"]) as on:
        session = await on.manager.open("s", tools=[TOOL])
        assert await (await session.send("again")).text() == "fine"
        assert (await on.manager.open("s")).id == "s"  # it is live, and bound
    async with ran_before(tools=[TOOL]) as on:
        await on.manager.open("s")


async def test_functions_that_open_binds_are_those_of_that_session_alone() -> None:
    store = MemoryStore()
    script: list[Any] = [call("t", id="c"), "ok"] * 3
    async with SessionManager(provider=ScriptedProvider(script), store=store) as manager:
        for name in ("s", "same", "also"):
            config = SessionConfig(model="m", tools=(TOOL,))
            session = await manager.create(config, session_id=name)
            assert await (await session.send("go")).text() == "ok"
    async with SessionManager(provider=ScriptedProvider(()), store=store) as manager:
        await manager.open("s", tools=[TOOL])
        with pytest.raises(ToolsUnbound):
            await manager.open("same")
        with pytest.raises(ToolsUnbound):  # the configuration that was read before is used again
            await manager.open("also")
        await manager.open("also", tools=[TOOL])


async def test_a_caller_that_says_so_answers_the_calls_from_then_on() -> None:
    async with ran_before([call("t", id="d"), "fine"]) as on:
        session = await on.manager.open("s", unbound="caller")
        turn = await session.send("again")
        async for event in turn:
            if getattr(event, "id", None) == "d":
                await session.submit_tool_results([ToolResult("d", "by the caller")])
        assert await turn.text() == "fine"
        with pytest.raises(ToolsUnbound):  # another one, who says nothing
            await on.manager.open("s")
        await session.close()
        # The caller answered it last: it is the caller's tool.
        await on.manager.open("s")


async def test_a_takeover_that_names_unbound_tools_takes_nothing() -> None:
    async with ran_before() as on:
        await on.store.acquire("s", Owner("another"))
        with pytest.raises(ToolsUnbound):
            await on.manager.open("s", takeover=True)
        owner = (await on.store.row("s")).owner
        assert owner is not None
        assert owner.name == "another"


async def test_a_tool_that_is_no_longer_configured_or_was_never_run_is_not_named() -> None:
    store = MemoryStore()
    bare = [TOOL, Tool(name="other", run=Quick("x")), Tool(name="callers")]
    async with stage([call("t", id="c"), "ok"], tools=bare, store=store) as on:
        await on.say("go")
        await on.session.configure(tools=[Tool(name="other"), Tool(name="callers")])
    async with SessionManager(provider=ScriptedProvider([]), store=store) as manager:
        await manager.open("s")


async def test_recovery_does_not_raise_and_logs_one_warning() -> None:
    logger, entries = recorder()
    async with ran_before(["fine"] * 2, logger=logger) as on:
        session = await on.manager.open("s", unbound="caller")
        await session.send("left open")
        await on.manager.release()
    async with SessionManager(
        provider=ScriptedProvider(["fine"]), store=on.store, logger=logger
    ) as manager:
        assert not [entry for entry in entries if entry["event"] == "tools.unbound"]
        assert (await recover_unfinished(manager)).recovered == ("s",)
        await manager.close()
        warnings = [entry for entry in entries if entry["event"] == "tools.unbound"]
        assert [(entry["session"], entry["tools"]) for entry in warnings] == [("s", ["t"])]


async def test_a_warning_comes_once_however_often_sessions_are_opened() -> None:
    logger, entries = recorder()
    async with ran_before(logger=logger) as on:
        for _ in range(3):
            session = await on.manager.open("s", unbound="warn")
            await session.close()
    assert [entry["event"] for entry in entries].count("tools.unbound") == 1


async def test_another_word_for_unbound_is_refused() -> None:
    async with stage() as on:
        with pytest.raises(InvalidInput, match="unbound is 'ask'; it must be one of raise, caller"):
            await on.manager.open("s", unbound="ask")  # type: ignore[arg-type]  # that is the point


async def test_a_fork_of_a_session_that_ran_tools_needs_them_too() -> None:
    store = MemoryStore()
    async with stage([call("t", id="c"), "ok"], tools=[TOOL], store=store) as on:
        await on.say("go")
        await on.session.fork(session_id="f")
    async with SessionManager(provider=ScriptedProvider([]), store=store) as manager:
        with pytest.raises(ToolsUnbound):
            await manager.open("f")
