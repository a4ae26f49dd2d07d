"""Receipts: what the next turn is told about the tools of dropped turns."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from llmsession import ProviderError, Tool, ToolUse
from llmsession.testing.scripted import ScriptedReply, call, never, say
from llmsession.turns.blocks import TextBlock
from tests.session.actors import (
    FinishingWithinGrace,
    Quick,
    Raising,
    Stage,
    SwallowingCancellation,
    Waiting,
    faulty_stage,
    first,
    in_tool,
    meanwhile,
    offering,
    settled,
    stage,
)


def receipt(on: Stage, position: int = 0) -> str | None:
    """The flagged text in a committed message, None if there is none."""
    message = on.session.conversation()[position]
    if not message.synthetic:
        return None
    assert message.synthetic == (len(message.content) - 1,)
    block = message.content[-1]
    assert isinstance(block, TextBlock)
    return block.text


async def test_the_next_user_message_ends_with_one_flagged_block_that_names_each_call() -> None:
    waits = Waiting()
    calls = call("quick", {"n": 1}, id="a") + call("fails", id="b") + call("waits", id="c")
    tools = [
        Tool(name="quick", run=Quick()),
        Tool(name="fails", run=Raising()),
        Tool(name="waits", run=waits),
    ]
    async with stage([calls, "ok"], tools=tools) as on:
        await on.started(waits, "dropped")
        await settled()
        await on.session.interrupt()
        await on.say("next")
        assert receipt(on) == (
            "Note from the session: an earlier request was withdrawn after these tool calls had"
            " started.\n"
            '- quick (a) {"n":1}: finished; its effects stand\n'
            "- fails (b): failed\n"
            "- waits (c): started; outcome unknown"
        )
        message = on.session.conversation()[0]
        assert [block.text for block in message.content][:1] == ["next"]  # type: ignore[union-attr]  # text blocks all
        assert message.text == "next"
        assert b"Note from the session" in bytes(on.provider.requests[-1].messages[0].body)


@pytest.mark.parametrize(
    ("tool", "told"),
    [
        (FinishingWithinGrace, "- t (c): finished; its effects stand"),
        (SwallowingCancellation, "- t (c): started; outcome unknown"),
    ],
    ids=["it ends within the grace", "it outlives the grace"],
)
async def test_the_grace_decides_whether_a_tool_is_told_as_finished(tool: Any, told: str) -> None:
    async with in_tool(tool(0.05 if tool is FinishingWithinGrace else 5), "ok") as (on, _):
        await on.session.interrupt()
        await anyio.sleep(10)
        await on.say("next")
        assert told in (receipt(on) or "")


async def test_a_call_that_the_caller_runs_is_unknown_until_its_result_is_submitted() -> None:
    async with offering("a", "b") as (on, _):
        await on.submit(b="done")
        await on.session.interrupt()
        await on.say("next")
        assert "- mine (a): started; outcome unknown" in (receipt(on) or "")
        assert "- mine (b): finished" in (receipt(on) or "")


async def test_a_call_past_its_deadline_is_told_as_unknown() -> None:
    async with stage(
        [call("mine", id="a"), never(), "ok"], tools=[Tool(name="mine")], tool_deadline_s=5
    ) as on:
        await on.interrupted("dropped", after_s=10)
        await on.say("next")
        assert "- mine (a): started; outcome unknown" in (receipt(on) or "")


async def test_without_a_started_tool_there_is_no_receipt() -> None:
    async with stage([never(), say("x").hanging(at=3), "ok"]) as on:
        for _ in range(2):
            await on.interrupted("dropped", after_s=1)
        await on.say("next")
        assert receipt(on) is None


async def test_receipts_stay_pending_across_further_drops_and_come_together_oldest_first() -> None:
    script = [call("t", id="a"), never(), never(), call("t", id="b"), never(), "ok"]
    async with stage(script, tool=Quick()) as on:
        for _ in range(3):
            await on.interrupted("dropped", after_s=1)
        await on.say("next")
        told = receipt(on) or ""
        assert "t (a, b): " in told
        assert told.count("Note from the session") == 1


async def test_a_receipt_is_told_until_a_turn_that_carries_it_commits_and_then_no_more() -> None:
    script = [call("t", id="a"), never(), "ok", "ok"]
    async with stage(script, tool=Quick()) as on:
        await on.interrupted("dropped", after_s=1)
        await on.say("second", "third")
        assert receipt(on, 0) is not None
        assert receipt(on, 2) is None


async def test_a_queued_turn_gets_the_receipt_of_the_turn_that_was_dropped_before_it() -> None:
    tool = Waiting()
    async with stage([call("t", id="a"), "ok"], tool=tool) as on:
        dropped = await on.session.send("dropped")
        queued = await on.started(tool, "queued")
        await on.session.interrupt(dropped.id)
        await queued.text()
        assert "t (a)" in (receipt(on) or "")


async def test_a_turn_that_failed_after_its_tools_leaves_a_receipt_too() -> None:
    broken = say("x").raising(ProviderError("gone", kind="fatal"))
    async with stage([call("t", id="a"), broken, "ok"], tool=Quick(), on_failure="drop") as on:
        turn = await on.session.send("fails")
        assert (await turn.outcome()).status == "failed"
        await on.say("next")
        assert "- t (a): finished" in (receipt(on) or "")


async def test_a_long_input_is_shortened_in_the_receipt() -> None:
    tool = Waiting()
    async with stage([call("t", {"text": "x" * 5000}, id="a"), "ok"], tool=tool) as on:
        await on.started(tool, "dropped")
        await on.session.interrupt()
        await on.say("next")
        assert len(receipt(on) or "") < 500


@pytest.mark.parametrize("drops", [1, 5])
async def test_the_receipt_stands_after_what_the_user_said(drops: int) -> None:
    script: list[ScriptedReply | str] = []
    for n in range(drops):
        script += [call("t", id=f"c{n}"), never()]
    async with stage([*script, "ok"], tool=Quick()) as on:
        for _ in range(drops):
            await on.interrupted("dropped", after_s=1)
        await on.say("next")
        texts = [block.text for block in on.session.conversation()[0].content]  # type: ignore[union-attr]  # text blocks all
        assert texts[0] == "next"
        assert len(texts) == 2
        ids = ", ".join(f"c{n}" for n in range(drops))
        assert f"- t ({ids}): finished" in texts[1]


async def test_a_clear_takes_the_pending_receipts_with_it() -> None:
    async with offering("c", then=["next"]) as (on, _):
        await on.session.interrupt()
        await on.session.clear()
        assert await on.say("anew") == "next"
        assert [len(message.content) for message in on.session.conversation()] == [1, 1]


async def test_a_callers_call_that_was_offered_while_its_turn_was_stopped_is_unknown() -> None:
    # Its ``ToolUse`` comes when it is in the log: the caller may have begun before it saw the end.
    calls = call("mine", id="a") + call("ours", id="b")
    ours = Quick()
    tools = [Tool(name="mine"), Tool(name="ours", run=ours)]
    async with faulty_stage([say("hi"), calls, "ok"], tools=tools) as (on, store):
        await on.say("hello")
        turn = await on.session.send("dropped")
        store.delay()
        while on.session.status().turn_phase != "journaling":
            await settled()
        async with meanwhile(on.session.interrupt):
            store.deliver()
        assert ours.inputs == []
        assert (await first(turn, ToolUse)).id == "a"
        await on.say("next")
        assert receipt(on, 2) == (
            "Note from the session: an earlier request was withdrawn after these tool calls had"
            " started.\n"
            "- mine (a): started; outcome unknown"
        )
