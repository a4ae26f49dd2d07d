"""Subscribers: durable records once and in order, previews as far as they keep up."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from random import Random
from types import SimpleNamespace

import anyio
import msgspec
import pytest
from anyio.lowlevel import checkpoint

from llmsession.session.core.subscriptions import (
    MAX_DURABLE,
    MAX_LIST_CHARS,
    MAX_PREVIEW_CHARS,
    NODE_CHARS,
    Event,
    EventSink,
    Lagged,
    Subscription,
    Subscriptions,
)
from llmsession.session.tasks.wait_queue import WaitQueue
from llmsession.turns import records as r
from llmsession.turns.blocks import encode_json
from llmsession.turns.previews import (
    Preview,
    StepRestarted,
    TextDelta,
    ThinkingDelta,
    ToolInputDelta,
    ToolUse,
)
from llmsession.turns.records import (
    AssistantReply,
    PendingCall,
    Record,
    ToolsRequested,
    TurnAborted,
    TurnAccepted,
    TurnCommitted,
    TurnFailed,
)
from llmsession.turns.usage import Usage
from tests.session.actors import meanwhile

EMPTY = msgspec.Raw(b"[]")


def accepted(turn: int) -> Record:
    return TurnAccepted(turn=turn, body=EMPTY)


def committed(turn: int) -> Record:
    return TurnCommitted(turn=turn, stop_reason="end_turn", usage=Usage())


def requested(turn: int, *calls: str, also: Sequence[str] = ()) -> Record:
    """A reply that asks for *calls*; the calls *also* are in it and are not offered."""
    blocks = [
        {"type": "tool_use", "id": call, "name": "ls", "input": {"path": call}}
        for call in (*also, *calls)
    ]
    reply = AssistantReply(
        body=msgspec.Raw(encode_json([{"type": "text", "text": "hm"}, *blocks])), started_at=0.0
    )
    offers = tuple(PendingCall(call, "ls", "caller") for call in calls)
    return ToolsRequested(turn=turn, step=1, reply=reply, calls=offers)


def said(text: str, *, turn: int = 1, step: int = 1, attempt: int = 1, index: int = 0) -> Preview:
    return TextDelta(turn, step, attempt, index, text)


class Log:
    """A session's log and its subscriptions: what is written is published, and can be replayed."""

    def __init__(self, page: int = 100) -> None:
        self.subscriptions = Subscriptions()
        self.records: list[Record] = []
        self.page = page
        self.pages = 0

    def write(self, *records: Record) -> None:
        for record in records:
            stamped = msgspec.structs.replace(record, seq=len(self.records) + 1)
            self.records.append(stamped)
            self.subscriptions.publish("s", stamped)

    def write_turns(self, first: int, last: int) -> None:
        for turn in range(first, last + 1):
            self.write(accepted(turn), committed(turn))

    def preview(self, *previews: Preview) -> None:
        for preview in previews:
            self.subscriptions.preview("s", preview)

    def restart(self, restart: StepRestarted) -> None:
        self.subscriptions.restart("s", restart)

    async def replay(self, after: int, up_to: int) -> Sequence[Record]:
        self.pages += 1
        await checkpoint()
        return self.records[after : min(up_to, after + self.page)]

    def subscribe(self, after: int | None = None, turn: int | None = None) -> Subscription:
        head = len(self.records)
        cursor = head if after is None else after
        return Subscription(
            self.subscriptions, "s", after=cursor, head=head, turn=turn, replay=self.replay
        )


def listening() -> tuple[Log, Subscription]:
    """An empty log, and a subscriber."""
    log = Log()
    return log, log.subscribe()


async def read(subscription: Subscription, count: int) -> list[Event]:
    with anyio.fail_after(5):
        return [await anext(subscription) for _ in range(count)]


async def read_all(subscription: Subscription) -> list[Event]:
    """Everything up to the subscription's end."""
    with anyio.fail_after(5):
        return [event async for event in subscription]


