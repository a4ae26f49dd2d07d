"""A reply as chat completions stream it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmsession.testing.strict_server.model.usage import Cost, PromptCost
from llmsession.testing.strict_server.replies.chat_chunks import (
    completion_body,
    completion_chunks,
    finish_reason,
)
from llmsession.testing.strict_server.replies.received import Reply
from tests.testing.strict_server.requests import reply_of

COST = Cost(PromptCost(new=5, read=7), 40, 4)
TEXT = {"type": "text", "text": "abcd"}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
CALLS = [
    {"type": "tool_use", "id": "c1", "name": "ls", "input": {"path": "."}},
    {"type": "tool_use", "id": "c2", "name": "pwd", "input": {}},
]


def reply(*blocks: dict[str, Any], stop_reason: str = "end_turn") -> Reply:
    return reply_of("completions", blocks, COST, stop_reason=stop_reason)


def stream(*blocks: dict[str, Any], usage: bool = False) -> list[dict[str, Any]]:
    raw = b"".join(completion_chunks(reply(*blocks), include_usage=usage))
    said = [line.removeprefix("data: ") for line in raw.decode().split("\n\n")[:-1]]
    assert said.pop() == "[DONE]"
    return [json.loads(one) for one in said]


def deltas(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    return [chunk["choices"][0]["delta"] for chunk in stream(*blocks)]


def test_the_first_chunk_names_the_role_and_the_last_why_it_ends() -> None:
    chunks = stream(TEXT)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert "".join(delta.get("content") or "" for delta in deltas(TEXT)) == "abcd"


def test_calls_are_opened_with_their_id_and_filled_by_index() -> None:
    calls = [one for delta in deltas(TEXT, *CALLS) for one in delta.get("tool_calls", ())]
    opened = [one for one in calls if "id" in one]
    assert [(one["index"], one["id"], one["function"]["name"]) for one in opened] == [
        (0, "c1", "ls"),
        (1, "c2", "pwd"),
    ]
    said = ["".join(one["function"]["arguments"] for one in calls if one["index"] == at)
            for at in (0, 1)]  # fmt: skip
    assert [json.loads(one) for one in said] == [{"path": "."}, {}]


def test_usage_comes_in_a_chunk_of_its_own_when_it_is_asked_for() -> None:
    assert all("usage" not in chunk for chunk in stream(TEXT))
    *chunks, last = stream(TEXT, usage=True)
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == 12
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == 7
    assert last["usage"]["completion_tokens_details"]["reasoning_tokens"] == 4
    assert last["usage"]["total_tokens"] == 52


def test_thinking_is_counted_and_not_shown() -> None:
    assert deltas(THOUGHT, TEXT) == deltas(TEXT)
    assert "hm" not in completion_body(reply(THOUGHT, TEXT)).decode()


@pytest.mark.parametrize(
    ("stop_reason", "word"),
    [
        ("end_turn", "stop"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "length"),
        ("refusal", "content_filter"),
        ("a word of its own", "a word of its own"),
    ],
)
def test_stop_reasons_are_said_in_this_apis_words(stop_reason: str, word: str) -> None:
    assert finish_reason(reply(stop_reason=stop_reason)) == word


def test_the_body_holds_the_text_and_the_calls() -> None:
    choice = json.loads(completion_body(reply(TEXT, *CALLS)))["choices"][0]
    assert choice["message"]["content"] == "abcd"
    assert [call["id"] for call in choice["message"]["tool_calls"]] == ["c1", "c2"]
    alone = json.loads(completion_body(reply(*CALLS)))["choices"][0]["message"]
    assert alone["content"] is None
