"""Command ids: a repeat gets the answer of the first. expected_head: who committed last."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from llmsession import (
    HeadMoved,
    InterruptResult,
    KeyReused,
    MemoryStore,
    SessionBusy,
    ToolResult,
    TurnId,
)
from llmsession.testing.scripted import never, say
from tests.session.actors import at_once, faulty_stage, meanwhile, offering, settled, stage


async def test_a_repeat_while_the_first_is_on_its_way_gets_the_same_answer() -> None:
    async with faulty_stage(["hi"]) as (on, store):
        store.delay()
        sends = [lambda: on.session.send("hello", command_id="k")] * 5
        async with meanwhile(*sends) as turns:
            await store.wait_delayed()
            await settled()
            assert turns == []
            store.deliver()
        assert {str(turn.id) for turn in turns} == {"u1"}
        assert [await turn.text() for turn in turns] == ["hi"] * 5
        assert len(on.provider.requests) == 1


async def test_a_repeat_while_the_turn_runs_returns_the_running_turn() -> None:
    async with stage([say("a long reply").slow(1)]) as on:
        one = await on.session.send("hello", command_id="k")
        await anyio.sleep(2)
        two = await on.session.send("hello", command_id="k")
        assert await one.text() == await two.text() == "a long reply"


async def test_a_repeat_gets_its_answer_after_the_session_was_evicted_and_opened_again() -> None:
    async with stage(["hi", "unused"]) as on:
        await (await on.session.send("hello", command_id="k")).text()
        await on.evict()
        on.session = await on.manager.open("s")
        again = await on.session.send("hello", command_id="k")
        assert str(again.id) == "u1"
        assert await again.text() == "hi"
        assert len(on.provider.requests) == 1


async def test_a_repeat_gets_its_answer_in_the_next_process() -> None:
    store = MemoryStore()
    async with stage(["hi"], store=store) as on:
        await (await on.session.send("hello", command_id="k")).text()
        await on.session.interrupt(command_id="i")
    async with stage(store=store, reopen=True) as on:
        again = await on.session.send("hello", command_id="k")
        assert (str(again.id), await again.text()) == ("u1", "hi")
        assert (await on.session.interrupt(command_id="i")).result is InterruptResult.NOT_RUNNING


@pytest.mark.parametrize("status", ["committed", "aborted"])
async def test_a_repeat_after_other_turns_returns_the_turn_of_the_first(status: str) -> None:
    async with stage([never() if status == "aborted" else "one", "two"]) as on:
        turn = await on.begin("hello", command_id="k")
        await on.session.interrupt()
        outcome = await turn.outcome()
        assert outcome.status == status
        assert await on.say("something else") == "two"
        again = await on.session.send("hello", command_id="k")
        assert (again.id, await again.outcome()) == (turn.id, outcome)
        assert len(on.provider.requests) == 2


@pytest.mark.parametrize(
    "other",
    [
        {"content": "something else"},
        {"content": "hello", "when_busy": "steer"},
        {"content": "hello", "expected_head": "a1"},
    ],
)
async def test_the_same_id_with_other_content_is_key_reused(other: dict[str, Any]) -> None:
    async with stage(["hi", "next"]) as on:
        await (await on.session.send("hello", command_id="k")).text()
        with pytest.raises(KeyReused) as raised:
            await on.session.send(command_id="k", **other)
        assert raised.value.command_id == "k"
        assert await on.say("again") == "next"


async def test_an_id_of_one_kind_of_command_cannot_be_used_for_another() -> None:
    async with stage(["hi"]) as on:
        await (await on.session.send("hello", command_id="k")).text()
        asks = (
            lambda: on.session.clear(command_id="k"),
            lambda: on.session.interrupt(command_id="k"),
            lambda: on.session.configure(model="n", command_id="k"),
            lambda: on.session.store_compact_summaries({}, command_id="k"),
        )
        for ask in asks:
            with pytest.raises(KeyReused):
                await ask()
        assert on.session.config.model == "m"
        assert len(on.session.conversation()) == 2


async def test_repeated_results_are_no_duplicates() -> None:
    async with offering("c") as (on, turn):
        results = [ToolResult("c", "42")]
        await on.session.submit_tool_results(results, command_id="k")
        await on.session.submit_tool_results(results, command_id="k")
        assert await turn.text() == "ok"
        await on.session.submit_tool_results(results, command_id="k")
        with pytest.raises(KeyReused):
            await on.session.submit_tool_results([ToolResult("c", "43")], command_id="k")


async def test_a_repeated_clear_clears_once() -> None:
    async with stage(["hi", "there"]) as on:
        await on.say("hello")
        await on.session.clear(command_id="k")
        await on.say("hello again")
        await on.session.clear(command_id="k")
        assert len(on.session.conversation()) == 2
        assert on.session.status().generation == 2


async def test_a_repeated_configure_configures_once() -> None:
    async with stage() as on:
        await on.session.configure(model="a", command_id="k")
        await on.session.configure(model="b", system="s")
        head = on.session.status().seq
        await on.session.configure(model="a", command_id="k")
        with pytest.raises(KeyReused):
            await on.session.configure(model="c", command_id="k")
        assert on.session.status().seq == head
        assert on.session.config.model == "b"


async def test_a_refused_command_may_be_tried_again_under_its_id() -> None:
    async with stage([never(), "hi"]) as on:
        await on.session.send("running")
        with pytest.raises(SessionBusy):
            await on.session.send("hello", when_busy="reject", command_id="k")
        await on.session.interrupt()
        turn = await on.session.send("hello", when_busy="reject", command_id="k")
        assert await turn.text() == "hi"


# expected_head


async def test_an_expected_head_of_0_is_an_empty_history() -> None:
    async with stage(["hi", "again"]) as on:
        await (await on.session.send("first", expected_head=0)).text()
        with pytest.raises(HeadMoved, match="expected head 0, but the head is a1"):
            await on.session.send("second", expected_head=0)
        await on.session.clear()
        await (await on.session.send("anew", expected_head=0)).text()


@pytest.mark.parametrize("head", ["a1", "u1", 1, TurnId("a", 1)])
async def test_a_send_on_the_expected_head_is_accepted(head: Any) -> None:
    async with stage(["hi", "next"]) as on:
        await on.say("hello")
        assert await (await on.session.send("go on", expected_head=head)).text() == "next"


async def test_a_head_that_moved_refuses_the_send_and_says_where_it_is() -> None:
    async with stage(["hi", "hi", "next"]) as on:
        await on.say("hello", "hello")
        with pytest.raises(HeadMoved) as raised:
            await on.session.send("go on", expected_head="a1")
        assert (raised.value.expected, raised.value.actual) == ("a1", "a2")
        assert await (await on.session.send("go on", expected_head="a2")).text() == "next"


async def test_with_other_sends_open_an_expected_head_is_refused() -> None:
    async with stage(["hi", never(), "next"]) as on:
        await on.say("hello")
        await on.session.send("another's")
        with pytest.raises(HeadMoved, match="open"):
            await on.session.send("go on", expected_head="a1")
        await on.session.interrupt()
        # The dropped turn did not move the head.
        assert await (await on.session.send("go on", expected_head="a1")).text() == "next"


async def test_of_two_senders_with_one_expected_head_one_is_refused() -> None:
    async with stage(["hi", "next"]) as on:
        await on.say("hello")

        async def send() -> str:
            try:
                return await (await on.session.send("go on", expected_head="a1")).text()
            except HeadMoved:
                return "refused"

        assert sorted(await at_once(send, send)) == ["next", "refused"]


async def test_an_expected_head_on_an_empty_or_cleared_session_is_refused() -> None:
    async with stage(["hi"]) as on:
        with pytest.raises(HeadMoved):
            await on.session.send("go on", expected_head="a1")
        await on.say("hello")
        await on.session.clear()
        with pytest.raises(HeadMoved):
            await on.session.send("go on", expected_head="a1")
