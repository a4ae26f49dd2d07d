"""No library: the openai SDK and a list of messages, as its examples of a conversation have it.

The floor of what the others cost, and what a list does when it is used from two tasks or cut
short: the user's message and each reply are appended when they come.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from common import (
    TIMEOUT_S,
    AsyncTools,
    Options,
    long_conversation,
    main,
    random_cancels,
    stubborn_tool,
    thousand_sessions,
    two_sends,
)
from openai import AsyncOpenAI

PARAMETERS = {"type": "object", "properties": {"tag": {"type": "string"}}, "required": ["tag"]}
RUNS = {
    run.__name__: run
    for run in (AsyncTools.quick, AsyncTools.slow, AsyncTools.read, AsyncTools.stubborn)
}
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": name, "description": run.__doc__, "parameters": PARAMETERS},
    }
    for name, run in RUNS.items()
]
CLIENTS: dict[str, AsyncOpenAI] = {}


class Bare:
    """A list of messages."""

    def __init__(self, options: Options, said: list[tuple[str, str]]) -> None:
        self._client = CLIENTS.setdefault(
            options.chat_url,
            AsyncOpenAI(base_url=options.chat_url, api_key="none", timeout=TIMEOUT_S),
        )
        self._model = options.model
        system = {"role": "system", "content": "You are a helpful assistant."}
        self._messages: Any = [system, *({"role": role, "content": text} for role, text in said)]

    async def send(self, text: str) -> str:
        self._messages.append({"role": "user", "content": text})
        while True:
            content, calls = await self._reply()
            said: dict[str, Any] = {"role": "assistant", "content": content or None}
            if calls:
                said["tool_calls"] = calls
            self._messages.append(said)
            if not calls:
                return content
            for call, told in zip(calls, await self._run(calls), strict=True):
                self._messages.append({"role": "tool", "tool_call_id": call["id"], "content": told})

    async def _reply(self) -> tuple[str, list[dict[str, Any]]]:
        texts: list[str] = []
        calls: dict[int, dict[str, Any]] = {}
        stream = await self._client.chat.completions.create(
            model=self._model, messages=self._messages, tools=TOOLS, stream=True
        )
        async with stream:
            async for chunk in stream:
                for choice in chunk.choices:
                    texts.append(choice.delta.content or "")
                    for piece in choice.delta.tool_calls or ():
                        call = calls.setdefault(piece.index, _opened(piece))
                        call["function"]["arguments"] += _arguments(piece)
        return "".join(texts), list(calls.values())

    async def _run(self, calls: list[dict[str, Any]]) -> list[str]:
        told: list[str] = await asyncio.gather(
            *(
                RUNS[call["function"]["name"]](**json.loads(call["function"]["arguments"]))
                for call in calls
            )
        )
        return told

    async def cancel(self, sending: asyncio.Task[str]) -> None:
        sending.cancel()


def _opened(piece: Any) -> dict[str, Any]:
    function = {"name": piece.function.name, "arguments": ""}
    return {"id": piece.id, "type": "function", "function": function}


def _arguments(piece: Any) -> str:
    return str(piece.function.arguments or "") if piece.function else ""


async def open_session(options: Options, name: str) -> Bare:
    return Bare(options, [])


async def open_filled(options: Options, name: str, said: list[tuple[str, str]]) -> Bare:
    return Bare(options, said)


main(
    {
        "two_sends": two_sends(open_session),
        "random_cancels": random_cancels(open_session),
        "stubborn_tool": stubborn_tool(open_session),
        "long_conversation": long_conversation(open_filled),
        "compaction": "a list is not compacted",
        "persistence": "a list is not kept",
        "thousand_sessions": thousand_sessions(open_session),
    }
)