async def rest() -> None:
    """Let every task that can go on go on, but only for a moment."""
    for _ in range(3):
        await checkpoint()


class Sink(EventSink):
    """A receiver that keeps the previews that it is offered."""

    def __init__(self) -> None:
        self.got: list[Preview] = []

    def offer_preview(self, preview: Preview) -> None:
        self.got.append(preview)

    def offer_record(self, record: Record) -> None:
        pass

    def offer_restart(self, restart: StepRestarted) -> None:
        pass

    def lag(self) -> None:
        pass

    def end(self, *, moved: bool = False) -> None:
        pass


def beside_the_buffer(subscription: Subscription) -> int:
    """How many characters *subscription* keeps in the linked list."""
    chars, node = 0, subscription._node
    while node.next is not None:
        node = node.next
        chars += len(node.preview.text) + NODE_CHARS
    return chars


def seqs(events: Sequence[Event]) -> list[int]:
    return [getattr(event, "seq", 0) for event in events]


# Durable records


async def test_live_records_come_in_order_to_every_subscriber_until_it_is_closed() -> None:
    log = Log()
    first, second = log.subscribe(), log.subscribe()
    log.write_turns(1, 3)
    assert await read(first, 6) == log.records
    assert await read(second, 6) == log.records
    assert (first.cursor, second.cursor) == (6, 6)
    first.close()
    log.write(accepted(4))
    assert log.subscriptions.has("s")
    assert seqs(await read(second, 1)) == [7]


async def test_a_subscriber_starts_after_its_cursor() -> None:
    log = Log()
    log.write_turns(1, 5)
    subscription = log.subscribe(after=7)
    assert seqs(await read(subscription, 3)) == [8, 9, 10]
    log.write(accepted(6))
    assert seqs(await read(subscription, 1)) == [11]


async def test_without_a_gap_nothing_is_replayed() -> None:
    log = Log()
    log.write_turns(1, 2)
    subscription = log.subscribe()
    log.write(accepted(3))
    assert seqs(await read(subscription, 1)) == [5]
    assert log.pages == 0


async def test_what_is_published_during_the_replay_follows_it() -> None:
    log = Log(page=2)
    log.write_turns(1, 3)
    subscription = log.subscribe(after=0)
    assert seqs(await read(subscription, 1)) == [1]
    log.write_turns(4, 5)
    assert seqs(await read(subscription, 9)) == list(range(2, 11))
    assert log.pages == 3  # what came live was not replayed


@pytest.mark.parametrize("seed", range(10))
async def test_each_record_comes_once_and_in_order_beside_a_publisher(seed: int) -> None:
    random = Random(seed)
    log = Log(page=random.randint(1, 9))
    log.write_turns(1, 20)
    got: list[tuple[int, list[Event]]] = []

    async def subscriber(after: int, patience: int) -> None:
        for _ in range(random.randrange(40)):
            await checkpoint()
        subscription = log.subscribe(after=after)
        events = []
        async for event in subscription:
            events.append(event)
            for _ in range(random.randrange(patience)):
                await checkpoint()
        got.append((after, events))

    async def publisher() -> None:
        for turn in range(21, 121):
            log.write_turns(turn, turn)
            log.preview(said("x", turn=turn))
            for _ in range(random.randrange(4)):
                await checkpoint()
        log.subscriptions.end("s")

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(subscriber, random.randrange(41), random.randint(1, 5))
            group.start_soon(publisher)
    assert len(got) == 8
    for after, events in got:
        durable = [event for event in events if not isinstance(event, TextDelta)]
        assert durable == log.records[after:]


