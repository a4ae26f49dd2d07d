"""What waits for a connection is bounded in bytes, and previews give way first."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from llmsession import TextDelta
from llmsession.transport.server.limits import LoopLag, RateLimit
from llmsession.transport.server.outbox import Outbox
from llmsession.transport.wire import messages as w
from llmsession.transport.wire.framing import decode_from_server
from tests.transport.places import until


def delta(text: str, index: int = 0, attempt: int = 1) -> TextDelta:
    return TextDelta(1, 1, attempt, index, text)


def filled(limit: int = 1000) -> tuple[Outbox, list[int]]:
    woken: list[int] = []
    outbox = Outbox(limit, lambda: woken.append(1))
    for subscription in (1, 2):
        outbox.begin(subscription, 0)
    return outbox, woken


def taken(outbox: Outbox) -> list[w.Event | bytes]:
    told: list[w.Event | bytes] = []
    while (frame := outbox.take()) is not None:
        try:
            message = decode_from_server(frame)
        except Exception:
            told.append(frame)
        else:
            assert isinstance(message, w.Event)
            told.append(message)
    return told


def test_previews_of_a_block_are_merged_while_they_wait() -> None:
    outbox, woken = filled()
    outbox.offer_preview(1, "s", delta("ab"), 0)
    outbox.offer_preview(2, "t", delta("xy"), 0)
    outbox.offer_preview(1, "s", delta("cd"), 2)
    outbox.offer_preview(1, "s", delta("ef", index=1), 0)
    events = taken(outbox)
    told = [(event.subscription, event.offset, msgspec.json.decode(event.body)["text"])
            for event in events if isinstance(event, w.Event)]  # fmt: skip
    assert told == [(1, 0, "abcd"), (2, 0, "xy"), (1, 0, "ef")]
    assert outbox.bytes == 0
    assert woken == [1]


def test_previews_are_not_merged_across_a_durable_event_a_gap_or_an_attempt() -> None:
    outbox, _ = filled()
    outbox.offer_preview(1, "s", delta("a"), 0)
    assert outbox.offer(1, 5, b"record")
    outbox.offer_preview(1, "s", delta("b"), 1)
    outbox.offer_preview(1, "s", delta("c"), 3)
    outbox.offer_preview(1, "s", delta("d", attempt=2), 4)
    assert [event if isinstance(event, bytes) else event.offset for event in taken(outbox)] == [
        0,
        b"record",
        1,
        3,
        4,
    ]


def test_previews_are_lost_first_and_a_durable_event_that_does_not_fit_is_refused() -> None:
    outbox, _ = filled(limit=1000)
    for number in range(200):
        outbox.offer_preview(1, "s", delta("x" * 10), 10 * number)
    assert outbox.bytes == 500
    assert outbox.previews_lost == 150
    assert outbox.offer(1, 1, b"r" * 400)
    assert not outbox.offer(1, 2, b"r" * 400)
    outbox.put(b"a" * 5000)  # answers are always taken


def test_what_is_larger_than_the_limit_is_taken_where_nothing_waits() -> None:
    outbox, _ = filled(limit=100)
    assert outbox.offer(1, 1, b"r" * 1000)
    assert not outbox.offer(1, 2, b"r")
    assert outbox.take() == b"r" * 1000
    assert outbox.offer(1, 2, b"r")


def test_a_subscription_that_ends_leaves_what_was_sent_and_takes_the_rest_along() -> None:
    outbox, _ = filled()
    for seq in (3, 4, 5):
        assert outbox.offer(1, seq, b"one")
        assert outbox.offer(2, seq, b"two")
    assert (outbox.take(), outbox.take(), outbox.take()) == (b"one", b"two", b"one")
    outbox.offer_preview(1, "s", delta("x"), 0)
    assert outbox.end(1) == 4
    assert taken(outbox) == [b"two", b"two"]
    assert outbox.bytes == 0


def test_it_wakes_once_for_what_waits_and_again_when_all_was_taken() -> None:
    outbox, woken = filled()
    outbox.put(b"a")
    outbox.put(b"b")
    assert len(woken) == 1
    outbox.take()
    outbox.put(b"c")
    assert len(woken) == 1
    outbox.take()
    outbox.take()  # whoever took the last one need not ask once more
    outbox.put(b"d")
    assert len(woken) == 2


def test_it_counts_what_waits_whatever_comes_and_goes() -> None:
    chance = random.Random(3)
    outbox, _ = filled(limit=500)
    for number in range(3000):
        match chance.randrange(5):
            case 0:
                outbox.put(b"p" * chance.randrange(1, 50))
            case 1:
                outbox.offer(chance.choice((1, 2)), number, b"r" * chance.randrange(1, 50))
            case 2:
                outbox.offer_preview(1, "s", delta("x" * chance.randrange(1, 9)), number)
            case 3:
                outbox.take()
            case _:
                outbox.end(chance.choice((1, 2)))
        assert outbox.bytes >= 0
    taken(outbox)
    assert outbox.bytes == 0


async def test_who_waits_for_room_is_let_in_when_there_is_some() -> None:
    outbox, _ = filled(limit=1000)
    for _ in range(4):
        outbox.put(b"x" * 200)
    waiting = asyncio.ensure_future(outbox.wait_for_room(800))
    await asyncio.sleep(0)
    for left in (600, 400, 200):
        assert not waiting.done()
        outbox.take()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert outbox.bytes == left
    async with asyncio.timeout(100):
        await waiting


def test_a_rate_is_kept_and_a_burst_is_twice_that() -> None:
    now = [100.0]
    rate = RateLimit(10.0, lambda: now[0])
    assert [rate.take() for _ in range(20)] == [None] * 20
    wait_s = rate.take()
    assert wait_s is not None
    assert 0 < wait_s <= 0.1
    now[0] += wait_s + 1e-9
    assert rate.take() is None
    assert rate.take() is not None
    unlimited = RateLimit(None, lambda: now[0])
    assert [unlimited.take() for _ in range(1000)] == [None] * 1000


@pytest.mark.parametrize("anyio_backend", [("asyncio", {})])  # a clock that sees it
async def test_a_loop_that_is_held_up_is_seen_to_be_late() -> None:
    ticks: list[float] = []
    lag = LoopLag(lambda: ticks.append(lag.lag_s), every_s=0.01)
    lag.start()
    try:
        async with asyncio.timeout(100):
            await until(lambda: len(ticks) >= 3)
            late = asyncio.get_running_loop().time() + 0.15
            while asyncio.get_running_loop().time() < late:
                pass  # what a slow callback does to all others
            seen = len(ticks)
            await until(lambda: len(ticks) > seen)
            assert ticks[seen] >= 0.1  # a later one may have halved it since
            await until(lambda: lag.lag_s < 0.05)
    finally:
        lag.stop()


def test_subscriptions_that_end_while_much_waits_touch_what_waits_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from llmsession.transport.server import outbox as module

    looked = [0]
    is_skipped = module._is_skipped

    def counted(item: Any) -> bool:
        looked[0] += 1
        return is_skipped(item)

    monkeypatch.setattr(module, "_is_skipped", counted)
    outbox, many = Outbox(1 << 22, lambda: None), 2000
    for number in range(many):
        outbox.begin(number, 0)
        assert outbox.offer(number, 1, b"%d" % number)
        outbox.put(b"answer")
    for number in range(0, many, 2):
        assert outbox.end(number) == 0
    left = [frame for frame in taken(outbox) if frame != b"answer"]
    assert left == [b"%d" % number for number in range(1, many, 2)]
    for number in range(1, many, 2):
        assert outbox.end(number) == 1
    assert looked[0] <= 8 * many


def test_what_ended_while_nobody_reads_is_not_kept() -> None:
    outbox = Outbox(10_000, lambda: None)
    outbox.put(b"first")
    for number in range(100):
        outbox.begin(number, 0)
        assert outbox.offer(number, 1, b"x" * 2000)
        outbox.end(number)
    assert len(outbox) == 1
    assert sum(len(getattr(item, "frame", b"")) for item in outbox._items) <= 2500 + 2000
    woken: list[int] = []
    outbox._wake = lambda: woken.append(1)
    outbox.take()
    outbox.put(b"next")
    assert woken == [1]
