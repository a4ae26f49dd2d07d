"""How long the event loop stands still while peers compact 2,000 messages: run by ``compaction`` in
a Python that has langchain and strands-agents, through their public interfaces.

langchain: its context editing middleware clears old tool uses before a model call that returns at
once. strands: its summarising conversation manager reduces the context with a model whose summary
takes SUMMARY_S. Beside them how long an idle loop stands still.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from typing import Any

MESSAGES = 2_000
TICK_S = 0.0005
SUMMARY_S = 0.25
RESULT = "a line of a tool's result, number 12345, in src/some/file.py:17\n" * 60


async def longest_gap(work: Callable[[], Awaitable[object]]) -> float:
    gaps: list[float] = []

    async def tick() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(TICK_S)
            gaps.append(time.perf_counter() - last)
            last = time.perf_counter()

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.01)
    gaps.clear()
    await work()
    await asyncio.sleep(2 * TICK_S)
    ticking.cancel()
    return max(gaps)


async def langchain_gap() -> float:
    from langchain.agents.middleware import (
        ClearToolUsesEdit,
        ContextEditingMiddleware,
        ModelRequest,
    )
    from langchain_core.language_models.fake_chat_models import (
        FakeListChatModel,
    )
    from langchain_core.messages import (
        AIMessage,
        HumanMessage,
        ToolMessage,
    )

    messages: list[Any] = []
    for at in range(MESSAGES // 4):
        messages += [
            HumanMessage("what does it say?"),
            AIMessage(
                "", tool_calls=[{"name": "read", "args": {"path": f"/{at}"}, "id": f"c{at}"}]
            ),
            ToolMessage(RESULT, tool_call_id=f"c{at}"),
            AIMessage(f"it says {at}"),
        ]
    messages.append(HumanMessage("and now?"))
    middleware = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=1_000, keep=20)])
    request = ModelRequest(
        model=FakeListChatModel(responses=["ok"]), messages=messages, system_message=None,
        tool_choice=None, tools=[], response_format=None, state={"messages": messages},
        runtime=None,
    )  # fmt: skip

    async def answer(_: Any) -> Any:
        return AIMessage("ok")

    return await longest_gap(lambda: middleware.awrap_model_call(request, answer))


async def strands_gap() -> float:
    from strands import Agent
    from strands.agent.conversation_manager import (
        SummarizingConversationManager,
    )
    from strands.models.model import Model

    class Slow(Model):  # type: ignore[misc]
        def update_config(self, **_: Any) -> None: ...

        def get_config(self) -> dict[str, Any]:
            return {}

        async def structured_output(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
            raise NotImplementedError
            yield

        async def stream(self, *_: Any, **__: Any) -> AsyncIterator[dict[str, Any]]:
            await asyncio.sleep(SUMMARY_S)
            yield {"messageStart": {"role": "assistant"}}
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": "a summary"}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn"}}

    messages: list[Any] = []
    for at in range(MESSAGES // 4):
        use = {"toolUseId": f"c{at}", "name": "read", "input": {"path": f"/{at}"}}
        result = {"toolUseId": f"c{at}", "status": "success", "content": [{"text": RESULT}]}
        messages += [
            {"role": "user", "content": [{"text": "what does it say?"}]},
            {"role": "assistant", "content": [{"toolUse": use}]},
            {"role": "user", "content": [{"toolResult": result}]},
            {"role": "assistant", "content": [{"text": f"it says {at}"}]},
        ]
    manager = SummarizingConversationManager()
    agent = Agent(model=Slow(), messages=messages, conversation_manager=manager)

    async def reduce() -> None:
        manager.reduce_context(agent)

    return await longest_gap(reduce)


async def main() -> None:
    idle = await longest_gap(lambda: asyncio.sleep(0.5))
    cleared = await langchain_gap()
    summarised = await strands_gap()
    print(
        f"langchain {version('langchain')} {cleared * 1e3:.4g} ms, strands-agents"
        f" {version('strands-agents')} {summarised * 1e3:.4g} ms for a summary of"
        f" {SUMMARY_S * 1e3:.0f} ms; an idle loop beside them {idle * 1e3:.4g} ms"
    )


if __name__ == "__main__":
    asyncio.run(main())
