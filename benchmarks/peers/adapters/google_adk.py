"""google-adk: ``Runner.run_async`` with streaming (SSE), cancelled by its ``abort_signal``.

As its documentation says: an ``App`` with a root agent, and a session service for all sessions;
``OpenAILlm`` is its own way to a server that speaks chat completions. ``InMemorySessionService``
holds sessions in memory, ``DatabaseSessionService`` with SQLite makes them durable; the latter also
refuses to write after another writer, so ``two_sends`` is done with it. Compaction is by tokens,
"primary" in the documentation, from three quarters of the window on, with its example's retention.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
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
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps.app import App, EventsCompactionConfig
from google.adk.events import Event
from google.adk.integrations.openai import OpenAILlm
from google.adk.runners import Runner
from google.adk.sessions import (
    BaseSessionService,
    DatabaseSessionService,
    InMemorySessionService,
    Session,
)
from google.genai import types
from openai import AsyncOpenAI

NAME = "benchmark"
USER = "user"
STREAMING = RunConfig(streaming_mode=StreamingMode.SSE)
RUNNERS: dict[str, Runner] = {}


class Adk:
    """A session of a runner."""

    def __init__(self, runner: Runner, session_id: str) -> None:
        self._runner = runner
        self._id = session_id
        self._abort = asyncio.Event()

    async def send(self, text: str) -> str:
        self._abort = asyncio.Event()
        said = ""
        async for event in self._runner.run_async(
            user_id=USER,
            session_id=self._id,
            new_message=types.UserContent(parts=[types.Part(text=text)]),
            run_config=STREAMING,
            abort_signal=self._abort,
        ):
            if event.is_final_response() and event.content and event.content.parts:
                said = "".join(part.text or "" for part in event.content.parts)
        return said

    async def cancel(self, sending: asyncio.Task[str]) -> None:
        self._abort.set()


def runner_of(options: Options, service: BaseSessionService, **app: Any) -> Runner:
    client = AsyncOpenAI(base_url=options.chat_url, api_key="none", timeout=TIMEOUT_S)
    agent = LlmAgent(
        name="assistant",
        model=OpenAILlm(model=options.model, max_tokens=1_000, client=client),
        instruction="You are a helpful assistant.",
        tools=[AsyncTools.quick, AsyncTools.slow, AsyncTools.read, AsyncTools.stubborn],
    )
    return Runner(app=App(name=NAME, root_agent=agent, **app), session_service=service)


def in_memory(options: Options) -> Runner:
    """One for all sessions."""
    if NAME not in RUNNERS:
        RUNNERS[NAME] = runner_of(options, InMemorySessionService())
    return RUNNERS[NAME]


async def created(runner: Runner, name: str) -> Session:
    return await runner.session_service.create_session(app_name=NAME, user_id=USER, session_id=name)


async def open_session(options: Options, name: str) -> Adk:
    runner = in_memory(options)
    await created(runner, name)
    return Adk(runner, name)


async def open_filled(options: Options, name: str, said: list[tuple[str, str]]) -> Adk:
    runner = in_memory(options)
    session = await created(runner, name)
    for role, text in said:
        author, role = ("user", "user") if role == "user" else ("assistant", "model")
        content = types.Content(role=role, parts=[types.Part(text=text)])
        await runner.session_service.append_event(session, Event(author=author, content=content))
    return Adk(runner, name)


async def open_durable(options: Options, name: str) -> Adk:
    path = Path(options.folder) / "sessions.db"
    service = DatabaseSessionService(f"sqlite+aiosqlite:///{path}")
    runner = runner_of(options, service)
    if await service.get_session(app_name=NAME, user_id=USER, session_id=name) is None:
        await created(runner, name)
    return Adk(runner, name)


async def open_compacting(options: Options, name: str) -> Adk:
    compacting = EventsCompactionConfig(
        token_threshold=options.size("window_tokens") * 3 // 4, event_retention_size=5
    )
    service = InMemorySessionService()
    runner = runner_of(options, service, events_compaction_config=compacting)
    await created(runner, name)
    return Adk(runner, name)


main(
    {
        "two_sends": two_sends(open_durable),
        "random_cancels": random_cancels(open_session),
        "stubborn_tool": stubborn_tool(open_session),
        "long_conversation": long_conversation(open_filled),
        "compaction": compaction(open_compacting),
        "persistence": persistence(open_durable),
        "thousand_sessions": thousand_sessions(open_session),
    }
)
