"""The text of a turn, piece by piece: every character once, or it is said that it begins anew."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import anyio
import msgspec
import pytest

from llmsession import ProviderError, StepRestarted, TextDelta, TurnAborted, TurnFailed
from llmsession.session.core import subscriptions
from llmsession.session.core.subscriptions import Event
from llmsession.session.handles.reply_text import ReplyText, TextPiece
from llmsession.testing.scripted import call, say, think
from llmsession.turns import records as r
from llmsession.turns.blocks import encode_json
from llmsession.turns.usage import Usage
from tests.session.actors import Quick, first, stage

BROKEN = ProviderError("the stream broke", kind="retryable", delay_s=1.0)


def told(pieces: Iterable[TextPiece]) -> str:
    """What a reader has who forgets what was void."""
    text = ""
    for piece in pieces:
        text = "" if isinstance(piece, StepRestarted) else text + piece
    return text


@pytest.mark.parametrize("seconds", [0, 3, 60], ids=["at once", "in mid-stream", "after its end"])
async def test_the_text_comes_once_whenever_reading_begins(seconds: float) -> None:
    async with stage([think("hm") + say("a reply of some length").slow(1, delta_chars=4)]) as on:
        turn = await on.session.send("go")
        await anyio.sleep(seconds)
        pieces = [piece async for piece in turn.stream_text()]
        assert "".join(map(str, pieces)) == "a reply of some length"


async def test_the_texts_of_all_steps_come_one_after_the_other() -> None:
    async with stage(
        [say("let me look. ") + call("t", {}, id="c"), say("done")], tool=Quick()
    ) as on:
        turn = await on.session.send("go")
        assert [piece async for piece in turn.stream_text()] == ["let me look. ", "done"]


async def test_a_step_that_is_tried_again_says_so_and_its_text_comes_anew() -> None:
    broken = say("The quick brown fox").slow(1, delta_chars=5).raising(BROKEN, at=4)
    async with stage([broken, say("The slow brown fox")]) as on:
        turn = await on.session.send("go")
        pieces = [piece async for piece in turn.stream_text()]
        position = pieces.index(StepRestarted(turn=1, step=1, attempt=2))
        assert "The quick brown fox".startswith(told(pieces[:position]))
        assert pieces[:position]
        assert told(pieces) == "The slow brown fox"


async def test_the_text_of_a_stream_keeps_closed_steps_when_a_later_step_begins_anew() -> None:
    script = [
        say("let me look. ") + call("t", {}, id="c"),
        say("The quick brown fox").slow(1, delta_chars=5).raising(BROKEN, at=4),
        say("The slow brown fox"),
    ]
    async with stage(script, tool=Quick()) as on:
        stream = (await on.session.send("go")).stream_text()
        at_restart = [stream.text async for piece in stream if isinstance(piece, StepRestarted)]
        assert at_restart == ["let me look. "]
        assert stream.text == "let me look. The slow brown fox"


async def test_the_text_of_a_stream_is_there_after_an_interrupt() -> None:
    async with stage([say("a long reply").slow(1, delta_chars=2)]) as on:
        stream = (await on.session.send("go")).stream_text()
        first_piece = await anext(stream)
        await on.session.interrupt()
        with pytest.raises(TurnAborted):
            async for _ in stream:
                pass
        assert first_piece
        assert stream.text.startswith(str(first_piece))


async def test_a_broken_stream_that_showed_nothing_is_no_restart_of_the_text() -> None:
    async with stage([say("x").raising(BROKEN), say("fine")]) as on:
        turn = await on.session.send("go")
        assert [piece async for piece in turn.stream_text()] == ["fine"]


async def test_a_subscriber_hears_at_once_that_a_step_begins_anew() -> None:
    async with stage([say("The quick brown fox").raising(BROKEN, at=4), say("again")]) as on:
        turn = await on.session.send("go")
        restarted = await first(aiter(turn), StepRestarted)
        assert restarted == StepRestarted(turn=1, step=1, attempt=2)
        assert len(on.provider.requests) == 1  # the next one waits for its delay


@pytest.mark.parametrize(
    ("reply", "error"), [(say("ab").slow(1), TurnAborted), (say("ab").raising(
        ProviderError("no", kind="fatal"), at=3), TurnFailed)],
    ids=["interrupted", "failed"],
)  # fmt: skip
async def test_text_of_which_nothing_is_kept_ends_in_the_error_that_says_so(
    reply: object, error: type[Exception]
) -> None:
    async with stage([reply]) as on:
        turn = await on.session.send("go")
        pieces = []
        with pytest.raises(error):
            async for piece in turn.stream_text():
                pieces.append(piece)
                await on.session.interrupt()
        assert pieces


async def test_a_reader_that_lags_is_told_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_DURABLE", 3)
    script = [say(f"step {number}. ") + call("t", {}, id=f"c{number}") for number in range(9)]
    async with stage([*script, say("done")], tool=Quick()) as on:
        turn = await on.session.send("go")
        pieces = []
        async for piece in turn.stream_text():
            pieces.append(piece)
            await anyio.sleep(5)
        assert pieces == [*(f"step {number}. " for number in range(9)), "done"]


async def test_leaving_the_loop_interrupts_nothing() -> None:
    async with stage([say("a long reply").slow(1, delta_chars=2)]) as on:
        turn = await on.session.send("go")
        async for _ in turn.stream_text():
            break
        assert await turn.text() == "a long reply"


# The reader alone, with whatever events may come.


def reply(text: str) -> r.AssistantReply:
    return r.AssistantReply(
        body=msgspec.Raw(encode_json([{"type": "text", "text": text}] if text else [])),
        started_at=0.0,
    )


def cut(random: Random, text: str) -> list[str]:
    """*text* in pieces."""
    pieces = []
    while text:
        length = random.randint(1, 5)
        pieces.append(text[:length])
        text = text[length:]
    return pieces


def random_turn(random: Random) -> tuple[list[Event], str]:
    """The events of a turn: attempts that break, previews that are lost; and its whole text."""
    events: list[Event] = []
    whole, seq = "", 1
    steps = random.randint(1, 4)
    for step in range(1, steps + 1):
        for attempt in range(1, random.randint(1, 4)):
            events += [
                TextDelta(1, step, attempt, 0, piece) for piece in cut(random, "void" * attempt)
            ]
            if random.random() < 0.7:  # else it was lost with a connection
                events.append(StepRestarted(1, step, attempt + 1))
        attempt, text = 9, "".join(random.choices("abc", k=random.randint(0, 20)))
        lost = random.choice((0.0, 0.0, 0.3, 1.0))
        events += [
            TextDelta(1, step, attempt, 0, piece)
            for piece in cut(random, text)
            if random.random() >= lost
        ]
        seq += 1
        is_last = step == steps
        events.append(
            r.TurnCommitted(
                turn=1, seq=seq, stop_reason="end_turn", usage=Usage(), reply=reply(text)
            )
            if is_last
            else r.StepCompleted(turn=1, seq=seq, step=step, reply=reply(text))
        )
        whole += text
    return events, whole


def test_what_comes_again_after_a_lag_is_not_told_again() -> None:
    reader = ReplyText()
    pieces = list(reader.read(TextDelta(1, 1, 1, 0, "ab")))
    reader.lagged()
    for text in ("a", "bc", "d"):
        pieces += reader.read(TextDelta(1, 1, 1, 0, text))
    assert pieces == ["ab", "c", "d"]


def come_again(events: list[Event]) -> list[Event]:
    """What who begins anew after *events* gets: the records, and the step's text so far."""
    records: list[Event] = [event for event in events if isinstance(event, r.RecordBase)]
    newest = events[-1] if events else None
    if not isinstance(newest, TextDelta):
        return records
    place = (newest.step, newest.attempt)
    deltas = [event for event in events if isinstance(event, TextDelta)]
    so_far = [delta.text for delta in deltas if (delta.step, delta.attempt) == place]
    return [*records, TextDelta(1, *place, 0, "".join(so_far))]


@pytest.mark.parametrize("seed", range(300))
def test_whatever_is_lost_or_comes_again_the_text_is_that_of_the_records(seed: int) -> None:
    random = Random(seed)
    events, whole = random_turn(random)
    lags = random.randrange(2 * len(events))  # in every other run it lags somewhere
    reader, closed, step_text = ReplyText(), "", ""

    def read(event: Event) -> None:
        nonlocal step_text
        for piece in reader.read(event):
            step_text = "" if isinstance(piece, StepRestarted) else step_text + piece

    for position, event in enumerate(events):
        if position == lags:
            reader.lagged()
            for again in come_again(events[:position]):
                read(again)
        read(event)
        if isinstance(event, r.RecordBase):
            closed, step_text = closed + step_text, ""
    assert closed == whole
