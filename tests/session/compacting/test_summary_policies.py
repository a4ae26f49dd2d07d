"""Sessions under the policies that want a summary: long turns, in a window that is too small."""

from __future__ import annotations

from typing import Any

import pytest

from llmsession import CompactionConfig
from llmsession.compaction.policies.registry import takes
from llmsession.testing.scripted import Scripted, call
from llmsession.turns.request import Request, StepTag
from tests.session.actors import settled, stage
from tests.session.compacting.conversations import applied, tools

NAMES = (
    "llm_summary", "recency_turn_summary", "rolling_summary_75", "pointer_summary",
    "summary_keep_last_4", "union_preserve_compress", "checkpoint_on_first_kept",
    "auto_compact_threshold", "append_only_projection", "sidecar_projection",
)  # fmt: skip
STEPS = 12
"""Fewer messages than those for which a session takes a thread: time is virtual here."""


def long_turns(request: Request, tag: StepTag) -> Scripted:
    if tag.turn % 2 and tag.step <= STEPS:
        return call("t", id=f"c{tag.turn}x{tag.step}")
    return f"done {tag.turn}"


def small(name: str) -> CompactionConfig:
    recent: dict[str, Any] = {"keep_recent_turns": 1} if takes(name, "keep_recent_turns") else {}
    return CompactionConfig(policy=name, schedule="at_once", **recent)


@pytest.mark.parametrize("name", NAMES)
async def test_long_turns_end_and_leave_the_history_whole(name: str) -> None:
    async with stage(
        long_turns, tools=tools(), window_tokens=40_000, max_tokens=10_000, compaction=small(name)
    ) as on:
        for number in range(4):
            # Raises if the turn did not commit: for a request that broke a rule, or did not fit.
            await on.say(f"message {number}")
            await settled()
        policies = [record.policy for record in await applied(on)]
        assert name in policies, policies
        assert len(on.session.conversation()) == 2 * (2 * STEPS + 2) + 2 * 2
