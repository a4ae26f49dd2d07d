"""Statistics of live sessions: what they count, in which order, and of whom."""

from __future__ import annotations

import pytest

from llmsession import SessionConfig, TextDelta
from llmsession.session.manager import runtime_of
from llmsession.session.stats import count_live, live_stats
from llmsession.testing.scripted import say
from tests.session.actors import first, offering, stage


def everybody(session: str) -> bool:
    return True


pytestmark = pytest.mark.anyio


async def test_who_runs_a_turn_comes_first_then_by_id_and_no_more_than_asked_for() -> None:
    async with stage(lambda request, tag: say("so far, so good").hanging(at=3)) as on:
        manager, config = on.manager, SessionConfig(model="m")
        sessions = [await manager.create(config, session_id=name) for name in "cab"]
        await first(await sessions[0].send("go on"), TextDelta)
        live = live_stats(runtime_of(manager).actors, 3, everybody)
        assert [(stats.session, stats.phase) for stats in live] == [
            ("c", "running"), ("a", "idle"), ("b", "idle"),
        ]  # fmt: skip
        assert (live[0].turn, live[0].step, live[0].turn_phase) == (1, 1, "streaming")
        assert live[0].output_tokens >= len("so far, so good") // 4  # of what has come
        assert live[0].context_tokens == sessions[0].status().context_tokens > 0
        assert count_live(runtime_of(manager).actors, everybody) == (4, 1)
        assert count_live(runtime_of(manager).actors, lambda session: session in "ab") == (2, 0)
        only = live_stats(runtime_of(manager).actors, 9, lambda session: session == "s")
        assert [stats.session for stats in only] == ["s"]


async def test_interrupts_and_compactions_are_counted_by_what_is_durable() -> None:
    hangs = say("so far, so good").hanging(at=3)
    async with offering("c", then=["seen", hangs]) as (on, turn):
        await on.submit(c="line\n" * 2000)
        await turn.text()
        (stats,) = live_stats(runtime_of(on.manager).actors, 1, everybody)
        assert (stats.interrupts, stats.compactions, stats.turns) == (0, 0, 1)
        await on.session.set_summary("There were lines.", upto=1)
        await on.interrupted("and?", after_s=1)
        (stats,) = live_stats(runtime_of(on.manager).actors, 1, everybody)
        assert (stats.interrupts, stats.compactions, stats.turns) == (1, 1, 2)
