from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.compaction.view.projection import EMPTY_OUTPUT, project
from llmsession.compaction.view.view import View
from llmsession.turns.messages import Message
from llmsession.turns.request import Frame, Profile, Request
from tests.compaction.conversations import (
    FRAME,
    Talk,
    call_block,
    image,
    result_block,
    sent,
    shape,
    talk,
    talks,
    text,
    thinking_block,
)

PROFILE = Profile()
APART = Profile(merges_roles=False)


def shown(messages: list[Message], view: View | None = None, profile: Profile = PROFILE) -> Request:
    return project(messages, view or View(), profile, FRAME)


def of_user(*blocks: dict[str, Any]) -> list[Message]:
    return Talk().add("user", list(blocks)).messages


def test_an_untouched_message_is_sent_as_the_same_object() -> None:
    built = talk(2)
    request = shown(built.messages, View(compacted_before=6, shown_results={"c1": "short"}))
    same = [
        part.body is message.body
        for part, message in zip(request.messages, built.messages, strict=True)
    ]
    assert same == [True, True, False, True, True, True, True, True]


def test_the_frame_is_passed_on() -> None:
    frame = Frame(
        model="x", max_tokens=7, system="s", tools=(msgspec.Raw(b"{}"),), options={"top_k": 1}
    )
    request = project(talk(1).messages, View(), PROFILE, frame)
    assert (request.model, request.max_tokens, request.system) == ("x", 7, "s")
    assert (request.tools, request.options) == (frame.tools, {"top_k": 1})


def test_a_swap_keeps_ids_order_count_and_is_error() -> None:
    built = Talk().ask().step("a" * 100, "b" * 100, is_error=True)
    view = View(compacted_before=3, shown_results={"c1": "A", "c2": "B"})
    blocks = sent(shown(built.messages, view))[2]
    assert blocks == [
        result_block("c1", "A", is_error=True),
        result_block("c2", "B", is_error=True),
    ]


def test_a_swap_edits_the_content_and_leaves_every_other_byte() -> None:
    raw = (
        b'[{"is_error":false,"new":{"b" : 1.0},"content":[{"type":"text","text":"long"}],'
        b'"tool_use_id":"c1","type":"tool_result","cache_control":null}]'
    )
    message = Message(id="m", session="s", turn=1, role="user", body=msgspec.Raw(raw))
    request = shown([message], View(compacted_before=1, shown_results={"c1": "é"}))
    assert bytes(request.messages[0].body) == raw.replace(
        b'[{"type":"text","text":"long"}]', '"é"'.encode()
    )


def test_a_result_without_content_or_with_null_can_be_swapped() -> None:
    bare = {"type": "tool_result", "tool_use_id": "c1"}
    null = {"type": "tool_result", "tool_use_id": "c2", "content": None}
    view = View(compacted_before=1, shown_results={"c1": "A", "c2": "B"})
    assert sent(shown(of_user(bare, null), view)) == [
        [{**bare, "content": "A"}, {**null, "content": "B"}]
    ]


def test_a_compact_text_is_not_shown_from_compacted_before_on() -> None:
    built = talk(1)
    assert (
        sent(shown(built.messages, View(compacted_before=2, shown_results={"c1": "A"})))[2][0][
            "content"
        ]
        == "x" * 1000
    )
    assert (
        sent(shown(built.messages, View(compacted_before=3, shown_results={"c1": "A"})))[2][0][
            "content"
        ]
        == "A"
    )


def test_a_cap_is_shown_until_compacted_before_passes() -> None:
    built = talk(1)
    view = View(compacted_before=2, shown_results={"c1": "A"}, capped={"c1": "head and tail"})
    assert sent(shown(built.messages, view))[2][0]["content"] == "head and tail"
    passed = msgspec.structs.replace(view, compacted_before=3)
    assert sent(shown(built.messages, passed))[2][0]["content"] == "A"


def test_thinking_before_thinking_from_is_left_out_and_later_thinking_stays() -> None:
    built = Talk().ask().step("x", thinking="one")
    built.add(
        "assistant", [{"type": "redacted_thinking", "data": "r"}, text("two"), thinking_block("")]
    )
    assert [block["type"] for block in sent(shown(built.messages, View(thinking_from=3)))[1]] == [
        "tool_use"
    ]
    assert len(sent(shown(built.messages, View(thinking_from=3)))[3]) == 3
    assert sent(shown(built.messages, View(thinking_from=4)))[3] == [text("two")]


def test_white_space_text_blocks_are_left_out() -> None:
    assert sent(shown(of_user(text("a"), text(" \n\t"), text("")))) == [[text("a")]]


def test_a_message_that_becomes_empty_is_left_out() -> None:
    built = Talk().ask("one").add("assistant", [thinking_block("hm"), text(" ")]).ask("two")
    request = shown(built.messages, View(thinking_from=2), APART)
    assert [message.role for message in request.messages] == ["user", "user"]


