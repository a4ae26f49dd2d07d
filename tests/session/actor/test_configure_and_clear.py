"""Changing the configuration between turns, and starting the next generation."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import anyio.from_thread
import pytest

from llmsession import InvalidConfig, MemoryStore, SessionBusy, SessionClosed, Tool, ToolUse
from llmsession.testing.scripted import call, never, say, think
from llmsession.turns import records as r
from tests.session.actors import Quick, Waiting, first, in_tool, lasting, meanwhile, stage


async def test_a_configuration_takes_effect_at_once_between_turns() -> None:
    async with stage(["hi", "hi"], system="old") as on:
        await on.say("hello")
        await on.session.configure(model="n", system="new", max_tokens=99)
        await on.say("hello")
        old, new = on.provider.requests
        assert (old.model, old.system, old.max_tokens) == ("m", "old", 8192)
        assert (new.model, new.system, new.max_tokens) == ("n", "new", 99)


async def test_a_configuration_during_a_turn_takes_effect_after_it_and_before_the_next() -> None:
    tool = Waiting()
    async with in_tool(tool, "one", "two") as (on, running):
        queued = await on.session.send("second")
        async with meanwhile(lambda: on.session.configure(model="n")):
            assert on.session.config.model == "m"
            tool.go.set()
            await running.text()
            await queued.text()
        assert [request.model for request in on.provider.requests] == ["m", "m", "n"]


async def test_a_tool_cannot_configure_its_own_session_and_is_told_at_once() -> None:
    refused: list[str] = []

    async def asynchronous() -> str:
        try:
            await on.session.configure(model="n")
        except SessionBusy as error:
            refused.append(str(error))
        return "went on"

    script = [call("t", id="c"), "done", "after"]
    async with stage(script, tool=asynchronous) as on:
        with lasting(0, abs=0.1):
            assert await on.say("go") == "done"
        assert "tool 't' cannot configure its own session 's'" in refused[0]
        await on.session.configure(model="n")  # between turns it can be changed
        assert on.session.config.model == "n"


async def test_what_a_tool_has_started_may_configure_once_the_tool_has_ended() -> None:
    go = anyio.Event()

    async def later() -> None:
        await go.wait()
        await on.session.configure(model="n")

    async def starts() -> str:
        group.start_soon(later)
        return "started"

    async with stage([call("t", id="c"), "done"], tool=starts) as on:
        async with anyio.create_task_group() as group:
            await on.say("go")
            go.set()
        assert on.session.config.model == "n"


@pytest.mark.real_time
async def test_a_tool_in_a_thread_cannot_configure_its_own_session_either() -> None:
    def in_a_thread() -> str:
        return anyio.from_thread.run(partial(on.session.configure, model="n")) or "configured"

    async with stage([call("t", id="c"), "done"], tool=in_a_thread) as on:
        await on.say("go")
        (result,) = on.session.conversation()[2].tool_results
        assert result.is_error
        assert "SessionBusy" in result.text


async def test_configurations_that_wait_are_all_applied_when_the_turn_is_interrupted() -> None:
    async with stage([never(), "hi"]) as on:
        await on.session.send("first")
        async with meanwhile(
            lambda: on.session.configure(model="n"), lambda: on.session.configure(system="be brief")
        ):
            await on.session.interrupt()
        assert (on.session.config.model, on.session.config.system) == ("n", "be brief")


async def test_a_configuration_that_does_not_go_with_one_before_it_is_refused_by_name() -> None:
    async with stage([never(), "hi"]) as on:
        await on.session.send("first")
        async with (
            meanwhile(lambda: on.session.configure(window_tokens=10_000)),
            meanwhile(
                lambda: on.session.configure(max_tokens=20_000), refused=(InvalidConfig,)
            ) as refused,
        ):
            await on.session.interrupt()
        assert [type(error) for error in refused] == [InvalidConfig]
        assert on.session.config.window_tokens == 10_000
        assert await on.say("again") == "hi"


async def test_a_configuration_that_waits_fails_by_name_when_the_session_is_closed() -> None:
    async with stage([never()]) as on:
        await on.session.send("first")
        async with meanwhile(
            lambda: on.session.configure(model="n"), refused=(SessionClosed,)
        ) as raised:
            await on.session.close()
        assert [type(error) for error in raised] == [SessionClosed]


@pytest.mark.parametrize("change", ["model", "system", "tools"])
async def test_a_change_of_model_system_or_tools_voids_earlier_thinking(change: str) -> None:
    reply = think("hmm") + say("hi")
    async with stage([reply, reply, "x"]) as on:
        await on.say("hello")
        assert b"hmm" in on.session.context().encode()
        changes: dict[str, dict[str, Any]] = {
            "model": {"model": "n"},
            "system": {"system": "s"},
            "tools": {"tools": [Tool(name="t")]},
        }
        await on.session.configure(**changes[change])
        assert b"hmm" not in on.session.context().encode()
        assert b"hmm" in bytes(on.session.conversation()[1].body)
        await on.say("again")
        # What the new model thought stays.
        assert on.session.context().encode().count(b"hmm") == 1


async def test_other_changes_leave_thinking_in_place() -> None:
    async with stage([think("hmm") + say("hi")]) as on:
        await on.say("hello")
        await on.session.configure(max_tokens=100, tool_deadline_s=1.0, grace_s=0.5)
        assert b"hmm" in on.session.context().encode()


async def test_new_tools_are_run_from_the_next_turn_on() -> None:
    tool = Quick("new result")
    async with stage(["hi", call("t", id="c"), "done"]) as on:
        await on.say("hello")
        await on.session.configure(tools=[Tool(name="t", run=tool)])
        assert await on.say("use it") == "done"
        assert len(tool.inputs) == 1


async def test_a_configuration_survives_a_restart_without_its_callables() -> None:
    store = MemoryStore()
    async with stage(store=store) as on:
        await on.session.configure(model="n", tools=[Tool(name="t", run=Quick())])
    async with stage([call("t", id="c"), "ok"], store=store, reopen=True) as on:
        assert on.session.config.model == "n"
        turn = await on.session.send("go")
        assert (await first(turn, ToolUse)).runner == "caller"
        await on.session.interrupt()


# clear


async def test_clear_starts_the_next_generation_with_an_empty_history() -> None:
    async with stage(["hi", "there"]) as on:
        await on.say("hello")
        old = on.session.conversation()
        await on.session.clear()
        assert on.session.conversation() == ()
        assert on.session.context().messages == ()
        status = on.session.status()
        assert (status.generation, status.messages, status.head) == (2, 0, None)
        assert len(old) == 2
        await on.say("anew")
        # Turn numbers are never used twice, not even in another generation.
        assert [str(m.turn_id) for m in on.session.conversation()] == ["u2", "a2"]
        assert len(on.provider.requests[1].messages) == 1


async def test_clear_is_refused_while_a_turn_is_open() -> None:
    async with stage(["hi", never()]) as on:
        await on.say("hello")
        await on.session.send("running")
        with pytest.raises(SessionBusy):
            await on.session.clear()
        assert len(on.session.conversation()) == 2
        assert on.session.status().phase == "running"


async def test_the_log_keeps_what_was_cleared() -> None:
    async with stage(["hi"]) as on:
        await on.say("hello")
        await on.session.clear()
        log = await on.log()
        assert isinstance(log[-1], r.ConversationCleared)
        assert any(isinstance(record, r.TurnCommitted) for record in log)
        assert await on.session.turn("u1").text() == "hi"


async def test_call_ids_are_unique_across_a_clear() -> None:
    async with stage([call("t", id="c"), "ok"] * 2, tool=Quick()) as on:
        await on.say("go")
        await on.session.clear()
        await on.say("go")
        assert on.session.conversation()[1].tool_calls[0].id == "c_2"


async def test_the_last_tool_cannot_go_while_the_history_holds_calls() -> None:
    tool = Quick()
    script = [call("t", id="c"), "done", "again"]
    async with stage(script, tool=tool) as on:
        assert await on.say("hello") == "done"
        with pytest.raises(InvalidConfig, match="tools is empty"):
            await on.session.configure(tools=[])
        assert await on.say("go on") == "again"
