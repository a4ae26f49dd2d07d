"""The tools of stress and simulation, and text at random."""

from __future__ import annotations

import time
from collections import Counter
from random import Random
from typing import Any

import anyio
import anyio.lowlevel

from llmsession.session.values.config import Tool, ToolOutput

__all__ = ["CALLER_TOOLS", "OWN_TOOLS", "THREAD_TOOL", "counted_tools", "words", "workload_tools"]

CALLER_TOOLS = ("ask", "fetch")
THREAD_TOOL = "thread"
OWN_TOOLS = ("quick", THREAD_TOOL, "failing", "slow", "stubborn", "recall", "unknown")
"""Tools that a session runs, and a name that no tool has."""


def workload_tools() -> tuple[Tool, ...]:
    """Tools that are quick, slow, fail or ignore cancellation. The caller runs ``CALLER_TOOLS``."""
    return (
        *(Tool(name=name, description="run by the caller") for name in CALLER_TOOLS),
        Tool(name="quick", run=_quick),
        Tool(name="thread", run=_thread),
        Tool(name="failing", run=_failing),
        Tool(name="slow", run=_slow),
        Tool(name="stubborn", run=_stubborn, deadline_s=0.15),
    )


async def _quick(seed: int) -> ToolOutput:
    random = Random(seed)
    summary = "a short summary" if random.random() < 0.5 else None
    return ToolOutput(
        content=words(random, random.choice((30, 800, 3000))), compact_summary=summary
    )


def _thread(seed: int) -> str:
    random = Random(seed)
    time.sleep(random.uniform(0, 0.01))
    return words(random, 500)


async def _failing(seed: int) -> str:
    await anyio.lowlevel.checkpoint()
    raise LookupError(f"nothing at {seed}")


async def _slow(seed: int) -> str:
    random = Random(seed)
    await anyio.sleep(random.uniform(0.005, 0.1))
    return words(random, 1500)


async def _stubborn(seed: int) -> str:
    """Ignores every cancellation for a while, for up to three times the grace period."""
    until = anyio.current_time() + Random(seed).uniform(0.02, 0.3)
    while (left_s := until - anyio.current_time()) > 0:
        try:
            await anyio.sleep(left_s)
        except anyio.get_cancelled_exc_class():
            continue  # on purpose: this is the misbehaviour
    return "done at last"


def counted_tools(runs: Counter[str]) -> tuple[Tool, ...]:
    """The tools that need no thread. *runs* counts their runs, by the seed in the arguments of each
    call."""

    def counted(tool: Tool) -> Tool:
        run: Any = tool.run
        if run is None:
            return tool

        async def counting(seed: int) -> Any:
            runs[f"{tool.name} {seed}"] += 1
            return await run(seed)

        return Tool(name=tool.name, run=counting, deadline_s=tool.deadline_s)

    return tuple(counted(tool) for tool in workload_tools() if tool.name != THREAD_TOOL)


_WORDS = (
    "lorem", "ipsum", "dolor", "sit", "amet", "consectetur", "adipiscing", "elit", "sed", "do",
    "eiusmod", "tempor",
)  # fmt: skip


def words(random: Random, chars: int) -> str:
    """Text of about *chars* characters, in lines."""
    line = " ".join(random.choices(_WORDS, k=8))
    return "\n".join(f"{number} {line}" for number in range(max(1, chars // len(line))))
