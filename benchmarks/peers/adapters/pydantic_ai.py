"""pydantic-ai: ``store.load``, ``agent.run(text, conversation=...)``, ``store.save``.

As the documentation of ``ConversationStore`` has it; the run is streamed to an event handler and
cancelled by its ``CancellationToken``. What a cancelled run hands back in ``all_messages()`` of
``RunCancelled`` is what the documentation says to go on with; it is saved as the conversation.
``InMemoryConversationStore`` is the store that it ships; the one that lasts is
``SqliteConversationStore`` of pydantic-ai-harness, "for multi-turn applications".

Compaction is the harness's, as its README encodes "the field consensus": ``TieredCompaction`` of
``ClearToolResults`` and ``SummarizingCompaction``, with its example's values, at 80 % of a window.
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
from pydantic_ai import Agent, CancellationToken
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import InMemoryConversationStore
from pydantic_ai.exceptions import RunCancelled
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits
from pydantic_ai_harness import ClearToolResults, SummarizingCompaction, TieredCompaction

TOOLS = [AsyncTools.quick, AsyncTools.slow, AsyncTools.read, AsyncTools.stubborn]
KEPT: dict[str, Any] = {}


def agent(options: Options, **more: Any) -> Any:
    """The one agent of this process."""
    if "agent" not in KEPT:
        provider = OpenAIProvider(base_url=options.chat_url, api_key="none")
        KEPT["agent"] = Agent(
            OpenAIChatModel(options.model, provider=provider),
            instructions="You are a helpful assistant.",
            tools=TOOLS,
            **more,
        )
    return KEPT["agent"]


def store() -> Any:
    return KEPT.setdefault("store", InMemoryConversationStore())


async def drain(context: Any, events: Any) -> None:
    async for _ in events:
        pass


class PydanticAI:
    """A conversation in the store."""

    def __init__(self, agent: Any, name: str) -> None:
        self._agent, self._name = agent, name
        self._token: Any = None
        self._conversation: Any = None

    async def send(self, text: str) -> str:
        conversation = await self._load()
        self._token = CancellationToken()
        try:
            result = await self._agent.run(
                text,
                conversation=conversation,
                event_stream_handler=drain,
                cancellation_token=self._token,
                # A conversation carries its usage on, and may by default make 50 requests.
                usage_limits=UsageLimits(request_limit=None),
            )
        except RunCancelled as cancelled:
            conversation.messages = cancelled.all_messages()
            await self._save(conversation)
            raise
        await self._save(result)
        return str(result.output)

    async def cancel(self, sending: asyncio.Task[str]) -> None:
        self._token.cancel()

    async def _load(self) -> Any:
        # "It can be continued or saved again": what was saved last is not loaded anew.
        kept = self._conversation or await store().load(self._name)
        return kept or Conversation(conversation_id=self._name)

    async def _save(self, saved: Any) -> None:
        await store().save(saved)
        self._conversation = saved if isinstance(saved, Conversation) else saved.conversation


class Durable(PydanticAI):
    """A conversation in the harness's SQLite."""

    def __init__(self, agent: Any, name: str, heads: Any, new_summary: Any) -> None:
        super().__init__(agent, name)
        self._heads = heads
        self._new_summary = new_summary
        self._summary: Any = None
        self._messages: list[Any] = []

    async def _load(self) -> Any:
        if self._summary is None:
            try:
                saved = await self._heads.get(conversation_id=self._name)
            except LookupError:
                self._summary = self._new_summary
            else:
                self._summary, self._messages = saved.summary, saved.messages
        return Conversation(conversation_id=self._name, messages=list(self._messages))

    async def _save(self, saved: Any) -> None:
        messages = saved.messages if isinstance(saved, Conversation) else saved.all_messages()
        self._summary = await self._heads.save(summary=self._summary, messages=messages)
        self._messages = messages


async def open_session(options: Options, name: str) -> PydanticAI:
    return PydanticAI(agent(options), name)


async def open_filled(options: Options, name: str, said: list[tuple[str, str]]) -> PydanticAI:
    messages: list[Any] = [
        ModelRequest(parts=[UserPromptPart(text)])
        if role == "user"
        else ModelResponse(parts=[TextPart(text)])
        for role, text in said
    ]
    await store().save(Conversation(conversation_id=name, messages=messages))
    return PydanticAI(agent(options), name)


async def open_compacting(options: Options, name: str) -> PydanticAI:
    tiers = TieredCompaction(
        tiers=[
            ClearToolResults(max_tokens=1, keep_pairs=3),
            SummarizingCompaction(max_messages=1, keep_messages=20),
        ],
        target_tokens=int(0.8 * options.size("window_tokens")),
    )
    return PydanticAI(agent(options, capabilities=[tiers]), name)


async def open_durable(options: Options, name: str) -> Durable:
    # No other work needs them.
    from pydantic_ai_harness.step_persistence.conversations import (
        ConversationSummary,
        SqliteConversationStore,
    )

    heads = SqliteConversationStore(database=options.folder / "peer.db")
    new = ConversationSummary(id=name, workspace="benchmark")
    return Durable(agent(options), name, heads, new)


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
