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
HI, SO, AGAIN = user("hi"), assistant("so"), user("and?")
CALL, RESULT = assistant(tool_use("c1")), user(tool_result("c1"))
LOOP = (HI, CALL, RESULT)
THINKING_LOOP = (HI, assistant(thinking(), tool_use("c1")), RESULT)
MIXED = (HI, assistant(server_use("s1"), tool_use("c1")))
SUMMARY = {"type": "compaction", "content": "what was said"}
SUMMARIZE = {"type": "summarize"}
NOTE = system("be brief")

ACCEPTED: dict[str, dict[str, Any]] = {
    "one message": body(HI),
    "a plain conversation": body(HI, assistant("hello"), AGAIN),
    "a message whose content is text": body({"role": "user", "content": "hi"}),
    "v1: a compaction block comes first": body(assistant(SUMMARY, "hello"), HI),
    "v1: neighbours of one role are one message": body(
        user("a"), user("b"), assistant("c"), assistant("d"), user("e")
    ),
    "v1: calls and results in halves": with_tools(
        HI, CALL, assistant(tool_use("c2")), RESULT, user(tool_result("c2"), "go on")
    ),
    "v2: a prefill of a model that takes one": body(HI, assistant("I"), model=OLD),
    "v2: a paused turn ends with the assistant": body(
        HI, assistant("let me see", server_use("s1")), model=NEW
    ),
    "v2: a turn that was paused behind a search that is over ends with the assistant": body(
        HI, assistant(server_use("s1"), server_result("s1"), "so"), assistant("far"), model=NEW
    ),
    "v2: a compaction request ends with the assistant": body(
        HI, assistant("hello"), model=NEW, compaction=SUMMARIZE
    ),
    "v3: results in any order, and text after them": with_tools(
        HI,
        assistant(tool_use("c1"), tool_use("c2")),
        user(tool_result("c2"), tool_result("c1"), "and now?"),
    ),
    "v6: a server call waits for the caller's own result": with_tools(*MIXED, RESULT),
    "v6: a server result comes behind the caller's own results": with_tools(
        *MIXED, RESULT, assistant(server_result("s1"), "so"), AGAIN
    ),
    "v8: the first step of a loop starts with thinking": with_tools(
        *THINKING_LOOP, assistant(tool_use("c2")), user(tool_result("c2")), **MANUAL
    ),
    "v8: a loop that is over needs no thinking": with_tools(*LOOP, SO, AGAIN, **MANUAL),
    "v8: adaptive thinking needs none": with_tools(*LOOP, thinking={"type": "adaptive"}),
    "v16: a system message ends the array": body(HI, NOTE, model=NEW),
    "v16: a system message precedes the assistant": body(HI, NOTE, SO, user("?"), model=NEW),
}


@pytest.mark.parametrize("request_body", ACCEPTED.values(), ids=list(ACCEPTED))
def test_a_request_that_breaks_no_rule_is_accepted(request_body: dict[str, Any]) -> None:
    assert refused(request_body) is None


