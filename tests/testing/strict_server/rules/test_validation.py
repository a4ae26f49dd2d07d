"""Verdicts: on sizes, on models, on recorded requests, and on whatever JSON there is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.testing.strict_server.model.models import (
    COMPLETION_MODELS,
    MESSAGE_MODELS,
    ModelRules,
)
from llmsession.testing.strict_server.model.refusal import Refusal
from llmsession.testing.strict_server.rules.signatures import Signer
from llmsession.testing.strict_server.rules.validation import (
    AcceptedChat,
    AcceptedMessage,
    validate_chat,
    validate_message,
)
from tests.testing.strict_server.requests import (
    LS,
    accepted,
    assistant,
    body,
    chat,
    chat_refused,
    refused,
    thinking,
    tool_result,
    tool_use,
    user,
)

SMALL = {"small": ModelRules(context_tokens=1000, window_holds_output=True)}


def judged(request: dict[str, Any]) -> AcceptedMessage | Refusal:
    return validate_message(request, SMALL)


def test_an_unknown_model_is_not_found() -> None:
    result = validate_message(body(user("hi"), model="claude-does-not-exist"), MESSAGE_MODELS)
    assert isinstance(result, Refusal)
    assert (result.status, result.kind) == (404, "not_found_error")
    assert result.message == "model: claude-does-not-exist"
    unknown = chat_refused(chat({"role": "user", "content": "hi"}, model="gpt-nought"))
    assert unknown is not None
    assert (unknown.status, unknown.code) == (404, "model_not_found")


def test_a_prompt_that_does_not_fit_the_window_is_too_long() -> None:
    result = judged(body(user("a" * 4000), model="small"))
    assert isinstance(result, Refusal)
    assert result.message == "prompt is too long: 1007 tokens > 1000 maximum"


def test_a_prompt_that_just_fits_is_accepted_where_the_output_does_not_count() -> None:
    models = {"small": ModelRules(context_tokens=1000)}
    whole = user("a" * 3972)
    assert isinstance(validate_message(body(whole, model="small"), models), AcceptedMessage)
    asked = {"role": "user", "content": "a" * 3972}
    assert isinstance(validate_chat(chat(asked, model="small"), models), AcceptedChat)
    more = validate_message(body(user("a" * 3973), model="small"), models)
    assert isinstance(more, Refusal)
    assert more.message == "prompt is too long: 1001 tokens > 1000 maximum"


def test_a_prompt_that_leaves_no_room_for_the_output_is_refused() -> None:
    result = judged(body(user("a" * 3600), model="small"))
    assert isinstance(result, Refusal)
    assert result.message == (
        "input length and `max_tokens` exceed context limit: 907 + 100 > 1000, decrease input"
        " length or `max_tokens` and try again"
    )
    assert isinstance(judged(body(user("a" * 3572), model="small")), AcceptedMessage)


def test_counting_has_no_limit() -> None:
    request = body(user("a" * 4000), model="small")
    del request["max_tokens"]
    assert isinstance(validate_message(request, SMALL, counting=True), AcceptedMessage)


def test_a_chat_that_does_not_fit_says_how_much_too_long_it_is() -> None:
    message = {"role": "user", "content": "a" * 4000}
    result = validate_chat(chat(message, model="small"), SMALL)
    assert isinstance(result, Refusal)
    assert (result.code, result.param) == ("context_length_exceeded", "messages")
    assert result.message == (
        "This model's maximum context length is 1000 tokens. However, your messages resulted in"
        " 1007 tokens. Please reduce the length of the messages."
    )
    message["content"] = "a" * 3600
    result = validate_chat(chat(message, model="small", max_tokens=200), SMALL)
    assert isinstance(result, Refusal)
    assert "you requested 1107 tokens (907 in the messages, 200 in the comp" in result.message


# Recorded traffic.

DEVIATIONS = {
    # Rule V1 of this project is stricter than the recorded API, which took an assistant's
    # message as the first.
    "test_anthropic_model_empty_message_on_history": "first message must use",
}


def recorded(shared_data: Path) -> Iterator[tuple[str, str, Any, int]]:
    """Name, address, body and status of each recorded request."""
    for path in sorted((shared_data / "cassettes-pydantic-ai").glob("*/*.yaml")):
        with path.open(encoding="utf-8") as file:
            cassette = yaml.load(file, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        for exchange in cassette["interactions"]:
            request, response = exchange["request"], exchange["response"]
            sent = request.get("parsed_body")
            yield path.stem, request["uri"], sent, response["status"]["code"]


def test_what_the_real_api_answered_is_accepted_and_what_it_refused_is_refused(
    shared_data: Path,
) -> None:
    asked = {"messages": 0, "count": 0, "completions": 0}
    strange: dict[str, str] = {}
    for name, address, sent, status in recorded(shared_data):
        counting = "/v1/messages/count_tokens" in address
        result: Any
        if "/v1/messages" in address:
            asked["count" if counting else "messages"] += 1
            result = validate_message(sent, MESSAGE_MODELS, counting=counting)
        elif "/v1/chat/completions" in address:
            asked["completions"] += 1
            result = validate_chat(sent, COMPLETION_MODELS)
        else:
            continue
        told = result.status if isinstance(result, Refusal) else 200
        if told != status:
            strange[name] = result.message if isinstance(result, Refusal) else "accepted"
    assert asked == {"messages": 115, "count": 8, "completions": 33}
    assert set(strange) == set(DEVIATIONS)
    assert all(part in strange[name] for name, part in DEVIATIONS.items())


# Any JSON at all.

SEALER = Signer()
START = body(
    user("hi", {"type": "image", "source": {"type": "url", "url": "x"}}),
    system=[{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
    tools=[LS],
    tool_choice={"type": "tool", "name": "ls"},
    thinking={"type": "adaptive"},
    context_management={"edits": [{"type": "clear_thinking_20251015"}]},
    cache_control={"type": "ephemeral", "ttl": "5m"},
    metadata={"user_id": "x"},
)
SAID = SEALER.sign(accepted(START), [thinking(), *assistant("so")["content"], tool_use("c1")])
ANSWERED = user(tool_result("c1", [{"type": "text", "text": "a"}], is_error=False), "go on")
ROUND = {**START, "messages": [*START["messages"], assistant(*SAID), ANSWERED]}
CALL = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
ROUND_CHAT = chat(
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "done"},
    tools=[{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}],
    stream=True,
    stream_options={"include_usage": True},
)

values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text()
    | st.sampled_from(["text", "tool_use", "tool_result", "user", "system", "assistant", "tool"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    keys = value if isinstance(value, dict) else range(len(value))
    for key in list(keys):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def spoilt(whole: dict[str, Any], draw: st.DrawFn) -> dict[str, Any]:
    """*whole* with some of its parts changed, left out or repeated."""
    request = deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        found = list(places(request))
        container, key = found[draw(st.integers(0, len(found) - 1))]
        act = draw(st.sampled_from(["change", "leave out", "repeat"]))
        if act == "change":
            container[key] = draw(values)
        elif act == "repeat" and isinstance(container, list):
            container.insert(key, deepcopy(container[key]))
        else:
            del container[key]
    return request


@st.composite
def spoilt_message(draw: st.DrawFn) -> dict[str, Any]:
    return spoilt(ROUND, draw)


@st.composite
def spoilt_chat(draw: st.DrawFn) -> dict[str, Any]:
    return spoilt(ROUND_CHAT, draw)


def test_the_requests_that_are_spoilt_were_right() -> None:
    assert refused(ROUND, signer=SEALER) is None
    assert chat_refused(ROUND_CHAT) is None


@settings(max_examples=150, deadline=None)
@given(spoilt_message())
def test_any_messages_body_gets_a_verdict(request: dict[str, Any]) -> None:
    result = validate_message(request, MESSAGE_MODELS, signer=SEALER)
    assert isinstance(result, Refusal | AcceptedMessage)
    if isinstance(result, Refusal):
        assert result.status in (400, 404)
        json.dumps(result.message)


@settings(max_examples=150, deadline=None)
@given(spoilt_chat())
def test_any_chat_body_gets_a_verdict(request: dict[str, Any]) -> None:
    result = validate_chat(request, COMPLETION_MODELS)
    assert isinstance(result, Refusal | AcceptedChat)


@pytest.mark.long
@settings(max_examples=20_000, deadline=None)
@given(spoilt_message() | spoilt_chat())
def test_any_body_gets_a_verdict_from_either_judge(request: dict[str, Any]) -> None:
    result = validate_message(request, MESSAGE_MODELS, signer=SEALER)
    assert isinstance(result, Refusal | AcceptedMessage)
    assert isinstance(validate_chat(request, COMPLETION_MODELS), Refusal | AcceptedChat)


@given(values)
def test_a_body_that_is_no_request_at_all_gets_one_too(request: Any) -> None:
    assert isinstance(validate_message(request, MESSAGE_MODELS), Refusal)
    assert isinstance(validate_chat(request, COMPLETION_MODELS), Refusal)
