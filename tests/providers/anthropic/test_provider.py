"""AnthropicProvider: how it is made, what it refuses, and where its requests go."""

from __future__ import annotations

import json
import sys
from typing import Any

import anthropic
import anyio
import httpx2
import pytest

from llmsession import AnthropicProvider, InvalidConfig, Profile, ProviderError, Request, StepTag
from llmsession.providers.models import ANTHROPIC
from llmsession.testing import StrictServer
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.request import RequestMessage
from llmsession.turns.stream import ReplyEnded, StreamEvent
from tests.providers.over_http import MODELS, make_provider

KEY = "sk-ant-not-a-real-key"
TAG = StepTag(7, 2, 1)
REQUEST = Request(
    model=MODELS["anthropic"],
    max_tokens=100,
    system="be kind",
    messages=(RequestMessage("user", encode_blocks("hi")),),
)


@pytest.fixture(autouse=True)
def no_keys_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in ("API_KEY", "AUTH_TOKEN", "BASE_URL", "PROFILE", "CUSTOM_HEADERS"):
        monkeypatch.delenv(f"ANTHROPIC_{name}", raising=False)
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))


async def read(provider: AnthropicProvider, request: Request = REQUEST) -> list[StreamEvent]:
    return [event async for event in provider.stream(request, TAG)]


def test_a_missing_key_is_one_error_that_names_both_ways_on() -> None:
    with pytest.raises(InvalidConfig, match=r"api_key=.*ANTHROPIC_API_KEY.*base_url="):
        AnthropicProvider()


def test_a_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    assert AnthropicProvider().name == "anthropic"


def test_a_server_of_one_s_own_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    AnthropicProvider(base_url="http://127.0.0.1:1")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:1")
    AnthropicProvider()


@pytest.mark.parametrize(
    "options",
    [
        {"max_retries": -1},
        {"read_timeout_s": 0},
        {"connect_timeout_s": -1.0},
        {"max_connections": 0},
        {"cache": "2h"},
        {"platform": "moon"},
        {"client_options": {"nonsense": 1}},
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        AnthropicProvider(api_key=KEY, **options)


def test_a_refused_setting_does_not_show_the_key() -> None:
    with pytest.raises(InvalidConfig) as raised:
        AnthropicProvider(api_key=KEY, auth_token="another-secret", client_options={"config": {}})
    assert KEY not in str(raised.value)
    assert raised.value.__cause__ is None
    assert KEY not in repr(AnthropicProvider(api_key=KEY))


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


@pytest.mark.real_time
async def test_a_request_is_sent_as_bytes_with_its_work_in_a_header() -> None:
    async with StrictServer(["hello"]) as server:
        async with make_provider("anthropic", server, headers={"x-conversation": "c9"}) as provider:
            events = await read(provider)
        assert isinstance(events[-1], ReplyEnded)
        received = server.requests[0]
        assert received.conversation == "c9"
        assert received.headers["x-client-request-id"].endswith("-7.2.1")
        assert received.body["system"][0]["text"] == "be kind"


@pytest.mark.real_time
async def test_betas_are_sent_in_their_header() -> None:
    async with StrictServer(["hello"]) as server:
        async with make_provider("anthropic", server) as provider:
            betas = {"betas": ["context-management-2025-06-27", "other"]}
            request = Request(
                model=REQUEST.model, max_tokens=9, messages=REQUEST.messages, options=betas
            )
            await read(provider, request)
        assert server.requests[0].headers["anthropic-beta"] == "context-management-2025-06-27,other"


@pytest.mark.real_time
async def test_a_provider_that_was_closed_opens_new_connections_when_it_is_used_again() -> None:
    async with StrictServer(["one", "two"]) as server:
        provider = make_provider("anthropic", server)
        await provider.aclose()
        await read(provider)
        await provider.aclose()
        await provider.aclose()
        await server.wait_for(lambda server: server.open_connections == 0)
        await read(provider)
        await provider.aclose()
        assert server.accepted_connections == 2


@pytest.mark.real_time
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_one_provider_serves_event_loops_one_after_the_other(backend: str) -> None:
    made: list[Any] = []

    async def life() -> None:
        async with StrictServer(["hello"], port=port[0]) as server:
            if not made:
                made.append(make_provider("anthropic", server))
                port[0] = int(server.url.rpartition(":")[2])
            async with made[0] as provider:
                assert await read(provider)

    port = [0]
    for _ in range(2):
        anyio.run(life, backend=backend)


@pytest.mark.real_time
async def test_a_wrong_key_is_a_final_failure() -> None:
    async with (
        StrictServer(["x"], api_keys=["sk-ant-right"]) as server,
        make_provider("anthropic", server, api_key="sk-ant-wrong-key") as provider,
    ):
        with pytest.raises(ProviderError) as raised:
            await read(provider)
    assert (raised.value.kind, raised.value.status) == ("fatal", 401)
    assert "wrong-key" not in str(raised.value)


@pytest.mark.real_time
async def test_an_answer_that_is_no_event_stream_is_a_broken_one() -> None:
    answer = httpx2.Response(200, text="<html>hello</html>")
    async with _client(lambda _request: answer) as client:
        with pytest.raises(ProviderError, match="before its end"):
            await read(AnthropicProvider(client=client))


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
        events = await read(AnthropicProvider(client=client))
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
            assert await read(provider)
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
