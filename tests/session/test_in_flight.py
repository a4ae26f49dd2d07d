"""Commands that come while a clear or a configure is still on its way into the store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from llmsession.session.handles.session import LLMSession
from llmsession.session.log.state import fold
from llmsession.session.manager import SessionManager
from llmsession.session.values.config import CompactionConfig, SessionConfig, Tool, ToolResult
from llmsession.store.memory import MemoryStore
from llmsession.testing.faulty_store import FaultyStore
from llmsession.testing.scripted import ScriptedProvider, call, say
from llmsession.turns import records as r
from tests.session.actors import meanwhile
from tests.session.probes import delivering, differences, live_state, log_of, said, settle

CONFIG = SessionConfig(
    model="m",
    tools=[Tool(name="mine")],
    compaction=CompactionConfig(keep_recent_turns=1, keep_recent_steps=1),
)


@asynccontextmanager
async def stage(*, turns: int = 2) -> AsyncIterator[tuple[LLMSession, FaultyStore]]:
    """A session with *turns* committed turns of one tool each, a receipt, and a slow store."""
    replies = [each for _ in range(turns) for each in (call("mine", id="c"), say("so be it"))]
    provider = ScriptedProvider([*replies, call("mine", id="c"), say("fine"), say("fine")])
    store = FaultyStore(MemoryStore())
    async with SessionManager(provider=provider, store=store) as manager:
        session = await manager.create(CONFIG, session_id="s")
        with anyio.fail_after(100):
            for _ in range(turns):
                turn = await session.send("use the tool")
                await settle()
                waiting = live_state(session).open[turn.id.number].calls[0].id
                await session.submit_tool_results([ToolResult(waiting, "a line\n" * 500)])
                await turn.text()
            await session.send("use it and be dropped")
            await settle()
            await session.interrupt()
            assert live_state(session).receipts
            async with delivering(store):
                yield session, store
            await settle()
            log = await log_of(store, "s")
            assert differences(live_state(session), fold("s", log)) == []


async def test_a_send_behind_a_clear_carries_no_receipt_of_what_was_cleared() -> None:
    async with stage() as (session, store):
        store.delay()
        async with meanwhile(session.clear):
            await store.wait_delayed()
            async with meanwhile(lambda: session.send("a new start")):
                store.deliver()
        await settle()
        assert said(session.conversation())[0] == (
            "user",
            [{"type": "text", "text": "a new start"}],
        )


async def test_two_clears_at_once_start_two_generations() -> None:
    async with stage() as (session, store):
        store.delay()
        async with meanwhile(session.clear, session.clear):
            await store.wait_delayed()
            store.deliver()
        log = await log_of(store, "s")
        cleared = [each.generation for each in log if isinstance(each, r.ConversationCleared)]
        assert cleared == [2, 3]
        assert session.status().generation == 3


async def test_a_compaction_behind_a_clear_is_not_applied() -> None:
    async with stage() as (session, store):
        store.delay()
        async with meanwhile(session.clear):
            await store.wait_delayed()
            async with meanwhile(session.compact):
                store.deliver()
        assert session.status().compacted_before == 0
        log = await log_of(store, "s")
        assert not any(isinstance(each, r.CompactionApplied) for each in log)
