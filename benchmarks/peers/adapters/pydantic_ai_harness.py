"""pydantic-ai-harness: ``StepPersistence`` and ``continue_run``, around an agent of pydantic-ai.

As its documentation says: the capability saves a snapshot at every settled step of a run; the next
turn takes the history of the latest run of its ``conversation_id`` from the store, and gives it to
``agent.run`` as ``message_history``. A run without a settled step has none, so that the run before
it counts. ``InMemoryStepStore`` where nothing has to last, ``SqliteStepStore`` where it has. Runs
are cancelled by pydantic-ai's ``CancellationToken``. Compaction is ``FallbackCompaction`` with
``background_start``, the example of its README: a summary is begun in the background before the
window is full, and swapped in when it is.
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
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits
from pydantic_ai_harness import (
    FallbackCompaction,
    SlidingWindowCompaction,
    StepPersistence,
    SummarizingCompaction,
)
from pydantic_ai_harness.step_persistence import InMemoryStepStore, SqliteStepStore, continue_run

TOOLS = [AsyncTools.quick, AsyncTools.slow, AsyncTools.read, AsyncTools.stubborn]
KEPT: dict[str, Any] = {}


async def drain(context: Any, events: Any) -> None:
    async for _ in events:
        pass


class Harnessed:
    """A conversation, the runs of which are in the store. The agent and the store are those of this
    process."""

    def __init__(self, options: Options, name: str, store: Any, *capabilities: Any) -> None:
        self._name = name
        self._store = KEPT.setdefault("store", store)
        if "agent" not in KEPT:
            provider = OpenAIProvider(base_url=options.chat_url, api_key="none")
            KEPT["agent"] = Agent(
                OpenAIChatModel(options.model, provider=provider),
                instructions="You are a helpful assistant.",
                tools=TOOLS,
                capabilities=[
                    *capabilities,
                    StepPersistence(store=self._store, agent_name="assistant"),
                ],
            )
        self._token: Any = None
        self.messages: list[Any] = []
        """What it holds before its first run."""

    async def send(self, text: str) -> str:
        self._token = CancellationToken()
        result = await KEPT["agent"].run(
            text,
            message_history=await self._history(),
            conversation_id=self._name,
            event_stream_handler=drain,
            cancellation_token=self._token,
            usage_limits=UsageLimits(request_limit=None),
        )
        return str(result.output)

    async def cancel(self, sending: asyncio.Task[str]) -> None:
        self._token.cancel()

    async def _history(self) -> list[Any]:
        for run in reversed(await self._store.list_runs(conversation_id=self._name)):
            try:
                return list(await continue_run(self._store, run_id=run.run_id))
            except LookupError:
                continue
        return self.messages


async def open_session(options: Options, name: str) -> Harnessed:
    return Harnessed(options, name, InMemoryStepStore())


async def open_filled(options: Options, name: str, said: list[tuple[str, str]]) -> Harnessed:
    session = Harnessed(options, name, InMemoryStepStore())
    session.messages = [
        ModelRequest(parts=[UserPromptPart(text)])
        if role == "user"
        else ModelResponse(parts=[TextPart(text)])
        for role, text in said
    ]
    return session


async def open_compacting(options: Options, name: str) -> Harnessed:
    window_tokens = options.size("window_tokens")
    keep_tokens = window_tokens // 10  # the 20,000 of the example, of its default window
    in_background = FallbackCompaction(
        max_fraction=0.85,
        background_start=0.85,
        context_window=window_tokens,
        fallback_chain=[
            SummarizingCompaction(max_messages=1, keep_tokens=keep_tokens),
            SlidingWindowCompaction(max_messages=1, keep_tokens=keep_tokens),
        ],
    )
    return Harnessed(options, name, InMemoryStepStore(), in_background)


async def open_durable(options: Options, name: str) -> Harnessed:
    return Harnessed(options, name, SqliteStepStore(database=options.folder / "runs.db"))


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
