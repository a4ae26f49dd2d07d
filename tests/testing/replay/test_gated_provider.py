"""The gate before the recorded replies, and the interrupts at its stream."""

from __future__ import annotations

import anyio
import pytest
from anyio.lowlevel import checkpoint

from llmsession.providers.replay import ReplayProvider
from llmsession.testing.replay.gated_provider import (
    RECORDED,
    GatedProvider,
    PlannedInterrupt,
    ReplayedTurn,
    RequestWatch,
)
from llmsession.testing.replay.recorded_turns import read_turns
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.request import Profile, Request, RequestMessage, StepTag
from llmsession.turns.stream import BlockDelta, ReplyEnded, StreamEvent
from tests.testing.conversations import recording, text

SAID = recording([[text("a")], [text("first")]], [[text("b")], [text("second")]])
FIRST, SECOND = read_turns(SAID)
REQUEST = Request(
    model="m", max_tokens=1, messages=(RequestMessage("user", encode_blocks([text("a")])),)
)


@pytest.fixture
def watch() -> RequestWatch:
    return RequestWatch(Profile())


@pytest.fixture
def stage(watch: RequestWatch) -> GatedProvider:
    return GatedProvider(ReplayProvider(SAID.messages, delta_chars=1), watch)


async def read(stage: GatedProvider, turn: int, into: list[StreamEvent], step: int = 1) -> None:
    async for event in stage.stream(REQUEST, StepTag(turn, step, 1)):
        into.append(event)


def said(events: list[StreamEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, BlockDelta))


async def test_a_turn_waits_until_its_own_play_is_put_on(
    stage: GatedProvider, watch: RequestWatch
) -> None:
    early: list[StreamEvent] = []
    other: list[StreamEvent] = []
    async with anyio.create_task_group() as group:
        group.start_soon(read, stage, 7, early)
        group.start_soon(read, stage, 8, other)
        for _ in range(5):
            await checkpoint()
        assert watch.requests == 2
        stage.start_turn(ReplayedTurn(SECOND, 8, {}))
        await anyio.sleep(1)
        assert (early, said(other)) == ([], "second")
        stage.start_turn(ReplayedTurn(FIRST, 7, {}))
    assert said(early) == "first"


async def test_a_turn_that_is_sent_again_has_the_same_replies(stage: GatedProvider) -> None:
    for turn in (1, 2):
        events: list[StreamEvent] = []
        stage.start_turn(ReplayedTurn(SECOND, turn, {}))
        await read(stage, turn, events)
        assert said(events) == "second"


async def test_a_held_interrupt_stops_the_stream_after_its_deltas(stage: GatedProvider) -> None:
    planned = PlannedInterrupt(point="streaming", policy="drop_turn", deltas=3, held=True)
    play = ReplayedTurn(FIRST, 1, {1: planned})
    events: list[StreamEvent] = []
    stage.start_turn(play)
    with anyio.move_on_after(5) as waited:
        await read(stage, 1, events)
    assert waited.cancelled_caught
    assert said(events) == "fir"
    assert await play.wait_interrupt() is planned


async def test_an_interrupt_at_the_end_is_asked_for_before_the_end_is_told(
    stage: GatedProvider,
) -> None:
    planned = PlannedInterrupt(point="ending", policy="keep_text")
    play = ReplayedTurn(FIRST, 1, {1: planned})
    stage.start_turn(play)
    async for event in stage.stream(REQUEST, StepTag(1, 1, 1)):
        assert (play.requested is planned) == isinstance(event, ReplyEnded)


async def test_beyond_the_recording_the_recorded_interrupt_is_asked_for(
    stage: GatedProvider,
) -> None:
    play = ReplayedTurn(FIRST, 1, {})
    events: list[StreamEvent] = []
    stage.start_turn(play)
    with anyio.move_on_after(5):
        await read(stage, 1, events, step=2)
    assert (play.requested, events) == (RECORDED, [])


def test_a_planned_interrupt_is_met_once_also_by_a_turn_that_is_sent_again() -> None:
    interrupts = {1: PlannedInterrupt(point="tools", policy="drop_turn")}
    first, again = ReplayedTurn(FIRST, 1, interrupts), ReplayedTurn(FIRST, 2, interrupts)
    assert first.take_planned(1, "streaming", "ending") is None
    assert first.take_planned(1, "tools") is not None
    assert again.take_planned(1, "tools") is None


async def test_only_the_first_interrupt_of_a_play_counts_and_none_after_its_end() -> None:
    play = ReplayedTurn(FIRST, 1, {})
    planned = PlannedInterrupt(point="asked", policy="drop_turn")
    play.interrupt(planned)
    play.interrupt(RECORDED)
    assert await play.wait_interrupt() is planned
    over = ReplayedTurn(FIRST, 1, {})
    over.over()
    over.interrupt(planned)
    assert await over.wait_interrupt() is None
