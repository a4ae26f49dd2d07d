"""AnthropicProvider: how it is made, what it refuses, and where its requests go."""

from __future__ import annotations

import json
import sys
from typing import Any

import anthropic
import httpx2
import pytest

from llmsession import AnthropicProvider, InvalidConfig, Profile, ProviderError, Request
from llmsession.providers.models import ANTHROPIC
from llmsession.testing import StrictServer
from llmsession.turns.stream import ReplyEnded
from tests.providers.over_http import greeting, make_provider, read_reply

KEY = "sk-ant-not-a-real-key"
REQUEST = greeting("anthropic")
pytestmark = pytest.mark.usefixtures("no_keys_from_outside")


@pytest.mark.parametrize(
    ("platform", "module"), [("bedrock", "botocore"), ("vertex", "google.auth")]
)
def test_a_platform_whose_package_is_missing_says_what_to_install(
    platform: Any, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidConfig, match=rf"{module}.*pip install 'anthropic\[{platform}\]'"):
        AnthropicProvider(platform=platform)


def test_profiles_are_the_model_table_s_unless_others_are_given() -> None:
    mine = Profile(name="mine", window_tokens=5)
    provider = AnthropicProvider(api_key=KEY, profiles={"claude-opus-5-5": mine})
    assert provider.profile("claude-opus-5-5") is mine
    assert provider.profile("claude-sonnet-5-5").window_tokens == 1_000_000
    assert provider.profile("nobody") is ANTHROPIC


@pytest.mark.parametrize(("cache", "ttl_s"), [("5m", 300.0), ("1h", 3600.0)])
def test_profiles_say_how_long_the_cache_lives_that_requests_ask_for(
    cache: Any, ttl_s: float
) -> None:
    mine = Profile(name="mine", cache_ttl_s=20.0)
    provider = AnthropicProvider(api_key=KEY, cache=cache, profiles={"mine": mine})
    assert provider.profile("claude-opus-5-5").cache_ttl_s == ttl_s
    assert provider.profile("nobody").cache_ttl_s == ttl_s
    assert provider.profile("mine") is mine


@pytest.mark.real_time
async def test_betas_are_sent_in_their_header() -> None:
    async with StrictServer(["hello"]) as server:
        async with make_provider("anthropic", server) as provider:
            betas = {"betas": ["context-management-2025-06-27", "other"]}
            request = Request(
                model=REQUEST.model, max_tokens=9, messages=REQUEST.messages, options=betas
            )
            await read_reply(provider, request)
        assert server.requests[0].headers["anthropic-beta"] == "context-management-2025-06-27,other"


@pytest.mark.real_time
async def test_an_answer_that_is_no_event_stream_is_a_broken_one() -> None:
    answer = httpx2.Response(200, text="<html>hello</html>")
    async with _client(lambda _request: answer) as client:
        with pytest.raises(ProviderError, match="before its end"):
            await read_reply(AnthropicProvider(client=client), REQUEST)


def _client(handle: Any) -> anthropic.AsyncAnthropic:
    http_client = httpx2.AsyncClient(transport=httpx2.MockTransport(handle))
    return anthropic.AsyncAnthropic(api_key=KEY, http_client=http_client, max_retries=0)


STREAM = "".join(
    f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
    for event in (
        {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 3}}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    )
)


@pytest.mark.real_time
async def test_vertex_is_reached_through_the_sdk_s_own_client() -> None:
    seen: list[httpx2.Request] = []

    def handle(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(200, text=STREAM, headers={"content-type": "text/event-stream"})

    http_client = httpx2.AsyncClient(transport=httpx2.MockTransport(handle))
    client = anthropic.AsyncAnthropicVertex(
        region="europe-west1", project_id="p", access_token="t" * 20, http_client=http_client
    )
    async with client:
        events = await read_reply(AnthropicProvider(client=client), REQUEST)
    assert isinstance(events[-1], ReplyEnded)
    assert seen[0].url.path.endswith(f"/models/{REQUEST.model}:streamRawPredict")
    body = json.loads(seen[0].content)
    assert "model" not in body
    assert body["system"][0]["text"] == "be kind"


@pytest.mark.real_time
async def test_a_client_of_one_s_own_is_used_as_it_is_and_not_closed() -> None:
    answer = lambda _request: httpx2.Response(200, text=STREAM)  # noqa: E731  # a handler
    async with _client(answer) as client:
        async with AnthropicProvider(client=client) as provider:
            assert await read_reply(provider, REQUEST)
        assert not client.is_closed()


@pytest.mark.real_time
@pytest.mark.parametrize("counted", [{"input_tokens": 5}, {"nothing": 1}])
async def test_a_count_is_the_server_s_or_a_failure(counted: dict[str, int]) -> None:
    async with _client(lambda _request: httpx2.Response(200, json=counted)) as client:
        provider = AnthropicProvider(client=client)
        if "input_tokens" in counted:
            assert await provider.count_tokens(REQUEST) == 5
        else:
            with pytest.raises(ProviderError):
                await provider.count_tokens(REQUEST)