BLANK = "messages: text content blocks must contain non-whitespace text"
WHITESPACE = "messages: final assistant content cannot end with trailing whitespace"
ASSISTANT_ONLY = "blocks can only be in `assistant` messages"
FIRST_THINKING = "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found"

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "v1: the first message is the assistant's": (
        body(assistant("hello"), HI),
        'messages: first message must use the "user" role',
    ),
    "v2: a prefill where the model takes none": (
        body(HI, assistant("I"), model=NEW),
        "This model does not support assistant message prefill. The conversation must end with"
        " a user message.",
    ),
    "v2: a prefill that ends with a space": (body(HI, assistant("I "), model=OLD), WHITESPACE),
    "v2: a prefill whose text ends with a line end": (
        body(HI, {"role": "assistant", "content": "I\n"}, model=OLD),
        WHITESPACE,
    ),
    "v3: calls that the next message does not answer": (
        with_tools(HI, assistant("so", tool_use("c1"), tool_use("c2")), user("no")),
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after:"
        " c1, c2. Each `tool_use` block must have a corresponding `tool_result` block in the"
        " next message.",
    ),
    "v4: a result without its call": (
        with_tools(HI, SO, user(tool_result("c9"))),
        "messages.2.content.0: unexpected `tool_use_id` found in `tool_result` blocks: c9. Each"
        " `tool_result` block must have a corresponding `tool_use` block in the previous message.",
    ),
    "v4: two results of one call": (
        with_tools(HI, CALL, user(tool_result("c1"), tool_result("c1"))),
        "messages.2.content.1: each tool_use must have a single result. Found multiple"
        " `tool_result` blocks with id: c1",
    ),
    "v4: a call id that is used twice in the request": (
        with_tools(HI, CALL, RESULT, CALL, RESULT),
        "messages.3.content.0: `tool_use` ids must be unique",
    ),
    "v4: a call of the user": (
        with_tools(HI, user(tool_use("c1"))),
        f"messages.1.content.0: `tool_use` {ASSISTANT_ONLY}",
    ),
    "v4: thinking of the user": (
        with_tools(HI, user(thinking())),
        f"messages.1.content.0: `thinking` {ASSISTANT_ONLY}",
    ),
    "v4: a server call of the user": (
        with_tools(HI, user(server_use("s1"))),
        f"messages.1.content.0: `server_tool_use` {ASSISTANT_ONLY}",
    ),
    "v4: a server result of the user": (
        with_tools(HI, user(server_result("s1"))),
        f"messages.1.content.0: `web_search_tool_result` {ASSISTANT_ONLY}",
    ),
    "v4: a result of the assistant": (
        with_tools(HI, assistant(tool_use("c1"), tool_result("c1")), user("so")),
        "messages.1.content.1: `tool_result` blocks can only be in `user` messages",
    ),
    "v5: an empty text block": (
        body(user("")),
        "messages: text content blocks must be non-empty",
    ),
    "v5: a blank text block": (body(user(" \n")), BLANK),
    "v5: a blank text block after another": (body(user("hi", "\n")), BLANK),
    "v5: an empty system prompt": (
        body(HI, system=[{"type": "text", "text": ""}]),
        "system: text content blocks must be non-empty",
    ),
    "v6: a server result without its call": (
        body(HI, assistant(server_result("s1"), "so"), AGAIN),
        "messages.1.content.0: unexpected `tool_use_id` found in `web_search_tool_result` blocks:"
        " s1. Each `web_search_tool_result` block must have a corresponding `server_tool_use`"
        " block before it.",
    ),
    "v6: a server call without its result when the turn is over": (
        body(HI, assistant(server_use("s1"), "so"), AGAIN),
        "messages.1: `web_search` tool use with id `s1` was found without a corresponding"
        " `web_search_tool_result` block",
    ),
    "v16: a system message where the model takes none": (
        body(HI, NOTE, model=OLD),
        'messages: Unexpected role "system". The Messages API accepts a top-level `system`'
        ' parameter, not "system" as an input message role.',
    ),
}


@pytest.mark.parametrize(("request_body", "message"), REFUSED.values(), ids=list(REFUSED))
def test_a_request_that_breaks_a_rule_is_refused(
    request_body: dict[str, Any], message: str
) -> None:
    assert refused(request_body) == message


FOLLOW = "must follow a 'user' message or an 'assistant' message ending in a server tool"
PRECEDE = "must precede an 'assistant' message or end the array"

REFUSED_BEGINNING: dict[str, tuple[dict[str, Any], str]] = {
    "v6: text beside the caller's results ends the turn": (
        with_tools(*MIXED, user(tool_result("c1"), "stop")),
        "messages.1: `web_search` tool use with id `s1` was found without a corresponding",
    ),
    "v8: a tool loop without thinking": (
        with_tools(*LOOP, **MANUAL),
        f"{FIRST_THINKING} `tool_use`. When `thinking` is enabled, a final `assistant` message must"
        " start with a thinking block (preceeding the lastmost set of `tool_use` and `tool_result`"
        " blocks).",
    ),
    "v8: thinking only in the second step": (
        with_tools(*LOOP, assistant(thinking(), tool_use("c2")), user(tool_result("c2")), **MANUAL),
        f"{FIRST_THINKING} `tool_use`.",
    ),
    "v8: a prefill without thinking": (
        body(HI, assistant("I"), model=OLD, **MANUAL),
        f"{FIRST_THINKING} `text`",
    ),
    "v16: a system message after the assistant": (
        body(HI, SO, NOTE, user("?"), model=NEW),
        f"messages.2: role 'system' {FOLLOW}",
    ),
    "v16: a system message before the user": (
        body(HI, NOTE, user("?"), model=NEW),
        f"messages.1: role 'system' {PRECEDE}",
    ),
    "v16: a system message between a call and its result": (
        with_tools(HI, CALL, system("x"), RESULT, model=NEW),
        "messages.2: role 'system' must follow",
    ),
}


@pytest.mark.parametrize(
    ("request_body", "beginning"), REFUSED_BEGINNING.values(), ids=list(REFUSED_BEGINNING)
)
def test_a_request_that_breaks_a_rule_is_refused_with_words_that_begin_so(
    request_body: dict[str, Any], beginning: str
) -> None:
    assert (refused(request_body) or "").startswith(beginning)


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
