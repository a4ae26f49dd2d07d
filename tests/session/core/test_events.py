"""Subscribers: durable events in order and each once, previews between them, nobody slowed."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from llmsession import (
    Event,
    InvalidInput,
    Lagged,
    LLMSession,
    SessionConfig,
    StoreError,
    TextDelta,
    ThinkingDelta,
    Tool,
    ToolInputDelta,
    ToolUse,
)
from llmsession.session.core import subscriptions
from llmsession.session.manager import runtime_of
from llmsession.testing.scripted import call, never, say, think
from llmsession.turns import records as r
from tests.session.actors import Quick, faulty_stage, first, meanwhile, settled, stage


def durable(events: list[Event]) -> list[r.Record]:
    return [event for event in events if isinstance(event, r.RecordBase)]


async def up_to(events: AsyncIterator[Event], seq: int) -> list[Event]:
    """Events up to the durable one with *seq*."""
    read: list[Event] = []
    async for event in events:
        read.append(event)
        if isinstance(event, r.RecordBase) and event.seq >= seq:
            return read
    raise AssertionError(f"the events ended before {seq}")


async def test_a_turns_events_go_from_its_acceptance_to_its_one_terminal_event() -> None:
    script = [think("hmm") + say("look") + call("t", {"a": 1}, id="c"), say("done")]
    async with stage(script, tool=Quick()) as on:
        turn = await on.session.send("go")
        kinds: list[str] = []
        async for event in turn:
            kind: str = event.__struct_config__.tag  # type: ignore[assignment]  # every event has a tag
            if not kinds or kinds[-1] != kind:
                kinds.append(kind)
        assert kinds == [
            "turn.accepted", "preview.thinking", "preview.text", "preview.tool_input",
            "tools.requested", "tool_use", "tools.answered", "step.completed", "preview.text",
            "turn.committed",
        ]  # fmt: skip


@pytest.mark.parametrize("turn", [0, 2, -1, True, 1.5, "x", None, []], ids=str)
async def test_what_is_no_turn_of_the_session_has_no_events(turn: Any) -> None:
    async with stage(["hi"]) as on:
        await on.say("hello")
        with pytest.raises(InvalidInput):
            on.session.events_of(turn)


@pytest.mark.parametrize("when", ["at once", "in mid-stream", "after its end"])
async def test_iterating_a_turn_gives_its_durable_events_whenever_it_starts(when: str) -> None:
    async with stage(["before", say("a reply").slow(1), "after"]) as on:
        await on.say("other")
        turn = await on.session.send("go")
        await on.session.send("later")
        await anyio.sleep({"at once": 0, "in mid-stream": 3, "after its end": 60}[when])
        kinds = [event.__struct_config__.tag for event in durable([event async for event in turn])]
        assert kinds == ["turn.accepted", "turn.committed"]


@pytest.mark.parametrize("after", [0, 1, 3, 5])
async def test_from_any_cursor_every_later_durable_event_comes_once_in_order(after: int) -> None:
    async with stage(lambda request, tag: say("some text").slow(0.1)) as on:
        await on.say("one", "two")
        events = on.session.subscribe(after=after)
        await on.session.send("three")
        await on.session.send("four")
        await anyio.sleep(20)
        head = on.session.status().seq
        read = durable(await up_to(events, head))
        assert [record.seq for record in read] == list(range(after + 1, head + 1))
        assert read == (await on.log())[after:]
        assert events.cursor == head
        events.close()


async def test_who_joins_in_mid_stream_first_gets_the_steps_text_so_far() -> None:
    reply = think("the whole thought") + say("the whole text of the reply")
    async with stage([reply.slow(1, delta_chars=4)]) as on:
        turn = await on.session.send("go")
        await anyio.sleep(16)
        late = on.session.subscribe()
        await turn.text()
        read = await up_to(late, on.session.status().seq)
        texts = "".join(event.text for event in read if isinstance(event, TextDelta))
        thoughts = "".join(event.text for event in read if isinstance(event, ThinkingDelta))
        assert (thoughts, texts) == ("the whole thought", "the whole text of the reply")
        late.close()


async def test_previews_of_a_call_are_pieces_of_its_input() -> None:
    reply = call("mine", {"path": "a/long/path"}, id="c")
    async with stage([reply], tools=[Tool(name="mine")]) as on:
        pieces = ""
        async for event in await on.session.send("go"):
            if isinstance(event, ToolInputDelta):
                pieces += event.text
            if isinstance(event, ToolUse):
                break
        assert pieces == '{"path":"a/long/path"}'
        await on.session.interrupt()


async def test_nothing_is_published_before_it_is_durable() -> None:
    async with faulty_stage(["hi"]) as (on, store):
        events = on.session.subscribe()
        store.delay()
        async with meanwhile(events.__anext__) as seen, meanwhile(lambda: on.session.send("hello")):
            await store.wait_delayed()
            await settled()
            assert seen == []
            store.deliver()
        assert durable(seen) != []
        events.close()


async def test_a_subscriber_that_never_reads_slows_nobody_and_is_told_that_it_lagged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscriptions, "MAX_DURABLE", 40)
    async with stage(lambda request, tag: "hi") as on:
        sleeper = on.session.subscribe()
        bystander = on.session.subscribe(after=0)
        before = anyio.current_time()
        for n in range(subscriptions.MAX_DURABLE // 2 + 10):
            await on.say(f"message {n}")
            await up_to(bystander, on.session.status().seq)
        assert anyio.current_time() - before < 1
        assert sleeper.buffered[0] <= subscriptions.MAX_DURABLE
        told = [event async for event in sleeper]
        assert [type(event) for event in told] == [Lagged]
        # Its cursor is where it can go on without loss.
        assert told == [Lagged(1)]
        again = on.session.subscribe(after=1)
        head = on.session.status().seq
        assert [rec.seq for rec in durable(await up_to(again, head))] == list(range(2, head + 1))
        again.close()
        bystander.close()


async def test_an_aborted_turn_shows_no_preview_after_its_end() -> None:
    reply = say("a long text that goes on and on " * 4).ignoring_cancellation(50, at=3)
    async with stage([reply, "next"]) as on:
        events = on.session.subscribe()
        turn = await on.session.send("go")
        await first(events, TextDelta)
        await on.session.interrupt()
        assert await on.say("again") == "next"
        await anyio.sleep(100)
        assert on.provider.open_streams == 0
        seen = await up_to(events, on.session.status().seq)
        ended = next(at for at, event in enumerate(seen) if isinstance(event, r.TurnAborted))
        late = [event for event in seen[ended:] if isinstance(event, TextDelta)]
        assert [event.turn for event in late if event.turn == turn.id.number] == []
        with anyio.move_on_after(10) as waited:
            await events.__anext__()
        assert waited.cancelled_caught
        events.close()


async def test_closing_a_subscription_interrupts_nothing_and_ends_its_iteration() -> None:
    async with stage([say("a reply").slow(1)]) as on:
        turn = await on.session.send("go")
        events = on.session.subscribe()
        await first(events, TextDelta)
        events.close()
        assert [event async for event in events] == []
        assert await turn.text() == "a reply"


async def test_subscribers_survive_the_eviction_of_their_session() -> None:
    async with stage(["hi", "there"]) as on:
        events = on.session.subscribe(after=0)
        await on.say("hello")
        head = on.session.status().seq
        del on.session
        assert await runtime_of(on.manager).evict_idle() == 1
        on.session = await on.manager.open("s")
        await on.say("again")
        last = on.session.status().seq
        assert last > head
        read = durable(await up_to(events, last))
        assert [record.seq for record in read] == list(range(1, last + 1))
        events.close()


async def test_events_of_one_session_do_not_reach_the_subscribers_of_another() -> None:
    async with stage(lambda request, tag: "hi") as on:
        other: LLMSession = await on.manager.create(SessionConfig(model="m"), session_id="other")
        events = other.subscribe()
        await on.say("hello")
        assert events.buffered == (0, 0)
        events.close()


async def test_subscriptions_end_when_the_session_is_closed() -> None:
    async with stage([never()]) as on:
        events = on.session.subscribe(after=0)
        await on.session.send("go")
        await on.session.close()
        read = durable([event async for event in events])
        assert isinstance(read[-1], r.TurnAborted)
        assert read[-1].reason == "closed"


async def test_every_terminal_event_is_the_last_of_its_turn_for_every_subscriber() -> None:
    async with stage(lambda request, tag: never() if tag.turn % 2 else "hi") as on:
        events = on.session.subscribe(after=0)
        for n in range(1, 7):
            turn = await on.session.send(f"{n}")
            if n % 2:
                await settled()
                await on.session.interrupt()
            await turn.outcome()
        ended: set[int] = set()
        for event in await up_to(events, on.session.status().seq):
            number = getattr(event, "turn", None)
            assert number not in ended
            if isinstance(event, r.RecordBase) and r.is_terminal(event):
                ended.add(number)  # type: ignore[arg-type]  # a turn has a number
        assert ended == {1, 2, 3, 4, 5, 6}
        events.close()


async def test_a_loop_over_a_turn_that_breaks_off_leaves_no_subscriber_behind() -> None:
    async with stage([say("a reply").slow(1)]) as on:
        turn = await on.session.send("go")
        async for event in turn:
            if isinstance(event, TextDelta):
                break
        gc.collect()
        assert not on.manager._runtime.subscriptions.has("s")
        assert await turn.text() == "a reply"


async def test_a_record_is_in_the_state_before_anybody_is_told_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heads: list[tuple[int, int]] = []
    publish = subscriptions.Subscriptions.publish

    def look(self: subscriptions.Subscriptions, session: str, record: r.Record) -> None:
        heads.append((record.seq, on.session.status().seq))
        publish(self, session, record)

    async with stage([call("t", id="c"), "done"], tool=Quick()) as on:
        monkeypatch.setattr(subscriptions.Subscriptions, "publish", look)
        await on.say("go")
        assert len(heads) >= 5
        assert [seq for seq, head in heads if head < seq] == []


async def test_who_subscribes_to_a_cold_session_is_told_of_what_was_found_in_its_log() -> None:
    async with faulty_stage(["hi", "next"]) as (on, store):
        await on.say("hello")
        store.lose_acknowledgement()
        with pytest.raises(StoreError):
            await on.session.label({"a": "b"})
        head = on.session.status().seq
        events = on.session.subscribe(after=head)  # the label is in the log, and nobody knows
        await on.say("again")
        assert await anext(events) == Lagged(head)
        newest = on.session.status().seq
        again = durable(await up_to(on.session.subscribe(after=head), newest))
        assert [event.seq for event in again] == list(range(head + 1, newest + 1))
