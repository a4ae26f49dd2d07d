"""A provider that plays recorded replies as a live stream."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from llmsession.errors import InvalidConfig, InvalidInput, ProviderError
from llmsession.providers import Provider, ReplayProvider
from llmsession.transcripts import read
from llmsession.turns.blocks import block_type, encode_blocks, encode_json, join_blocks
from llmsession.turns.messages import Message
from llmsession.turns.request import Profile, Request, StepTag
from llmsession.turns.stream import BlockDelta, ReplyStarted, StreamEvent
from llmsession.turns.usage import Usage
from tests.providers.asked import reply

REQUEST = Request(model="m", max_tokens=100, messages=())
Said = str | Sequence[Mapping[str, Any]]

THINKING = {"type": "thinking", "thinking": "hm …", "signature": "c2lnbmVk+/=="}
ODD_BLOCKS: list[dict[str, Any]] = [
    THINKING,
    {"type": "redacted_thinking", "data": "b3BhcXVl"},
    {"type": "text", "text": 'é "quoted" \n\t\u0000 🙂 漢', "citations": [{"cited_text": "x"}]},
    {"type": "text", "text": ""},
    {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"q": "x"}},
    {"type": "from_the_future", "z": [1, {"a": None}], "b": 1.50},
    {"type": "tool_use", "id": "c1", "name": "ls", "input": {"path": "a b", "n": [1]}, "caller": 1},
    {"type": "tool_use", "id": "c2", "name": "ls", "input": {}},
]


def message(turn: int, role: str, said: Said, **fields: Any) -> Message:
    body = encode_blocks(said)
    return Message(id=f"{role}{turn}", session="s", turn=turn, role=role, body=body, **fields)  # type: ignore[arg-type]  # one of the two roles


def recording(*turns: Sequence[Said]) -> list[Message]:
    """A user message and the given replies, for each turn. Recorded turns start at 5."""
    messages = []
    for turn, replies in enumerate(turns, 5):
        messages.append(message(turn, "user", "go on"))
        messages += [message(turn, "assistant", said) for said in replies]
    return messages


THREE_TURNS = recording(["one"], ["two a", "two b", "two c"], ["three"])


async def play(provider: Provider, turn: int, step: int = 1, attempt: int = 1) -> list[StreamEvent]:
    with anyio.fail_after(1000):
        return [event async for event in provider.stream(REQUEST, StepTag(turn, step, attempt))]


async def text(provider: Provider, turn: int, step: int = 1, attempt: int = 1) -> str:
    (raw,) = reply(await play(provider, turn, step, attempt)).blocks
    return str(json.loads(raw)["text"])


def test_it_is_a_provider_with_the_profile_it_was_given() -> None:
    provider: Provider = ReplayProvider([])
    assert (provider.name, provider.profile("any").name) == ("replay", "replay")
    profile = Profile(name="p", prefill=True)
    assert ReplayProvider([], profile=profile).profile("any") is profile


async def test_it_plays_turn_by_turn_and_step_by_step() -> None:
    provider = ReplayProvider(THREE_TURNS)
    assert await text(provider, 1) == "one"
    assert [await text(provider, 2, step) for step in (1, 2, 3)] == ["two a", "two b", "two c"]
    assert await text(provider, 3) == "three"


async def test_a_request_beside_all_turns_takes_no_recorded_reply() -> None:
    provider = ReplayProvider(THREE_TURNS)
    with pytest.raises(ProviderError, match="cannot write summaries"):
        await play(provider, 0)
    assert await text(provider, 1) == "one"


async def test_turn_numbers_may_have_gaps() -> None:
    provider = ReplayProvider(THREE_TURNS)
    assert [await text(provider, turn) for turn in (4, 7, 19)] == ["one", "two a", "three"]


async def test_a_further_attempt_gets_the_same_reply_again() -> None:
    provider = ReplayProvider(THREE_TURNS)
    await play(provider, 1)
    first = await play(provider, 2, 2, attempt=1)
    assert await play(provider, 2, 2, attempt=2) == first
    assert await text(provider, 2, 3, attempt=7) == "two c"


async def test_after_a_rewind_the_next_new_turn_plays_an_earlier_recorded_turn() -> None:
    provider = ReplayProvider(THREE_TURNS)
    assert [await text(provider, turn) for turn in (1, 2)] == ["one", "two a"]
    provider.rewind(1)
    assert await text(provider, 2, 2) == "two b"  # an open turn goes on
    assert [await text(provider, turn) for turn in (3, 4)] == ["two a", "three"]
    with pytest.raises(InvalidInput, match="counts from 0, got -1"):
        provider.rewind(-1)


async def test_deltas_have_the_size_that_was_asked_for() -> None:
    said = [THINKING, {"type": "text", "text": "0123456789"}]
    for size, expected in ((4, ["0123", "4567", "89"]), (10, ["0123456789"]), (1, [*"0123456789"])):
        events = await play(ReplayProvider(recording([said]), delta_chars=size), 1)
        deltas = [event for event in events if isinstance(event, BlockDelta)]
        assert [delta.text for delta in deltas if delta.index == 1] == expected
        assert {delta.kind for delta in deltas if delta.index == 0} == {"thinking"}


async def test_the_delay_passes_before_each_delta_and_before_nothing_else() -> None:
    provider = ReplayProvider(recording(["0123456789"]), delta_chars=2, delay_s=60)
    start = anyio.current_time()
    times = []
    async for event in provider.stream(REQUEST, StepTag(1, 1, 1)):
        times.append((isinstance(event, BlockDelta), round(anyio.current_time() - start)))
    deltas = [(True, 60 * at) for at in range(1, 6)]
    assert times == [(False, 0), (False, 0), *deltas, (False, 300), (False, 300)]


@pytest.mark.parametrize(("turn", "step"), [(4, 1), (1, 2)], ids=["turn", "step"])
async def test_beyond_the_recording_it_never_answers(turn: int, step: int) -> None:
    provider = ReplayProvider(THREE_TURNS)
    for earlier in range(1, turn):
        await play(provider, earlier)
    with anyio.move_on_after(10_000) as scope:
        async for event in provider.stream(REQUEST, StepTag(turn, step, 1)):
            raise AssertionError(event)
    assert scope.cancelled_caught


async def test_beyond_the_recording_it_fails_where_that_was_asked_for() -> None:
    provider = ReplayProvider(THREE_TURNS, exhausted="fail")
    with pytest.raises(ProviderError, match="no reply for step 2") as caught:
        await play(provider, 1, 2)
    assert caught.value.kind == "fatal"
    assert await text(provider, 2) == "two a"


@pytest.mark.parametrize("size", [1, 7, 48, 10_000])
async def test_blocks_come_out_byte_for_byte(size: int) -> None:
    recorded = recording([ODD_BLOCKS])
    made = reply(await play(ReplayProvider(recorded, delta_chars=size), 1))
    assert [bytes(raw) for raw in made.blocks] == [encode_json(block) for block in ODD_BLOCKS]
    assert join_blocks(made.blocks) == recorded[1].body


async def test_model_usage_and_stop_reason_are_the_recorded_ones() -> None:
    usage = Usage(input_tokens=3, output_tokens=4, cache_read_tokens=5)
    recorded = [
        message(1, "user", "hi"),
        message(1, "assistant", "ho", model="m-1", usage=usage, stop_reason="max_tokens"),
    ]
    events = await play(ReplayProvider(recorded), 1)
    assert events[0] == ReplyStarted("m-1", usage)
    made = reply(events)
    assert (made.model, made.usage, made.stop_reason) == ("m-1", usage, "max_tokens")


async def test_a_stop_reason_that_was_not_recorded_is_read_off_the_calls() -> None:
    provider = ReplayProvider(recording([ODD_BLOCKS, "done"]))
    assert reply(await play(provider, 1, 1)).stop_reason == "tool_use"
    assert reply(await play(provider, 1, 2)).stop_reason == "end_turn"


@pytest.mark.parametrize(
    "block",
    [
        {"type": "tool_use", "id": "c", "name": "ls"},
        {"type": "thinking", "signature": "x"},
        {"type": "text", "text": None},
    ],
    ids=["no input", "no thinking", "no text"],
)
async def test_a_block_with_nothing_to_stream_is_sent_whole(block: dict[str, Any]) -> None:
    provider = ReplayProvider(recording([[block]]))
    assert reply(await play(provider, 1)).blocks == (encode_json(block),)


@pytest.mark.parametrize("delay_s", [0.0, 1.0])
async def test_cancellation_lands_at_every_delta_and_closes_the_stream(delay_s: float) -> None:
    recorded = recording(["0123456789"])
    total = 10
    for stop_at in range(total):
        provider = ReplayProvider(recorded, delta_chars=1, delay_s=delay_s)
        stream = provider.stream(REQUEST, StepTag(1, 1, 1))
        seen = 0
        with anyio.CancelScope() as scope:
            async for event in stream:
                if not isinstance(event, BlockDelta):
                    if stop_at == 0:
                        scope.cancel()
                    continue
                seen += 1
                if seen == stop_at:
                    scope.cancel()
        assert scope.cancelled_caught
        assert seen == stop_at
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        assert await text(provider, 1, attempt=2) == "0123456789"


async def test_a_long_reply_lets_others_run_between_its_deltas() -> None:
    provider = ReplayProvider(recording(["x" * 1000]), delta_chars=1)
    others = 0

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        await play(provider, 1)
        group.cancel_scope.cancel()
    assert others >= 500


@pytest.mark.parametrize(
    "options", [{"delta_chars": 0}, {"delay_s": -1.0}, {"exhausted": "loop"}], ids=str
)
def test_a_configuration_that_cannot_work_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=str(next(iter(options.values())))):
        ReplayProvider([], **options)


async def test_recorded_sessions_play_with_the_same_content_in_every_block(
    shared_data: Path,
) -> None:
    kinds: set[str] = set()
    for path in sorted((shared_data / "claude-code-entireio-cli").glob("*.jsonl")):
        for conversation in read(path.read_bytes()):
            provider = ReplayProvider(conversation.messages, delta_chars=500)
            for number, turn in enumerate(conversation.turns, 1):
                replies = [recorded for recorded in turn if recorded.is_assistant]
                for step, recorded in enumerate(replies, 1):
                    made = reply(await play(provider, number, step))
                    assert join_blocks(made.blocks) == recorded.body
                    kinds |= {block_type(raw) for raw in made.blocks}
                if not replies:
                    provider.rewind(number)
    assert {"text", "tool_use", "thinking"} <= kinds


async def test_a_shared_replay_plays_every_session_the_same_by_its_turns() -> None:
    provider = ReplayProvider(THREE_TURNS, shared=True)
    assert await text(provider, 2, step=3) == "two c"
    assert await text(provider, 1) == "one"  # of another session, or of one that came back
    assert await text(provider, 2) == "two a"


async def test_a_recording_that_repeats_begins_again_after_its_last_turn() -> None:
    provider = ReplayProvider(THREE_TURNS, shared=True, exhausted="repeat")
    assert [await text(provider, turn) for turn in (3, 4, 6)] == ["three", "one", "three"]


async def test_a_recording_that_repeats_says_its_last_words_again_in_a_step_too_many() -> None:
    provider = ReplayProvider(THREE_TURNS, shared=True, exhausted="repeat")
    assert [await text(provider, 2, step=step) for step in (3, 4, 9)] == ["two c"] * 3


CALL = {"type": "tool_use", "id": "c", "name": "bash", "input": {}}


async def test_a_recorded_turn_that_ends_in_calls_has_no_last_words_to_repeat() -> None:
    calls = [message(1, "user", "hi"), message(1, "assistant", [CALL])]
    provider = ReplayProvider(calls, exhausted="repeat")
    with pytest.raises(ProviderError, match="no reply for step 2") as caught:
        await play(provider, 1, 2)
    assert caught.value.kind == "fatal"
