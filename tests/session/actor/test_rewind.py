"""Rewinding lets the history end earlier; the log keeps what was rewound."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import pytest

from llmsession import (
    CompactionConfig,
    HeadMoved,
    InvalidInput,
    LLMSession,
    SessionBusy,
    SessionClosed,
    Tool,
)
from llmsession.session.actor import history_commands
from llmsession.session.handles.session import live_state
from llmsession.session.log.state import SessionState
from llmsession.testing.scripted import call, never, say, think
from llmsession.turns import records as r
from tests.session.actors import (
    Quick,
    SwallowingCancellation,
    faulty_stage,
    in_tool,
    lasting,
    meanwhile,
    settled,
    stage,
    texts_of,
)

CHANGES = (
    pytest.param(partial(LLMSession.rewind, to=1), id="rewind"),
    pytest.param(partial(LLMSession.forget, before=2), id="forget"),
    pytest.param(partial(LLMSession.clear, purge=True), id="purge"),
)


async def test_the_history_ends_with_the_turn_again() -> None:
    async with stage(["one", "two", "three", "three again"]) as on:
        await on.say("first", "second", "third")
        old = on.session.conversation()
        await on.session.rewind("u1")
        now = on.session.conversation()
        assert now == old[:2]
        assert all(mine is theirs for mine, theirs in zip(now, old, strict=False))
        status = on.session.status()
        assert (status.generation, status.turns, str(status.head)) == (2, 1, "a1")
        assert await on.say("otherwise") == "three again"
        # Numbers are never used twice.
        assert [m.turn for m in on.session.conversation()] == [1, 1, 4, 4]
        assert len(on.provider.requests[-1].messages) == 3


async def test_the_log_keeps_what_was_rewound() -> None:
    async with stage(["one", "two"]) as on:
        await on.say("first", "second")
        await on.session.rewind(1)
        log = await on.log()
        assert isinstance(log[-1], r.ConversationRewound)
        assert (log[-1].to, log[-1].generation) == (1, 2)
        assert await on.session.turn(2).text() == "two"
        await on.session.rewind(0)
        assert on.session.conversation() == ()
        assert on.session.status().head is None


@pytest.mark.parametrize("to", [2, 7])
async def test_a_turn_that_is_not_in_the_history_is_refused(to: int) -> None:
    async with stage(["one", never(), "three"]) as on:
        await on.say("first")
        await on.interrupted("dropped")
        head = live_state(on.session).head
        with pytest.raises(InvalidInput, match="not in the history"):
            await on.session.rewind(to)
        with pytest.raises(InvalidInput):
            await on.session.rewind(-1)
        assert live_state(on.session).head == head


@pytest.mark.parametrize("change", CHANGES)
async def test_a_running_turn_refuses_a_change_of_the_history_or_is_interrupted_first(
    change: Callable[..., Awaitable[None]],
) -> None:
    async with stage(["one", "two", never()]) as on:
        await on.say("first", "second")
        running = await on.session.send("third")
        with pytest.raises(SessionBusy):
            await change(on.session)
        await change(on.session, when_busy="interrupt")
        assert (await running.outcome()).stop_reason == "interrupt"
        assert len(on.session.conversation()) <= 2
        assert b"third" not in b"".join(bytes(m.body) for m in on.session.conversation())


async def test_a_rewind_waits_for_a_turn_that_does_not_want_to_stop() -> None:
    async with in_tool(SwallowingCancellation(5.0)) as (on, running):
        with lasting(0, abs=1):
            await on.session.rewind(0, when_busy="interrupt")
        assert (await running.outcome()).still_running
        assert on.session.conversation() == ()


@pytest.mark.parametrize("change", [partial(LLMSession.rewind, to=1), LLMSession.clear])
async def test_what_comes_behind_a_change_meets_the_history_that_it_left(
    change: Callable[..., Awaitable[None]],
) -> None:
    async with faulty_stage(["one", "two", "three"]) as (on, store):
        await on.say("first", "second")
        store.delay()
        as_it_was = partial(on.session.send, "as it was", expected_head=2)
        as_it_is = partial(on.session.send, "as it is", expected_head=1)
        async with meanwhile(partial(change, on.session)):
            await store.wait_delayed()
            async with (
                meanwhile(as_it_was, refused=(HeadMoved,)) as first,
                meanwhile(as_it_is, refused=(HeadMoved,)) as second,
            ):
                store.deliver()
        assert isinstance(first[0], HeadMoved)
        if change is LLMSession.clear:
            assert isinstance(second[0], HeadMoved)
        else:
            await second[0].text()
            assert [m.turn for m in on.session.conversation()] == [1, 1, 3, 3]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_turn_that_is_interrupted_behind_a_change_has_nothing_of_what_is_gone(
    change: Callable[..., Awaitable[None]],
) -> None:
    """Its send is read before the change is durable: the note of a dropped turn is still owed."""
    script = ["one", "two", call("t", {"secret": 7}, id="c"), never(), "four"]
    async with faulty_stage(script, tool=Quick()) as (on, store):
        await on.say("first", "second")
        await on.interrupted("dropped")
        store.delay()
        async with (
            meanwhile(partial(change, on.session)),
            meanwhile(partial(on.session.send, "last")) as sent,
            meanwhile(on.session.interrupt) as interrupted,
        ):
            store.deliver()
        assert (await sent[0].outcome()).status == interrupted[0].result == "aborted"
        (accepted,) = (
            each for each in await on.log() if isinstance(each, r.TurnAccepted) and each.turn == 4
        )
        assert (accepted.started, accepted.receipt) == (False, None)
        assert await on.say("and on it goes") == "four"


async def test_a_purge_that_is_being_prepared_waits_for_turns_that_are_accepted_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared = anyio.Event()

    async def off_loop(work: Callable[[], None]) -> None:
        await prepared.wait()
        work()

    monkeypatch.setattr(history_commands, "off_loop", off_loop)
    monkeypatch.setattr(history_commands, "SHORT_RECORDS", 0)
    monkeypatch.setattr(SessionState, "is_unpacked", False)
    async with faulty_stage(["one"]) as (on, store):
        await on.say("first")
        store.delay()
        async with (
            meanwhile(partial(on.session.clear, purge=True)),
            meanwhile(partial(on.session.send, "last words")),
            meanwhile(partial(on.session.interrupt, command_id="i")) as interrupted,
        ):
            prepared.set()
            await settled()
            store.deliver()
        assert interrupted[0].result == "aborted"
        bodies = [record.body for record in await store.read("s")]
        assert b"last words" not in b"".join(bodies)


async def test_a_turn_that_the_interrupt_keeps_can_be_what_is_rewound_to() -> None:
    tool = Tool(name="t", run=Quick())
    script = ["one", call("t", id="c"), never()]
    async with stage(script, tools=[tool], interrupt_policy="keep_steps") as on:
        await on.say("first")
        await on.begin("second")
        await on.session.rewind(2, when_busy="interrupt")
        assert {m.turn for m in on.session.conversation()} == {1, 2}
        assert on.session.status().generation == 2


async def test_a_turn_that_the_interrupt_drops_cannot_be_rewound_to() -> None:
    async with stage(["one", never(), "three"]) as on:
        await on.say("first")
        running = await on.session.send("second")
        with pytest.raises(InvalidInput, match="not in the history"):
            await on.session.rewind(2, when_busy="interrupt")
        assert (await running.outcome()).status == "aborted"
        assert await on.say("and on it goes") == "three"


async def test_receipts_that_rewound_messages_carried_are_pending_again() -> None:
    tool = Tool(name="t", run=Quick())
    script = ["one", call("t", id="c"), never(), "noted", "noted again"]
    async with stage(script, tools=[tool]) as on:
        await on.say("first")
        await on.interrupted("dropped")
        await on.say("carries it")
        assert live_state(on.session).receipts == ()
        await on.session.rewind(1)
        assert [pending.turn for pending in live_state(on.session).receipts] == [2]
        await on.say("carries it again")
        assert "t (c): finished" in texts_of(on.provider.requests[-1])[-1]
        assert live_state(on.session).receipts == ()


async def test_receipts_that_kept_messages_carry_are_not_pending_after_a_rewind() -> None:
    tool = Tool(name="t", run=Quick())
    drops = [[call("t", id=f"c{number}"), never(), f"noted {number}"] for number in range(3)]
    async with stage([each for drop in drops for each in drop], tools=[tool]) as on:
        for number in range(3):
            await on.interrupted(f"dropped {number}")
            await on.say(f"carries {number}")
        await on.session.rewind(2)
        assert [pending.turn for pending in live_state(on.session).receipts] == [3, 5]


async def test_compacted_results_and_thinking_of_what_is_left_stay_as_they_are_shown() -> None:
    long = "a line of output\n" * 500
    script = [each for n in range(4) for each in (call("t", id=f"c{n}"), f"done {n}")]
    compaction = CompactionConfig(keep_recent_turns=1, keep_recent_steps=1)
    async with stage(script, tool=Quick(long), compaction=compaction) as on:
        for n in range(3):
            await on.say(f"turn {n}")
        assert (await on.session.compact()).applied
        shown = texts_of(on.session.context())
        compacted_before = on.session.status().compacted_before
        await on.session.rewind(2)
        assert texts_of(on.session.context()) == shown[:8]
        assert on.session.status().compacted_before == min(compacted_before, 8)
        await on.session.rewind(1)
        assert on.session.status().compacted_before == min(compacted_before, 4)
        assert await on.say("goes on") == "done 3"


async def test_thinking_before_the_rewind_is_sent_on_and_later_thinking_is_gone() -> None:
    script = [think("early", "s1") + say("one"), think("late", "s2") + say("two"), "three"]
    async with stage(script) as on:
        await on.say("first", "second")
        await on.session.rewind(1)
        await on.say("third")
        sent = on.provider.requests[-1].encode()
        assert b"early" in sent
        assert b"late" not in sent


async def test_an_interrupt_is_answered_while_a_rewind_is_on_its_way() -> None:
    async with faulty_stage(["one", "two"]) as (on, store):
        await on.say("first")
        store.delay()
        async with meanwhile(lambda: on.session.rewind(0)):
            await store.wait_delayed()
            async with (
                meanwhile(lambda: on.session.send("never heard")) as turns,
                meanwhile(on.session.interrupt),
            ):
                store.deliver()
        assert (await turns[0].outcome()).status == "aborted"
        assert on.session.conversation() == ()
        assert await on.say("hello") == "two"


async def test_a_rewind_that_waits_for_a_turn_is_refused_when_the_session_is_closed() -> None:
    async with in_tool(SwallowingCancellation(1.0), grace_s=0.2) as (on, _):
        async with meanwhile(
            lambda: on.session.rewind(0, when_busy="interrupt"), refused=(SessionClosed,)
        ) as refused:
            await on.session.close()
        assert [type(error) for error in refused] == [SessionClosed]


async def test_a_repeated_rewind_changes_nothing() -> None:
    async with stage(["one", "two", "three"]) as on:
        await on.say("first", "second")
        await on.session.rewind(1, command_id="k")
        await on.say("third")
        await on.session.rewind(1, command_id="k")
        assert [m.turn for m in on.session.conversation()] == [1, 1, 3, 3]
