"""openhands-sdk: ``Conversation``, with ``send_message``, ``arun`` and ``interrupt``.

As its documentation says: a message may be sent while the agent runs (Send Message While Running)
and is seen at its next step, so the second of two sends waits for the run that is under way; tools
are plain functions that run in threads; ``token_callbacks`` stream; ``persistence_dir`` and a
conversation's id make it durable; ``LLMSummarizingCondenser`` compacts, from three quarters of the
window on. Messages are sent from a thread, as by its own server: the lock is not for tasks.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable
from typing import Any

os.environ |= {  # read at import
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LOG_LEVEL": "CRITICAL",
    "OPENHANDS_SUPPRESS_BANNER": "1",
}

from common import (
    BlockingTools,
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
from openhands.sdk import (
    LLM,
    Action,
    Agent,
    Conversation,
    Event,
    LLMSummarizingCondenser,
    Message,
    MessageEvent,
    Observation,
    TextContent,
    Tool,
    ToolDefinition,
    register_tool,
)
from openhands.sdk.conversation import get_agent_final_response
from openhands.sdk.tool import ToolExecutor
from pydantic import Field, SecretStr

AGENTS: dict[str, Agent] = {}


class TagAction(Action):
    tag: str = Field(description="a tag")


class TagObservation(Observation):
    pass


class Runs(ToolExecutor[TagAction, TagObservation]):
    def __init__(self, run: Callable[[str], str]) -> None:
        self._function = run

    def __call__(self, action: TagAction, conversation: Any = None) -> Any:
        return TagObservation.from_text(self._function(action.tag))


class BlockingTool(ToolDefinition[TagAction, TagObservation]):
    @classmethod
    def create(cls, conv_state: Any = None, **_: Any) -> list[ToolDefinition[Any, Any]]:
        run = getattr(BlockingTools, cls.name)
        tool = cls(
            action_type=TagAction,
            observation_type=TagObservation,
            description=run.__doc__ or "",
            executor=Runs(run),
        )
        return [tool]


class QuickTool(BlockingTool):
    name = "quick"


class SlowTool(BlockingTool):
    name = "slow"


class ReadTool(BlockingTool):
    name = "read"


class StubbornTool(BlockingTool):
    name = "stubborn"


TOOLS = [QuickTool, SlowTool, ReadTool, StubbornTool]
for each in TOOLS:
    register_tool(each.name, each)


def _ignore(_: Any) -> None:
    """A token was streamed."""


class OpenHands:
    """A conversation."""

    def __init__(self, options: Options, agent: Agent, **given: Any) -> None:
        self.conversation = Conversation(
            agent=agent,
            workspace=str(options.folder),
            visualizer=None,
            token_callbacks=[_ignore],
            **given,
        )
        self._run: asyncio.Task[None] | None = None

    async def send(self, text: str) -> str:
        await asyncio.to_thread(self.conversation.send_message, text)
        if self._run is None or self._run.done():
            self._run = asyncio.create_task(self.conversation.arun())
        await self._run
        return str(get_agent_final_response(self.conversation.state.events))

    async def cancel(self, sending: asyncio.Task[str]) -> None:
        self.conversation.interrupt()


def llm_of(options: Options, **given: Any) -> LLM:
    return LLM(
        model=f"openai/{options.model}",
        base_url=options.chat_url,
        api_key=SecretStr("none"),
        usage_id="agent",
        stream=True,
        **given,
    )


def agent_of(llm: LLM, **given: Any) -> Agent:
    tools = [Tool(name=each.name) for each in TOOLS]
    return Agent(llm=llm, tools=tools, include_default_tools=[], **given)


def shared_agent(options: Options) -> Agent:
    if options.model not in AGENTS:
        AGENTS[options.model] = agent_of(llm_of(options))
    return AGENTS[options.model]


async def open_session(options: Options, name: str) -> OpenHands:
    return OpenHands(options, shared_agent(options))


async def open_filled(options: Options, name: str, said: list[tuple[str, str]]) -> OpenHands:
    session = OpenHands(options, shared_agent(options))
    conversation = session.conversation
    conversation.send_message(said[0][1])  # the first one makes the agent ready
    for role, text in said[1:]:
        message = Message(role=role, content=[TextContent(text=text)])
        event: Event = MessageEvent(
            source="user" if role == "user" else "agent", llm_message=message
        )
        conversation.state.append_event(event)
    return session


async def open_durable(options: Options, name: str) -> OpenHands:
    return OpenHands(
        options,
        shared_agent(options),
        persistence_dir=str(options.folder),
        conversation_id=uuid.uuid5(uuid.NAMESPACE_OID, name),
    )


async def open_compacting(options: Options, name: str) -> OpenHands:
    window_tokens = options.size("window_tokens")
    llm = llm_of(options)
    condenser = LLMSummarizingCondenser(
        llm=llm.model_copy(update={"usage_id": "condenser"}), max_tokens=window_tokens * 3 // 4
    )
    return OpenHands(options, agent_of(llm, condenser=condenser))


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
