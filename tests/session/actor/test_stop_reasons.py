"""Every stop reason: committed or not, what is kept, and no call that nobody answers."""

from __future__ import annotations

import msgspec
import pytest

from llmsession import ProviderError, TurnFailed, TurnLimits, Usage
from llmsession.testing.scripted import block, call, say, think
from llmsession.turns import records as r
from llmsession.turns.blocks import block_type, split_blocks
from llmsession.turns.records import InterruptPolicy
from tests.session.actors import Quick, Stage, stage

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
async def test_a_pause_without_a_server_tool_ends_the_turn_and_keeps_what_was_said(
    reason: str,
) -> None:
    async with stage([say("wait").stopping(reason), "done"]) as on:
        outcome = await on.outcome("hello")
        assert (outcome.status, outcome.stop_reason, outcome.text) == ("committed", reason, "wait")
        assert await on.say("go on") == "done"


async def test_a_pause_behind_a_paused_search_is_sent_on_without_a_search_of_its_own() -> None:
    script = [SEARCH.stopping("pause_turn"), say("so far").stopping("pause_turn"), "done"]
    async with stage(script) as on:
        assert await on.say("hello") == "done"


async def test_a_pause_behind_results_is_no_pause_of_the_search_before_them() -> None:
    searched = SEARCH + call("t", id="c")
    async with stage([searched, say("wait").stopping("pause_turn")], tool=Quick()) as on:
        outcome = await on.outcome("hello")
        assert (outcome.status, outcome.stop_reason) == ("committed", "pause_turn")


async def test_a_steer_goes_on_behind_a_pause_without_a_server_tool() -> None:
    async with stage([say("wait").stopping("pause_turn").slow(0.1), "done"]) as on:
        turn = await on.begin("hello")
        await on.session.send("and this", when_busy="steer")
        assert await turn.text() == "done"


async def test_a_pause_without_words_is_asked_again() -> None:
    async with stage([say("").stopping("pause_turn"), "done"]) as on:
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


# A call of the provider's own tool, whose result would come with the next reply.

RUNNING = block({"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}})
RESULT = block({"type": "web_search_tool_result", "tool_use_id": "srv", "content": []})
PAUSED = (say("let me look") + RUNNING).stopping("pause_turn")


def kinds_of(on: Stage) -> list[list[str]]:
    """The types of the blocks of each committed message."""
    return [
        [block_type(raw) for raw in split_blocks(message.body)]
        for message in on.session.conversation()
    ]


async def goes_on(on: Stage, committed: list[list[str]]) -> None:
    """The turn has left *committed*, and the session answers the next send."""
    assert kinds_of(on) == committed
    assert await on.say("and now?") == "next"


@pytest.mark.parametrize("policy", ["keep_steps", "keep_text"])
async def test_an_interrupt_behind_a_pause_keeps_no_call_of_a_server_tool(
    policy: InterruptPolicy,
) -> None:
    async with stage([PAUSED, say("found").hanging(at=3), "next"]) as on:
        turn = await on.begin("hello")
        await on.session.interrupt(policy=policy)
        outcome = await turn.outcome()
        assert (outcome.status, outcome.stop_reason) == ("committed", "cancelled")
        assert b"server_tool_use" not in msgspec.json.encode(outcome.messages)
        more = [["text"]] if policy == "keep_text" else []
        await goes_on(on, [["text"], ["text"], *more])


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (TurnLimits(max_steps=1), "max_steps"),
        (TurnLimits(max_pauses=0), "pause_turn"),
        (TurnLimits(max_tokens=1), "max_turn_tokens"),
    ],
)
async def test_a_limit_behind_a_pause_keeps_no_call_of_a_server_tool(
    limits: TurnLimits, reason: str
) -> None:
    async with stage([PAUSED.costing(Usage(1, 1)), "next"], limits=limits) as on:
        outcome = await on.outcome("hello")
        assert (outcome.status, outcome.stop_reason) == ("committed", reason)
        assert kinds_of(on) == [["text"], ["text"]]
        await on.session.configure(limits=TurnLimits())
        await goes_on(on, [["text"], ["text"]])


async def test_a_fatal_error_behind_a_pause_keeps_no_call_of_a_server_tool() -> None:
    fatal = say("x").raising(ProviderError("no such model", kind="fatal"), at=0)
    async with stage([PAUSED, fatal, "next"]) as on:
        outcome = await on.outcome("hello")
        assert (outcome.status, outcome.stop_reason) == ("committed", "error")
        await goes_on(on, [["text"], ["text"]])


