"""What goes wrong with an answer goes wrong at the byte that it was told."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsession.testing.strict_server.model.faults import (
    Break,
    End,
    Head,
    Pause,
    Send,
    Step,
    WireFault,
    spoiled,
)
from llmsession.testing.strict_server.script import FaultSchedule, RandomFaults
from tests.testing.strict_server.requests import received

ANSWER: list[Step] = [Head(200, ()), Send(b"abc"), Pause(1.0), Send(b"def"), End()]


def spoil(fault: WireFault) -> list[Step]:
    return spoiled(ANSWER, fault, error_event=b"ERROR", ping=b"PING")


def test_a_cut_falls_at_its_byte_and_nothing_comes_after_it() -> None:
    assert spoil(WireFault.cut(4)) == [
        Head(200, ()), Send(b"abc"), Pause(1.0), Send(b"d"), Break(False),
    ]  # fmt: skip


def test_a_cut_or_reset_without_bytes_comes_before_all_else() -> None:
    assert spoil(WireFault.cut()) == [Break(False)]
    assert spoil(WireFault.reset()) == [Break(True)]
    assert spoil(WireFault.reset(0)) == [Head(200, ()), Break(True)]


def test_a_cut_after_the_last_byte_leaves_out_only_the_end() -> None:
    assert spoil(WireFault.cut(6)) == spoil(WireFault.cut(99)) == [*ANSWER[:-1], Break(False)]


def test_a_stall_falls_at_its_byte_and_all_goes_on() -> None:
    assert spoil(WireFault.stall(9.0, after_bytes=1)) == [
        Head(200, ()), Send(b"a"), Pause(9.0), Send(b"bc"), *ANSWER[2:],
    ]  # fmt: skip
    assert spoil(WireFault.stall(9.0)) == [Pause(9.0), *ANSWER]
    assert spoil(WireFault.stall())[0] == Pause(math.inf)


def test_an_error_event_ends_the_stream_after_its_events() -> None:
    said = [Send(b"ERROR"), End()]
    assert spoil(WireFault.error_event(after_events=0)) == [Head(200, ()), *said]
    assert spoil(WireFault.error_event(after_events=1)) == [*ANSWER[:3], *said]
    assert spoil(WireFault.error_event(after_events=9)) == [*ANSWER[:-1], *said]


def test_pings_come_between_events() -> None:
    assert [step.body for step in spoil(WireFault.pings()) if isinstance(step, Send)] == [
        b"abc", b"PING", b"def", b"PING",
    ]  # fmt: skip
    every_second = [step for step in spoil(WireFault.pings(2)) if isinstance(step, Send)]
    assert [step.body for step in every_second] == [b"abc", b"def", b"PING"]


@given(st.lists(st.binary(min_size=1, max_size=6), max_size=5), st.integers(0, 40))
def test_at_every_byte_what_was_sent_is_a_prefix(bodies: list[bytes], after: int) -> None:
    whole = b"".join(bodies)
    steps: list[Step] = [Head(200, ()), *map(Send, bodies), End()]
    cut = spoiled(steps, WireFault.cut(after), error_event=b"", ping=b"")
    sent = b"".join(step.body for step in cut if isinstance(step, Send))
    assert sent == whole[:after]
    assert cut[-1] == Break(False)
    stalled = spoiled(steps, WireFault.stall(1.0, after_bytes=after), error_event=b"", ping=b"")
    assert b"".join(step.body for step in stalled if isinstance(step, Send)) == whole
    assert stalled[-1] == End()
    assert stalled.count(Pause(1.0)) == 1


@pytest.mark.parametrize(
    ("fault", "status", "kind"),
    [
        (WireFault.rate_limited(), 429, "rate_limit_error"),
        (WireFault.overloaded(), 529, "overloaded_error"),
        (WireFault.server_error(), 500, "api_error"),
    ],
)
def test_refusals_are_in_the_words_of_each_api(fault: WireFault, status: int, kind: str) -> None:
    refusal = fault.refusal("messages")
    assert refusal is not None
    assert (refusal.status, refusal.kind) == (status, kind)
    other = fault.refusal("completions")
    assert other is not None
    assert other.status == (503 if status == 529 else status)
    assert WireFault.cut().refusal("messages") is None


def test_a_time_to_wait_is_said_in_seconds_and_in_milliseconds() -> None:
    refusal = WireFault.rate_limited(1.5).refusal("messages")
    assert refusal is not None
    assert refusal.headers() == [("retry-after", "2"), ("retry-after-ms", "1500")]
    silent = WireFault.rate_limited().refusal("messages")
    assert silent is not None
    assert silent.headers() == []


def test_what_keeps_a_reply_from_its_client_is_known() -> None:
    assert WireFault.cut(1).loses_the_reply
    assert WireFault.stall().loses_the_reply
    assert not WireFault.stall(3.0).loses_the_reply
    assert not WireFault.pings().loses_the_reply


def test_listed_faults_come_in_order_and_then_none() -> None:
    book = FaultSchedule([None, WireFault.cut()])
    assert [book.choose(received()) for _ in range(3)] == [None, WireFault.cut(), None]


def test_a_function_is_asked_with_what_was_received() -> None:
    book = FaultSchedule(lambda request: WireFault.cut() if request.conversation == "a" else None)
    assert book.choose(received("a")) == WireFault.cut()
    assert book.choose(received("b")) is None
    assert FaultSchedule(None).choose(received()) is None


def chances(faults: RandomFaults, conversations: list[str]) -> list[Any]:
    book = FaultSchedule(faults)
    return [book.choose(received(conversation)) for conversation in conversations]


def test_chance_depends_on_the_seed_the_conversation_and_its_count_alone() -> None:
    faults = RandomFaults(seed=3, rate=0.5)
    alone = chances(faults, ["a"] * 50)
    mixed = chances(faults, ["a", "b"] * 50)
    assert mixed[::2] == alone
    assert mixed[1::2] != alone
    assert chances(RandomFaults(seed=4, rate=0.5), ["a"] * 50) != alone
    assert 10 < sum(fault is not None for fault in alone) < 40


def test_chance_keeps_its_rate_and_uses_every_kind() -> None:
    assert chances(RandomFaults(seed=1, rate=0.0), ["a"] * 100) == [None] * 100
    met = chances(RandomFaults(seed=1, rate=1.0), ["a"] * 300)
    assert {fault.kind for fault in met} == {"refuse", "stall", "cut", "reset", "error_event"}