async def test_a_cancelled_wait_loses_no_event() -> None:
    log = Log(page=3)
    log.write_turns(1, 10)
    subscription = log.subscribe(after=0)
    events: list[Event] = []

    async def publisher() -> None:
        for turn in range(11, 31):
            await anyio.sleep(1)
            log.write_turns(turn, turn)
        log.subscriptions.end("s")

    with anyio.fail_after(300):
        async with anyio.create_task_group() as group:
            group.start_soon(publisher)
            cancelled, ended = 0, False
            while not ended:
                with anyio.move_on_after(0.3) as impatient:
                    try:
                        events.append(await anext(subscription))
                    except StopAsyncIteration:
                        ended = True
                cancelled += impatient.cancelled_caught
    assert cancelled > 20
    assert events == log.records


async def test_an_event_in_the_same_moment_as_the_cancellation_is_not_lost() -> None:
    log, subscription = listening()
    got: list[Event] = []

    async def read_on() -> None:
        while True:
            got.append(await anext(subscription))

    for turn in range(1, 11):
        async with anyio.create_task_group() as group:
            group.start_soon(read_on)
            await anyio.wait_all_tasks_blocked()
            if turn % 2:
                group.cancel_scope.cancel()
            log.write(accepted(turn))
            log.preview(said("more"))
            group.cancel_scope.cancel()
    got += await read(subscription, 20 - len(got))
    assert got == [event for record in log.records for event in (record, said("more"))]


async def test_a_wait_that_is_cancelled_during_the_replay_loses_no_event() -> None:
    log = Log(page=2)
    log.write_turns(1, 5)
    subscription = log.subscribe(after=0)
    events: list[Event] = []
    cancelled = 0
    while len(events) < 10:
        with anyio.CancelScope() as scope:
            scope.cancel()  # the replay's checkpoint raises
            events.append(await anext(subscription))
        cancelled += scope.cancelled_caught
        if scope.cancelled_caught:
            events += await read(subscription, 1)
    assert cancelled == 5  # at each page
    assert events == log.records


async def test_a_reader_that_waits_is_woken_by_the_next_record() -> None:
    log, subscription = listening()
    async with meanwhile(partial(read, subscription, 1)) as got:
        await anyio.sleep(1)
        log.write(accepted(1))
    assert seqs(got[0]) == [1]


# Falling behind


async def test_a_subscriber_may_be_1024_durable_records_behind() -> None:
    assert MAX_DURABLE == 1024
    log, subscription = listening()
    log.write_turns(1, 512)
    assert subscription.buffered == (1024, 0)
    assert await read(subscription, 1024) == log.records
    assert subscription.buffered == (0, 0)


async def test_one_more_and_it_is_told_its_cursor_and_dropped() -> None:
    log = Log()
    slow, fast = log.subscribe(), log.subscribe()
    log.write_turns(1, 5)
    assert len(await read(slow, 3)) == 3
    log.write_turns(6, 512)
    await read(fast, 1000)
    log.write_turns(513, 600)
    assert await read_all(slow) == [Lagged(cursor=3)]
    assert slow.buffered == (0, 0)
    assert seqs(await read(fast, 200)) == list(range(1001, 1201))
    again = log.subscribe(after=3)
    assert seqs(await read(again, 1197)) == list(range(4, 1201))


async def test_who_falls_behind_during_the_replay_first_reads_the_replay() -> None:
    log = Log(page=3)
    log.write_turns(1, 5)
    subscription = log.subscribe(after=2)
    assert seqs(await read(subscription, 1)) == [3]
    log.write_turns(6, 600)
    events = await read_all(subscription)
    assert seqs(events[:-1]) == list(range(4, 11))
    assert events[-1] == Lagged(cursor=10)


async def test_a_store_that_was_lost_makes_every_subscriber_lag() -> None:
    log = Log()
    first, second = log.subscribe(), log.subscribe()
    log.write_turns(1, 2)
    await read(first, 1)
    log.subscriptions.lag_all("s")
    assert await read_all(first) == [Lagged(cursor=1)]
    assert await read_all(second) == [Lagged(cursor=0)]
    assert not log.subscriptions.has("s")


