"""llmsession, as its README says: a SessionManager, ``send``, ``interrupt``, ``open``.

Memory for what is not about durability, ``SqliteStore`` where it is. Compaction is what is on by
default: old tool results are shown as summaries made by rules, so it asks the model for none.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from common import (
    AsyncTools,
    Open,
    OpenFilled,
    Options,
    Work,
    compaction,
    long_conversation,
    main,
    persistence,
    random_cancels,
    stubborn_tool,
    thousand_sessions,
    two_sends,
)

from llmsession import (
    LLMSession,
    MemoryStore,
    OpenAIProvider,
    SessionConfig,
    SessionManager,
    SessionNotFound,
    Store,
    Tool,
)
from llmsession.transcripts import read

SCHEMA = {"type": "object", "properties": {"tag": {"type": "string"}}, "required": ["tag"]}
TOOLS = tuple(
    Tool(name=run.__name__, description=run.__doc__ or "", input_schema=SCHEMA, run=run)
    for run in (AsyncTools.quick, AsyncTools.slow, AsyncTools.read, AsyncTools.stubborn)
)


class Ours:
    """One session and its sends."""

    def __init__(self, session: LLMSession) -> None:
        self._session = session

    async def send(self, text: str) -> str:
        turn = await self._session.send(text)
        async for _ in turn:
            pass
        return await turn.text()

    async def cancel(self, sending: asyncio.Task[str]) -> None:
        await self._session.interrupt()


def config(options: Options) -> SessionConfig:
    """What a session is told. The model's window is the harness's word, as for every peer."""
    return SessionConfig(
        model=options.model,
        system="You are a helpful assistant.",
        tools=TOOLS,
        window_tokens=options.size("window_tokens"),
        max_tokens=1_000,
    )


def managed(
    work: Callable[[Any], Work], opening: Callable[[SessionManager], Any], *, durable: bool = False
) -> Work:
    """*work* inside a manager."""

    async def run(options: Options) -> dict[str, Any]:
        provider = OpenAIProvider(base_url=options.chat_url, api_key="none")
        store: Store = MemoryStore()
        if durable:
            from llmsession import SqliteStore  # some MB, which no other work needs

            store = SqliteStore(options.folder / "ours.db")
        async with SessionManager(provider=provider, store=store) as manager:
            measured: dict[str, Any] = await work(opening(manager))(options)
        return measured

    return run


def new(manager: SessionManager) -> Open:
    async def open_session(options: Options, name: str) -> Ours:
        return Ours(await manager.create(config(options), session_id=name))

    return open_session


def filled(manager: SessionManager) -> OpenFilled:
    async def open_filled(options: Options, name: str, said: list[tuple[str, str]]) -> Ours:
        messages = [{"role": role, "content": text} for role, text in said]
        conversation = read(json.dumps({"messages": messages}).encode())[0]
        session = await manager.import_conversation(conversation, config(options), session_id=name)
        return Ours(session)

    return open_filled


def again(manager: SessionManager) -> Open:
    async def open_durable(options: Options, name: str) -> Ours:
        try:
            return Ours(await manager.open(name, tools=TOOLS, takeover=True))
        except SessionNotFound:
            return Ours(await manager.create(config(options), session_id=name))

    return open_durable


main(
    {
        "two_sends": managed(two_sends, new),
        "random_cancels": managed(random_cancels, new),
        "stubborn_tool": managed(stubborn_tool, new),
        "long_conversation": managed(long_conversation, filled),
        "compaction": managed(compaction, new),
        "persistence": managed(persistence, again, durable=True),
        "thousand_sessions": managed(thousand_sessions, new),
    }
)
