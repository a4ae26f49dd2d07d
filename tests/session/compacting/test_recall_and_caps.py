"""Caps and recall: what is shown short is kept whole, and the model can get it back."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from llmsession import CompactionConfig, Tool, ToolUse
from llmsession.testing.scripted import Scripted, call, say
from llmsession.turns.request import Request, StepTag
from tests.session.actors import Quick, Stage, first, settled, stage
from tests.session.compacting.conversations import tools

LINES = "".join(f"line {n} of the output\n" for n in range(1, 1001))


def capped(script: Any, **options: Any) -> AbstractAsyncContextManager[Stage]:
    """A session whose tool says a thousand lines, of which some are shown."""
    kept = {"tools": [Tool(name="t", run=Quick(LINES))], **options}
    return stage(script, compaction=CompactionConfig(cap_chars=2000), **kept)


def result_texts(on: Stage) -> list[str]:
    return [result.text for m in on.session.conversation() for result in m.tool_results]


async def test_a_long_result_is_shown_capped_from_its_arrival_on_and_kept_whole() -> None:
    async with capped([call("t", id="c"), "ok"]) as on:
        await on.say("go")
        assert result_texts(on) == [LINES]
        shown = on.provider.requests[1].encode().decode()
        assert "line 1 of the output" in shown
        assert "line 1000 of the output" in shown
        assert "line 500 of the output" not in shown
        assert "of 1000 left out" in shown
        assert "recall(id=" in shown
        assert len(shown) < 4000


async def test_a_submitted_result_is_capped_too() -> None:
    async with capped([call("mine", id="c"), "ok"], tools=[Tool(name="mine")]) as on:
        turn = await on.offered("go")
        await on.submit(c=LINES)
        await turn.text()
        assert result_texts(on) == [LINES]
        assert len(on.provider.requests[1].encode()) < 4000


async def test_a_result_within_the_cap_is_shown_as_it_is() -> None:
    async with stage([call("t", id="c"), "ok"], tool=Quick("short")) as on:
        await on.say("go")
        assert b"left out" not in on.provider.requests[1].encode()


async def test_recall_is_offered_from_the_first_request_on_and_never_added_later() -> None:
    async with stage(["hi", "hi"], tools=[Tool(name="t")]) as on:
        await on.say("hello", "hello")
        for request in on.provider.requests:
            assert b'"name":"recall"' in bytes(request.tools[-1])
    async with stage(["hi"]) as on:  # without tools there is nothing to recall
        await on.say("hello")
        assert on.provider.requests[0].tools == ()


async def test_a_recall_returns_the_middle_that_the_cap_left_out() -> None:
    recall = call("recall", {"id": "c", "line": 500, "lines": 3}, id="r")
    async with capped([call("t", id="c"), recall, "got it"]) as on:
        assert await on.say("go") == "got it"
        recalled = result_texts(on)[1]
        for n in (500, 501, 502):
            assert f"line {n} of the output" in recalled
        assert "line 503 of the output" not in recalled


async def test_a_recall_of_a_compacted_result_returns_the_whole_text() -> None:
    output = "".join(f"row {n}: some text that fills the line\n" for n in range(150))

    def script(request: Request, tag: StepTag) -> Scripted:
        if tag.turn < 6:
            return call("t", id=f"c{tag.turn}") if tag.step == 1 else "ok"
        return call("recall", {"id": "c1"}, id="r") if tag.step == 1 else "got it"

    compaction = CompactionConfig(keep_recent_turns=2, threshold=0.99)
    async with stage(script, tools=tools(output), compaction=compaction) as on:
        for _ in range(5):
            await on.say("go")
        assert (await on.session.compact()).applied
        first_shown = bytes(on.session.context().messages[2].body).decode()
        assert "row 77:" not in first_shown
        assert 'recall(id=\\"c1\\")' in first_shown
        assert await on.say("what was in the first one?") == "got it"
        assert output in result_texts(on)[-1]


async def test_a_recall_of_an_unknown_id_is_an_error_result_and_the_turn_goes_on() -> None:
    script = [call("recall", {"id": "nobody"}, id="r"), "sorry"]
    async with stage(script, tools=[Tool(name="t")]) as on:
        assert await on.say("go") == "sorry"
        (result,) = on.session.conversation()[2].tool_results
        assert result.is_error
        assert "nobody" in result.text


async def test_a_recall_reads_no_message_of_another_turn() -> None:
    script = [
        call("t", id="a"), "one", call("t", id="b"), "two",
        call("recall", {"id": "nobody"}, id="r"), "sorry",
        call("recall", {"id": "a"}, id="s"), "got it",
    ]  # fmt: skip
    async with stage(script, tool=Quick("a result")) as on:
        await on.say("first")
        await on.say("second")
        first, second = (on.session.conversation()[place] for place in (2, 6))
        for message in (first, second):
            del vars(message)["content"]  # it was parsed before
        await on.say("third")
        assert "content" not in vars(first) | vars(second)
        await on.say("fourth")
        assert "content" in vars(first)
        assert "content" not in vars(second)
        assert "a result" in result_texts(on)[-1]


@pytest.mark.parametrize("arguments", [{}, {"id": 5}, {"id": "c", "line": 0}, {"id": "c", "x": 1}])
async def test_what_a_model_may_pass_to_recall_never_ends_the_turn(arguments: Any) -> None:
    script = [call("t", id="c"), call("recall", arguments, id="r"), "ok"]
    async with stage(script, tool=Quick()) as on:
        assert await on.say("go") == "ok"
        assert on.session.conversation()[4].tool_results[0].is_error


async def test_a_recall_runs_beside_the_tools_of_its_step() -> None:
    calls = call("recall", {"id": "x"}, id="r") + call("t", id="a") + call("t", id="b")
    async with stage([calls, "ok"], tool=Quick()) as on:
        turn = await on.session.send("go")
        assert (await first(turn, ToolUse)).runner == "session"
        assert await turn.text() == "ok"
        results = on.session.conversation()[2].tool_results
        assert [result.tool_use_id for result in results] == ["r", "a", "b"]


async def test_without_compaction_recall_is_an_ordinary_name_of_nobody() -> None:
    async with stage(
        [say("x")], tools=[Tool(name="t")], compaction=CompactionConfig(enabled=False)
    ) as on:
        await on.say("go")
        await settled()
        assert len(on.provider.requests[0].tools) == 1
