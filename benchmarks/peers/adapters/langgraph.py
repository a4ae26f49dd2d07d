"""langgraph, with ``create_agent`` of langchain, which its documentation builds agents with.

A thread of a checkpointer is a session: ``InMemorySaver``, and ``AsyncSqliteSaver`` where it has to
last. A turn is ``agent.astream({"messages": [...]}, {"configurable": {"thread_id": ...}})``. There
is no call to cancel a run outside the hosted platform: the task is cancelled, as asyncio does it.

Compaction: ``SummarizationMiddleware``, triggered at 80 % of the window, keeping its default of 20
messages.
"""

from __future__ import annotations

import asyncio
from typing import Any

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
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

TOOLS = [AsyncTools.quick, AsyncTools.slow, AsyncTools.read, AsyncTools.stubborn]
AGENTS: dict[str, Any] = {}


def model(options: Options) -> Any:
    return ChatOpenAI(
        model=options.model, base_url=options.chat_url, api_key="none", stream_usage=True
    )


def agent(options: Options, checkpointer: Any = None, **more: Any) -> Any:
    """The one agent of this process: its threads are the sessions."""
    if "agent" not in AGENTS:
        AGENTS["agent"] = create_agent(
            model(options),
            tools=TOOLS,
            system_prompt="You are a helpful assistant.",
            checkpointer=checkpointer or InMemorySaver(),
            **more,
        )
    return AGENTS["agent"]


class LangGraph:
    """A thread of the agent."""

    def __init__(self, agent: Any, name: str) -> None:
        self._agent = agent
        self.config: Any = {"configurable": {"thread_id": name}}

    async def send(self, text: str) -> str:
        said: dict[str, Any] = {}
        asked = {"messages": [{"role": "user", "content": text}]}
        async for mode, chunk in self._agent.astream(
            asked, self.config, stream_mode=["messages", "values"]
        ):
            if mode == "values":
                said = chunk
        return str(said["messages"][-1].text)

    async def cancel(self, sending: asyncio.Task[str]) -> None:
        sending.cancel()


async def open_session(options: Options, name: str) -> LangGraph:
    return LangGraph(agent(options), name)


async def open_filled(options: Options, name: str, said: list[tuple[str, str]]) -> LangGraph:
    session = LangGraph(agent(options), name)
    messages = [{"role": role, "content": text} for role, text in said]
    await agent(options).aupdate_state(session.config, {"messages": messages})
    return session


async def open_compacting(options: Options, name: str) -> LangGraph:
    trigger = ("tokens", int(0.8 * options.size("window_tokens")))
    summarises = SummarizationMiddleware(model(options), trigger=trigger)
    return LangGraph(agent(options, middleware=[summarises]), name)


async def open_durable(options: Options, name: str) -> LangGraph:
    if "agent" not in AGENTS:
        import aiosqlite  # no other work needs them
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        # What AsyncSqliteSaver.from_conn_string does, for as long as the process lives.
        saver = AsyncSqliteSaver(await aiosqlite.connect(options.folder / "peer.db"))
        agent(options, saver)
    return LangGraph(agent(options), name)


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
