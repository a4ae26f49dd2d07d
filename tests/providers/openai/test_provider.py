"""OpenAIProvider: how it is made, how it speaks to which server, and where its requests go."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import msgspec
import openai
import pytest

from llmsession import (
    ChatDialect,
    OpenAIProvider,
    Profile,
    Request,
)
from llmsession.providers.models import COMPATIBLE
from llmsession.turns.stream import ReplyEnded
from tests.providers.over_http import greeting, read_reply

KEY = "sk-not-a-real-key"
REQUEST = greeting("openai")
pytestmark = pytest.mark.usefixtures("no_keys_from_outside")


def test_profiles_are_the_model_table_s_also_those_of_claude_without_its_thinking() -> None:
    provider = OpenAIProvider(api_key=KEY, profiles={"mine": Profile(window_tokens=5)})
    assert provider.profile("mine").window_tokens == 5
    assert provider.profile("gpt-4o").window_tokens == 128_000
    assert provider.profile("qwen3:8b") == COMPATIBLE
    claude = provider.profile("anthropic/claude-opus-5.5")
    assert claude.window_tokens == 1_000_000
    assert not claude.binds_thinking


STREAM = "".join(
    f"data: {json.dumps(each)}\n\n"
    for each in (
        {"model": "m", "choices": [{"delta": {"content": "hello"}}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    )
)


def _handler(seen: list[httpx2.Request], answer: str = STREAM + "data: [DONE]\n\n") -> Any:
    def handle(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(200, text=answer, headers={"content-type": "text/event-stream"})

    return httpx2.AsyncClient(transport=httpx2.MockTransport(handle))


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("url", "limit", "usage"),
    [
        ("https://api.openai.com/v1", "max_completion_tokens", True),
        ("https://api.mistral.ai/v1", "max_tokens", False),
        ("http://127.0.0.1:11434/v1", "max_tokens", True),
    ],
)
async def test_the_dialect_is_the_host_s(url: str, limit: str, usage: bool) -> None:
    seen: list[httpx2.Request] = []
    client = openai.AsyncOpenAI(api_key=KEY, base_url=url, http_client=_handler(seen))
    async with client:
        assert await read_reply(OpenAIProvider(client=client), REQUEST)
        assert await read_reply(
            OpenAIProvider(client=client, dialect=ChatDialect(usage=False)), REQUEST
        )
    first, second = (json.loads(each.content) for each in seen)
    assert first[limit] == 100
    assert ("stream_options" in first) is usage
    assert (second["max_tokens"], "stream_options" in second) == (100, False)


@pytest.mark.real_time
async def test_azure_is_reached_by_its_deployment() -> None:
    seen: list[httpx2.Request] = []
    client = openai.AsyncAzureOpenAI(
        api_key=KEY,
        api_version="2026-01-01",
        azure_endpoint="https://mine.openai.azure.com",
        http_client=_handler(seen),
    )
    async with client:
        events = await read_reply(OpenAIProvider(client=client), REQUEST)
    assert isinstance(events[-1], ReplyEnded)
    assert seen[0].url.path == "/openai/deployments/gpt-4o/chat/completions"
    assert json.loads(seen[0].content)["max_completion_tokens"] == 100


@pytest.mark.real_time
async def test_a_server_that_never_says_done_is_understood() -> None:
    client = openai.AsyncOpenAI(api_key=KEY, http_client=_handler([], STREAM))
    async with client:
        events = await read_reply(OpenAIProvider(client=client), REQUEST)
    assert events[-1] == ReplyEnded("end_turn")


@pytest.mark.real_time
async def test_a_request_carries_its_work_in_a_header_and_its_tools_come_back_by_their_names() -> (
    None
):
    name = "t" * 100
    call = {"id": "a", "type": "function", "index": 0, "function": {"name": "", "arguments": "{}"}}
    seen: list[httpx2.Request] = []

    def handle(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        call["function"]["name"] = json.loads(request.content)["tools"][0]["function"]["name"]  # type: ignore[index]  # a dict of mixed values
        chunk = {"choices": [{"delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}
        return httpx2.Response(200, text=f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n")

    http_client = httpx2.AsyncClient(transport=httpx2.MockTransport(handle))
    tool = json.dumps({"name": name, "description": "", "input_schema": {}}).encode()
    request = Request(
        model="m", max_tokens=5, tools=(msgspec.Raw(tool),), messages=REQUEST.messages
    )
    async with openai.AsyncOpenAI(api_key=KEY, http_client=http_client) as client:
        events = await read_reply(OpenAIProvider(client=client), request)
    assert name in str([bytes(each.block) for each in events if hasattr(each, "block")])
    assert seen[0].headers["x-client-request-id"].endswith("-7.2.1")
