"""The strict server's rules on messages, each refused with the words of the real API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.testing.strict_server.requests import (
    NEW,
    OLD,
    assistant,
    body,
    refused,
    server_result,
    server_use,
    system,
    thinking,
    tool_result,
    tool_use,
    user,
    with_tools,
)

MANUAL = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}


def test_a_plain_conversation_is_accepted() -> None:
    assert refused(body(user("hi"))) is None
    assert refused(body(user("hi"), assistant("hello"), user("and?"))) is None
    assert refused(body({"role": "user", "content": "hi"})) is None


def test_v1_the_first_message_is_the_users() -> None:
    request = body(assistant("hello"), user("hi"))
    assert refused(request) == 'messages: first message must use the "user" role'


def test_v1_a_compaction_block_may_come_first() -> None:
    summary = {"type": "compaction", "content": "what was said"}
    assert refused(body(assistant(summary, "hello"), user("hi"))) is None


def test_v1_neighbours_of_one_role_are_one_message() -> None:
    assert refused(body(user("a"), user("b"), assistant("c"), assistant("d"), user("e"))) is None
    halves = with_tools(
        user("hi"), assistant(tool_use("c1")), assistant(tool_use("c2")),
        user(tool_result("c1")), user(tool_result("c2"), "go on"),
    )  # fmt: skip
    assert refused(halves) is None


def test_v2_no_prefill_where_the_model_takes_none() -> None:
    request = body(user("hi"), assistant("I"), model=NEW)
    assert refused(request) == (
        "This model does not support assistant message prefill. The conversation must end with"
        " a user message."
    )
    assert refused(body(user("hi"), assistant("I"), model=OLD)) is None


def test_v2_a_prefill_has_no_trailing_whitespace() -> None:
    said = "messages: final assistant content cannot end with trailing whitespace"
    assert refused(body(user("hi"), assistant("I "), model=OLD)) == said
    assert refused(body(user("hi"), {"role": "assistant", "content": "I\n"}, model=OLD)) == said


def test_v2_a_paused_turn_and_a_compaction_request_may_end_with_the_assistant() -> None:
    assert refused(body(user("hi"), assistant("let me see", server_use("s1")), model=NEW)) is None
    request = body(user("hi"), assistant("hello"), model=NEW, compaction={"type": "summarize"})
    assert refused(request) is None


def test_v3_every_call_is_answered_in_the_next_message() -> None:
    request = with_tools(user("hi"), assistant("so", tool_use("c1"), tool_use("c2")), user("no"))
    assert refused(request) == (
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after:"
        " c1, c2. Each `tool_use` block must have a corresponding `tool_result` block in the"
        " next message."
    )


@pytest.mark.parametrize(
    "after",
    [
        [],
        [user(tool_result("c1"))],
        [user(tool_result("c1"), "text", tool_result("c2"))],
        [user("text", tool_result("c1"), tool_result("c2"))],
        [user(tool_result("c1")), assistant("hm"), user(tool_result("c2"))],
    ],
    ids=["nothing", "one of two", "one after text", "text first", "one too late"],
)
def test_v3_an_answer_that_is_not_at_its_place_does_not_count(after: list[Any]) -> None:
    request = with_tools(user("hi"), assistant(tool_use("c1"), tool_use("c2")), *after)
    said = "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after"
    assert (refused(request) or "").startswith(said)


def test_v3_results_in_any_order_and_text_after_them_are_accepted() -> None:
    request = with_tools(
        user("hi"),
        assistant(tool_use("c1"), tool_use("c2")),
        user(tool_result("c2"), tool_result("c1"), "and now?"),
    )
    assert refused(request) is None


def test_v4_a_result_without_its_call_is_unexpected() -> None:
    request = with_tools(user("hi"), assistant("so"), user(tool_result("c9")))
    assert refused(request) == (
        "messages.2.content.0: unexpected `tool_use_id` found in `tool_result` blocks: c9. Each"
        " `tool_result` block must have a corresponding `tool_use` block in the previous message."
    )


def test_v4_a_call_has_one_result() -> None:
    request = with_tools(
        user("hi"), assistant(tool_use("c1")), user(tool_result("c1"), tool_result("c1"))
    )
    assert refused(request) == (
        "messages.2.content.1: each tool_use must have a single result. Found multiple"
        " `tool_result` blocks with id: c1"
    )


def test_v4_call_ids_are_unique_in_the_whole_request() -> None:
    loop = [assistant(tool_use("c1")), user(tool_result("c1"))]
    request = with_tools(user("hi"), *loop, *loop)
    assert refused(request) == "messages.3.content.0: `tool_use` ids must be unique"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (user(tool_use("c1")), "`tool_use` blocks can only be in `assistant` messages"),
        (user(thinking()), "`thinking` blocks can only be in `assistant` messages"),
        (user(server_use("s1")), "`server_tool_use` blocks can only be in `assistant` messages"),
        (
            user(server_result("s1")),
            "`web_search_tool_result` blocks can only be in `assistant` messages",
        ),
    ],
)
def test_v4_blocks_stand_on_their_side(message: Any, said: str) -> None:
    assert refused(with_tools(user("hi"), message)) == f"messages.1.content.0: {said}"


def test_v4_results_are_the_users() -> None:
    request = with_tools(user("hi"), assistant(tool_use("c1"), tool_result("c1")), user("so"))
    said = "messages.1.content.1: `tool_result` blocks can only be in `user` messages"
    assert refused(request) == said


def test_v5_a_text_block_is_not_empty() -> None:
    assert refused(body(user(""))) == "messages: text content blocks must be non-empty"


def test_v5_a_text_block_is_not_blank() -> None:
    said = "messages: text content blocks must contain non-whitespace text"
    assert refused(body(user(" \n"))) == said
    assert refused(body(user("hi", "\n"))) == said


def test_v5_a_message_has_content_but_a_last_one_of_the_assistant() -> None:
    said = (
        "messages.1: all messages must have non-empty content except for the optional final"
        " assistant message"
    )
    for empty in ("[]", '""'):
        silent = {"role": "assistant", "content": json.loads(empty)}
        assert refused(body(user("hi"), silent, user("so"))) == said
        assert refused(body(user("hi"), silent, model=OLD)) is None


def test_v5_a_result_may_be_empty_but_not_its_texts_nor_an_errors() -> None:
    def answered(content: Any, **fields: Any) -> str | None:
        return refused(
            with_tools(
                user("hi"), assistant(tool_use("c1")), user(tool_result("c1", content, **fields))
            )
        )

    assert answered([]) is answered("") is answered("x", is_error=True) is None
    empty = [{"type": "text", "text": ""}]
    assert answered(empty) == "messages: text content blocks must be non-empty"
    said = "messages.2.content.0.tool_result: content cannot be empty if `is_error` is true"
    assert answered("", is_error=True) == answered([], is_error=True) == said


def test_v5_the_system_prompt_is_not_empty_either() -> None:
    said = "system: text content blocks must be non-empty"
    assert refused(body(user("hi"), system=[{"type": "text", "text": ""}])) == said


def test_v6_a_server_result_needs_its_call_before_it() -> None:
    request = body(user("hi"), assistant(server_result("s1"), "so"), user("and?"))
    assert refused(request) == (
        "messages.1.content.0: unexpected `tool_use_id` found in `web_search_tool_result` blocks:"
        " s1. Each `web_search_tool_result` block must have a corresponding `server_tool_use`"
        " block before it."
    )


def test_v6_a_server_call_that_never_got_its_result_is_refused_when_the_turn_is_over() -> None:
    request = body(user("hi"), assistant(server_use("s1"), "so"), user("and?"))
    assert refused(request) == (
        "messages.1: `web_search` tool use with id `s1` was found without a corresponding"
        " `web_search_tool_result` block"
    )


def test_v6_a_server_result_may_come_behind_the_callers_own_results() -> None:
    loop = [assistant(server_use("s1"), tool_use("c1")), user(tool_result("c1"))]
    assert refused(with_tools(user("hi"), *loop)) is None
    later = with_tools(user("hi"), *loop, assistant(server_result("s1"), "so"), user("and?"))
    assert refused(later) is None


def test_v6_text_beside_the_callers_results_ends_the_turn() -> None:
    request = with_tools(
        user("hi"), assistant(server_use("s1"), tool_use("c1")), user(tool_result("c1"), "stop")
    )
    assert "was found without a corresponding" in (refused(request) or "")


def test_v8_with_manual_thinking_a_tool_loop_starts_with_thinking() -> None:
    request = with_tools(user("hi"), assistant(tool_use("c1")), user(tool_result("c1")), **MANUAL)
    said = refused(request) or ""
    assert said.startswith(
        "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found"
        " `tool_use`. When `thinking` is enabled, a final `assistant` message must start with a"
        " thinking block (preceeding the lastmost set of `tool_use` and `tool_result` blocks)."
    )


def test_v8_the_first_step_of_the_loop_is_the_one_that_counts() -> None:
    first = [user("hi"), assistant(thinking(), tool_use("c1")), user(tool_result("c1"))]
    second = [assistant(tool_use("c2")), user(tool_result("c2"))]
    assert refused(with_tools(*first, *second, **MANUAL)) is None
    bare = [user("hi"), assistant(tool_use("c1")), user(tool_result("c1"))]
    late = [assistant(thinking(), tool_use("c2")), user(tool_result("c2"))]
    assert "Expected `thinking`" in (refused(with_tools(*bare, *late, **MANUAL)) or "")


def test_v8_a_loop_that_is_over_and_adaptive_thinking_need_none() -> None:
    loop = [user("hi"), assistant(tool_use("c1")), user(tool_result("c1"))]
    assert refused(with_tools(*loop, assistant("so"), user("and?"), **MANUAL)) is None
    assert refused(with_tools(*loop, thinking={"type": "adaptive"})) is None


def test_v8_with_manual_thinking_a_prefill_starts_with_thinking() -> None:
    request = body(user("hi"), assistant("I"), model=OLD, **MANUAL)
    assert "Expected `thinking` or `redacted_thinking`, but found `text`" in (
        refused(request) or ""
    )


def test_v16_system_messages_are_refused_where_the_model_takes_none() -> None:
    assert refused(body(user("hi"), system("be brief"), model=OLD)) == (
        'messages: Unexpected role "system". The Messages API accepts a top-level `system`'
        ' parameter, not "system" as an input message role.'
    )


def test_v16_a_system_message_follows_the_user_and_comes_before_the_assistant() -> None:
    follow = "must follow a 'user' message or an 'assistant' message ending in a server tool"
    precede = "must precede an 'assistant' message or end the array"
    note = system("be brief")
    assert refused(body(user("hi"), note, model=NEW)) is None
    assert refused(body(user("hi"), note, assistant("so"), user("?"), model=NEW)) is None
    said = refused(body(user("hi"), assistant("so"), note, user("?"), model=NEW)) or ""
    assert said.startswith(f"messages.2: role 'system' {follow}")
    said = refused(body(user("hi"), note, user("?"), model=NEW)) or ""
    assert said.startswith(f"messages.1: role 'system' {precede}")


def test_v16_no_system_message_stands_between_a_call_and_its_result() -> None:
    request = with_tools(
        user("hi"), assistant(tool_use("c1")), system("x"), user(tool_result("c1")), model=NEW
    )
    assert (refused(request) or "").startswith("messages.2: role 'system' must follow")
