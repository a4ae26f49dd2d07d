"""Where a session stands, and what it spent."""

from __future__ import annotations

import pytest

from llmsession import CompactionConfig, TurnId, Usage
from llmsession.testing.scripted import call, never, say
from tests.session.actors import Quick, Waiting, stage


async def test_an_idle_session_says_where_it_stands() -> None:
    async with stage(["hi"]) as on:
        await on.say("hello")
        status = on.session.status()
        assert status.session == "s"
        assert status.phase == "idle"
        assert (status.turn, status.turn_phase, status.step, status.queued) == (None, None, 0, 0)
        assert status.head == TurnId("a", 1)
        assert (status.messages, status.turns, status.generation) == (2, 1, 1)
        assert status.seq == len(await on.log())
        assert status.epoch == 1
        assert (status.jobs, status.still_running, status.late_reports) == ((), (), 0)


async def test_a_running_session_names_its_turn_phase_step_and_queue() -> None:
    tool = Waiting()
    async with stage([call("t", id="c"), "a", "b", "c"], tool=tool) as on:
        await on.session.send("first")
        await on.session.send("second")
        await on.started(tool, "third")
        status = on.session.status()
        assert (status.phase, status.turn_phase) == ("running", "tools")
        assert (status.turn, status.step, status.queued) == (TurnId("u", 1), 1, 2)
        await on.session.interrupt()
        assert on.session.status().phase == "idle"


async def test_utilisation_is_the_share_of_the_budget_that_the_context_fills() -> None:
    async with stage(["hi"], window_tokens=20_000, max_tokens=10_000) as on:
        empty = on.session.status().context_tokens
        await on.say("word " * 3000)
        status = on.session.status()
        assert status.budget_tokens == 10_000
        assert 4000 < status.context_tokens - empty < 8000
        assert status.utilisation == status.context_tokens / 10_000


async def test_utilisation_falls_when_the_context_is_compacted() -> None:
    tool = Quick("a line of text\n" * 500)
    script = [call("t", id="c"), "ok", *[say("hi")] * 3]
    compaction = CompactionConfig(keep_recent_turns=1, keep_recent_steps=1)
    async with stage(script, tool=tool, compaction=compaction) as on:
        for _ in range(4):
            await on.say("go")
        before = on.session.status().utilisation
        assert (await on.session.compact()).applied
        assert on.session.status().utilisation < before / 2


async def test_the_size_is_that_of_now_and_is_found_once_while_nothing_happens() -> None:
    async with stage(["one", never(), "three"]) as on:
        await on.say("first")
        before = on.session.status().context_tokens
        await on.begin("second " * 100)
        assert on.session.status().context_tokens > before + 50
        await on.session.interrupt()
        assert on.session.status().context_tokens == before
        builder = on.session.reference.actor.core.builder
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(builder, "project", None)
            assert on.session.status().context_tokens == before
        await on.say("third " * 100)
        assert on.session.status().context_tokens > before + 50


async def test_a_message_carries_its_model_provider_usage_and_times() -> None:
    cost = Usage(input_tokens=7, output_tokens=3)
    async with stage([say("hi").costing(cost)]) as on:
        await on.say("hello")
        user, assistant = on.session.conversation()
        assert (assistant.model, assistant.provider, assistant.usage) == ("m", "scripted", cost)
        assert assistant.stop_reason == "end_turn"
        assert 0 < assistant.created_at <= assistant.completed_at
        assert user.created_at <= assistant.created_at
        assert (user.id, assistant.id) == ("s/u1.0", "s/a1.0")


async def test_the_async_reads_say_what_the_synchronous_ones_say() -> None:
    async with stage(["hi", never()]) as on:
        await on.say("hello")
        await on.begin("open")
        session = on.session
        assert await session.read_conversation() is session.conversation()
        assert await session.read_conversation(include_open=True) == session.conversation(
            include_open=True
        )
        assert await session.read_context() == session.context()
        assert await session.read_status() == session.status()
        assert await session.read_usage() == session.usage()


async def test_the_context_is_what_the_next_request_will_be_but_for_what_is_said_next() -> None:
    async with stage(["hi", "there"], system="be brief", options={"temperature": 0}) as on:
        await on.say("hello")
        foreseen = on.session.context()
        await on.say("go on")
        sent = on.provider.requests[1]
        assert sent.messages[:2] == foreseen.messages
        assert (sent.system, sent.options, sent.tools) == (
            foreseen.system, foreseen.options, foreseen.tools,
        )  # fmt: skip
