"""The shape of a Messages request, refused in the words of the real API's validation."""

from __future__ import annotations

from typing import Any

import pytest

from tests.testing.strict_server.requests import (
    LS,
    assistant,
    body,
    refused,
    tool_use,
    user,
    with_tools,
)

EXTRA = "Extra inputs are not permitted"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": None}, "model: Field required"),
        ({"model": 3}, "model: Input should be a valid string"),
        ({"model": ""}, "model: String should have at least 1 character"),
        ({"max_tokens": None}, "max_tokens: Field required"),
        ({"max_tokens": "9"}, "max_tokens: Input should be a valid integer"),
        ({"max_tokens": True}, "max_tokens: Input should be a valid integer"),
        ({"max_tokens": 0}, "max_tokens: must be greater than or equal to 1"),
        ({"messages": None}, "messages: Field required"),
        ({"messages": {}}, "messages: Input should be a valid list"),
        ({"messages": []}, "messages: at least one message is required"),
        ({"system": 3}, "system: Input should be a valid list"),
        ({"system": [{"type": "image"}]}, "system.0.type: Input should be 'text'"),
        ({"system": [{"type": "text", "x": 1}]}, "system.0.text: Field required"),
        ({"prompt": "hi"}, f"prompt: {EXTRA}"),
        ({"stream_options": {}}, f"stream_options: {EXTRA}"),
    ],
)
def test_a_parameter_that_is_missing_wrong_or_unknown(changed: Any, said: str) -> None:
    assert refused({**body(user("hi")), **changed}) == said


def test_a_body_that_is_no_object() -> None:
    assert "valid dictionary" in (refused([1]) or "")


def test_count_tokens_wants_no_max_tokens_and_takes_none() -> None:
    request = body(user("hi"))
    assert refused(request, counting=True) == f"max_tokens: {EXTRA}"
    del request["max_tokens"]
    assert refused(request, counting=True) is None
    assert refused(request) == "max_tokens: Field required"


def test_there_are_at_most_100_000_messages() -> None:
    many = [{"role": "user", "content": "a"}] * 100_001
    assert (refused(body(*many)) or "").startswith("messages: List should have at most 100000")


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("hi", "messages.0: Input should be a valid dictionary or object to extract fields from"),
        ({"content": "hi"}, "messages.0.role: Field required"),
        (
            {"role": "tool", "content": "hi"},
            'messages: Unexpected role "tool". Allowed roles are "user" or "assistant"',
        ),
        ({"role": "user"}, "messages.0.content: Field required"),
        ({"role": "user", "content": 3}, "messages.0.content: Input should be a valid list"),
        ({"role": "user", "content": "hi", "name": "x"}, f"messages.0.name: {EXTRA}"),
        (user({"text": "hi"}), "messages.0.content.0.type: Field required"),
        (user({"type": "text"}), "messages.0.content.0.text.text: Field required"),
        (
            user({"type": "text", "text": 3}),
            "messages.0.content.0.text.text: Input should be a valid string",
        ),
        (
            user({"type": "text", "text": "a", "parsed_output": None}),
            f"messages.0.content.0.text.parsed_output: {EXTRA}",
        ),
        (
            assistant({"type": "thinking", "thinking": "hm"}),
            "messages.0.content.0.thinking.signature: Field required",
        ),
        (
            assistant({**tool_use("c1"), "input": "{}"}),
            "messages.0.content.0.tool_use.input: Input should be a valid dictionary",
        ),
        (
            assistant(tool_use("c 1")),
            "messages.0.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
        ),
        (
            user({"type": "tool_result", "tool_use_id": "c.1"}),
            "messages.0.content.0.tool_result.tool_use_id: String should match pattern"
            " '^[a-zA-Z0-9_-]+$'",
        ),
        (
            user({"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text"}]}),
            "messages.0.content.0.tool_result.content.0.text.text: Field required",
        ),
    ],
)
def test_a_message_or_block_that_is_missing_something_or_has_too_much(
    message: Any, said: str
) -> None:
    assert refused(body(message)) == said


def test_a_type_of_block_that_nobody_knows() -> None:
    said = refused(body(user({"type": "text_delta", "text": "a"}))) or ""
    assert said.startswith("messages.0.content.0: Input tag 'text_delta' found using 'type' does")


def test_fields_that_sdks_add_to_a_call_are_accepted() -> None:
    call = tool_use("c1", caller={"type": "direct"}, toolset_name=None)
    result = {"type": "tool_result", "tool_use_id": "c1"}
    assert refused(with_tools(user("hi"), assistant(call), user(result))) is None


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ({"input_schema": {}}, "tools.0.custom.name: Field required"),
        ({**LS, "name": ""}, "tools.0.custom.name: String should have at least 1 character"),
        (
            {**LS, "name": "a b"},
            "tools.0.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'",
        ),
        (
            {**LS, "name": "a" * 129},
            "tools.0.custom.name: String should have at most 128 characters",
        ),
        ({"name": "ls"}, "tools.0.custom.input_schema: Field required"),
        ({"name": "ls", "input_schema": {}}, "tools.0.custom.input_schema.type: Field required"),
        (
            {"name": "ls", "input_schema": {"type": "array"}},
            "tools.0.custom.input_schema.type: Input should be 'object'",
        ),
        ({**LS, "function": {}}, f"tools.0.custom.function: {EXTRA}"),
    ],
)
def test_v13_a_tool_is_well_formed(tool: Any, said: str) -> None:
    assert refused(body(user("hi"), tools=[tool])) == said


