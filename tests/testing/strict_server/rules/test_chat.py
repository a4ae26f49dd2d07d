"""The rules of chat completions, with the words of the OpenAI API."""

from __future__ import annotations

from typing import Any, TypeAlias

import pytest

from tests.testing.strict_server.requests import chat, chat_refused

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}


def call(call_id: str, name: str = "ls", arguments: Any = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **fields}


def answer(call_id: str, content: Any = "done") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def told(request: Any) -> tuple[str, str | None, str | None] | None:
    """Message, param and code of a 400; None if it is accepted."""
    refusal = chat_refused(request)
    if refusal is None:
        return None
    assert (refusal.status, refusal.kind) == (400, "invalid_request_error")
    return refusal.message, refusal.param, refusal.code


def test_a_tool_loop_is_accepted() -> None:
    loop = [USER, calling(call("c1"), call("c2")), answer("c2"), answer("c1")]
    assert told(chat(*loop)) is None
    assert told(chat(*loop, {"role": "assistant", "content": "so"}, USER, tools=[TOOL])) is None


UNANSWERED = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each"
    " 'tool_call_id'. The following tool_call_ids did not have response messages: "
)


def test_every_call_is_answered_before_anything_else_is_said() -> None:
    calls = calling(call("c1"), call("c2"))
    assert told(chat(USER, calls, answer("c1"), USER)) == (
        UNANSWERED + "c2",
        "messages.[3].role",
        None,
    )
    assert told(chat(USER, calls, USER)) == (UNANSWERED + "c1, c2", "messages.[2].role", None)
    assert told(chat(USER, calls)) == (UNANSWERED + "c1, c2", "messages", None)


def test_a_tool_message_answers_the_message_before_it() -> None:
    said = (
        "Invalid parameter: messages with role 'tool' must be a response to a preceeding message"
        " with 'tool_calls'."
    )
    assert told(chat(USER, answer("c1"))) == (said, "messages.[1].role", None)
    late = chat(USER, calling(call("c1")), answer("c1"), USER, answer("c1"))
    assert told(late) == (said, "messages.[4].role", None)


def test_a_tool_message_names_one_of_its_calls_and_each_once() -> None:
    said = (
        "Invalid parameter: 'tool_call_id' of 'c9' not found in 'tool_calls' of previous message."
    )
    wrong = chat(USER, calling(call("c1")), answer("c9"))
    assert told(wrong) == (said, "messages.[2].tool_call_id", None)
    twice = chat(USER, calling(call("c1")), answer("c1"), answer("c1"))
    said = "Invalid parameter: Duplicate value for 'tool_call_id' of 'c1'."
    assert told(twice) == (said, "messages.[3].tool_call_id", None)


Told: TypeAlias = tuple[str, str | None, str | None]


def missing(place: str) -> Told:
    return f"Missing required parameter: '{place}'.", place, "missing_required_parameter"


def unknown(place: str) -> Told:
    return f"Unknown parameter: '{place}'.", place, "unknown_parameter"


def wrong_type(place: str, expected: str, value: str) -> Told:
    text = f"Invalid type for '{place}': expected {expected}, but got {value} instead."
    return text, place, "invalid_type"


def empty(place: str) -> Told:
    text = (
        f"Invalid '{place}': empty array. Expected an array with minimum length 1, but got an empty"
        " array instead."
    )
    return text, place, "empty_array"


def null_content(index: int) -> Told:
    text = "Invalid value for 'content': expected a string, got null."
    return text, f"messages.[{index}].content", None


def without_tools(name: str) -> Told:
    text = f"Invalid value for '{name}': '{name}' is only allowed when 'tools' are specified."
    return text, name, None


CALL = "messages[1].tool_calls[0]"