async def test_a_pause_without_a_word_leaves_a_message_without_content_that_is_not_sent() -> None:
    paused = (think("where?", "sig") + RUNNING).stopping("pause_turn")
    async with stage([paused, "next"], limits=TurnLimits(max_steps=1)) as on:
        await on.outcome("hello")
        assert kinds_of(on) == [["text"], []]
        await on.session.configure(limits=TurnLimits())
        await goes_on(on, [["text"], []])
        assert [message.role for message in on.provider.requests[-1].messages] == ["user"]


async def test_a_steer_waits_while_a_server_tool_is_paused() -> None:
    script = [PAUSED.slow(1.0), RESULT + say("found it"), "as you say"]
    async with stage(script) as on:
        turn = await on.begin("hello")
        await on.session.send("in French", when_busy="steer")
        assert await turn.text() == "as you say"
        assert kinds_of(on)[1:] == [
            ["text", "server_tool_use"], ["web_search_tool_result", "text"], ["text"], ["text"],
        ]  # fmt: skip


async def test_a_steer_waits_while_a_server_tool_and_one_of_the_callers_run() -> None:
    both = (say("both") + RUNNING + call("t", id="c")).stopping("tool_use").slow(1.0)
    script = [both, RESULT + say("found it"), "as you say"]
    async with stage(script, tool=Quick()) as on:
        turn = await on.begin("hello")
        await on.session.send("in French", when_busy="steer")
        assert await turn.text() == "as you say"
        assert kinds_of(on)[2:] == [
            ["tool_result"], ["web_search_tool_result", "text"], ["text"], ["text"],
        ]  # fmt: skip


async def test_a_steer_at_the_last_pause_is_read_without_the_call_that_stays_open() -> None:
    script = [PAUSED.slow(1.0), "as you say"]
    async with stage(script, limits=TurnLimits(max_pauses=0)) as on:
        turn = await on.begin("hello")
        await on.session.send("in French", when_busy="steer")
        assert await turn.text() == "as you say"
        assert kinds_of(on) == [["text"], ["text"], ["text"], ["text"]]


async def test_a_steer_behind_a_whole_reply_is_read_without_the_call_that_stays_open() -> None:
    unfinished = (say("so") + RUNNING + say("there")).stopping("end_turn").slow(1.0)
    async with stage([unfinished, "as you say"]) as on:
        turn = await on.begin("hello")
        await on.session.send("in French", when_busy="steer")
        assert await turn.text() == "as you say"
        assert kinds_of(on) == [["text"], ["text", "text"], ["text"], ["text"]]


@pytest.mark.parametrize("reason", ["end_turn", "stop_sequence", "tool_use", "max_tokens", "odd"])
async def test_a_whole_reply_keeps_no_call_of_a_server_tool_without_its_result(reason: str) -> None:
    unfinished = say("so") + RUNNING + think("hm", "void") + say("there")
    async with stage([unfinished.stopping(reason), "next"]) as on:
        await on.outcome("hello")
        await goes_on(on, [["text"], ["text", "text"]])


async def test_a_turn_that_ends_between_two_tools_keeps_only_the_one_with_a_result() -> None:
    both = think("hm", "s1") + RUNNING + think("hm", "s2") + call("t", id="c")
    script = [both.stopping("tool_use"), "next"]
    async with stage(script, tool=Quick(), limits=TurnLimits(max_steps=1)) as on:
        assert (await on.outcome("hello")).stop_reason == "max_steps"
        await on.session.configure(limits=TurnLimits())
        await goes_on(on, [["text"], ["thinking", "tool_use"], ["tool_result"]])


async def test_a_server_tool_s_result_without_its_call_is_left_out_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stray = (say("a") + RESULT + think("hm", "void") + say("b")).stopping("end_turn")
    async with stage([stray, "next"]) as on:
        await on.outcome("hello")
        assert "reply.stray_results" in caplog.messages
        await goes_on(on, [["text"], ["text", "text"]])
        assert b"web_search_tool_result" in r.encode_record((await on.log())[2])


async def test_a_server_tool_s_result_after_a_pause_is_no_stray() -> None:
    async with stage([PAUSED, RESULT + say("found it"), "next"]) as on:
        assert await on.say("hello") == "found it"
        await goes_on(
            on, [["text"], ["text", "server_tool_use"], ["web_search_tool_result", "text"]]
        )
