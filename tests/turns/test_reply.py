from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.errors import ProviderError
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
from llmsession.turns.usage import Usage
from tests.turns.replies import (
    CITATION,
    FOUND,
    SEARCH,
    WHOLE,
    block,
    call,
    fed,
    opened,
    raw,
    said,
    text,
    thinking,
    whole,
)

# Whole replies


def test_a_whole_stream_becomes_its_blocks_in_order() -> None:
    reply = fed(WHOLE).reply()
    assert said(reply) == [
        {"type": "thinking", "thinking": "let me look", "signature": "SIG"},
        {**SEARCH, "input": {"query": "sea"}},
        FOUND,
        {"type": "text", "text": "The sea.", "citations": [CITATION]},
        {"type": "tool_use", "id": "c1", "name": "bash", "input": {"cmd": "ls"}},
        {"type": "tool_use", "id": "c2", "name": "bash", "input": {}},
    ]
    assert (reply.stop_reason, reply.model) == ("tool_use", "model-1")


def test_only_our_own_calls_are_calls() -> None:
    assert [call.id for call in fed(WHOLE).reply().calls] == ["c1", "c2"]
    assert whole(text(0, "a")).calls == ()


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=5), min_size=1, max_size=8))
def test_deltas_join_to_what_one_delta_would_say(pieces: list[str]) -> None:
    assert whole(text(0, *pieces)).blocks == whole(text(0, "".join(pieces))).blocks


def test_pieces_are_joined_once_however_often_they_are_read() -> None:
    builder = fed([opened(0, {"type": "text", "text": ""})])
    for piece in ("a", "b", "c"):
        builder.feed(BlockDelta(0, "text", piece))
        assert builder.text_blocks() == builder.text_blocks()
    (kept,) = builder.text_blocks()
    assert json.loads(kept)["text"] == "abc"


def test_deltas_go_on_where_the_opened_block_stops() -> None:
    start = {"type": "text", "text": "He", "citations": [{"n": 1}]}
    reply = whole(block(0, start, ("text", "llo"), ("citation", '{"n":2}')))
    assert said(reply) == [{"type": "text", "text": "Hello", "citations": [{"n": 1}, {"n": 2}]}]


def test_citations_start_a_list_where_there_was_none() -> None:
    for start in ({"type": "text", "text": ""}, {"type": "text", "text": "", "citations": None}):
        reply = whole(block(0, start, ("text", "a"), ("citation", '{"n":1}')))
        assert said(reply)[0]["citations"] == [{"n": 1}]


def test_a_block_without_deltas_keeps_its_bytes() -> None:
    odd = b'{"zeta" : 1.0,"type":"web_search_tool_result", "x":1e400 }'
    reply = whole([BlockStarted(0, msgspec.Raw(odd)), BlockStopped(0)])
    assert reply.blocks == (odd,)


def test_unknown_fields_of_an_opened_block_survive_its_deltas_in_their_order() -> None:
    start = b'{"new":{"b":1.0, "a":2},"type":"tool_use","id":"c","name":"n","input":{},"caller":7}'
    reply = whole(
        [BlockStarted(0, msgspec.Raw(start)), BlockDelta(0, "input", '{"k": 1}'), BlockStopped(0)]
    )
    assert reply.blocks == (start.replace(b'"input":{}', b'"input":{"k": 1}'),)


def test_blocks_may_interleave_and_stand_in_the_order_of_their_index() -> None:
    reply = whole(
        [opened(1, {"type": "text", "text": ""}), opened(0, {"type": "text", "text": ""})],
        [BlockDelta(1, "text", "b"), BlockDelta(0, "text", "a"), BlockDelta(1, "text", "B")],
        [BlockStopped(1), BlockStopped(0)],
    )
    assert [part["text"] for part in said(reply)] == ["a", "bB"]