# Previews


async def test_neighbouring_previews_of_one_block_are_merged() -> None:
    log, subscription = listening()
    log.preview(said("a"), said("b"), said("c"))
    assert await read(subscription, 1) == [said("abc")]
    log.preview(said("d"))
    assert await read(subscription, 1) == [said("d")]


async def test_previews_of_different_blocks_steps_attempts_and_kinds_stay_apart() -> None:
    log, subscription = listening()
    previews: list[Preview] = [
        said("a"),
        said("b", index=1),
        said("c", attempt=2, index=1),
        said("d", step=2, attempt=2, index=1),
        said("e", turn=2, step=2, attempt=2, index=1),
        ThinkingDelta(2, 2, 2, 1, "f"),
        ToolInputDelta(2, 2, 2, 1, "g"),
    ]
    log.preview(*previews)
    anew = [StepRestarted(1, 1, 2)]
    assert await read(subscription, 8) == previews[:2] + anew + previews[2:]


async def test_a_restart_takes_the_place_of_the_previews_that_it_makes_void() -> None:
    log = Log()
    subscription = log.subscribe()
    log.write(accepted(1))
    log.preview(said("a"))
    assert await read(subscription, 2) == [log.records[0], said("a")]
    log.preview(said("b"))
    for attempt in (2, 3):
        log.restart(StepRestarted(1, 1, attempt))
    log.preview(said("c", attempt=3))
    assert await read(subscription, 2) == [StepRestarted(1, 1, 3), said("c", attempt=3)]
    assert subscription.buffered == (0, 0)


@pytest.mark.parametrize("closed", [True, False])
async def test_a_resumed_turn_voids_the_previews_of_the_step_that_was_not_closed(
    closed: bool,
) -> None:
    log = Log()
    subscription = log.subscribe()
    log.preview(said("a"))
    if closed:
        log.write(requested(1))
    log.write(r.TurnResumed(turn=1, step=1))
    log.preview(said("b"))
    log.write(committed(1))
    kinds = [type(event) for event in await read(subscription, 5)]
    assert kinds == [
        TextDelta,
        *([r.ToolsRequested] if closed else []),
        r.TurnResumed,
        *([] if closed else [StepRestarted]),
        TextDelta,
        r.TurnCommitted,
    ]


async def test_previews_keep_their_place_between_durable_records() -> None:
    log, subscription = listening()
    log.write(accepted(1))
    log.preview(said("a"), said("b"))
    log.write(requested(1))
    log.preview(said("c"))
    log.write(committed(1))
    got = await read(subscription, 5)
    assert got == [log.records[0], said("ab"), log.records[1], said("c"), log.records[2]]


