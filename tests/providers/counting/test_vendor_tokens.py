"""Gemini and Bedrock count, through their SDKs, at a server on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from llmsession import MemoryStore, ReplayProvider, SessionConfig, SessionManager
from llmsession.errors import InvalidConfig, ProviderError
from llmsession.providers import (
    AnthropicProvider,
    BedrockTokens,
    CountedProvider,
    GeminiTokens,
    RoutedProvider,
    default_counter,
)
from llmsession.providers.anthropic.requests import NEUTRAL_TOKENS
from llmsession.providers.counting.gemini_tokens import gemini_request
from llmsession.providers.counting.stepping import Stepper
from llmsession.providers.protocol import NOT_COUNTED, Counting
from llmsession.testing.scripted import ScriptedProvider

from ..asked import ask
from .token_server import AWS_KEY, AWS_SECRET, GEMINI_KEY, TokenServer, token_server

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]

TOOL = {"name": "ls", "description": "List.", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "id": "c1", "name": "ls", "input": {"path": "/"}}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "a.py"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
CLAUDE = "anthropic.claude-sonnet-4-5-20250929-v1:0"
FIRST = AnthropicProvider(api_key="unused")
"""The first provider of a process imports its SDK, which would stop a running event loop."""
KEYS = {"aws_access_key_id": AWS_KEY, "aws_secret_access_key": AWS_SECRET}


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with token_server() as running:
        yield running


def gemini(server: TokenServer, **options: Any) -> GeminiTokens:
    return GeminiTokens(**{"api_key": GEMINI_KEY, "base_url": server.url, **options})


def bedrock(server: TokenServer, **options: Any) -> BedrockTokens:
    defaults = {"region": "us-east-1", "endpoint_url": server.url, "credentials": KEYS}
    return BedrockTokens(**{**defaults, **options})


def whole(model: str) -> Any:
    contents = (["see", IMAGE], [THOUGHT, CALL], [RESULT], "a file", "and now?")
    texts = [[part if isinstance(part, dict) else {"type": "text", "text": part} for part in c]
             if isinstance(c, list) else c for c in contents]  # fmt: skip
    return ask(*texts, model=model, system="be kind", tools=(TOOL,))


# Gemini.


def test_a_request_is_told_as_gemini_takes_it() -> None:
    body = gemini_request(whole("gemini-2.5-pro"))
    assert body["systemInstruction"] == {"parts": [{"text": "be kind"}]}
    assert body["tools"] == [{"functionDeclarations": [
        {"name": "ls", "description": "List.", "parametersJsonSchema": {"type": "object"}},
    ]}]  # fmt: skip
    assert body["contents"] == [
        {"role": "user", "parts": [
            {"text": "see"}, {"inlineData": {"mimeType": "image/png", "data": "aGk="}},
        ]},
        # Thinking of the history is not sent, so it is not counted.
        {"role": "model", "parts": [{"functionCall": {"name": "ls", "args": {"path": "/"}}}]},
        {"role": "user", "parts": [
            {"functionResponse": {"name": "ls", "response": {"result": "a.py"}}},
        ]},
        {"role": "model", "parts": [{"text": "a file"}]},
        {"role": "user", "parts": [{"text": "and now?"}]},
    ]  # fmt: skip
    assert gemini_request(ask(model="g"))["contents"] == [
        {"role": "user", "parts": [{"text": "."}]}
    ]


async def test_gemini_counts_the_whole_request(server: TokenServer) -> None:
    tokens = gemini(server)
    request = whole("models/gemini-2.5-pro")
    assert isinstance(tokens, Counting)
    count = await tokens.count_tokens(request)
    path, body = server.asked[-1]
    assert path == "/v1beta/models/gemini-2.5-pro:countTokens"
    expected = {"model": "models/gemini-2.5-pro", **gemini_request(request)}
    assert body == {"contents": [], "generateContentRequest": expected}
    assert count > 100
    await tokens.aclose()
    assert await tokens.count_tokens(request) == count
    await tokens.aclose()


async def test_a_client_of_ones_own_is_used_and_not_closed(server: TokenServer) -> None:
    from google import genai

    client = genai.Client(api_key=GEMINI_KEY, http_options={"base_url": server.url})
    tokens = GeminiTokens(client=client)
    await tokens.count_tokens(ask("hi", model="gemini-x"))
    await tokens.aclose()
    assert await tokens.count_tokens(ask("hi", model="gemini-x")) > 0
    client.close()


# Bedrock.


async def test_bedrock_counts_the_body_of_the_model_s_own(server: TokenServer) -> None:
    tokens = bedrock(server)
    # Of an inference profile the model behind it is counted.
    count = await tokens.count_tokens(whole(f"us.{CLAUDE}"))
    assert server.asked[-1][0] == f"/model/{CLAUDE}/count-tokens"
    body = server.invoked()
    assert (body["system"], body["tools"]) == ("be kind", [TOOL])
    assert [message["role"] for message in body["messages"]] == ["user", "assistant"] * 2 + ["user"]
    assert count > 100
    await tokens.aclose()


async def test_a_reply_at_the_end_is_closed_and_what_that_adds_taken_off(
    server: TokenServer,
) -> None:
    server.answer = {"inputTokens": 100}
    tokens = bedrock(server)
    assert await tokens.count_tokens(ask("hi", "hello", model=CLAUDE)) == 100 - NEUTRAL_TOKENS
    assert server.invoked()["messages"][-1]["role"] == "user"


async def test_bedrock_is_not_asked_about_other_models(server: TokenServer) -> None:
    with pytest.raises(
        ProviderError, match=r"cannot count tokens of model 'amazon\.nova'"
    ) as caught:
        await bedrock(server).count_tokens(ask("hi", model="amazon.nova"))
    assert caught.value.code == NOT_COUNTED
    assert server.asked == []


async def test_claude_on_bedrock_counts_by_itself(server: TokenServer) -> None:
    options = {
        "aws_region": "us-east-1", "aws_access_key": AWS_KEY, "aws_secret_key": AWS_SECRET,
    }  # fmt: skip
    async with AnthropicProvider(
        platform="bedrock", base_url=server.url, client_options=options
    ) as provider:
        assert await provider.count_tokens(ask("hi", model=CLAUDE)) > 0
        assert server.asked[-1][0] == f"/model/{CLAUDE}/count-tokens"


# What goes wrong.


@pytest.mark.parametrize("make", [gemini, bedrock])
@pytest.mark.parametrize(
    ("status", "kind"), [(400, "fatal"), (429, "retryable"), (503, "retryable")]
)
async def test_what_is_refused_is_one_error_without_keys(
    make: Any, status: int, kind: str, server: TokenServer
) -> None:
    server.status = status
    with pytest.raises(ProviderError) as caught:
        await make(server).count_tokens(ask("hi", model=CLAUDE))
    assert (caught.value.kind, caught.value.status) == (kind, status)
    assert len(server.asked) == 1, "nobody waits for a second try"
    assert not any(key in str(caught.value) for key in (GEMINI_KEY, AWS_KEY, AWS_SECRET))


@pytest.mark.parametrize("make", [gemini, bedrock])
@pytest.mark.parametrize("answer", [{}, {"totalTokens": None, "inputTokens": "many"}])
async def test_an_answer_without_a_number_is_an_error(
    make: Any, answer: dict[str, Any], server: TokenServer
) -> None:
    server.answer = answer
    with pytest.raises(ProviderError):
        await make(server).count_tokens(ask("hi", model=CLAUDE))


async def test_a_count_can_be_cancelled_while_the_server_is_silent(server: TokenServer) -> None:
    server.go.clear()
    with anyio.move_on_after(0.2) as scope:
        await gemini(server).count_tokens(ask("hi", model="gemini-x"))
    assert scope.cancelled_caught


async def test_a_session_counts_with_it_and_a_failure_is_told_once(server: TokenServer) -> None:
    told: list[tuple[str, Any]] = []

    class Logger:
        def bind(self, **fields: Any) -> Logger:
            return self

        def warning(self, name: str, **fields: Any) -> None:
            told.append((name, fields.get("error")))

        def info(self, name: str, **fields: Any) -> None:
            pass

        error = debug = info

    provider = CountedProvider(ScriptedProvider(["a", "b", "c"]), gemini(server))
    manager = SessionManager(provider=provider, store=MemoryStore(), logger=Logger())
    async with manager:
        session = await manager.create(SessionConfig(model="gemini-x"))
        assert (await session.count()).method == "api"
        server.status = 500
        for number in range(2):
            await (await session.send(f"hi {number}")).text()
            assert (await session.count()).method != "api"
        assert [name for name, _ in told] == ["counter.failed"]
        assert "500" in told[0][1]
        server.status = 200
        await (await session.send("again")).text()
        assert (await session.count()).method == "api"


async def test_a_provider_that_is_not_meant_to_count_is_no_failure(server: TokenServer) -> None:
    told: list[Exception] = []
    plain = ReplayProvider((), shared=True)
    routed = RoutedProvider({"gemini": CountedProvider(plain, gemini(server)), "": plain})
    counter = default_counter(routed, on_failure=told.append, stepper=Stepper(threads=False))
    assert (await counter.count(ask("hi", model="gemini-x"))).method == "api"
    assert (await counter.count(ask("hi", model="other"))).method != "api"
    assert told == []


def test_the_extra_is_named_where_the_sdk_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidConfig, match=r"google.genai.*llmsession\[gemini\]"):
        GeminiTokens()
    with pytest.raises(InvalidConfig, match=r"botocore.*llmsession\[bedrock\]"):
        BedrockTokens()


async def test_what_wraps_a_provider_is_that_provider_in_all_else(server: TokenServer) -> None:
    inner = ScriptedProvider(["hi"])
    async with CountedProvider(inner, gemini(server)) as provider:
        assert provider.name == inner.name
        assert provider.name_for("m") == inner.name
        assert provider.profile("m") == inner.profile("m")
        async with SessionManager(provider=provider) as manager:
            session = await manager.create(SessionConfig(model="m"))
            assert await (await session.send("x")).text() == "hi"
