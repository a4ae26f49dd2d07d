"""claude-agent-sdk: ``ClaudeSDKClient``, with ``query``, ``receive_response`` and ``interrupt``.

As its documentation says: a client is one conversation, and drives a Claude Code of its own, which
the package brings along; here that asks the strict server (``ANTHROPIC_BASE_URL``). A message may
be sent while it works, and is handed to the turn under way, so the second of two sends waits for
that turn. Tools are functions in a server inside this process (``create_sdk_mcp_server``); Claude
Code's own are switched off. Sessions are kept by default, under ``CLAUDE_CONFIG_DIR``, and
``resume`` goes on with one. It compacts by itself, at a threshold below the window. A session that
is filled beforehand is put into a ``SessionStore``, in lines as Claude Code writes them.

The figures have the CPU and the memory of Claude Code in them.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path
from typing import Any

from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    InMemorySessionStore,
    ResultMessage,
    create_sdk_mcp_server,
    get_session_info,
    project_key_for_directory,
    tool,
)
from common import (
    AsyncTools,
    NotOffered,
    Options,
    Work,
    compaction,
    long_conversation,
    main,
    persistence,
    random_cancels,
    rss_mb,
    stubborn_tool,
    thousand_sessions,
    two_sends,
)

MAX_OUTPUT_TOKENS = 1_000
MADE_UP_TOKENS = 11_000
"""Claude Code keeps room for an answer and 13,000 tokens more of any window free, which would be
nearly all of a window of 16,000: it would summarise every third message. So it is told of a larger
one, and summarises at 13,000 of 16,000, about the share at which it does so by default."""
SHARE_OF_MEMORY = 0.7
"""What all sessions together may have of the machine's memory."""
RUNS = (AsyncTools.quick, AsyncTools.slow, AsyncTools.read, AsyncTools.stubborn)


# No settings and no account of a user: Claude Code finds everything in the folder of the work.
for inherited in [name for name in os.environ if name.startswith(("ANTHROPIC_", "CLAUDE"))]:
    del os.environ[inherited]
os.environ |= {
    "HOME": str(Path.cwd()),
    "TMPDIR": str(Path.cwd()),
    "CLAUDE_CODE_TMPDIR": str(Path.cwd()),
    "CLAUDE_CONFIG_DIR": str(Path.cwd() / "config"),
    "ANTHROPIC_API_KEY": "none",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
}


def offered(run: Any) -> Any:
    async def answered(arguments: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": await run(arguments["tag"])}]}

    return tool(run.__name__, run.__doc__, {"tag": str})(answered)


class Claude:
    """A client and its conversation."""

    def __init__(self, client: ClaudeSDKClient) -> None:
        self._client = client
        self._reading: asyncio.Task[str] | None = None

    async def send(self, text: str) -> str:
        await self._client.query(text)
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        return await self._reading

    async def _read(self) -> str:
        async for message in self._client.receive_response():
            if isinstance(message, ResultMessage):
                if message.is_error:
                    raise RuntimeError(f"{message.subtype}: {message.result or message.errors}")
                return str(message.result)
        raise RuntimeError("the conversation ended without a result")

    async def cancel(self, sending: asyncio.Task[str]) -> None:
        await self._client.interrupt()

    async def close(self) -> None:
        await self._client.disconnect()


async def opened(options: Options, **more: Any) -> Claude:
    window_tokens = options.size("window_tokens") + MADE_UP_TOKENS
    client = ClaudeSDKClient(
        ClaudeAgentOptions(
            model=options.model,
            system_prompt="You are a helpful assistant.",
            tools=[],
            mcp_servers={"works": create_sdk_mcp_server("works", tools=list(map(offered, RUNS)))},
            allowed_tools=[f"mcp__works__{run.__name__}" for run in RUNS],
            setting_sources=[],
            include_partial_messages=True,
            cwd=options.folder,
            env={
                "ANTHROPIC_BASE_URL": options.base_url,
                "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(window_tokens),
                "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(MAX_OUTPUT_TOKENS),
            },
            **more,
        )
    )
    await client.connect()
    return Claude(client)


async def open_session(options: Options, name: str) -> Claude:
    return await opened(options)


async def open_filled(options: Options, name: str, said: list[tuple[str, str]]) -> Claude:
    session_id = str(uuid.uuid5(uuid.NAMESPACE_OID, name))
    store = InMemorySessionStore()
    key: Any = {
        "project_key": project_key_for_directory(options.folder),
        "session_id": session_id,
    }
    await store.append(key, lines_of(options, session_id, said))
    return await opened(options, session_store=store, resume=session_id)


def lines_of(options: Options, session_id: str, said: list[tuple[str, str]]) -> list[Any]:
    """A conversation as the lines of a session's file."""
    lines: list[dict[str, Any]] = []
    for role, text in said:
        message: dict[str, Any] = {"role": role, "content": text}
        if role == "assistant":
            message |= {
                "id": f"msg_{len(lines)}",
                "type": "message",
                "model": options.model,
                "content": [{"type": "text", "text": text}],
                "stop_reason": "end_turn",
                "usage": {"input_tokens": 1, "output_tokens": 1},
            }
        lines.append(
            {
                "type": role,
                "uuid": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{session_id} {len(lines)}")),
                "parentUuid": lines[-1]["uuid"] if lines else None,
                "isSidechain": False,
                "message": message,
                "timestamp": "2026-01-01T00:00:00.000Z",
                "userType": "external",
                "cwd": str(options.folder),
                "sessionId": session_id,
            }
        )
    return lines


async def open_durable(options: Options, name: str) -> Claude:
    session_id = str(uuid.uuid5(uuid.NAMESPACE_OID, name))
    if get_session_info(session_id, directory=str(options.folder)) is None:
        return await opened(options, session_id=session_id)
    return await opened(options, resume=session_id)


def if_they_fit(work: Work) -> Work:
    """*work*, if the machine has the memory for a process for each session."""

    async def run(options: Options) -> dict[str, Any]:
        sessions, before_mb = options.size("sessions"), rss_mb()
        session = await open_session(options, "one")
        await session.send("[say 5] #one")
        each_mb = rss_mb() - before_mb
        await session.close()
        machine_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e6
        if sessions * each_mb > SHARE_OF_MEMORY * machine_mb:
            raise NotOffered(
                f"each session is a process of {each_mb:.0f} MB,"
                f" {sessions:,} are {sessions * each_mb / 1000:.0f} GB"
            )
        return await work(options)

    return run


main(
    {
        "two_sends": two_sends(open_session),
        "random_cancels": random_cancels(open_session),
        "stubborn_tool": stubborn_tool(open_session),
        "long_conversation": long_conversation(open_filled),
        "compaction": compaction(open_session),
        "persistence": persistence(open_durable),
        "thousand_sessions": if_they_fit(thousand_sessions(open_session)),
    }
)
