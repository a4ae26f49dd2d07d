"""An agent loop on asyncio: this program runs the tools that the model calls, until it is done.

    python examples/agent_loop.py

It runs offline, with scripted replies. To use a real model, pass AnthropicProvider() or
OpenAIProvider() to the manager, and set the name of a model in the configuration.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from llmsession import (
    LLMSession,
    Provider,
    SessionConfig,
    SessionManager,
    SqliteStore,
    StepRestarted,
    Tool,
    ToolResult,
    ToolUse,
    Turn,
)
from llmsession.testing.scripted import ScriptedProvider, call, say

STOCK = {"apples": 3, "pears": 0}


def count(fruit: str) -> str:
    """The tool's function. It can be any function."""
    if fruit not in STOCK:
        raise KeyError(f"there are no {fruit} in the list")
    return str(STOCK[fruit])


TOOLS: dict[str, Callable[..., str]] = {"count": count}
CONFIG = SessionConfig(
    model="scripted-model",
    system="You keep the stock of a fruit shop.",
    tools=[
        Tool(
            name="count",
            description="How many of a fruit are in stock.",
            input_schema={
                "type": "object",
                "properties": {"fruit": {"type": "string"}},
                "required": ["fruit"],
            },
        )
    ],
)


def scripted() -> Provider:
    """A provider that gives these replies in order, whatever the question is."""
    return ScriptedProvider(
        [
            say("I look.")
            + call("count", {"fruit": "apples"}, id="call_1")
            + call("count", {"fruit": "figs"}, id="call_2"),
            say("There are 3 apples, and figs are not in the list."),
        ]
    )


async def answer(session: LLMSession, question: str) -> str:
    """Return the answer to *question*. The model's text is printed as it arrives."""
    turn = await session.send(question)
    async with asyncio.TaskGroup() as group:
        group.create_task(answer_calls(session, turn))
        async for piece in turn.stream_text():
            # A failed step is retried, and its text is streamed again from the start.
            print("\n" if isinstance(piece, StepRestarted) else piece, end="", flush=True)
    print()
    return await turn.text()


async def answer_calls(session: LLMSession, turn: Turn) -> None:
    """Run the tools that *turn* calls, until it ends."""
    async for event in turn:
        if isinstance(event, ToolUse):
            result = await run_tool(event)
            await session.submit_tool_results([result])


async def run_tool(call: ToolUse) -> ToolResult:
    """The result of a call. The model gets the error of a failed call, and can try something
    else."""
    try:
        told = await asyncio.to_thread(TOOLS[call.name], **call.input)
    except Exception as error:
        print(f"\n  {call.name}({call.input}) failed: {error}")
        return ToolResult(call.id, f"{type(error).__name__}: {error}", is_error=True)
    print(f"\n  {call.name}({call.input}) = {told}")
    # When the context is full, compaction can replace the result by this summary.
    return ToolResult(call.id, told, compact_summary=f"{call.input}: {told}")


async def main(database: str) -> None:
    async with SessionManager(provider=scripted(), store=SqliteStore(database)) as manager:
        session = await manager.create(CONFIG)
        await answer(session, "How many apples and figs are there?")
        status, usage = session.status(), session.usage()
        print(
            f"{status.turns} turn, {status.messages} messages, {usage.total.output_tokens} tokens"
        )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "agent_loop.db"))
