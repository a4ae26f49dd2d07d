"""Rules of chat completions, with the words of the OpenAI API.

Texts and codes are those that users report of it; where none is known for a rule, the text is
made in their manner.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from ..model.models import ModelRules
from ..model.refusal import Refusal, invalid

__all__ = ["CHAT_RULES", "ChatRule"]

Fields: TypeAlias = Mapping[str, Any]
ChatRule: TypeAlias = Callable[[Fields, ModelRules], Iterator[Refusal]]

NAME = re.compile(r"[a-zA-Z0-9_-]+")
MAX_NAME_CHARS = 64
MAX_CALL_ID_CHARS = 40
ROLES = ("system", "assistant", "user", "function", "tool", "developer")

_PARAMETERS = {
    "audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs",
    "max_completion_tokens", "max_tokens", "messages", "metadata", "modalities", "model",
    "moderation", "n", "parallel_tool_calls", "prediction", "presence_penalty",
    "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning_effort",
    "response_format", "safety_identifier", "seed", "service_tier", "stop", "store", "stream",
    "stream_options", "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "user",
    "verbosity", "web_search_options",
}  # fmt: skip
_KINDS: dict[str, tuple[type, str]] = {
    "max_completion_tokens": (int, "an integer"),
    "max_tokens": (int, "an integer"),
    "stream": (bool, "a boolean"),
    "stream_options": (dict, "an object"),
    "tools": (list, "an array of objects"),
}
_MESSAGE_FIELDS = {
    "annotations", "audio", "content", "function_call", "name", "refusal", "role", "tool_call_id",
    "tool_calls",
}  # fmt: skip


def _missing(place: str) -> Refusal:
    text = f"Missing required parameter: '{place}'."
    return invalid(text, param=place, code="missing_required_parameter")


def _empty(place: str) -> Refusal:
    text = (
        f"Invalid '{place}': empty array. Expected an array with minimum length 1, but got an"
        " empty array instead."
    )
    return invalid(text, param=place, code="empty_array")


def _kind_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a decimal"
        case str():
            return "a string"
        case list():
            return "an array"
    return "an object"


def _wrong_type(place: str, expected: str, value: Any) -> Refusal:
    text = f"Invalid type for '{place}': expected {expected}, but got {_kind_of(value)} instead."
    return invalid(text, param=place, code="invalid_type")


def _too_long(place: str, limit: int, value: str) -> Refusal:
    text = (
        f"Invalid '{place}': string too long. Expected a string with maximum length {limit}, but"
        f" got a string with length {len(value)} instead."
    )
    return invalid(text, param=place, code="string_above_max_length")


def _name_faults(place: str, name: Any) -> Iterator[Refusal]:
    if name is None:
        yield _missing(place)
    elif not isinstance(name, str):
        yield _wrong_type(place, "a string", name)
    elif len(name) > MAX_NAME_CHARS:
        yield _too_long(place, MAX_NAME_CHARS, name)
    elif NAME.fullmatch(name) is None:
        text = (
            f"Invalid '{place}': string does not match pattern. Expected a string that matches"
            " the pattern '^[a-zA-Z0-9_-]+$'."
        )
        yield invalid(text, param=place, code="invalid_value")


def messages_are_well_formed(body: Fields, rules: ModelRules) -> Iterator[Refusal]:
    """A list of at least one message, each with a role and what belongs to it."""
    messages = body.get("messages")
    if messages is None:
        yield _missing("messages")
    elif not isinstance(messages, list):
        yield _wrong_type("messages", "an array of objects", messages)
    elif not messages:
        yield _empty("messages")
    else:
        for index, message in enumerate(messages):
            yield from _message_faults(index, message)


def _message_faults(index: int, message: Any) -> Iterator[Refusal]:
    place = f"messages[{index}]"
    if not isinstance(message, dict):
        yield _wrong_type(place, "an object", message)
        return
    role = message.get("role")
    if role is None:
        yield _missing(f"{place}.role")
        return
    if role not in ROLES:
        listed = ", ".join(f"'{known}'" for known in ROLES[:-1])
        text = f"Invalid value: '{role}'. Supported values are: {listed}, and '{ROLES[-1]}'."
        yield invalid(text, param=f"{place}.role", code="invalid_value")
        return
    for name in message:
        if name not in _MESSAGE_FIELDS:
            where = f"{place}.{name}"
            yield invalid(f"Unknown parameter: '{where}'.", param=where, code="unknown_parameter")
    if message.get("content") is None and not (role == "assistant" and message.get("tool_calls")):
        text = "Invalid value for 'content': expected a string, got null."
        yield invalid(text, param=f"messages.[{index}].content")
    yield from _content_faults(f"{place}.content", message.get("content"))
    call_id = message.get("tool_call_id")
    if role == "tool" and call_id is None:
        yield _missing(f"{place}.tool_call_id")
    elif not isinstance(call_id, str | None):
        yield _wrong_type(f"{place}.tool_call_id", "a string", call_id)
    if message.get("tool_calls") is not None:
        yield from _call_faults(f"{place}.tool_calls", message["tool_calls"])


def _content_faults(place: str, content: Any) -> Iterator[Refusal]:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        yield _wrong_type(place, "one of a string or array of objects", content)
        return
    for index, part in enumerate(content):
        where = f"{place}[{index}]"
        if not isinstance(part, dict):
            yield _wrong_type(where, "an object", part)
        elif part.get("type") is None:
            yield _missing(f"{where}.type")
        elif not isinstance(part["type"], str):
            yield _wrong_type(f"{where}.type", "a string", part["type"])
        elif part["type"] == "text" and not isinstance(part.get("text"), str):
            yield _missing(f"{where}.text")


def _call_faults(place: str, calls: Any) -> Iterator[Refusal]:
    if not isinstance(calls, list):
        yield _wrong_type(place, "an array of objects", calls)
        return
    if not calls:
        yield _empty(place)
    for index, call in enumerate(calls):
        where = f"{place}[{index}]"
        if not isinstance(call, dict):
            yield _wrong_type(where, "an object", call)
            continue
        call_id, function = call.get("id"), call.get("function")
        if call_id is None:
            yield _missing(f"{where}.id")
        elif not isinstance(call_id, str):
            yield _wrong_type(f"{where}.id", "a string", call_id)
        elif len(call_id) > MAX_CALL_ID_CHARS:
            yield _too_long(f"{where}.id", MAX_CALL_ID_CHARS, call_id)
        if call.get("type") is None:
            yield _missing(f"{where}.type")
        if call.get("type") == "function":
            yield from _function_faults(f"{where}.function", function)


def _function_faults(place: str, function: Any) -> Iterator[Refusal]:
    if not isinstance(function, dict):
        yield _missing(place)
        return
    yield from _name_faults(f"{place}.name", function.get("name"))
    arguments = function.get("arguments")
    if arguments is None:
        yield _missing(f"{place}.arguments")
    elif not isinstance(arguments, str):
        yield _wrong_type(f"{place}.arguments", "a string", arguments)


def every_call_is_answered_at_once(body: Fields, rules: ModelRules) -> Iterator[Refusal]:
    """By tool messages directly after the assistant's; each of them answers one of its calls."""
    open_ids: list[str] = []
    call_ids: set[str] | None = None
    for index, message in enumerate(body["messages"]):
        if message["role"] == "tool":
            yield from _answer_faults(index, message["tool_call_id"], call_ids, open_ids)
            open_ids = [one for one in open_ids if one != message["tool_call_id"]]
            continue
        yield from _unanswered(open_ids, f"messages.[{index}].role")
        calls = message.get("tool_calls") if message["role"] == "assistant" else None
        open_ids = [call["id"] for call in calls or ()]
        call_ids = set(open_ids) or None
    yield from _unanswered(open_ids, "messages")


