"""Every stop reason: committed or not, what is kept, and no call that nobody answers."""

from __future__ import annotations

import pytest

from llmsession import TurnFailed, TurnLimits
from llmsession.testing.scripted import block, call, say, think
from llmsession.turns import records as r
from tests.session.actors import Quick, stage

SEARCH = block({"type": "server_tool_use", "id": "srv", "name": "web", "input": {}}) + block(
    {"type": "web_search_tool_result", "tool_use_id": "srv", "content": []}
)
"""A search by the provider, and what it found."""


@pytest.mark.parametrize("reason", ["end_turn", "stop_sequence"])
async def test_a_whole_reply_is_committed_with_the_providers_own_word(reason: str) -> None:
    async with stage([say("done").stopping(reason)]) as on:
        outcome = await on.outcome("hello")
        assert (outcome.status, outcome.stop_reason, outcome.text) == ("committed", reason, "done")
        assert on.session.conversation()[-1].stop_reason == reason


@pytest.mark.parametrize("reason", ["max_tokens", "model_context_window_exceeded", "brand_new"])
async def test_a_cut_reply_is_committed_without_its_calls_which_never_run(reason: str) -> None:
    tool = Quick()
    cut = say("let me look") + call("t", {"path": "hal"}, id="c")
    script = [cut.stopping(reason), "next"]
    async with stage(script, tool=tool) as on:
        outcome = await on.outcome("hello")
        assert (outcome.status, outcome.stop_reason) == ("committed", reason)
        assert outcome.text == "let me look"
        assert on.session.conversation()[-1].tool_calls == ()
        assert tool.inputs == []
        assert await on.say("go on") == "next"


async def test_a_cut_reply_of_a_call_alone_leaves_the_user_message_and_no_dangling_call() -> None:
    script = [call("t", id="c").stopping("max_tokens"), "next"]
    async with stage(script, tool=Quick()) as on:
        outcome = await on.outcome("hello")
        assert outcome.stop_reason == "max_tokens"
        assert [m.role for m in on.session.conversation()] == ["user"]
        assert await on.say("go on") == "next"


async def test_a_refusal_drops_the_whole_turn_and_runs_no_tool() -> None:
    tool = Quick()
    refused = (say("I will") + call("t", id="c")).stopping("refusal")
    async with stage(["hi", refused, "next"], tool=tool) as on:
        await on.say("hello")
        base = on.session.conversation()
        turn = await on.session.send("bad")
        with pytest.raises(TurnFailed) as raised:
            await turn.text()
        assert raised.value.cause_kind == "refusal"
        assert on.session.conversation() is base
        assert tool.inputs == []
        assert isinstance((await on.log())[-1], r.TurnFailed)
        assert await on.say("good") == "next"


async def test_a_refusal_after_complete_steps_drops_them_too_and_leaves_a_receipt() -> None:
    script = [call("t", id="c"), say("no").stopping("refusal"), "next"]
    async with stage(script, tool=Quick()) as on:
        turn = await on.session.send("bad")
        assert (await turn.outcome()).status == "failed"
        assert on.session.conversation() == ()
        await on.say("good")
        assert b"t (c)" in bytes(on.session.conversation()[0].body)


@pytest.mark.parametrize("reason", ["pause_turn", "compaction"])
async def test_a_paused_reply_is_kept_as_it_is_and_the_turn_goes_on(reason: str) -> None:
    script = [(say("searching") + SEARCH).stopping(reason), "found it"]
    async with stage(script) as on:
        assert await on.say("hello") == "found it"
        assert b"server_tool_use" in bytes(on.session.conversation()[1].body)
        assert b"server_tool_use" in bytes(on.provider.requests[1].messages[1].body)


@pytest.mark.parametrize("reason", ["pause_turn", "compaction"])
async def test_a_reply_may_be_paused_without_any_server_tool(reason: str) -> None:
    async with stage([say("wait").stopping(reason), "done"]) as on:
        on.pauses = True
        assert await on.say("hello") == "done"


async def test_a_paused_reply_with_a_call_gets_it_answered_in_the_very_next_message() -> None:
    tool = Quick()
    paused = (say("wait") + call("t", id="c")).stopping("pause_turn")
    async with stage([paused, "done"], tool=tool) as on:
        assert await on.say("hello") == "done"
        assert len(tool.inputs) == 1


async def test_a_turn_is_paused_a_bounded_number_of_times() -> None:
    paused = SEARCH.stopping("pause_turn")
    async with stage(lambda request, tag: paused, limits=TurnLimits(max_pauses=3)) as on:
        outcome = await on.outcome("hello")
        assert (outcome.status, outcome.stop_reason) == ("committed", "pause_turn")
        assert len(on.provider.requests) == 4


async def test_tool_use_without_a_call_ends_the_turn() -> None:
    async with stage([say("done").stopping("tool_use")]) as on:
        outcome = await on.outcome("hello")
        assert (outcome.status, outcome.stop_reason) == ("committed", "end_turn")


async def test_whole_calls_under_the_word_end_turn_are_run_all_the_same() -> None:
    tool = Quick()
    script = [call("t", id="c").stopping("end_turn"), "done"]
    async with stage(script, tool=tool) as on:
        assert await on.say("hello") == "done"
        assert tool.inputs == [{}]


async def test_an_empty_reply_is_committed_as_a_turn_without_an_answer() -> None:
    async with stage([say(""), "next"]) as on:
        outcome = await on.outcome("hello")
        assert (outcome.status, outcome.text) == ("committed", "")
        assert await on.say("go on") == "next"


async def test_a_cut_reply_does_not_end_with_thinking() -> None:
    script = [(say("a") + think("hmm")).stopping("max_tokens"), "next"]
    async with stage(script) as on:
        await on.outcome("hello")
        assert b"thinking" not in bytes(on.session.conversation()[-1].body)
        assert await on.say("go on") == "next"
