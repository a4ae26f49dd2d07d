"""autogen-core, with AssistantAgent of autogen-agentchat and the OpenAI client of autogen-ext.

As its documentation says: ``AssistantAgent.run`` with ``model_client_stream``, and as many rounds
of tools as it takes. There is no session: an agent keeps its messages, and "stateless endpoints"
load and save its state around each message (Managing State), here in a dictionary, or in a JSON
file where it shall be durable. So nothing of a cancelled turn is kept. A CancellationToken cancels.

``two_sends``: an agent "should not call its methods concurrently", so it is a team of one, which
refuses a second run. Compaction: ``BufferedChatCompletionContext``, the last N messages; the other
bound, ``TokenLimitedChatCompletionContext``, is experimental and downloads a table of tokens.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import CancellationToken
from autogen_core.model_context import (
    BufferedChatCompletionContext,
    ChatCompletionContext,
    UnboundedChatCompletionContext,
)
from autogen_core.models import AssistantMessage, LLMMessage, ModelFamily, ModelInfo, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from common import (
    AsyncTools,
    Options,
    Session,
    compaction,
    long_conversation,
    main,
    persistence,
    random_cancels,
    stubborn_tool,
    thousand_sessions,
    two_sends,
)

CAN = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=False,
    family=ModelFamily.GPT_4O,
    structured_output=False,
)
CLIENTS: dict[str, OpenAIChatCompletionClient] = {}
TURN_MESSAGES = 4
"""Of a turn with one call: question, call, result, answer."""
TURN_TOKENS = 1_000
"""More than what a turn has that reads a file of 2,000 characters."""


def agent_of(options: Options, context: ChatCompletionContext | None = None) -> AssistantAgent:
    client = CLIENTS.get(options.model)
    if client is None:
        client = CLIENTS[options.model] = OpenAIChatCompletionClient(
            model=options.model,
            base_url=options.chat_url,
            api_key="none",
            model_info=CAN,
            timeout=120,
        )
    return AssistantAgent(
        "assistant",
        client,
        tools=[AsyncTools.quick, AsyncTools.slow, AsyncTools.read, AsyncTools.stubborn],
        system_message="You are a helpful assistant.",
        model_context=context or UnboundedChatCompletionContext(),
        model_client_stream=True,
        max_tool_iterations=10,
    )


class Running:
    """An agent, or a team of one, that stays."""

    def __init__(self, runs: AssistantAgent | RoundRobinGroupChat) -> None:
        self._runs = runs
        self._token = CancellationToken()

    async def send(self, text: str) -> str:
        self._token = CancellationToken()
        result = await self._runs.run(task=text, cancellation_token=self._token)
        return str(result.messages[-1].content)

    async def cancel(self, sending: asyncio.Task[str]) -> None:
        self._token.cancel()


class Stateless:
    """An agent for each message, with the state that the one before has left."""

    def __init__(self, options: Options, path: Path | None = None) -> None:
        self._options = options
        self._path = path
        self._state: Mapping[str, Any] | None = None
        self._running = Running(agent_of(options))

    async def send(self, text: str) -> str:
        agent = agent_of(self._options)
        if self._path is not None and self._path.exists():
            self._state = json.loads(self._path.read_text("utf-8"))
        if self._state is not None:
            await agent.load_state(self._state)
        self._running = Running(agent)
        said = await self._running.send(text)
        self._state = await agent.save_state()
        if self._path is not None:
            self._path.write_text(json.dumps(self._state), "utf-8")
        return said

    async def cancel(self, sending: asyncio.Task[str]) -> None:
        await self._running.cancel(sending)


async def open_team(options: Options, name: str) -> Session:
    return Running(RoundRobinGroupChat([agent_of(options)], max_turns=1))


async def open_stateless(options: Options, name: str) -> Session:
    return Stateless(options)


async def open_agent(options: Options, name: str) -> Session:
    return Running(agent_of(options))


async def open_filled(options: Options, name: str, said: list[tuple[str, str]]) -> Session:
    messages: list[LLMMessage] = [
        UserMessage(content=text, source="user")
        if role == "user"
        else AssistantMessage(content=text, source="assistant")
        for role, text in said
    ]
    context = UnboundedChatCompletionContext(initial_messages=messages)
    return Running(agent_of(options, context))


async def open_durable(options: Options, name: str) -> Session:
    return Stateless(options, options.folder / f"{name}.json")


async def open_compacting(options: Options, name: str) -> Session:
    turns = options.size("window_tokens") // TURN_TOKENS
    context = BufferedChatCompletionContext(buffer_size=turns * TURN_MESSAGES)
    return Running(agent_of(options, context))


main(
    {
        "two_sends": two_sends(open_team),
        "random_cancels": random_cancels(open_stateless),
        "stubborn_tool": stubborn_tool(open_stateless),
        "long_conversation": long_conversation(open_filled),
        "compaction": compaction(open_compacting),
        "persistence": persistence(open_durable),
        "thousand_sessions": thousand_sessions(open_agent),
    }
)
