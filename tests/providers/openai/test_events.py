"""Chat completion chunks into our events, as OpenAI and as compatible servers send them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession import ProviderError, Usage
from llmsession.providers.classify import classify
from llmsession.providers.failures import StreamFault
from llmsession.providers.openai.events import FINISH_REASONS, OpenAIEvents
from llmsession.turns.stop import Follow, stop_rule
from llmsession.turns.stream import ReplyStarted, StreamEvent, UsageReported
from tests.providers.asked import reply


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "model": "m-1",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def calling(
    index: int | None = 0, *, id: str | None = None, name: str | None = None, arguments: Any = None
) -> dict[str, Any]:
    call: dict[str, Any] = {"function": {}}
    if index is not None:
        call["index"] = index
    if id is not None:
        call["id"] = id
    if name is not None:
        call["function"]["name"] = name
    if arguments is not None:
        call["function"]["arguments"] = arguments
    return chunk(tool_calls=[call])


DONE = "[DONE]"


def read(*chunks: dict[str, Any] | str, reader: OpenAIEvents | None = None) -> list[StreamEvent]:
    reader = reader or OpenAIEvents()
    found: list[StreamEvent] = []
    for each in chunks:
        found += reader.read(each if isinstance(each, str) else json.dumps(each))
    return found


def blocks(*chunks: dict[str, Any] | str, reader: OpenAIEvents | None = None) -> list[Any]:
    return [json.loads(raw) for raw in reply(read(*chunks, reader=reader)).blocks]


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def use(call_id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def test_text_arrives_and_usage_comes_behind_the_finish() -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
    }
    events = read(
        chunk(role="assistant", content=""),
        chunk(content="hel"),
        chunk(content="lo"),
        chunk("stop"),
        {"model": "m-1", "choices": [], "usage": usage},
        DONE,
    )
    whole = reply(events)
    assert isinstance(events[0], ReplyStarted)
    assert whole.model == "m-1"
    assert [json.loads(raw) for raw in whole.blocks] == [text("hello")]
    assert whole.stop_reason == "end_turn"
    # Their prompt counts cached tokens, ours does not.
    assert whole.usage == Usage(30, 7, 60, 10)
    assert whole.usage.prompt_tokens == 100


def test_parallel_calls_are_put_together_by_index_also_when_they_interleave() -> None:
    found = blocks(
        chunk(content="I look."),
        calling(0, id="a", name="ls", arguments=""),
        calling(1, id="b", name="cat", arguments='{"pa'),
        calling(0, arguments='{"path": "."}'),
        calling(1, arguments='th": "x"}'),
        chunk("tool_calls"),
        DONE,
    )
    assert found == [text("I look."), use("a", "ls", path="."), use("b", "cat", path="x")]


ODD_CALLS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "without an index": (
        [
            calling(None, id="a", name="f", arguments='{"n":'),
            calling(None, arguments="1}"),
            calling(None, id="b", name="f", arguments='{"n":2}'),
        ],
        [use("a", "f", n=1), use("b", "f", n=2)],
    ),
    "all under index 0": (
        [
            calling(0, id="a", name="f", arguments='{"n":1}'),
            calling(0, id="b", name="f", arguments='{"n":2}'),
        ],
        [use("a", "f", n=1), use("b", "f", n=2)],
    ),
    "without ids": (
        [calling(0, name="f", arguments="{}"), calling(1, name="g", arguments="{}")],
        [use("call_1", "f"), use("call_2", "g")],
    ),
    "with empty ids": (
        [calling(0, id="", name="f", arguments="{}"), calling(0, id="", arguments="")],
        [use("call_1", "f")],
    ),
    "the name repeated on every chunk": (
        [
            calling(0, id="a", name="f", arguments='{"n":'),
            calling(0, id="a", name="f", arguments="1}"),
        ],
        [use("a", "f", n=1)],
    ),
    "arguments before the name": (
        [calling(0, id="a", arguments='{"n":'), calling(0, name="f"), calling(0, arguments="1}")],
        [use("a", "f", n=1)],
    ),
    "arguments as an object": (
        [calling(0, id="a", name="f", arguments={"n": 1})],
        [use("a", "f", n=1)],
    ),
    "no arguments at all": ([calling(0, id="a", name="f")], [use("a", "f")]),
    "the old form": (
        [
            chunk(function_call={"name": "f", "arguments": '{"n":'}),
            chunk(function_call={"arguments": "1}"}),
        ],
        [use("call_1", "f", n=1)],
    ),
}


@pytest.mark.parametrize("name", ODD_CALLS)
def test_calls_are_read_however_a_server_numbers_them(name: str) -> None:
    chunks, expected = ODD_CALLS[name]
    assert blocks(*chunks, chunk("tool_calls"), DONE) == expected


def thinking(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text}


PARTS = [
    {"type": "thinking", "thinking": [text("hm")]}, text("a"),
    {"type": "reference", "reference_ids": [1]}, "odd",
]  # fmt: skip

WORDS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "a call that never gets a name is left out": (
        [chunk(content="x"), calling(0, arguments="{}")], [text("x")],
    ),
    **{
        f"{field} is thinking that nobody signed": (
            [chunk(**{field: "hm"}), chunk(**{field: "m"}), chunk(content="a")],
            [thinking("hmm"), text("a")],
        )
        for field in ("reasoning_content", "reasoning")
    },
    "reasoning under both names is read once": (
        [chunk(reasoning="hm", reasoning_content="hm")], [thinking("hm")],
    ),
    "content in parts is text and thinking": (
        [chunk(content=PARTS), chunk(content="b")], [thinking("hm"), text("ab")],
    ),
    "text and thinking that take turns are blocks of their own": (
        [chunk(reasoning="1"), chunk(content="2"), chunk(reasoning="3"), chunk(content="4")],
        [thinking("1"), text("2"), thinking("3"), text("4")],
    ),
    "a refusal in words is text": ([chunk(refusal="I will not.")], [text("I will not.")]),
}  # fmt: skip


@pytest.mark.parametrize(("chunks", "expected"), WORDS.values(), ids=list(WORDS))
def test_words_of_every_kind_become_blocks(
    chunks: list[dict[str, Any]], expected: list[dict[str, Any]]
) -> None:
    assert blocks(*chunks, chunk("stop"), DONE) == expected


def test_reasoning_that_is_to_be_sent_back_remembers_its_field() -> None:
    reader = OpenAIEvents(keeps_reasoning=True)
    found = blocks(chunk(reasoning="hm"), chunk("stop"), DONE, reader=reader)
    assert found == [{"type": "thinking", "thinking": "hm", "signature": "reasoning"}]


@pytest.mark.parametrize(("theirs", "ours"), FINISH_REASONS.items())
def test_a_finish_reason_is_the_stop_reason_of_the_same_meaning(theirs: str, ours: str) -> None:
    assert reply(read(chunk(theirs), DONE)).stop_reason == ours
    assert stop_rule(ours).reason != stop_rule("brand_new").reason


def test_an_unknown_finish_reason_ends_the_turn_and_runs_nothing() -> None:
    whole = reply(read(calling(0, id="a", name="f", arguments="{}"), chunk("abort"), DONE))
    assert stop_rule(whole.stop_reason).follow is Follow.COMMIT_CUT


def test_usage_on_every_chunk_is_overwritten_never_added() -> None:
    def used(tokens: int, **fields: Any) -> dict[str, Any]:
        return {**chunk(content="x"), "usage": {"completion_tokens": tokens, **fields}}

    events = read(used(1, prompt_tokens=9), used(2, prompt_tokens=9, prompt_cache_hit_tokens=4))
    assert [each.usage for each in events if isinstance(each, UsageReported)] == [
        Usage(9, 1),
        Usage(5, 2, 4),
    ]


def test_a_stream_that_ends_without_done_is_whole_once_it_has_finished() -> None:
    reader = OpenAIEvents()
    events = [*read(chunk(content="x"), chunk("stop"), reader=reader), *reader.finish()]
    assert reply(events).stop_reason == "end_turn"
    assert reader.ended
    assert reader.finish() == ()


@pytest.mark.parametrize("last", [DONE, None])
def test_a_stream_that_ends_before_it_has_finished_is_broken(last: str | None) -> None:
    reader = OpenAIEvents()
    read(chunk(content="x"), reader=reader)
    with pytest.raises(ProviderError, match="before its end") as raised:
        reader.read(last) if last else reader.finish()
    assert raised.value.kind == "retryable"


def test_an_error_in_the_stream_is_raised_with_what_it_says() -> None:
    error = {"message": "Bad gateway", "code": 502}
    with pytest.raises(StreamFault) as raised:
        read(chunk(content="x"), {"error": error})
    assert raised.value.body == {"error": error}


@pytest.mark.parametrize("finish", ["error", "insufficient_system_resource"])
def test_a_reply_that_the_server_broke_off_is_worth_another_try(finish: str) -> None:
    with pytest.raises(StreamFault) as raised:
        read(chunk(content="x"), chunk(finish))
    assert classify(raised.value.body).kind == "retryable"


@pytest.mark.parametrize(
    "data", ["{", "5", '{"choices": 5}', "[" * 5000, '{"choices":[{"delta":{"tool_calls":5}}]}']
)
def test_what_cannot_be_read_is_a_broken_stream(data: str) -> None:
    with pytest.raises(ProviderError, match="cannot be read") as raised:
        OpenAIEvents().read(data)
    assert raised.value.kind == "retryable"


def test_fields_that_may_be_null_or_absent_are() -> None:
    odd = {"choices": [{"delta": None}], "usage": None, "model": None}
    assert blocks({}, odd, {"choices": None}, {"choices": []}, chunk("stop"), DONE) == []


PIECES = st.lists(
    st.one_of(
        st.tuples(st.just("text"), st.text(min_size=1, max_size=4)),
        st.tuples(st.just("reasoning"), st.text(min_size=1, max_size=4)),
        st.tuples(st.just("call"), st.integers(0, 3)),
    ),
    max_size=12,
)


@given(pieces=PIECES)
@settings(max_examples=150)
def test_whatever_order_pieces_come_in_nothing_is_lost_and_blocks_are_well_formed(
    pieces: list[tuple[str, Any]],
) -> None:
    chunks: list[dict[str, Any]] = []
    inputs: dict[int, list[int]] = {}
    for at, (kind, value) in enumerate(pieces):
        if kind == "call":
            known = value in inputs
            inputs.setdefault(value, []).append(at)
            piece = f',"k{at}":{at}' if known else f'{{"k{at}":{at}'
            chunks.append(
                calling(
                    value, **({} if known else {"id": f"c{value}", "name": "f"}), arguments=piece
                )
            )
        else:
            chunks.append(chunk(**({"content": value} if kind == "text" else {"reasoning": value})))
    for index in inputs:
        chunks.append(calling(index, arguments="}"))
    found = blocks(*chunks, chunk("tool_calls" if inputs else "stop"), DONE)
    said = "".join(each["text"] for each in found if each["type"] == "text")
    thought = "".join(each["thinking"] for each in found if each["type"] == "thinking")
    assert said == "".join(value for kind, value in pieces if kind == "text")
    assert thought == "".join(value for kind, value in pieces if kind == "reasoning")
    uses = {each["id"]: each["input"] for each in found if each["type"] == "tool_use"}
    assert uses == {f"c{index}": {f"k{at}": at for at in ats} for index, ats in inputs.items()}
