"""A session whose provider is a real SDK that talks HTTP to the strict server on this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeAlias

import anyio

from llmsession import (
    AnthropicProvider,
    LLMSession,
    MemoryStore,
    OpenAIProvider,
    Provider,
    Request,
    RequestMessage,
    SessionConfig,
    SessionManager,
    StepTag,
    TurnLimits,
)
from llmsession.session.manager import runtime_of
from llmsession.testing import StrictServer
from llmsession.turns import records as r
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.stream import StreamEvent
from tests.session.actors import check_log

Api: TypeAlias = Literal["anthropic", "openai"]
APIS: tuple[Api, ...] = ("anthropic", "openai")
KEYS: dict[Api, str] = {
    "anthropic": "sk-ant-not-a-real-key-0123456789",
    "openai": "sk-not-a-real-key-9876543210",
}
MODELS: dict[Api, str] = {"anthropic": "claude-opus-5-5", "openai": "gpt-4o"}
PATIENCE_S = 100.0
FIRST = (AnthropicProvider(api_key="unused"), OpenAIProvider(api_key="unused"))
"""The first provider of a process imports its SDK, which would stop a running event loop."""
NO_RETRIES = TurnLimits(max_retries=0)


def make_provider(api: Api, server: StrictServer, **options: Any) -> Any:
    """The provider of *api*, with its key, at *server*."""
    options.setdefault("api_key", KEYS[api])
    options.setdefault("max_retries", 0)
    if api == "anthropic":
        return AnthropicProvider(base_url=server.url, **options)
    return OpenAIProvider(base_url=f"{server.url}/v1", **options)


def greeting(api: Api) -> Request:
    """A request with one word of the user's, and a system prompt."""
    message = RequestMessage("user", encode_blocks("hi"))
    return Request(model=MODELS[api], max_tokens=100, system="be kind", messages=(message,))


async def read_reply(provider: Provider, request: Request) -> list[StreamEvent]:
    """The events of the reply to *request*, sent for one step."""
    return [event async for event in provider.stream(request, StepTag(7, 2, 1))]


class Line:
    """One session on its line to the server."""

    def __init__(
        self, server: StrictServer, provider: Provider, manager: SessionManager, store: MemoryStore
    ) -> None:
        self.server = server
        self.provider = provider
        self.manager = manager
        self.store = store
        self.session: LLMSession

    async def say(self, content: str) -> str:
        """Send, and wait for the reply."""
        return await (await self.session.send(content)).text()

    async def log(self) -> list[r.Record]:
        return [r.decode_record(record.body) for record in await self.store.read("s")]

    def refusals(self) -> list[str]:
        """What the server refused because it broke a rule, not because of a planned fault."""
        found = self.server.requests
        return [each.refusal.message for each in found if each.refusal and not each.valid]


@asynccontextmanager
async def on_line(
    api: Api,
    script: Any,
    *,
    faults: Any = None,
    server_options: dict[str, Any] | None = None,
    provider_options: dict[str, Any] | None = None,
    wrap: Any = None,
    logger: Any = None,
    may_refuse: bool = False,
    patience_s: float = PATIENCE_S,
    **config: Any,
) -> AsyncIterator[Line]:
    """A server with *script*, a provider, a manager and the session ``s``. At the end the log is
    sound, the server has refused nothing unless it *may_refuse*, and no connection is left."""
    config.setdefault("model", MODELS[api])
    with anyio.fail_after(patience_s):
        async with StrictServer(script, faults=faults, **(server_options or {})) as server:
            async with make_provider(api, server, **(provider_options or {})) as provider:
                store = MemoryStore()
                used = wrap(provider) if wrap else provider
                async with SessionManager(provider=used, store=store, logger=logger) as manager:
                    line = Line(server, provider, manager, store)
                    line.session = await manager.create(SessionConfig(**config), session_id="s")
                    yield line
                    check_log(await line.log())
                    assert may_refuse or line.refusals() == []
                assert runtime_of(manager).running_works == ()
            await server.wait_for(lambda server: server.open_connections == 0)
            assert server.open_replies == 0
