"""A provider that says what it is told to, and misbehaves on demand."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import aclosing

import anyio
import pytest

from llmsession.errors import ProviderError
from llmsession.providers import Provider
from llmsession.testing import ScriptedProvider, ScriptedReply, block, call, never, say, think
from llmsession.turns.reply import Reply, ReplyBuilder
from llmsession.turns.request import Profile, Request, StepTag
from llmsession.turns.stream import BlockDelta, ReplyStarted, StreamEvent
from llmsession.turns.usage import Usage

BUSY = ProviderError("busy", kind="retryable", delay_s=2.0)


def request(model: str = "m") -> Request:
    return Request(model=model, max_tokens=100, messages=())


async def play(provider: Provider, *, turn: int = 1, step: int = 1) -> Reply:
    builder = ReplyBuilder()
    with anyio.fail_after(1000):
        async with aclosing(provider.stream(request(), StepTag(turn, step, 1))) as stream:
            async for event in stream:
                builder.feed(event)
    return builder.reply()


async def texts(provider: Provider, count: int) -> list[str]:
    replies = [await play(provider) for _ in range(count)]
    return [json.loads(reply.blocks[0])["text"] for reply in replies]


def closed(provider: ScriptedProvider, streams: int) -> bool:
    return (provider.opened, provider.closed, provider.open_streams) == (streams, streams, 0)


async def test_replies_come_in_the_order_of_the_script() -> None:
    provider = ScriptedProvider([say("one"), "two", say("three")])
    assert await texts(provider, 3) == ["one", "two", "three"]
    assert closed(provider, 3)


async def test_a_request_beyond_the_script_fails_and_says_which() -> None:
    provider = ScriptedProvider([])
    with pytest.raises(ProviderError, match="no reply for turn 4, step 2, attempt 1") as caught:
        await play(provider, turn=4, step=2)
    assert caught.value.kind == "fatal"
    assert closed(provider, 1)


async def test_a_function_may_choose_the_reply_by_request_and_tag() -> None:
    def script(asked: Request, tag: StepTag) -> ScriptedReply | str:
        return f"{asked.model} {tag.turn}.{tag.step}" if tag.step > 1 else say("first")

    provider = ScriptedProvider(script)
    assert json.loads((await play(provider, turn=3, step=2)).blocks[0])["text"] == "m 3.2"
    assert json.loads((await play(provider)).blocks[0])["text"] == "first"


async def test_every_request_and_its_tag_is_kept() -> None:
    provider = ScriptedProvider(["a", "b"])
    await play(provider, turn=1)
    await play(provider, turn=2, step=3)
    assert provider.requests == [request(), request()]
    assert provider.tags == [StepTag(1, 1, 1), StepTag(2, 3, 1)]


async def test_a_reply_is_put_together_of_blocks_that_come_out_as_given() -> None:
    odd = {"type": "from_the_future", "x": [1]}
    reply = (
        think("hm", "c2ln") + say("let me see é") + call("ls", {"p": ["a"]}, id="c1") + block(odd)
    )
    built = await play(ScriptedProvider([reply]))
    assert [json.loads(raw) for raw in built.blocks] == [
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "text", "text": "let me see é"},
        {"type": "tool_use", "id": "c1", "name": "ls", "input": {"p": ["a"]}},
        odd,
    ]
    assert [made.id for made in built.calls] == ["c1"]


async def test_the_stop_reason_follows_from_the_calls_unless_it_is_given() -> None:
    replies = [say("x"), say("x") + call("ls", id="c"), say("x").stopping("max_tokens")]
    provider = ScriptedProvider(replies)
    reasons = [(await play(provider)).stop_reason for _ in replies]
    assert reasons == ["end_turn", "tool_use", "max_tokens"]


async def test_usage_is_the_one_that_is_given() -> None:
    usage = Usage(input_tokens=7, output_tokens=8, cache_read_tokens=9)
    assert (await play(ScriptedProvider([say("x").costing(usage)]))).usage == usage


async def test_a_slow_reply_takes_its_time_before_each_event() -> None:
    provider = ScriptedProvider([say("abcd").slow(60, delta_chars=1)])
    start = anyio.current_time()
    await play(provider)
    # started, block started, 4 deltas, block stopped, ended
    assert anyio.current_time() - start == pytest.approx(8 * 60)


def test_name_and_profile_are_the_ones_that_are_given() -> None:
    profile = Profile(name="p")
    provider: Provider = ScriptedProvider([], name="mine", profile=profile)
    assert (provider.name, provider.profile("any")) == ("mine", profile)


# Misbehaving


async def test_one_that_never_answers_is_ended_by_cancellation_alone() -> None:
    provider = ScriptedProvider([never()])
    with anyio.move_on_after(10_000) as scope:
        async for event in provider.stream(request(), StepTag(1, 1, 1)):
            raise AssertionError(event)
    assert scope.cancelled_caught
    assert closed(provider, 1)


@pytest.mark.parametrize("error", [BUSY, ZeroDivisionError("a bug")], ids=["refusal", "crash"])
@pytest.mark.parametrize("at", [0, 1, 3])
async def test_it_raises_after_as_many_events_as_it_is_told(error: Exception, at: int) -> None:
    provider = ScriptedProvider([say("x" * 100).raising(error, at=at), "fine"])
    events: list[StreamEvent] = []
    with pytest.raises(type(error)) as caught:
        async for event in provider.stream(request(), StepTag(1, 1, 1)):
            events.append(event)
    assert caught.value is error
    assert len(events) == at
    assert await texts(provider, 1) == ["fine"]
    assert closed(provider, 2)


async def test_a_fault_that_is_placed_behind_the_end_comes_before_the_last_event() -> None:
    provider = ScriptedProvider([say("x").raising(BUSY, at=99)])
    events: list[StreamEvent] = []
    with pytest.raises(ProviderError):
        async for event in provider.stream(request(), StepTag(1, 1, 1)):
            events.append(event)
    assert len(events) == 4


async def test_it_may_stop_in_the_middle_and_say_nothing_more() -> None:
    provider = ScriptedProvider([say("x" * 100).hanging(at=3)])
    events: list[StreamEvent] = []
    with anyio.move_on_after(10_000):
        async for event in provider.stream(request(), StepTag(1, 1, 1)):
            events.append(event)
    assert isinstance(events[0], ReplyStarted)
    assert isinstance(events[-1], BlockDelta)
    assert len(events) == 3


@pytest.mark.parametrize("reply", [say("x"), block({"type": "odd"})], ids=["deltas", "none"])
async def test_events_out_of_order_are_found_by_whoever_reads_them(reply: ScriptedReply) -> None:
    with pytest.raises(ProviderError, match="stream is broken"):
        await play(ScriptedProvider([reply.out_of_order()]))


async def test_it_may_ignore_cancellation_for_a_time() -> None:
    provider = ScriptedProvider([say("late").ignoring_cancellation(0.2, at=1)])
    with anyio.CancelScope() as scope:
        async for _ in provider.stream(request(), StepTag(1, 1, 1)):
            scope.cancel()
    assert scope.cancelled_caught
    assert anyio.current_time() == pytest.approx(0.2, abs=0.01)
    assert closed(provider, 1)


async def test_one_that_is_not_cancelled_goes_on_after_that_time() -> None:
    provider = ScriptedProvider([say("late").ignoring_cancellation(5)])
    assert await texts(provider, 1) == ["late"]
    assert anyio.current_time() == pytest.approx(5)


async def test_a_stream_that_was_left_open_is_counted() -> None:
    provider = ScriptedProvider(["x"])
    stream = provider.stream(request(), StepTag(1, 1, 1))
    await anext(stream)
    assert provider.open_streams == 1
    await stream.aclose()
    assert closed(provider, 1)


_: Callable[..., Provider] = ScriptedProvider  # it is one, says the type checker