def test_a_tool_of_the_providers_own_goes_by_its_type() -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    assert refused(body(user("hi"), tools=[search])) is None
    chat = {"type": "function", "function": {"name": "ls"}}
    said = refused(body(user("hi"), tools=[chat])) or ""
    assert said.startswith("tools.0: Input tag 'function' found using 'type' does not match")
    assert refused(body(user("hi"), tools={})) == "tools: Input should be a valid list"


@pytest.mark.parametrize(
    ("thinking", "said"),
    [
        ({"type": "enabled"}, "thinking.enabled.budget_tokens: Field required"),
        (
            {"type": "enabled", "budget_tokens": 1023},
            "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
        ),
        (
            {"type": "enabled", "budget_tokens": 1e4},
            "thinking.enabled.budget_tokens: Input should be a valid integer",
        ),
        (
            {"type": "adaptive", "budget_tokens": 2000},
            f"thinking.adaptive.budget_tokens: {EXTRA}",
        ),
        ({"type": "disabled", "display": "x"}, f"thinking.disabled.display: {EXTRA}"),
        (
            {"type": "auto"},
            "thinking: Input tag 'auto' found using 'type' does not match any of the expected"
            " tags: 'adaptive', 'disabled', 'enabled'",
        ),
    ],
)
def test_v11_thinking_has_one_of_three_shapes(thinking: Any, said: str) -> None:
    assert refused({**body(user("hi"), thinking=thinking), "max_tokens": 20_000}) == said


@pytest.mark.parametrize(
    ("control", "said"),
    [
        ({"type": "ephemeral", "ttl": "2h"}, "ephemeral.ttl: Input should be '5m' or '1h'"),
        ({"type": "ephemeral", "max": 1}, f"ephemeral.max: {EXTRA}"),
    ],
)
def test_v12_a_breakpoint_is_ephemeral_for_five_minutes_or_an_hour(control: Any, said: str) -> None:
    block = {"type": "text", "text": "a", "cache_control": control}
    where = "messages.0.content.0.text.cache_control"
    assert refused(body(user(block))) == f"{where}.{said}"
    assert refused(body(user("a"), cache_control=control)) == f"cache_control.{said}"


def test_a_tool_choice_is_one_of_four() -> None:
    assert refused(with_tools(user("hi"), tool_choice="auto")) == (
        "tool_choice: Input should be a valid dictionary"
    )
    said = refused(with_tools(user("hi"), tool_choice={"type": "all"})) or ""
    assert said.startswith("tool_choice: Input tag 'all' found using 'type'")
    named = with_tools(user("hi"), tool_choice={"type": "tool"})
    assert refused(named) == "tool_choice.tool.name: Field required"


def test_sampling_parameters_are_in_their_range() -> None:
    assert refused(body(user("hi"), temperature=1.5)) == "temperature: range: 0..1"
    said = "stop_sequences: each stop sequence must contain non-whitespace"
    assert refused(body(user("hi"), stop_sequences=["END", " "])) == said


PNG = "iVBORw0KGgoAAAA="


def image(**source: Any) -> dict[str, Any]:
    whole = {"type": "base64", "media_type": "image/png", "data": PNG, **source}
    return body(user({"type": "image", "source": whole}, "what is it?"))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"type": "path"}, ": Input tag 'path' found using 'type' does not match"),
        (
            {"media_type": "image/bmp"},
            ".base64.media_type: Input should be 'image/jpeg', 'image/png', 'image/gif' or"
            " 'image/webp'",
        ),
        ({"data": "***"}, ".base64.data: Invalid base64 data"),
        ({"data": ""}, ".base64: image cannot be empty"),
        (
            {"media_type": "image/jpeg"},
            ".base64.data: Image does not match the provided media type image/jpeg",
        ),
        (
            {"data": PNG[:-4] + "AAAA" * (5 * 1024 * 1024 // 3 + 1)},
            ".base64: image exceeds 5 MB maximum: ",
        ),
    ],
)
def test_an_image_is_what_it_says_and_not_too_large(source: Any, said: str) -> None:
    assert (refused(image(**source)) or "").startswith(f"messages.0.content.0.image.source{said}")


def test_an_image_that_is_right_is_accepted() -> None:
    assert refused(image()) is None
    address = {"type": "url", "url": "https://example.org/a.png"}
    assert refused(body(user({"type": "image", "source": address}))) is None