# Inputs


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ((), {}),
        (("",), {}),
        ((" ", "\n"), {}),
        (('{"a"', ": [1, 2]}"), {"a": [1, 2]}),
        (('{"a": 1',), {"INVALID_JSON": '{"a": 1'}),
        (("{'a': 1}",), {"INVALID_JSON": "{'a': 1}"}),
        (('{"a": 1} x',), {"INVALID_JSON": '{"a": 1} x'}),
        (("[1]",), {"INVALID_JSON": "[1]"}),
        (("7",), {"INVALID_JSON": "7"}),
        (('{"a": 1e400}',), {"INVALID_JSON": '{"a": 1e400}'}),
        (('{"a": "\ud800"}',), {"a": "\ufffd"}),
        (("\ud800",), {"INVALID_JSON": "\ufffd"}),
    ],
)
def test_an_input_that_is_no_json_object_is_wrapped(
    pieces: tuple[str, ...], expected: dict[str, Any]
) -> None:
    reply = whole(call(0, "c1", *pieces))
    assert said(reply)[0]["input"] == expected
    assert [found.input for found in reply.calls] == [expected]


@pytest.mark.parametrize("levels", [600, 100_000])
def test_an_input_nested_too_deep_is_wrapped(levels: int) -> None:
    deep = '{"a":' + "[" * levels + "]" * levels + "}"
    assert said(whole(call(0, "c1", deep)))[0]["input"] == {"INVALID_JSON": deep}


def test_an_input_keeps_the_bytes_it_was_streamed_as() -> None:
    (kept,) = whole(call(0, "c1", '{"a" : 1.0', ', "é":"\\u00e9"}')).blocks
    assert '{"a" : 1.0, "é":"\\u00e9"}'.encode() in kept


def test_lone_surrogates_in_deltas_are_replaced_and_split_pairs_joined() -> None:
    start = {"type": "text", "text": ""}
    reply = whole(
        block(
            0,
            start,
            ("text", "a\ud83d"),
            ("text", "\ude00b\udfff"),
            ("citation", '{"t":"\ud800"}'),
        )
    )
    assert said(reply)[0]["text"] == "a😀b\ufffd"
    assert said(reply)[0]["citations"] == [{"t": "\ufffd"}]


# Usage


def test_usage_is_cumulative_and_overwrites() -> None:
    builder = fed(WHOLE[:1])
    assert builder.usage == Usage(input_tokens=9, output_tokens=1)
    builder.feed(UsageReported(Usage(input_tokens=9, output_tokens=20)))
    assert builder.usage == Usage(input_tokens=9, output_tokens=20)
    builder.feed(ReplyEnded("end_turn", Usage(input_tokens=9, output_tokens=42)))
    assert builder.reply().usage == Usage(input_tokens=9, output_tokens=42)


def test_usage_that_is_absent_at_the_end_is_the_last_that_was_reported() -> None:
    builder = fed([ReplyStarted("m", Usage(5, 1)), ReplyEnded("end_turn")])
    assert builder.reply().usage == Usage(5, 1)


# Broken streams


@pytest.mark.parametrize(
    ("events", "what"),
    [
        ([BlockDelta(0, "text", "a")], "block 0 is not open"),
        ([BlockStopped(0)], "block 0 is not open"),
        ([*text(0, "a"), BlockDelta(0, "text", "b")], "block 0 is not open"),
        ([*text(0, "a"), BlockStopped(0)], "block 0 is not open"),
        ([*text(0, "a"), *text(0, "b")], "block 0 was started twice"),
        ([ReplyEnded("end_turn"), *text(0, "a")], "after the end of the reply"),
        ([ReplyEnded("end_turn"), ReplyEnded("end_turn")], "after the end of the reply"),
        ([BlockStarted(2, msgspec.Raw(b"{"))], "block 2 is not JSON"),
        ([BlockStarted(2, msgspec.Raw(b'{"a":1}'))], "block 2 has no type"),
        ([BlockStarted(2, msgspec.Raw(b"[]"))], "block 2 has no type"),
        ([opened(0, {"type": "tool_use", "name": "n"})], "a call without an id or a name"),
        ([opened(0, {"type": "tool_use", "id": "c"})], "a call without an id or a name"),
        ([opened(0, {"type": "tool_use", "id": 5, "name": "n"})], "a call without an id or a name"),
    ],
)
def test_an_event_out_of_order_is_the_providers_fault_and_retryable(
    events: list[StreamEvent], what: str
) -> None:
    with pytest.raises(ProviderError, match=what) as raised:
        fed(events)
    assert raised.value.kind == "retryable"