def _answer_faults(
    index: int, call_id: str, call_ids: set[str] | None, open_ids: list[str]
) -> Iterator[Refusal]:
    if call_ids is None:
        text = (
            "Invalid parameter: messages with role 'tool' must be a response to a preceeding"
            " message with 'tool_calls'."
        )
        yield invalid(text, param=f"messages.[{index}].role")
    elif call_id not in call_ids:
        text = (
            f"Invalid parameter: 'tool_call_id' of '{call_id}' not found in 'tool_calls' of"
            " previous message."
        )
        yield invalid(text, param=f"messages.[{index}].tool_call_id")
    elif call_id not in open_ids:
        text = f"Invalid parameter: Duplicate value for 'tool_call_id' of '{call_id}'."
        yield invalid(text, param=f"messages.[{index}].tool_call_id")


def _unanswered(open_ids: list[str], param: str) -> Iterator[Refusal]:
    if open_ids:
        text = (
            "An assistant message with 'tool_calls' must be followed by tool messages responding"
            " to each 'tool_call_id'. The following tool_call_ids did not have response messages:"
            f" {', '.join(open_ids)}"
        )
        yield invalid(text, param=param)


def parameters_are_known(body: Fields, rules: ModelRules) -> Iterator[Refusal]:
    """No parameter of another API; numbers in their range; options where they belong."""
    for name in body:
        if name not in _PARAMETERS:
            yield invalid(f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")
    for name, (kind, expected) in _KINDS.items():
        value = body.get(name)
        if not isinstance(value, kind | None) or (kind is int and isinstance(value, bool)):
            yield _wrong_type(name, expected, value)
            return
    if body.get("stream_options") is not None and not body.get("stream"):
        text = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        yield invalid(text, param="stream_options")
    temperature = body.get("temperature")
    if isinstance(temperature, int | float) and temperature > 2:
        text = (
            "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got"
            f" {temperature} instead."
        )
        yield invalid(text, param="temperature", code="decimal_above_max_value")


def tools_are_well_formed(body: Fields, rules: ModelRules) -> Iterator[Refusal]:
    """At least one, each with a name; a choice, or a word on parallel calls, needs tools."""
    tools = body.get("tools")
    for name in ("tool_choice", "parallel_tool_calls"):
        if tools is None and body.get(name) is not None:
            text = (
                f"Invalid value for '{name}': '{name}' is only allowed when 'tools' are specified."
            )
            yield invalid(text, param=name)
    if tools is None:
        return
    if not tools:
        yield _empty("tools")
    for index, tool in enumerate(tools):
        place = f"tools[{index}]"
        if not isinstance(tool, dict):
            yield _wrong_type(place, "an object", tool)
        elif tool.get("type") is None:
            yield _missing(f"{place}.type")
        elif tool["type"] == "function":
            yield from _definition_faults(f"{place}.function", tool.get("function"))


def _definition_faults(place: str, function: Any) -> Iterator[Refusal]:
    if not isinstance(function, dict):
        yield _missing(place)
        return
    yield from _name_faults(f"{place}.name", function.get("name"))
    schema = function.get("parameters")
    if isinstance(schema, dict) and schema and schema.get("type") != "object":
        text = (
            f"Invalid schema for function '{function.get('name')}': schema must be a JSON Schema"
            f" of 'type: \"object\"', got 'type: \"{schema.get('type')}\"'."
        )
        yield invalid(text, param=f"{place}.parameters", code="invalid_function_parameters")


def output_fits_the_model(body: Fields, rules: ModelRules) -> Iterator[Refusal]:
    """A reasoning model has its own word for the limit and no temperature; none says more than
    it can."""
    if rules.reasons and body.get("max_tokens") is not None:
        text = (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use"
            " 'max_completion_tokens' instead."
        )
        yield invalid(text, param="max_tokens", code="unsupported_parameter")
    temperature = body.get("temperature")
    if rules.reasons and temperature not in (None, 1):
        text = (
            f"Unsupported value: 'temperature' does not support {temperature} with this model."
            " Only the default (1) value is supported."
        )
        yield invalid(text, param="temperature", code="unsupported_value")
    for name in ("max_tokens", "max_completion_tokens"):
        setting = body.get(name)
        if isinstance(setting, int) and setting > rules.max_output_tokens:
            text = (
                f"{name} is too large: {setting}. This model supports at most"
                f" {rules.max_output_tokens} completion tokens, whereas you provided {setting}."
            )
            yield invalid(text, param=name, code="invalid_value")


CHAT_RULES: dict[str, ChatRule] = {
    "parameters": parameters_are_known,
    "messages": messages_are_well_formed,
    "pairing": every_call_is_answered_at_once,
    "tools": tools_are_well_formed,
    "output": output_fits_the_model,
}
"""The rules in the order in which they are checked. The first broken rule is reported."""
