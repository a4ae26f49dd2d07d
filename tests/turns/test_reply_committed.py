"""What of a reply is committed, and how its calls get ids of their own."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.turns.reply import Reply, committed_blocks, rename_calls
from llmsession.turns.stream import ReplyEnded, StreamEvent
from tests.turns.replies import (
    FOUND,
    SEARCH,
    WHOLE,
    Json,
    block,
    call,
    fed,
    raw,
    said,
    text,
    thinking,
    whole,
)

CUT = ("max_tokens", "model_context_window_exceeded", "pause_turn", "compaction", "odd", None)


def kept(reply: Reply) -> list[Json]:
    return [json.loads(part) for part in committed_blocks(reply)]


def types(reply: Reply) -> list[str]:
    return [part["type"] for part in kept(reply)]


@pytest.mark.parametrize("stop_reason", ["end_turn", "stop_sequence", "tool_use"])
def test_a_whole_reply_is_committed_as_it_is(stop_reason: str) -> None:
    reply = whole(thinking(0, "hm"), text(1, "a"), call(2, "c1"), stop_reason=stop_reason)
    assert committed_blocks(reply) == reply.blocks


@pytest.mark.parametrize("stop_reason", ["end_turn", "stop_sequence", "tool_use"])
@pytest.mark.parametrize(
    "last",
    [
        [thinking(1, "hm")],
        [thinking(1, "hm"), text(2, " \n")],
        [thinking(1, "hm"), block(2, {"type": "redacted_thinking", "data": "D"})],
    ],
)
def test_a_whole_reply_does_not_end_in_thinking(
    last: list[list[StreamEvent]], stop_reason: str
) -> None:
    assert types(whole(text(0, "a"), *last, stop_reason=stop_reason)) == ["text"]
    assert types(whole(*last, stop_reason=stop_reason)) == []


def test_a_whole_reply_keeps_the_blank_text_at_its_end() -> None:
    reply = whole(thinking(0, "hm"), text(1, "a"), text(2, "\n"))
    assert committed_blocks(reply) == reply.blocks


@pytest.mark.parametrize("stop_reason", CUT)
def test_a_cut_reply_keeps_no_calls_because_nobody_answers_them(stop_reason: str | None) -> None:
    reply = whole(call(0, "c1"), text(1, "a"), call(2, "c2"), stop_reason=stop_reason)
    assert types(reply) == ["text"]


@pytest.mark.parametrize("stop_reason", CUT)
def test_a_cut_reply_does_not_end_in_thinking(stop_reason: str | None) -> None:
    redacted = block(2, {"type": "redacted_thinking", "data": "D"})
    reply = whole(text(0, "a"), thinking(1, "hm"), redacted, call(3, "c1"), stop_reason=stop_reason)
    assert types(reply) == ["text"]


def test_thinking_before_what_a_cut_reply_keeps_stays() -> None:
    reply = whole(thinking(0, "hm"), text(1, "a"), call(2, "c"), stop_reason="max_tokens")
    assert types(reply) == ["thinking", "text"]


def test_a_server_call_stays_with_its_result_and_goes_without_it() -> None:
    other = {**SEARCH, "id": "srv_2"}
    reply = whole(
        block(0, SEARCH), block(1, other), block(2, FOUND), text(3, "a"), stop_reason="max_tokens"
    )
    assert kept(reply) == [SEARCH, FOUND, {"type": "text", "text": "a"}]
    remote = {"type": "mcp_tool_use", "id": "mcp_1", "name": "n", "server_name": "s", "input": {}}
    assert types(whole(text(0, "a"), block(1, remote), stop_reason="max_tokens")) == ["text"]


@pytest.mark.parametrize("stop_reason", ["end_turn", *CUT])
@pytest.mark.parametrize("parts", [[], [text(0, "")], [text(0, " \n"), text(1, "\t")]])
def test_a_reply_that_says_nothing_leaves_nothing(
    parts: list[list[StreamEvent]], stop_reason: str | None
) -> None:
    assert committed_blocks(whole(*parts, stop_reason=stop_reason)) == ()


@pytest.mark.parametrize("stop_reason", CUT)
def test_a_cut_reply_of_calls_and_thinking_alone_leaves_nothing(stop_reason: str | None) -> None:
    reply = whole(thinking(0, "hm"), text(1, " "), call(2, "c1"), stop_reason=stop_reason)
    assert committed_blocks(reply) == ()


@pytest.mark.parametrize("stop_reason", CUT)
@pytest.mark.parametrize("length", range(len(WHOLE)))
def test_a_reply_cut_at_any_event_commits_nothing_dangling(
    length: int, stop_reason: str | None
) -> None:
    parts = kept(fed([*WHOLE[:length], ReplyEnded(stop_reason)]).reply())
    found = [part["type"] for part in parts]
    answered = {part.get("tool_use_id") for part in parts}
    assert "tool_use" not in found
    assert all(part["id"] in answered for part in parts if part["type"] == "server_tool_use")
    assert found[-1:] != ["thinking"]
    assert bool(parts) == any(kind in ("text", "web_search_tool_result") for kind in found)


# Call ids


def calls(*ids: str) -> tuple[bytes, ...]:
    return whole(*(call(index, id) for index, id in enumerate(ids))).blocks


def ids(blocks: tuple[bytes, ...]) -> list[str]:
    return [json.loads(part)["id"] for part in blocks]


@pytest.mark.parametrize(
    ("wanted", "used", "expected"),
    [
        (["a", "b"], [], ["a", "b"]),
        (["a", "b"], ["a"], ["a_2", "b"]),
        (["a"], ["a", "a_2", "a_3"], ["a_4"]),
        (["a", "a", "a"], [], ["a", "a_2", "a_3"]),
        (["a", "a_2", "a"], [], ["a", "a_2", "a_3"]),
        (["a_2", "a"], ["a"], ["a_2", "a_3"]),
        (["a", "a_2"], ["a"], ["a_2", "a_2_2"]),
    ],
)
def test_a_call_id_that_was_used_gets_the_next_free_suffix(
    wanted: list[str], used: list[str], expected: list[str]
) -> None:
    assert ids(rename_calls(calls(*wanted), set(used))) == expected


@settings(derandomize=True, max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from(["a", "a_2", "a_3", "b"]), max_size=6),
    st.sets(st.sampled_from(["a", "a_2", "a_2_2", "b", "b_2"])),
)
def test_renamed_ids_are_unique_and_new(wanted: list[str], used: set[str]) -> None:
    before = set(used)
    renamed = ids(rename_calls(calls(*wanted), used))
    assert len(set(renamed)) == len(wanted)
    assert not set(renamed) & used
    assert used == before


def test_renaming_changes_nothing_but_the_id() -> None:
    odd = b'{"z":1.0, "type":"tool_use","id":"c", "name":"n","input":{"k" : 1}}'
    other = raw({"type": "server_tool_use", "id": "c", "name": "n", "input": {}})
    renamed = rename_calls((other, odd), {"c"})
    assert renamed == (
        other,
        b'{"z":1.0,"type":"tool_use","id":"c_2","name":"n","input":{"k" : 1}}',
    )
    assert rename_calls((other, odd), set()) == (other, odd)


def test_a_reply_with_renamed_calls_offers_the_new_ids() -> None:
    reply = whole(call(0, "c", '{"k":1}'))
    renamed = Reply(
        blocks=rename_calls(reply.blocks, {"c"}), stop_reason="tool_use", usage=reply.usage
    )
    assert [(found.id, found.input) for found in renamed.calls] == [("c_2", {"k": 1})]
    assert said(reply)[0]["id"] == "c"
