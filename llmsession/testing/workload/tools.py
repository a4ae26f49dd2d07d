"""The tools of stress and simulation, session configurations at random, and text at random."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import anyio
import anyio.lowlevel

from llmsession.session.values.config import (
    CompactionConfig,
    SessionConfig,
    SummariserConfig,
    Tool,
    ToolOutput,
)
from llmsession.turns.machine import TurnLimits

__all__ = [
    "CALLER_TOOLS",
    "GRACE_S",
    "OWN_TOOLS",
    "THREAD_TOOL",
    "counted_tools",
    "random_config",
    "words",
    "workload_tools",
]

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


GRACE_S = 0.1


def _compaction(policy: str, **settings: Any) -> CompactionConfig:
    """Of *settings* those that *policy* takes: one has a low mark, the other has modes."""
    settings.pop("mode" if policy == "balanced" else "low")
    return CompactionConfig(policy=policy, **settings)


def random_config(random: Random, tools: Sequence[Tool], *, may_crash: bool) -> SessionConfig:
    """A configuration with short limits and small windows. Where the process *may_crash*, recovery
    varies too, and a model may write the summaries."""
    summariser = SummariserConfig(model="workload-1", deadline_s=2.0, max_requests=3)
    return SessionConfig(
        model="workload-1",
        tools=tuple(tools),
        max_tokens=1000,
        window_tokens=random.choice((5000, 8000, 12000)),
        interrupt_policy=random.choice(("drop_turn", "drop_turn", "keep_steps", "keep_text")),
        on_failure=random.choice(("keep_steps", "drop")),
        recovery=random.choice(("drop", "resume")) if may_crash else "drop",
        limits=TurnLimits(
            max_steps=random.choice((4, 6)),
            max_seconds=random.choice((0.4, 0.8)),
            max_tokens=random.choice((None, None, 20_000)),
            max_retries=random.choice((1, 4)),
        ),
        tool_deadline_s=0.15,
        grace_s=GRACE_S,
        queue_limit=random.choice((3, 32)),
        compaction=_compaction(
            policy=random.choice(("balanced", "balanced", "swap_tool_results")),
            schedule=random.choice(("cache", "at_once")),
            threshold=random.choice((0.3, 0.5)),
            low=random.choice((0.15, 0.25)),
            keep_recent_turns=random.choice((1, 2)),
            keep_recent_steps=random.choice((1, 3)),
            cap_chars=2500,
            summary_chars=200,
            mode=random.choice(("summarize", "summarize", "redact")),
            summariser=random.choice((None, summariser)) if may_crash else None,
        ),
    )
