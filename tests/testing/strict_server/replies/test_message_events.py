"""A reply as the Messages API streams it."""

from __future__ import annotations

import json
from typing import Any

from llmsession.testing.strict_server.model.usage import Cost, PromptCost
from llmsession.testing.strict_server.replies.message_events import message_body, message_events
from llmsession.testing.strict_server.replies.received import Reply
from tests.testing.strict_server.requests import reply_of

COST = Cost(PromptCost(new=5, read=7, written_5m=1, written_1h=2), 40)


def reply(*blocks: dict[str, Any], size: int = 3, **fields: Any) -> Reply:
    return reply_of("messages", blocks, COST, size=size, **fields)


def parsed(raw: bytes) -> list[dict[str, Any]]:
    """The JSON of each event; its name is the same as its type."""
    found = []
    for event in raw.decode().split("\n\n")[:-1]:
        name, said = event.split("\n")
        found.append(json.loads(said.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def stream(*blocks: dict[str, Any], size: int = 3) -> list[dict[str, Any]]:
    return parsed(b"".join(message_events(reply(*blocks, size=size))))


def deltas(*blocks: dict[str, Any], size: int = 3) -> list[dict[str, Any]]:
    return [event["delta"] for event in stream(*blocks, size=size) if "index" in event
            and "delta" in event]  # fmt: skip


def test_a_stream_opens_fills_and_closes_each_block_and_pings_once() -> None:
    kinds = [event["type"] for event in stream({"type": "text", "text": "abcd"})]
    assert kinds == [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_text_comes_in_pieces_of_the_wanted_length() -> None:
    found = deltas({"type": "text", "text": "añb😀c"}, size=2)
    assert [delta["text"] for delta in found] == ["añ", "b😀", "c"]


def test_thinking_streams_and_its_signature_comes_whole_at_its_end() -> None:
    found = deltas({"type": "thinking", "thinking": "hmhm", "signature": "abcdefgh"})
    assert [delta["type"] for delta in found] == ["thinking_delta"] * 2 + ["signature_delta"]
    assert found[-1]["signature"] == "abcdefgh"


def test_the_input_of_a_call_opens_empty_and_streams_as_json() -> None:
    call = {"type": "tool_use", "id": "c1", "name": "ls", "input": {"path": "."}}
    events = stream(call, size=4)
    assert events[1]["content_block"] == {**call, "input": {}}
    pieces = [delta["partial_json"] for delta in deltas(call, size=4)]
    assert pieces[0] == ""
    assert json.loads("".join(pieces)) == {"path": "."}


def test_a_call_without_arguments_streams_nothing_but_an_empty_piece() -> None:
    call = {"type": "tool_use", "id": "c1", "name": "ls", "input": {}}
    assert deltas(call) == [{"type": "input_json_delta", "partial_json": ""}]


def test_citations_come_one_by_one_before_their_text() -> None:
    cited = {"type": "char_location", "cited_text": "a", "start_char_index": 0}
    block = {"type": "text", "text": "ab", "citations": [cited, cited]}
    assert stream(block)[1]["content_block"] == {"type": "text", "text": "", "citations": []}
    found = deltas(block)
    assert [delta["type"] for delta in found] == ["citations_delta"] * 2 + ["text_delta"]
    assert found[0]["citation"] == cited


def test_results_of_server_tools_and_unknown_blocks_stand_whole_in_their_opening() -> None:
    for block in (
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "not_known_yet", "text": "abc"},
    ):
        assert stream(block)[1]["content_block"] == block
        assert deltas(block) == []


def test_a_summary_streams_as_one_piece() -> None:
    found = deltas({"type": "compaction", "content": "what was said"})
    assert found == [{"type": "compaction_delta", "content": "what was said"}]


def test_usage_is_cumulative_and_the_last_one_is_whole() -> None:
    events = stream({"type": "text", "text": "a"})
    started, ended = events[0]["message"]["usage"], events[-2]["usage"]
    assert started["output_tokens"] == 1
    assert ended["output_tokens"] == 40
    for usage in (started, ended):
        assert usage["input_tokens"] == 5
        assert usage["cache_read_input_tokens"] == 7
        assert usage["cache_creation_input_tokens"] == 3
        assert usage["cache_creation"] == {
            "ephemeral_5m_input_tokens": 1,
            "ephemeral_1h_input_tokens": 2,
        }


def test_the_body_says_what_the_stream_says() -> None:
    block = {"type": "text", "text": "abcd"}
    whole = json.loads(message_body(reply(block)))
    assert whole["content"] == [block]
    assert whole["stop_reason"] == "end_turn"
    assert whole["usage"] == stream(block)[-2]["usage"]
    assert "input_transformations" not in whole
    told = json.loads(message_body(reply(block, transformations=[])))
    assert told["input_transformations"] == []


def test_an_event_is_what_the_library_counts_as_one() -> None:
    call = {"type": "tool_use", "id": "c1", "name": "ls", "input": {"a": 1}}
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    events = message_events(reply(thought, call, {"type": "text", "text": "a"}, size=99))
    # Start; thinking: 2 and 2 deltas; call: 2 and 1; text: 2 and 1; end.
    assert len(events) == 1 + 4 + 3 + 3 + 1
