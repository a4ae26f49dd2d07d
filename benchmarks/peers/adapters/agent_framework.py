"""agent-framework: ``Agent.run(text, session=..., stream=True)``; cancelled by cancelling its task.

As its documentation says: one agent for all sessions, each from ``agent.create_session()`` with the
history in memory, ``FileHistoryProvider`` for files; ``OpenAIChatCompletionClient`` for chat
completions. There is no call to cancel: asyncio's cancellation ends a run.

Compaction: ``ContextWindowCompactionStrategy``, the default of its own harness, with the default
thresholds, before each call to the model and over the stored history after a run.
"""

from __future__ import annotations

import asyncio
from typing import Any

from agent_framework import (
    Agent,
    AgentSession,
    CompactionProvider,
    ContextWindowCompactionStrategy,
    FileHistoryProvider,
    InMemoryHistoryProvider,
    Message,
)
from agent_framework.openai import OpenAIChatCompletionClient
from common import (
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

OUTPUT_TOKENS = 1_000
AGENTS: dict[str, Agent] = {}


class AgentFramework:
    """A session and its agent."""

    def __init__(self, agent: Agent, session: AgentSession) -> None:
        self._agent = agent
        self._session = session

    async def send(self, text: str) -> str:
        stream = self._agent.run(text, session=self._session, stream=True)
        async for _ in stream:
            pass
        said = await stream.get_final_response()
        return said.messages[-1].text if said.messages else ""

    async def cancel(self, sending: asyncio.Task[str]) -> None:
        sending.cancel()


def agent_of(options: Options, **given: Any) -> Agent:
    client = OpenAIChatCompletionClient(
        model=options.model, base_url=options.chat_url, api_key="none"
    )
    return Agent(
        client,
        "You are a helpful assistant.",
        name="assistant",
        tools=[AsyncTools.quick, AsyncTools.slow, AsyncTools.read, AsyncTools.stubborn],
        **given,
    )


async def open_session(options: Options, name: str) -> AgentFramework:
    agent = AGENTS.get(options.model)
    if agent is None:
        agent = AGENTS[options.model] = agent_of(options)
    return AgentFramework(agent, agent.create_session(session_id=name))


async def open_filled(options: Options, name: str, said: list[tuple[str, str]]) -> AgentFramework:
    history = InMemoryHistoryProvider()
    agent = agent_of(options, context_providers=[history])
    session = agent.create_session(session_id=name)
    await history.save_messages(
        name,
        [Message(role, [text]) for role, text in said],
        state=session.state.setdefault(history.source_id, {}),
    )
    return AgentFramework(agent, session)


async def open_durable(options: Options, name: str) -> AgentFramework:
    agent = agent_of(options, context_providers=[FileHistoryProvider(options.folder)])
    return AgentFramework(agent, agent.create_session(session_id=name))


async def open_compacting(options: Options, name: str) -> AgentFramework:
    strategy = ContextWindowCompactionStrategy(
        max_context_window_tokens=options.size("window_tokens"), max_output_tokens=OUTPUT_TOKENS
    )
    history = InMemoryHistoryProvider(skip_excluded=True)
    after = CompactionProvider(after_strategy=strategy, history_source_id=history.source_id)
    agent = agent_of(options, context_providers=[history, after], compaction_strategy=strategy)
    return AgentFramework(agent, agent.create_session(session_id=name))


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
