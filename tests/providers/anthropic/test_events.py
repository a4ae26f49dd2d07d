"""Events of an Anthropic stream into ours: every kind, and what is not known yet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from anthropic._streaming import SSEDecoder

from llmsession import ProviderError, Usage
from llmsession.providers.anthropic.events import AnthropicEvents
from llmsession.providers.failures import StreamFault
from llmsession.turns.reply import ReplyBuilder
from llmsession.turns.stream import (
    BlockDelta,
    BlockStarted,
    BlockStopped,
    ReplyEnded,
    ReplyStarted,
    StreamEvent,
    UsageReported,
)
from llmsession.turns.usage import AppliedEdit
from tests.providers.asked import reply


def read(*events: dict[str, Any] | str) -> list[StreamEvent]:
    reader = AnthropicEvents()
    found: list[StreamEvent] = []
    for event in events:
        found += reader.read(event if isinstance(event, str) else json.dumps(event))
    return found


def start(**usage: Any) -> dict[str, Any]:
    return {"type": "message_start", "message": {"model": "claude-x", "usage": usage}}


def opened(block: dict[str, Any], index: int = 0) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int = 0, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": fields}


def stop(index: int = 0) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def ended(reason: str | None = "end_turn", **usage: Any) -> list[dict[str, Any]]:
    told: dict[str, Any] = {"type": "message_delta", "delta": {"stop_reason": reason}}
    if usage:
        told["usage"] = usage
    return [told, {"type": "message_stop"}]


def test_text_arrives_delta_by_delta_between_a_start_and_an_end() -> None:
    events = read(
        start(input_tokens=5, output_tokens=1),
        opened({"type": "text", "text": ""}),
        {"type": "ping"},
        delta(type="text_delta", text="hel"),
        delta(type="text_delta", text="lo"),
        stop(),
        *ended(output_tokens=7),
    )
    assert [type(event) for event in events] == [
        ReplyStarted,
        BlockStarted,
        BlockDelta,
        BlockDelta,
        BlockStopped,
        UsageReported,
        ReplyEnded,
    ]
    whole = reply(events)
    assert json.loads(whole.blocks[0]) == {"type": "text", "text": "hello"}
    assert (whole.model, whole.stop_reason) == ("claude-x", "end_turn")


def text(text: str = "", **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **fields}


REDACTED = {"type": "redacted_thinking", "data": "b64=="}
SIGNED = {"type": "thinking", "thinking": "let me see", "signature": "sig=="}
CALL = {"type": "tool_use", "id": "t1", "name": "ls", "input": {}, "caller": {"type": "direct"}}
SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
RESULT = {
    "type": "web_search_tool_result", "tool_use_id": "s1",
    "content": [{"type": "web_search_result", "encrypted_content": "abc", "n": 1.50}],
}  # fmt: skip
ONE = {"type": "char_location", "cited_text": "a", "start_char_index": 0}
TWO = {"type": "char_location", "cited_text": "b", "start_char_index": 1}

BLOCKS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "thinking keeps its signature and a redacted one its data": (
        [
            opened({"type": "thinking", "thinking": "", "signature": ""}),
            delta(type="thinking_delta", thinking="let me "),
            delta(type="thinking_delta", thinking="see"),
            delta(type="signature_delta", signature="sig=="), stop(), opened(REDACTED, 1), stop(1),
        ],
        [SIGNED, REDACTED],
    ),
    "a tool's input arrives in pieces and its new fields stay": (
        [
            opened(CALL), delta(type="input_json_delta", partial_json=""),
            delta(type="input_json_delta", partial_json='{"path": '),
            delta(type="input_json_delta", partial_json='"."}'), stop(),
        ],
        [CALL | {"input": {"path": "."}}],
    ),
    "server tools are kept with their results": (
        [
            opened(SEARCH), delta(type="input_json_delta", partial_json='{"query": "x"}'), stop(),
            opened(RESULT, 1), stop(1),
        ],
        [SEARCH | {"input": {"query": "x"}}, RESULT],
    ),
    "citations are added to their text": (
        [
            opened(text(citations=[])), delta(type="text_delta", text="as it says"),
            delta(type="citations_delta", citation=ONE),
            delta(type="citations_delta", citation=TWO),
            delta(type="citations_delta", citation=None), stop(),
        ],
        [text("as it says", citations=[ONE, TWO])],
    ),
    "a block that is not known grows by its own deltas": (
        [
            opened({"type": "compaction", "content": None, "encrypted_content": "x"}),
            delta(type="compaction_delta", content="a sum"),
            delta(type="compaction_delta", content="mary", encrypted_content="y"),
            delta(type="compaction_delta", extra={"n": 1}), stop(),
        ],
        [{"type": "compaction", "content": "a summary", "encrypted_content": "y",
          "extra": {"n": 1}}],
    ),
    "a block that is not known may grow by text": (
        [
            opened({"type": "brand_new", "text": "a"}), delta(type="text_delta", text="b"),
            delta(type="input_json_delta", partial_json="c"), stop(),
        ],
        [{"type": "brand_new", "text": "ab", "partial_json": "c"}],
    ),
    "deltas of compatible servers may lack their type": (
        [
            opened(text()), delta(text="said"), stop(),
            opened({"type": "thinking", "thinking": "", "signature": ""}, 1),
            delta(1, thinking="let me see"), delta(1, signature="sig=="), stop(1),
            opened(CALL, 2), delta(2, partial_json='{"path": "."}'), stop(2),
        ],
        [text("said"), SIGNED, CALL | {"input": {"path": "."}}],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("events", "expected"), BLOCKS.values(), ids=list(BLOCKS))
def test_blocks_are_put_together_of_their_pieces(
    events: list[dict[str, Any]], expected: list[dict[str, Any]]
) -> None:
    whole = reply(read(start(), *events, *ended()))
    assert [json.loads(block) for block in whole.blocks] == expected


def test_a_result_of_a_server_tool_is_kept_byte_for_byte() -> None:
    raw = json.dumps(opened(RESULT))
    (block,) = reply(read(start(), raw, stop(), *ended())).blocks
    assert block.decode() in raw


def test_usage_is_cumulative_and_what_is_not_repeated_stays() -> None:
    events = read(
        start(
            input_tokens=5,
            output_tokens=1,
            cache_read_input_tokens=100,
            cache_creation_input_tokens=20,
        ),
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 7}},
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 9, "input_tokens": 6}},
        *ended(output_tokens=11, cache_read_input_tokens=None),
    )
    reported = [event.usage for event in events if isinstance(event, UsageReported)]
    assert reported == [Usage(5, 7, 100, 20), Usage(6, 9, 100, 20), Usage(6, 11, 100, 20)]
    assert reply(events).usage == Usage(6, 11, 100, 20)


SUMMARY = {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3_500}
SAMPLED = {"type": "message", "input_tokens": 20_000, "output_tokens": 700}
LAST = {
    "type": "message", "input_tokens": 3_000, "output_tokens": 300,
    "cache_read_input_tokens": 20_700,
}  # fmt: skip


@pytest.mark.parametrize(
    ("iterations", "usage", "context"),
    [
        ([SUMMARY, SAMPLED, LAST], Usage(203_000, 4_500, 20_700), Usage(3_000, 300, 20_700)),
        ([SUMMARY], Usage(180_000, 3_500), Usage()),
        ([SAMPLED, SUMMARY], Usage(200_000, 4_200), Usage(20_000, 700)),
        ([SAMPLED], Usage(20_000, 700), None),
    ],
    ids=["the last sampling", "a summary is no context", "a summary behind it", "one sampling"],
)
def test_all_iterations_are_paid_for_and_the_context_is_that_of_the_last_sampling(
    iterations: list[dict[str, Any]], usage: Usage, context: Usage | None
) -> None:
    last = [one for one in iterations if one["type"] == "message"][-1:]
    figures = {"input_tokens": 0, "output_tokens": 0} | (last[0] if last else {})
    told = {name: figures[name] for name in ("input_tokens", "output_tokens")}
    whole = reply(read(start(input_tokens=1), *ended(**told, iterations=iterations)))
    assert (whole.usage, whole.context) == (usage, context)


def test_what_the_provider_cleared_is_told_with_the_end() -> None:
    edit = {"type": "clear_tool_uses_20250919", "cleared_tool_uses": 8, "cleared_input_tokens": 50}
    unknown = {"type": "clear_more_20300101", "cleared_input_tokens": 7, "cleared_more": 1}
    told, stopped = ended(output_tokens=3)
    told["context_management"] = {"applied_edits": [edit, unknown]}
    whole = reply(read(start(input_tokens=5), told, stopped))
    assert whole.edits == (
        AppliedEdit("clear_tool_uses_20250919", 50, 8),
        AppliedEdit("clear_more_20300101", 7),
    )
    told["context_management"] = None
    assert reply(read(start(input_tokens=5), told, stopped)).edits == ()


def test_what_is_written_to_the_cache_for_an_hour_is_told_apart() -> None:
    creation = {"ephemeral_5m_input_tokens": 5, "ephemeral_1h_input_tokens": 15}
    events = read(
        start(input_tokens=5, cache_creation_input_tokens=20, cache_creation=creation),
        *ended(output_tokens=11, cache_creation=None),
    )
    assert reply(events).usage == Usage(5, 11, 0, 20, 15)


@pytest.mark.parametrize(
    "reason",
    [
        "end_turn",
        "stop_sequence",
        "max_tokens",
        "tool_use",
        "pause_turn",
        "refusal",
        "compaction",
        "model_context_window_exceeded",
        "brand_new",
        None,
    ],
)
def test_every_stop_reason_is_passed_on_in_its_own_word(reason: str | None) -> None:
    assert reply(read(start(), *ended(reason))).stop_reason == reason


def test_events_that_are_not_known_mean_nothing() -> None:
    assert read({"type": "brand_new", "index": 3}, {"type": "ping"}, {}) == []
    assert read(delta(type="brand_new_delta", secret="x")) == []


def test_half_a_surrogate_pair_is_replaced() -> None:
    events = read(
        start(),
        opened({"type": "text", "text": ""}),
        '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a\\ud83d"}}',
    )
    assert events[-1] == BlockDelta(0, "text", "a\ufffd")


@pytest.mark.parametrize(
    "data",
    ["{", "[]", "nonsense", '{"type": 5}', '{"type":"message_start","message":5}', "[" * 5000],
)
def test_what_cannot_be_read_is_a_broken_stream_without_its_content(data: str) -> None:
    with pytest.raises(ProviderError, match="cannot be read") as raised:
        AnthropicEvents().read(data)
    assert raised.value.kind == "retryable"
    assert data not in str(raised.value)


def test_an_error_event_is_raised_with_what_it_says() -> None:
    body = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    with pytest.raises(StreamFault) as raised:
        read(start(), body)
    assert raised.value.body == body


def test_a_stream_that_stops_before_its_end_is_broken() -> None:
    reader = AnthropicEvents()
    reader.read(json.dumps(start()))
    with pytest.raises(ProviderError, match="before its end") as raised:
        reader.finish()
    assert raised.value.kind == "retryable"
    for event in ended():
        reader.read(json.dumps(event))
    assert reader.ended
    assert reader.finish() == ()


@pytest.mark.parametrize("cuts", [200, pytest.param(None, marks=pytest.mark.long)])
def test_a_recorded_stream_read_up_to_every_byte_is_whole_or_broken(
    shared_data: Path, cuts: int | None
) -> None:
    """By the SDK's own decoder, which may stop in the middle of a character."""
    bodies = _recorded_streams(shared_data)
    assert bodies
    whole = 0
    for body in bodies:
        every = 1 if cuts is None else 1 + len(body) // cuts
        for size in (*range(0, len(body), every), len(body)):
            reader, builder = AnthropicEvents(), ReplyBuilder()
            try:
                for sse in SSEDecoder().iter_bytes(iter([body[:size]])):
                    for event in reader.read(sse.data) if sse.data else ():
                        builder.feed(event)
                reader.finish()
            except (ProviderError, UnicodeDecodeError):
                assert size < len(body)
                assert not builder.ended
            else:
                assert builder.reply().blocks
                assert builder.usage.output_tokens > 0
                whole += 1
    assert whole


def _recorded_streams(shared_data: Path) -> list[bytes]:
    yaml = pytest.importorskip("yaml")
    folder = shared_data / "cassettes-pydantic-ai"
    found = []
    for path in sorted(folder.rglob("*.yaml")):
        text = path.read_text("utf-8")
        if "text/event-stream" not in text or "message_start" not in text:
            continue
        for each in yaml.safe_load(text)["interactions"]:
            body = each["response"].get("body")
            body = body.get("string") if isinstance(body, dict) else body
            if isinstance(body, str) and "event: message_stop" in body:
                found.append(body.encode())
    return found


def test_nothing_that_was_read_is_kept_as_a_view_on_what_came() -> None:
    events = read(opened({"type": "text", "text": ""}))
    block = events[0]
    assert isinstance(block, BlockStarted)
    assert bytes(block.block) == msgspec.json.encode({"type": "text", "text": ""}).replace(
        b":", b": "
    ).replace(b",", b", ")