def test_a_reply_is_not_to_be_had_before_its_end() -> None:
    with pytest.raises(ProviderError, match="before the reply ended") as raised:
        fed(WHOLE[:-1]).reply()
    assert raised.value.kind == "retryable"


def test_v10_a_block_without_its_stop_is_left_out_unless_it_is_text() -> None:
    for start in (SEARCH, {"type": "tool_use", "id": "c", "name": "n", "input": {}},
                  {"type": "thinking", "thinking": "", "signature": ""}):  # fmt: skip
        builder = fed([*text(0, "a"), opened(1, start), ReplyEnded("max_tokens")])
        assert [part["type"] for part in said(builder.reply())] == ["text"]
    cut = fed([opened(0, {"type": "text", "text": ""}), BlockDelta(0, "text", "hal")])
    cut.feed(ReplyEnded("max_tokens"))
    assert said(cut.reply()) == [{"type": "text", "text": "hal"}]


@pytest.mark.parametrize("length", range(len(WHOLE)))
def test_a_stream_cut_at_any_event_has_no_reply_but_the_text_so_far(length: int) -> None:
    builder = fed(WHOLE[:length])
    with pytest.raises(ProviderError):
        builder.reply()
    streamed = "".join(
        event.text
        for event in WHOLE[:length]
        if isinstance(event, BlockDelta) and event.kind == "text"
    )
    kept = [json.loads(part) for part in builder.text_blocks()]
    assert "".join(part["text"] for part in kept) == streamed
    assert all(part["type"] == "text" for part in kept)
    assert builder.has_text() == bool(streamed)


@pytest.mark.parametrize("length", range(len(WHOLE)))
def test_a_reply_that_ends_early_at_any_event_has_whole_blocks_and_text_only(length: int) -> None:
    events = WHOLE[:length]
    reply = fed([*events, ReplyEnded("max_tokens")]).reply()
    closed = sum(isinstance(event, BlockStopped) for event in events)
    begun = sum(isinstance(event, BlockStarted) for event in events)
    is_in_text = begun > closed and begun == 4
    assert said(reply)[:closed] == said(fed(WHOLE).reply())[:closed]
    assert [part["type"] for part in said(reply)[closed:]] == ["text"] * is_in_text


# What a reader who comes late is shown


def test_the_text_so_far_is_what_was_streamed_by_block_and_kind() -> None:
    builder = ReplyBuilder()
    for event in [*thinking(0, "hm", "m"), opened(1, {"type": "text", "text": ""})]:
        builder.feed(event)
    builder.feed(BlockDelta(1, "text", "Hel"))
    builder.feed(BlockDelta(1, "text", "lo"))
    assert [(index, kind, text) for index, kind, _, text in builder.so_far()] == [
        (0, "thinking", "hmm"),
        (1, "text", "Hello"),
    ]
    assert builder.so_far()[1][2] == raw({"type": "text", "text": ""})


def test_text_that_says_nothing_is_not_kept() -> None:
    assert not fed(text(0, " \n")).has_text()
    assert not fed(thinking(0, "hm")).has_text()
    assert fed([*text(0, " "), *text(1, "a")]).text_blocks() == (
        raw({"type": "text", "text": "a"}),
    )
