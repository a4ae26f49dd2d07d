"""``set_summary``: the caller's text for the beginning of a conversation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest

from llmsession import InvalidInput, KeyReused, LLMSession, SessionClosed, TurnId
from llmsession.compaction.view.summary_wording import SUMMARY_TITLE
from llmsession.session.handles.session import live_state
from llmsession.testing.scripted import call, say, think
from llmsession.turns.request import Profile, Request, StepTag
from tests.session.actors import Quick, Stage, Waiting, meanwhile, stage, texts_of
from tests.session.compacting.conversations import applied, one_call_a_turn, tools

TALE = "They sailed from Hull and lost the anchor."


def one(request: Request, tag: StepTag) -> str:
    return f"answer {tag.turn}"


async def turns(on: Stage, count: int) -> None:
    for n in range(1, count + 1):
        await on.say(f"message {n}")


@pytest.mark.parametrize("upto", [2, "u2", "a2", TurnId("a", 2)])
async def test_the_text_stands_for_all_up_to_the_end_of_the_turn(upto: Any) -> None:
    async with stage(one) as on:
        await turns(on, 3)
        history = on.session.conversation()
        await on.session.set_summary(TALE, upto=upto)
        assert on.session.conversation() is history
        await on.say("message 4")
        sent = texts_of(on.provider.requests[-1])
        assert f"{SUMMARY_TITLE}\\n{TALE}" in sent[0]
        assert "message 3" in sent[0]  # neighbours of one role become one message
        assert "message 2" not in "".join(sent)
        (record,) = await applied(on)
        assert record.trigger == "caller"
        assert record.prefix_summary is not None
        assert (record.prefix_summary.upto, record.prefix_summary.by) == (4, "caller")
        assert "turn 2" in record.reason


async def test_it_may_stand_for_the_whole_history() -> None:
    async with stage(one) as on:
        await turns(on, 2)
        await on.session.set_summary(TALE, upto=2)
        assert await on.say("and then?") == "answer 3"
        (sent,) = texts_of(on.provider.requests[-1])
        assert TALE in sent


@pytest.mark.parametrize(
    ("text", "upto", "message"),
    [
        (TALE, 3, "turn 3 of session 's' is not in the history"),
        ("word " * 4_000, 1, "may hold 1,500"),
        *((text, 1, "empty") for text in ("", " \n", None, 7)),
    ],
)
async def test_a_turn_or_a_text_that_cannot_be_is_refused(
    text: Any, upto: int, message: str
) -> None:
    async with stage(one, window_tokens=2_000, max_tokens=500) as on:
        await turns(on, 2)
        with pytest.raises(InvalidInput, match=message):
            await on.session.set_summary(text, upto=upto)
        assert await applied(on) == []
        assert await on.say("still here?") == "answer 3"


async def test_a_text_longer_than_what_it_stands_for_is_taken() -> None:
    async with stage(one) as on:
        await turns(on, 1)
        await on.session.set_summary("word " * 500, upto=1)
        (record,) = await applied(on)
        assert record.tokens_after > record.tokens_before


async def test_one_that_is_later_is_taken_one_that_is_earlier_is_refused() -> None:
    async with stage(one) as on:
        await turns(on, 3)
        await on.session.set_summary("one", upto=2)
        await on.session.set_summary("two", upto=3)
        with pytest.raises(InvalidInput, match="already covered by a summary up to turn 3"):
            await on.session.set_summary("three", upto=2)
        summaries = [record.prefix_summary for record in await applied(on)]
        assert [summary.text[-3:] for summary in summaries if summary] == ["one", "two"]


async def test_one_for_the_same_turn_takes_the_place_of_the_one_before() -> None:
    async with stage(one) as on:
        await turns(on, 2)
        await on.session.set_summary("the first", upto=2)
        await on.session.set_summary("the second", upto=2)
        (sent,) = texts_of(on.session.context())
        assert "the second" in sent
        assert "the first" not in sent
        assert len(live_state(on.session).view.prefix_summaries) == 1


async def test_while_a_reply_streams_it_waits_for_its_end() -> None:
    slow = say("a slow answer").slow(1.0)
    async with stage(["answer 1", slow, "answer 3"]) as on:
        await turns(on, 1)
        turn = await on.session.send("message 2")
        async with meanwhile(partial(on.session.set_summary, TALE, upto=1)):
            assert await applied(on) == []
            await turn.outcome()
        assert (await on.kinds())[-2:] == ["turn.committed", "compaction.applied"]
        await on.say("message 3")
        assert TALE in texts_of(on.provider.requests[-1])[0]


async def test_between_two_steps_it_is_applied_and_the_turn_goes_on() -> None:
    tool = Waiting()
    async with stage(["answer 1", call("t", id="c"), "done"], tool=tool) as on:
        await turns(on, 1)
        turn = await on.started(tool, "message 2")
        await on.session.set_summary(TALE, upto=1)
        tool.go.set()
        assert await turn.text() == "done"
        assert TALE in texts_of(on.provider.requests[-1])[0]
        assert "answer 1" not in "".join(texts_of(on.provider.requests[-1]))


async def test_it_does_not_take_away_the_thinking_that_has_to_open_a_tool_loop() -> None:
    tool = Waiting()
    profile = Profile(thinking_opens_tool_loop=True)
    script = ["answer 1", think("hm") + call("t", id="c"), "done"]
    async with stage(script, profile=profile, tool=tool) as on:
        await turns(on, 1)
        turn = await on.started(tool, "message 2")
        async with meanwhile(partial(on.session.set_summary, TALE, upto=1)):
            tool.go.set()
            await turn.outcome()
        assert "hm" in "".join(texts_of(on.provider.requests[-1]))
        assert TALE in texts_of(on.session.context())[0]


async def test_a_rewind_to_before_its_end_takes_it_away() -> None:
    async with stage(one) as on:
        await turns(on, 4)
        await on.session.set_summary("up to two", upto=2)
        await on.session.set_summary("up to three", upto=3)
        await on.session.rewind(3)
        assert "up to three" in texts_of(on.session.context())[0]
        await on.session.rewind(2)
        assert "up to two" in texts_of(on.session.context())[0]
        await on.session.rewind(1)
        assert "message 1" in texts_of(on.session.context())[0]


@pytest.mark.parametrize(
    ("end", "error", "match"),
    [
        (partial(LLMSession.clear, when_busy="interrupt"), InvalidInput, "not in the history"),
        (LLMSession.close, SessionClosed, "was closed"),
    ],
    ids=["its turn is cleared away", "the session is closed"],
)
async def test_one_that_waits_for_what_does_not_come_is_refused(
    end: Callable[[LLMSession], Any], error: type[Exception], match: str
) -> None:
    async with stage(["answer 1", say("slow").slow(1.0)]) as on:
        await turns(on, 1)
        await on.session.send("message 2")
        tell = partial(on.session.set_summary, TALE, upto=1)
        async with meanwhile(tell, refused=(error,)) as refused:
            await end(on.session)
        assert match in str(refused[0])
        assert await applied(on) == []


async def test_a_repeated_command_id_tells_it_once() -> None:
    async with stage(one) as on:
        await turns(on, 1)
        for _ in range(2):
            await on.session.set_summary(TALE, upto=1, command_id="x")
        assert len(await applied(on)) == 1
        with pytest.raises(KeyReused):
            await on.session.set_summary("another", upto=1, command_id="x")


async def test_the_summary_of_a_session_is_the_callers_where_it_covers_all() -> None:
    async with stage(one) as on:
        await turns(on, 2)
        await on.session.set_summary(TALE, upto=2)
        assert on.session.summary() == await on.session.read_summary() == TALE
        await on.session.set_summary("word " * 4_000, upto=2)
        assert len(on.session.summary(max_chars=500)) <= 500


async def test_what_came_after_it_is_digested_behind_it() -> None:
    async with stage(one) as on:
        await turns(on, 3)
        await on.session.set_summary(TALE, upto=2)
        summary = on.session.summary()
        assert summary.startswith(f"Earlier:\n{TALE}\n\n")
        assert "message 3" in summary
        assert "message 2" not in summary


async def test_results_before_it_can_be_recalled() -> None:
    script = [call("t", id="c1"), "one", call("recall", {"id": "c1"}, id="c2"), "two"]
    async with stage(script, tool=Quick("the whole result")) as on:
        await on.say("message 1")
        await on.session.set_summary(TALE, upto=1)
        await on.say("message 2")
        assert "the whole result" in texts_of(on.provider.requests[-1])[-1]


async def test_a_background_compaction_made_before_it_is_not_applied_after_it() -> None:
    async with stage(one_call_a_turn, tools=tools("line\n" * 900)) as on:
        await turns(on, 9)
        async with anyio.create_task_group() as group:
            group.start_soon(on.session.compact)
            group.start_soon(partial(on.session.set_summary, TALE, upto=9))
        assert TALE in texts_of(on.session.context())[0]
        assert await on.say("and on") == "done 10"
