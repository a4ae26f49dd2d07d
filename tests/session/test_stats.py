"""Statistics of live sessions: what they count, in which order, and of whom."""

from __future__ import annotations

import anyio
import pytest

from llmsession import SessionConfig, SessionManager, TextDelta, Tool, ToolResult, ToolUse
from llmsession.testing.scripted import ScriptedProvider, call, say

pytestmark = pytest.mark.anyio


async def test_who_runs_a_turn_comes_first_then_by_id_and_no_more_than_asked_for() -> None:
    provider = ScriptedProvider(lambda request, tag: say("so far, so good").hanging(at=3))
    async with SessionManager(provider=provider) as manager:
        sessions = [
            await manager.create(SessionConfig(model="m"), session_id=name) for name in "cabd"
        ]
        turn = await sessions[0].send("go on")
        async for event in turn:
            if isinstance(event, TextDelta):
                break
        live = manager.live_stats(3)
        assert [(stats.session, stats.phase) for stats in live] == [
            ("c", "running"), ("a", "idle"), ("b", "idle"),
        ]  # fmt: skip
        assert (live[0].turn, live[0].step, live[0].turn_phase) == (1, 1, "streaming")
        assert live[0].output_tokens >= len("so far, so good") // 4  # of what has come
        assert live[0].context_tokens == sessions[0].status().context_tokens > 0
        assert manager.count_live() == (4, 1)
        assert manager.count_live(lambda session: session in "ab") == (2, 0)
        only = manager.live_stats(9, lambda session: session == "d")
        assert [stats.session for stats in only] == ["d"]


async def test_interrupts_and_compactions_are_counted_by_what_is_durable() -> None:
    calls = 0

    def answer(request: object, tag: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            return call("look", {}, id="c1")
        return say("seen") if calls == 2 else say("so far, so good").hanging(at=3)

    provider = ScriptedProvider(answer)  # type: ignore[arg-type]  # replies of several kinds
    config = SessionConfig(model="m", tools=(Tool(name="look"),))
    async with SessionManager(provider=provider) as manager:
        session = await manager.create(config, session_id="s")
        turn = await session.send("what is there?")
        async for event in turn:
            if isinstance(event, ToolUse):
                await session.submit_tool_results([ToolResult(event.id, "line\n" * 2000)])
        (stats,) = manager.live_stats(1)
        assert (stats.interrupts, stats.compactions, stats.turns) == (0, 0, 1)
        await session.set_summary("There were lines.", upto=1)
        turn = await session.send("and?")
        with anyio.fail_after(5):
            async for event in turn:
                if isinstance(event, TextDelta):
                    break
        await session.interrupt()
        (stats,) = manager.live_stats(1)
        assert (stats.interrupts, stats.turns) == (1, 2)
        assert stats.compactions == 1
