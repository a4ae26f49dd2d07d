"""strands-agents: ``Agent.stream_async`` and ``agent.cancel()``; an agent is a session.

As its documentation says: models share a client; a second invocation of an agent that runs is
refused with ConcurrencyException; ``SnapshotSessionManager`` is "the recommended path for new
agents", here with its defaults and files; ``context_manager="auto"`` compacts at 85% of the model's
``context_window_limit``. An agent sends its last 40 messages unless it is told otherwise: with
``NullConversationManager`` the long conversation is sent whole, as by the other libraries.

Compaction is done with ``AnthropicModel`` and its automatic caching: with ``OpenAIModel`` each
request for a summary has an empty list of tools, which chat completions refuse.
"""

from __future__ import annotations

import asyncio
from typing import Any

from common import (
    TIMEOUT_S,
    AsyncTools,
    Options,
    compaction,
    long_conversation,
    main,
    persistence,
    random_cancels,
    stubborn_tool,
    thousand_sessions,
    two_sends,
)
from openai import AsyncOpenAI
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager
from strands.models import CacheConfig, Model
from strands.models.openai import OpenAIModel
from strands.session import SnapshotSessionManager
from strands.storage import LocalFileStorage

TOOLS = [
    tool(run) for run in (AsyncTools.quick, AsyncTools.slow, AsyncTools.read, AsyncTools.stubborn)
]
CLIENTS: dict[str, AsyncOpenAI] = {}


class Strands:
    """An agent."""

    def __init__(self, model: Model, **given: Any) -> None:
        self._agent = Agent(
            model=model,
            tools=TOOLS,
            system_prompt="You are a helpful assistant.",
            callback_handler=None,
            **given,
        )

    async def send(self, text: str) -> str:
        said = ""
        async for event in self._agent.stream_async(text):
            if "result" in event:
                said = str(event["result"])
        return said

    async def cancel(self, sending: asyncio.Task[str]) -> None:
        self._agent.cancel()


def model_of(options: Options) -> Model:
    client = CLIENTS.setdefault(
        options.chat_url, AsyncOpenAI(base_url=options.chat_url, api_key="none", timeout=TIMEOUT_S)
    )
    return OpenAIModel(client=client, model_id=options.model)


async def open_session(options: Options, name: str) -> Strands:
    return Strands(model_of(options))


async def open_filled(options: Options, name: str, said: list[tuple[str, str]]) -> Strands:
    return Strands(
        model_of(options),
        messages=[{"role": role, "content": [{"text": text}]} for role, text in said],
        conversation_manager=NullConversationManager(),
    )


async def open_durable(options: Options, name: str) -> Strands:
    storage = LocalFileStorage(str(options.folder))
    return Strands(model_of(options), session_manager=SnapshotSessionManager(name, storage=storage))


async def open_compacting(options: Options, name: str) -> Strands:
    from strands.models.anthropic import AnthropicModel  # 40 MB, which no other work needs

    model = AnthropicModel(
        client_args={"base_url": options.base_url, "api_key": "none"},
        model_id=options.model,
        max_tokens=1_000,
        context_window_limit=options.size("window_tokens"),
        cache_config=CacheConfig(strategy="auto"),
    )
    return Strands(model, context_manager="auto")


main(
    {
        "two_sends": two_sends(open_session),
        "random_cancels": random_cancels(open_session),
        "stubborn_tool": stubborn_tool(open_session),
        "long_conversation": long_conversation(open_filled),
        "compaction": compaction(open_compacting),
        "persistence": persistence(open_durable),
        "thousand_sessions": thousand_sessions(open_session),
    }
)
