"""What both SDK providers do: how they are made, what they refuse, how their connections end."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from llmsession import (
    AnthropicProvider,
    InvalidConfig,
    OpenAIProvider,
    ProviderError,
)
from llmsession.testing import StrictServer
from llmsession.turns.stream import ReplyEnded
from tests.providers.over_http import APIS, KEYS, Api, greeting, make_provider, read_reply

PROVIDERS: dict[Api, Any] = {"anthropic": AnthropicProvider, "openai": OpenAIProvider}
over_both = pytest.mark.parametrize("api", APIS)


pytestmark = pytest.mark.usefixtures("no_keys_from_outside")


@over_both
def test_a_missing_key_is_one_error_that_names_both_ways_on(api: Api) -> None:
    with pytest.raises(InvalidConfig, match=rf"api_key=.*{api.upper()}_API_KEY.*base_url="):
        PROVIDERS[api]()


@over_both
def test_a_key_comes_from_the_environment(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{api.upper()}_API_KEY", KEYS[api])
    assert PROVIDERS[api]().name == api


@over_both
def test_a_server_of_one_s_own_needs_no_key(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    PROVIDERS[api](base_url="http://127.0.0.1:1/v1")
    monkeypatch.setenv(f"{api.upper()}_BASE_URL", "http://127.0.0.1:1/v1")
    PROVIDERS[api]()


BOTH_REFUSE: tuple[dict[str, Any], ...] = (
    {"max_retries": -1},
    {"read_timeout_s": 0},
    {"connect_timeout_s": -1.0},
    {"max_connections": 0},
    {"platform": "moon"},
    {"client_options": {"nonsense": 1}},
)


@pytest.mark.parametrize(
    ("api", "options"),
    [
        *((api, options) for api in APIS for options in BOTH_REFUSE),
        ("anthropic", {"cache": "2h"}),
        ("anthropic", {"auth_token": "another-secret", "client_options": {"config": {}}}),
        ("openai", {"platform": "azure"}),  # without its endpoint
    ],
)
def test_settings_that_cannot_work_are_refused_without_showing_the_key(
    api: Api, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidConfig) as raised:
        PROVIDERS[api](api_key=KEYS[api], **options)
    assert KEYS[api] not in str(raised.value)
    assert raised.value.__cause__ is None
    assert KEYS[api] not in repr(PROVIDERS[api](api_key=KEYS[api]))


@pytest.mark.real_time
@over_both
async def test_a_request_carries_its_step_and_the_user_s_headers(api: Api) -> None:
    async with StrictServer(["hello"]) as server:
        async with make_provider(api, server, headers={"x-conversation": "c9"}) as provider:
            assert isinstance((await read_reply(provider, greeting(api)))[-1], ReplyEnded)
        received = server.requests[0]
        assert received.conversation == "c9"
        assert received.headers["x-client-request-id"].endswith("-7.2.1")
        assert "be kind" in str(received.body)


@pytest.mark.real_time
@over_both
async def test_a_provider_that_was_closed_opens_new_connections_when_it_is_used_again(
    api: Api,
) -> None:
    async with StrictServer(["one", "two"]) as server:
        provider = make_provider(api, server)
        await provider.aclose()
        await read_reply(provider, greeting(api))
        await provider.aclose()
        await provider.aclose()
        await server.wait_for(lambda server: server.open_connections == 0)
        await read_reply(provider, greeting(api))
        await provider.aclose()
        assert server.accepted_connections == 2


@pytest.mark.real_time
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_one_provider_serves_event_loops_one_after_the_other(backend: str) -> None:
    providers: list[Any] = []
    port = [0]

    async def use() -> None:
        async with StrictServer(["hello"], port=port[0]) as server:
            if not providers:
                providers.append(make_provider("anthropic", server))
                port[0] = int(server.url.rpartition(":")[2])
            async with providers[0] as provider:
                assert await read_reply(provider, greeting("anthropic"))

    for _ in range(2):
        anyio.run(use, backend=backend)


@pytest.mark.real_time
@over_both
async def test_a_wrong_key_is_a_final_failure(api: Api) -> None:
    async with (
        StrictServer(["x"], api_keys=["sk-right"]) as server,
        make_provider(api, server, api_key="sk-ant-wrong-key-1") as provider,
    ):
        with pytest.raises(ProviderError) as raised:
            await read_reply(provider, greeting(api))
    assert (raised.value.kind, raised.value.status) == ("fatal", 401)
    assert "wrong-key" not in str(raised.value)