def test_an_empty_text_block_in_a_result_becomes_a_placeholder() -> None:
    content = [{**text(" "), "cache_control": {"type": "ephemeral"}}, image(), text("kept")]
    (block,) = sent(shown(of_user(result_block("c1", content))))[0]
    assert block["content"] == [{**content[0], "text": EMPTY_OUTPUT}, image(), text("kept")]


@pytest.mark.parametrize("content", ["", " ", []])
def test_an_empty_result_is_sent_as_it_is(content: Any) -> None:
    messages = of_user(result_block("c1", content))
    assert shown(messages).messages[0].body is messages[0].body


@pytest.mark.parametrize("content", ["", []])
def test_an_empty_error_result_gets_a_placeholder(content: Any) -> None:
    messages = of_user(result_block("c1", content, is_error=True))
    (block,) = sent(shown(messages))[0]
    assert block == {**result_block("c1", EMPTY_OUTPUT, is_error=True)}


def test_neighbours_of_one_role_become_one_message() -> None:
    built = Talk().ask("one").ask("two").add("assistant", "a")
    built.add("assistant", [thinking_block("t"), text("b")])
    request = shown(built.messages)
    assert [message.role for message in request.messages] == ["user", "assistant"]
    assert sent(request) == [
        [text("one"), text("two")],
        [text("a"), thinking_block("t"), text("b")],
    ]


def test_neighbours_stay_apart_where_the_profile_does_not_merge() -> None:
    built = Talk().ask("one").ask("two")
    request = shown(built.messages, profile=APART)
    assert [part.body for part in request.messages] == [message.body for message in built.messages]


def test_tool_results_stand_before_text_in_one_message() -> None:
    messages = of_user(text("note"), result_block("c1", "1"), image(), result_block("c2", "2"))
    expected = [result_block("c1", "1"), result_block("c2", "2"), text("note"), image()]
    assert sent(shown(messages)) == [expected]
    assert sent(shown(messages, profile=APART)) == [expected]


def test_tool_results_stand_before_text_after_a_merge() -> None:
    built = Talk().add("user", "steer").add("user", [result_block("c1", "1"), text("receipt")])
    assert sent(shown(built.messages)) == [
        [result_block("c1", "1"), text("steer"), text("receipt")]
    ]


def test_a_merge_does_not_reorder_the_assistant() -> None:
    built = Talk().add("assistant", [call_block("c1"), text("a")])
    built.add("assistant", [{"type": "tool_result", "tool_use_id": "odd"}])
    assert [block["type"] for block in sent(shown(built.messages))[0]] == [
        "tool_use",
        "text",
        "tool_result",
    ]


def test_unknown_blocks_pass_byte_for_byte_beside_a_swap() -> None:
    raw = b'[{"type":"tool_result","tool_use_id":"c1","content":"x"},{"type" : "new","n":1e2}]'
    message = Message(id="m", session="s", turn=1, role="user", body=msgspec.Raw(raw))
    request = shown([message], View(compacted_before=1, shown_results={"c1": "A"}))
    assert bytes(request.messages[0].body) == raw.replace(b'"x"', b'"A"')


def test_a_projection_leaves_no_parsed_content_behind() -> None:
    built = talk(2)
    shown(built.messages, View(compacted_before=4, shown_results={"c1": "A"}))
    assert not any("content" in vars(message) for message in built.messages)


@st.composite
def views(draw: st.DrawFn, built: Talk) -> View:
    length = len(built.messages)
    calls = [f"c{number}" for number in range(1, built.calls + 1)]
    texts = (
        st.dictionaries(st.sampled_from(calls), st.just("text"), max_size=9)
        if calls
        else st.just({})
    )
    return View(
        compacted_before=draw(st.integers(0, length)),
        thinking_from=draw(st.integers(0, length)),
        shown_results=draw(texts),
        capped=draw(texts),
    )


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.data(), st.booleans())
def test_any_projection_keeps_calls_and_results_and_repeats_its_bytes(
    draws: st.DataObject, merges: bool
) -> None:
    built = draws.draw(talks())
    view = draws.draw(views(built))
    profile = Profile(merges_roles=merges)
    view_before = copy.deepcopy(view)
    bodies_before = [bytes(message.body) for message in built.messages]
    request = project(built.messages, view, profile, FRAME)
    again = project(built.messages, view, profile, FRAME)

    assert shape(request.messages) == shape(built.messages)
    assert again.encode() == request.encode()
    assert view == view_before
    assert [bytes(message.body) for message in built.messages] == bodies_before
    for message in request.messages:
        blocks = msgspec.json.decode(message.body)
        assert blocks
        assert all(block["text"].strip() for block in blocks if block["type"] == "text")
        if message.role == "user":
            kinds = [block["type"] == "tool_result" for block in blocks]
            assert kinds == sorted(kinds, reverse=True)
    if merges:
        roles = [message.role for message in request.messages]
        assert all(a != b for a, b in pairwise(roles))
