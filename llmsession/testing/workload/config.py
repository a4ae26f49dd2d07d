"""Session configurations at random."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from llmsession.session.values.config import (
    CompactionConfig,
    SessionConfig,
    SummariserConfig,
    Tool,
)
from llmsession.turns.machine import TurnLimits

__all__ = ["GRACE_S", "random_config"]

GRACE_S = 0.1


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
        compaction=CompactionConfig(
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