@pytest.mark.parametrize(
    ("messages", "refusal"),
    [
        ([], empty("messages")),
        (["hi"], wrong_type("messages[0]", "an object", "a string")),
        ([{"content": "hi"}], missing("messages[0].role")),
        (
            [{"role": "model", "content": "hi"}],
            (
                "Invalid value: 'model'. Supported values are: 'system', 'assistant', 'user',"
                " 'function', 'tool', and 'developer'.",
                "messages[0].role",
                "invalid_value",
            ),
        ),
        ([{"role": "user", "content": None}], null_content(0)),
        ([USER, {"role": "assistant", "content": None}], null_content(1)),
        (
            [{"role": "user", "content": 3}],
            wrong_type("messages[0].content", "one of a string or array of objects", "an integer"),
        ),
        ([{"role": "user", "content": [{"text": "a"}]}], missing("messages[0].content[0].type")),
        ([{**USER, "cache_control": {}}], unknown("messages[0].cache_control")),
        (
            [USER, calling(call("c1")), {"role": "tool", "content": "x"}],
            missing("messages[2].tool_call_id"),
        ),
        ([USER, calling(content="so")], empty("messages[1].tool_calls")),
        (
            [USER, calling(call("c" * 41)), answer("c" * 41)],
            (
                f"Invalid '{CALL}.id': string too long. Expected a string with maximum length 40,"
                " but got a string with length 41 instead.",
                f"{CALL}.id",
                "string_above_max_length",
            ),
        ),
        (
            [USER, calling(call("c1", arguments={})), answer("c1")],
            wrong_type(f"{CALL}.function.arguments", "a string", "an object"),
        ),
        (
            [USER, calling(call("c1", "a b")), answer("c1")],
            (
                f"Invalid '{CALL}.function.name': string does not match pattern. Expected a string"
                " that matches the pattern '^[a-zA-Z0-9_-]+$'.",
                f"{CALL}.function.name",
                "invalid_value",
            ),
        ),
    ],
)
def test_messages_are_well_formed(messages: list[Any], refusal: Told) -> None:
    assert told({"model": "test-model", "messages": messages}) == refusal


def test_a_request_without_model_or_messages() -> None:
    assert told({"messages": [USER]}) == ("you must provide a model parameter", None, None)
    assert told({"model": "test-model"}) == missing("messages")


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"thinking": {}}, unknown("thinking")),
        (
            {"stream_options": {"include_usage": True}},
            (
                "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
                "stream_options",
                None,
            ),
        ),
        ({"stream": "yes"}, wrong_type("stream", "a boolean", "a string")),
        (
            {"temperature": 3},
            (
                "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got"
                " 3 instead.",
                "temperature",
                "decimal_above_max_value",
            ),
        ),
        ({"tools": []}, empty("tools")),
        ({"tool_choice": "auto"}, without_tools("tool_choice")),
        ({"parallel_tool_calls": False}, without_tools("parallel_tool_calls")),
        (
            {"max_tokens": 20_000},
            (
                "max_tokens is too large: 20000. This model supports at most 16384 completion"
                " tokens, whereas you provided 20000.",
                "max_tokens",
                "invalid_value",
            ),
        ),
    ],
)
def test_parameters_are_known_and_belong_together(fields: dict[str, Any], refusal: Told) -> None:
    assert told(chat(USER, **fields)) == refusal


def test_a_tool_has_a_type_a_name_and_an_object_for_its_arguments() -> None:
    def tool(**function: Any) -> Any:
        return told(chat(USER, tools=[{"type": "function", "function": function}]))

    assert told(chat(USER, tools=[{"function": {}}]))[0] == (  # type: ignore[index]
        "Missing required parameter: 'tools[0].type'."
    )
    assert tool()[0] == "Missing required parameter: 'tools[0].function.name'."
    assert tool(name="a" * 65)[2] == "string_above_max_length"
    assert tool(name="a.b")[2] == "invalid_value"
    assert tool(name="ls", parameters={"type": "array"}) == (
        "Invalid schema for function 'ls': schema must be a JSON Schema of 'type: \"object\"',"
        " got 'type: \"array\"'.",
        "tools[0].function.parameters",
        "invalid_function_parameters",
    )
    assert tool(name="ls") is tool(name="ls", parameters={}) is None


def test_a_reasoning_model_has_its_own_word_for_the_limit_and_no_temperature() -> None:
    assert told(chat(USER, model="gpt-5-mini", max_tokens=100)) == (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use"
        " 'max_completion_tokens' instead.",
        "max_tokens",
        "unsupported_parameter",
    )
    assert told(chat(USER, model="o3-mini", temperature=0.3)) == (
        "Unsupported value: 'temperature' does not support 0.3 with this model. Only the default"
        " (1) value is supported.",
        "temperature",
        "unsupported_value",
    )
    assert told(chat(USER, model="gpt-5-mini", max_completion_tokens=100)) is None
    assert told(chat(USER, model="gpt-4o", max_tokens=100, temperature=0.3)) is None