async def test_previews_beyond_the_bound_are_lost_and_durable_records_are_not() -> None:
    log, subscription = listening()
    chunk = "x" * 1024
    for _ in range(MAX_PREVIEW_CHARS // 1024):
        log.preview(said(chunk))
    assert subscription.buffered == (0, MAX_PREVIEW_CHARS)
    log.preview(said("lost"), said("lost"))
    log.write(committed(1))
    assert subscription.previews_lost == 2
    merged, record = await read(subscription, 2)
    assert isinstance(merged, TextDelta)
    assert merged.text == chunk * (MAX_PREVIEW_CHARS // 1024)
    assert record == log.records[0]
    log.preview(said("room again"))
    assert await read(subscription, 1) == [said("room again")]
    assert subscription.buffered == (0, 0)


async def test_a_reader_that_does_not_read_costs_a_bounded_buffer() -> None:
    log, subscription = listening()
    for at in range(3000):
        log.preview(said("x" * 1000, turn=at))
        durable, chars = subscription.buffered
        assert durable <= MAX_DURABLE
        assert chars <= MAX_PREVIEW_CHARS
        log.write(accepted(at))
    assert await read_all(subscription) == [Lagged(cursor=0)]


async def test_one_that_keeps_up_gets_each_preview_by_itself_and_a_slow_one_all_at_once() -> None:
    log = Log()
    fast, slow = log.subscribe(), log.subscribe()
    got: list[Event] = []

    async def follow() -> None:
        async for event in fast:
            got.append(event)

    previews = [said(str(number)) for number in range(1000)]
    async with anyio.create_task_group() as group:
        group.start_soon(follow)
        for preview in previews:
            await rest()
            log.preview(preview)
        await rest()
        log.write(committed(1))
        log.subscriptions.end("s")
    assert got == [*previews, log.records[0]]
    whole = said("".join(preview.text for preview in previews))
    assert await read_all(slow) == [whole, log.records[0]]


def test_previews_that_nobody_reads_are_in_the_buffers_and_not_beside_them() -> None:
    log, subscription = listening()
    for _ in range(10_000):
        log.preview(said("x"))
        assert beside_the_buffer(subscription) <= MAX_LIST_CHARS
    for _ in range(10):
        log.preview(said("x" * 10_000))
        assert beside_the_buffer(subscription) <= MAX_LIST_CHARS
    log.write(accepted(1))
    assert beside_the_buffer(subscription) == 0
    assert subscription.buffered == (1, 110_000)


@pytest.mark.parametrize("how", ["close", "lag", "turn"])
async def test_a_subscription_that_is_over_keeps_nothing_of_what_is_published_later(
    how: str,
) -> None:
    log = Log()
    subscription, kept = log.subscribe(turn=1), log.subscribe()
    log.write(committed(1))
    await read(kept, 1)
    if how == "close":
        subscription.close()
    elif how == "lag":
        subscription.lag()
    else:
        await read_all(subscription)
    log.preview(said("later"))
    assert beside_the_buffer(subscription) == 0
    assert await read(kept, 1) == [said("later")]
    assert said("later") not in await read_all(subscription)


async def test_a_sink_gets_each_preview_at_once_as_long_as_it_is_subscribed() -> None:
    log, subscription = listening()
    log.preview(said("a"))
    sink = Sink()
    log.subscriptions.add("s", sink, 0)
    log.preview(said("b"))
    assert sink.got == [said("b")]
    log.subscriptions.remove("s", sink)
    log.preview(said("c"))
    assert sink.got == [said("b")]
    assert await read(subscription, 1) == [said("abc")]


# Several tasks


async def test_tasks_that_share_a_subscription_get_each_event_once_and_all_hear_the_end() -> None:
    log = Log(page=7)
    log.write_turns(101, 120)
    subscription = log.subscribe(after=0)
    got: list[Event] = []

    async def follow() -> None:
        async for event in subscription:
            got.append(event)
            await checkpoint()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(follow)
            for turn in range(1, 51):
                await rest()
                log.write(accepted(turn))
                log.preview(said("x", turn=turn))
            await rest()
            log.subscriptions.end("s")
    assert sorted(seqs([event for event in got if not isinstance(event, TextDelta)])) == [
        record.seq for record in log.records
    ]
    assert sum(isinstance(event, TextDelta) for event in got) == 50


async def test_a_task_that_is_cancelled_leaves_the_others_that_share_its_subscription() -> None:
    log, subscription = listening()
    first = anyio.CancelScope()

    async def impatient() -> None:
        with first:
            await anext(subscription)

    async with meanwhile(impatient, partial(read, subscription, 2)) as got:
        first.cancel()
        await anyio.sleep(1)
        log.preview(said("a"))
        await anyio.sleep(1)
        log.write(accepted(1))
    assert got == [None, [said("a"), log.records[0]]]


async def test_tasks_that_share_a_turns_subscription_all_hear_its_end() -> None:
    log = Log()
    subscription = log.subscribe(turn=1)
    async with meanwhile(*[partial(read_all, subscription)] * 2) as got:
        log.write(committed(1))
    assert sorted(got, key=len) == [[], log.records]


async def test_closing_a_subscription_wakes_no_task_that_waits_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log()
    first, second = log.subscribe(), log.subscribe()
    async with meanwhile(partial(read_all, first)):
        with monkeypatch.context() as patch:
            patch.setattr(WaitQueue, "wake_all", lambda _: pytest.fail("woken"))
            second.close()
        log.subscriptions.end("s")


# Tool calls


async def test_tool_uses_follow_the_record_that_asked_for_them_with_its_seq() -> None:
    log, subscription = listening()
    log.write(accepted(1), requested(1, "c1", "c2", also=["not offered"]), committed(1))
    _, record, first, second, end = await read(subscription, 5)
    assert isinstance(record, ToolsRequested)
    assert first == ToolUse(2, 1, 1, "c1", "ls", {"path": "c1"}, "caller")
    assert second == ToolUse(2, 1, 1, "c2", "ls", {"path": "c2"}, "caller")
    assert end == log.records[2]


async def test_who_falls_behind_between_two_calls_still_gets_the_second() -> None:
    log, subscription = listening()
    log.write(requested(1, "c1", "c2"))
    await read(subscription, 2)
    log.write_turns(2, 600)
    second, lagged = await read_all(subscription)
    assert isinstance(second, ToolUse)
    assert second.id == "c2"
    assert lagged == Lagged(cursor=1)


# One turn


@pytest.mark.parametrize(
    "terminal",
    [
        committed(2),
        TurnAborted(turn=2, reason="interrupt", usage=Usage()),
        TurnFailed(turn=2, cause="fatal", error="no", usage=Usage()),
    ],
    ids=["committed", "aborted", "failed"],
)
async def test_a_turns_subscription_ends_at_its_terminal_event(terminal: Record) -> None:
    log = Log()
    subscription = log.subscribe(turn=2)
    log.write(accepted(1), accepted(2))
    log.preview(said("other", turn=1), said("mine", turn=2))
    log.write(committed(1), terminal, accepted(3))
    events = await read_all(subscription)
    assert events == [log.records[1], said("mine", turn=2), log.records[3]]
    assert not log.subscriptions.has("s")


async def test_a_turn_that_has_ended_is_replayed_up_to_its_end_and_no_further() -> None:
    log = Log(page=3)
    log.write(accepted(1), accepted(2), committed(1), requested(2, "c"), committed(2), accepted(3))
    subscription = log.subscribe(after=0, turn=2)
    events = await read_all(subscription)
    assert seqs(events) == [2, 4, 4, 5]
    assert subscription.cursor == 5
    assert not log.subscriptions.has("s")


async def test_records_of_other_turns_do_not_put_a_turns_subscriber_behind() -> None:
    log = Log()
    subscription = log.subscribe(turn=9999)
    log.write_turns(1, 2000)
    log.write(accepted(9999), committed(9999))
    assert seqs(await read_all(subscription)) == [4001, 4002]


# The end


async def test_the_end_during_a_replay_waits_for_what_was_durable() -> None:
    log = Log(page=2)
    log.write_turns(1, 3)
    subscription = log.subscribe(after=0)
    log.write(accepted(4))
    log.subscriptions.end("s")
    log.write(accepted(5))  # nobody listens any more
    assert seqs(await read_all(subscription)) == [1, 2, 3, 4, 5, 6, 7]
    assert await read_all(subscription) == []


async def test_end_all_ends_the_subscribers_of_every_session() -> None:
    subscriptions = Subscriptions()
    members = [Subscription(subscriptions, name, after=0, head=0) for name in ("a", "b", "a")]
    subscriptions.end_all()
    assert [await read_all(member) for member in members] == [[], [], []]
    assert not subscriptions.has("a")
    assert not subscriptions.has("b")


@pytest.mark.parametrize("how", ["close", "end"])
async def test_a_reader_that_waits_is_told_the_end(how: str) -> None:
    log, subscription = listening()
    async with meanwhile(partial(read_all, subscription)) as got:
        await anyio.sleep(1)
        subscription.close() if how == "close" else log.subscriptions.end("s")
    assert got == [[]]


async def test_closing_stops_listening_and_forgets_what_was_not_read() -> None:
    log = Log(page=1)
    log.write_turns(1, 2)
    subscription = log.subscribe(after=0)
    log.write(requested(3, "c"))
    assert seqs(await read(subscription, 1)) == [1]
    subscription.close()
    subscription.close()
    assert not log.subscriptions.has("s")
    log.write(accepted(4))
    assert await read_all(subscription) == []


async def test_closing_while_a_page_is_on_its_way_drops_that_page() -> None:
    log = Log()
    log.write_turns(1, 2)

    async def slow_replay(after: int, up_to: int) -> Sequence[Record]:
        await anyio.sleep(2)
        return log.records[after:up_to]

    subscription = Subscription(log.subscriptions, "s", after=0, head=4, replay=slow_replay)
    async with meanwhile(partial(read_all, subscription)) as got:
        await anyio.sleep(1)
        subscription.close()
    assert got == [[]]


def test_publishing_to_nobody_does_nothing() -> None:
    log = Log()
    log.write(accepted(1))
    log.preview(said("x"))
    log.subscriptions.end("s")
    log.subscriptions.lag_all("s")
    assert not log.subscriptions.has("s")


async def test_a_cursor_passes_a_record_only_with_the_last_of_its_calls() -> None:
    log, subscription = listening()
    log.write(accepted(1), requested(1, "c1", "c2"), committed(1))
    cursors = []
    for _ in range(5):
        await read(subscription, 1)
        cursors.append(subscription.cursor)
    assert cursors == [1, 1, 1, 2, 3]
    resumed = log.subscribe(after=cursors[2])
    assert [type(event) for event in await read(resumed, 3)] == [ToolsRequested, ToolUse, ToolUse]


def test_a_subscriber_to_whom_a_record_is_missing_lags() -> None:
    subscriptions = Subscriptions()
    subscription = Subscription(subscriptions, "s", after=1, head=1)
    subscriptions.publish("s", msgspec.structs.replace(accepted(1), seq=3))
    assert isinstance(subscription._next_nowait() or Lagged(0), Lagged)
    assert not subscriptions.has("s")


def test_a_subscriber_lags_where_the_log_is_found_to_be_longer_than_it_was_told() -> None:
    subscriptions = Subscriptions()
    current, behind = (Subscription(subscriptions, "s", after=head, head=head) for head in (5, 4))
    subscriptions.reached("s", 5)
    assert subscriptions.has("s")
    subscriptions.remove("s", current)
    assert not subscriptions.has("s")
    assert behind.buffered == (0, 0)


# How many


def test_adding_and_removing_a_subscriber_touches_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a place is asked for is counted, not timed."""
    from llmsession.session.core import subscriptions as module

    asked = [0]

    class Counted(weakref.ref[Subscription]):
        def __call__(self) -> Subscription | None:
            asked[0] += 1
            return super().__call__()

    monkeypatch.setattr(module, "weakref", SimpleNamespace(ref=Counted))
    log, many = Log(), 2000
    held = [log.subscribe() for _ in range(many)]
    for subscription in held:
        subscription.close()
    assert asked[0] <= 8 * many
    assert not log.subscriptions.has("s")


def test_subscribers_that_were_dropped_without_a_close_do_not_add_up() -> None:
    log = Log()
    kept = log.subscribe()
    for _ in range(1000):
        log.subscribe()
    assert log.subscriptions.count("s") < 40
    log.write(accepted(1))
    assert log.subscriptions.count("s") == 1
    assert kept.buffered[0] == 1
