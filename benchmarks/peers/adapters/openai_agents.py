"""openai-agents: ``Runner.run_streamed(agent, text, session=...)``, ``result.cancel()``.

As its documentation says (Streaming, Sessions): the events are read to their end, also after a
cancel in its default mode, "immediate". ``OpenAIChatCompletionsModel`` is its way to a server that
speaks chat completions. ``SQLiteSession`` is in memory without a path, and durable with one.

Compaction: ``OpenAIResponsesCompactionSession`` needs the Responses API. For other models there is
``ToolOutputTrimmer``, "recent turns at full fidelity", with the values of its own example.
"""

from __future__ import annotations

import asyncio
from typing import Any

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from agents.extensions import ToolOutputTrimmer
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

TOOLS = [
    function_tool(run)
    for run in (AsyncTools.quick, AsyncTools.slow, AsyncTools.read, AsyncTools.stubborn)
]
CLIENTS: dict[str, AsyncOpenAI] = {}


class OpenAIAgents:
    """An agent and its session."""

    def __init__(self, options: Options, session: SQLiteSession, **run: Any) -> None:
        client = CLIENTS.setdefault(
            options.chat_url,
            AsyncOpenAI(base_url=options.chat_url, api_key="none", timeout=TIMEOUT_S),
        )
        model = OpenAIChatCompletionsModel(model=options.model, openai_client=client)
        self._agent = Agent(
            name="assistant", instructions="You are a helpful assistant.", model=model, tools=TOOLS
        )
        self._session = session
        self._run = RunConfig(**run)
        self._running: Any = None

    async def send(self, text: str) -> str:
        result = Runner.run_streamed(self._agent, text, session=self._session, run_config=self._run)
        self._running = result
        async for _ in result.stream_events():
            pass
        return str(result.final_output)

    async def cancel(self, sending: asyncio.Task[str]) -> None:
        self._running.cancel()


async def open_session(options: Options, name: str) -> OpenAIAgents:
    return OpenAIAgents(options, SQLiteSession(name))


async def open_filled(options: Options, name: str, said: list[tuple[str, str]]) -> OpenAIAgents:
    session = SQLiteSession(name)
    await session.add_items([{"role": role, "content": text} for role, text in said])
    return OpenAIAgents(options, session)


async def open_durable(options: Options, name: str) -> OpenAIAgents:
    return OpenAIAgents(options, SQLiteSession(name, options.folder / "peer.db"))


async def open_compacting(options: Options, name: str) -> OpenAIAgents:
    trimmer = ToolOutputTrimmer(recent_turns=2, max_output_chars=500, preview_chars=200)
    return OpenAIAgents(options, SQLiteSession(name), call_model_input_filter=trimmer)


set_tracing_disabled(True)
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
