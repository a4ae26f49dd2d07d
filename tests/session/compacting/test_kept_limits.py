"""Each registered policy keeps its limit in a live session: 216 messages with tools, 300 in
the long run, a provider whose cache is warm, and the default configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llmsession import CompactionConfig, Profile, Tool
from llmsession.compaction.planning.schedule import Fill, is_due
from llmsession.compaction.policies import policy_names
from llmsession.session.actor import request_build
from llmsession.session.compacting import compactor, summarizer
from llmsession.testing.scripted import Scripted, call, say
from llmsession.turns import records as r
from llmsession.turns.request import Request, StepTag
from llmsession.turns.usage import Usage
from tests.session.actors import Quick, Stage, stage
from tests.session.compacting.conversations import applied

ONE_BACKEND = pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)
TURNS, LONG_TURNS = 54, 75
BUDGET = 40_000
REPLY_TOKENS = 8_000
PROFILE = Profile()
REPLY = "What it says is this, and it goes on for a while about each of the lines. " * 8
FILE = "value = compute(offset)  # a line of a file that somebody wrote some time ago\n" * 40

NO_LIMIT_OF_SIZE = {
    "full_history": "it never compacts",
    "memory_injection": "it only adds",
    "focus_chain": "it only adds",
    "context_providers": "it only adds",
    "stale_read_batching": "it begins with its batch of outdated reads, whatever the size",
    "file_read_dedupe": "it takes older copies out, and no more",
    "mask_consumed": "it masks results that were answered, and no more",
    "position_clear": "it clears results, and no more",
    "pressure_fading": "it fades results by bands, and no more",
    "strip_thinking": "it leaves thinking out, and no more",
    "swap_tool_results": "it swaps results, beside the replies",
    "balanced": "it waits for the provider's cache; its limit is 92 % of the budget",
}
"""What the window alone bounds, and why."""


class Talk:
    """A model that reads one of ten files a turn, and a warm cache. It notes what it was sent."""

    def __init__(self) -> None:
        self.on: Stage
        self.tokens: list[int] = []
        self.messages: list[int] = []

    def __call__(self, request: Request, tag: StepTag) -> Scripted:
        status = self.on.session.status()
        self.tokens.append(status.context_tokens)
        self.messages.append(len(request.messages))
        path = f"src/part_{tag.turn % 10}.py"
        reply = call("read", {"path": path}, id=f"c{tag.turn}") if tag.step == 1 else say(REPLY)
        cached = int(len(request.encode()) / PROFILE.chars_per_token)
        usage = Usage(10, 200, max(0, cached - 10), 0)
        return reply.costing(usage).slow(0.0, delta_chars=1_000)

    @property
    def step(self) -> int:
        """The most that one step added."""
        pairs = zip(self.tokens, self.tokens[1:], strict=False)
        return max(after - before for before, after in pairs)


BUDGETS = {"clean_and_budget_30k": 80_000}
"""Where the limit is above the usual budget here."""
MESSAGES = {"last_n_messages": 8, "age_count_token": 50}
"""How many messages are shown at most, beside those that belong to the first of them."""
STEP_MESSAGES = 3
LIMITS = {
    # In tokens of four characters of text; a tenth is what stands around the texts.
    "clean_and_budget_30k": int(1.1 * 30_000 * 4 / PROFILE.chars_per_token),
    "age_count_token": int(1.1 * 32_000 * 4 / PROFILE.chars_per_token),
    "last_n_messages": BUDGET,
    "hybrid_60_80_90": BUDGET * 80 // 100,
    "hybrid_70_60": BUDGET * 70 // 100,
    "four_stage": BUDGET,
    "middleware_pipeline": BUDGET * 90 // 100,
}
"""The limits in tokens that ``due`` does not say, because it only says when to look."""


def limit_tokens(name: str, budget: int) -> int:
    """From how many tokens on the policy *name* has to act."""
    if name in LIMITS:
        return LIMITS[name]
    policy = CompactionConfig(policy=name).make_policy()
    low, high = 0, budget * 2
    while low < high:
        tokens = (low + high) // 2
        fill = Fill(
            used_tokens=tokens, limit_tokens=budget, messages=0, window_tokens=budget + REPLY_TOKENS
        )
        low, high = (low, tokens) if is_due(policy, fill) else (tokens + 1, high)
    return low


async def inline(work: Callable[..., Any], *args: Any) -> Any:
    return work(*args)


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    # Virtual time does not see a thread.
    for module in (compactor, request_build):
        monkeypatch.setattr(module, "INLINE_MESSAGES", 10_000)
    for module in (compactor, summarizer):
        monkeypatch.setattr(module, "off_loop", inline)


async def lived(
    name: str, turns: int, budget: int = BUDGET
) -> tuple[Talk, list[r.CompactionApplied]]:
    """A session of 4 messages a turn under the policy *name*, with nothing else configured."""
    talk = Talk()
    config: dict[str, Any] = {"window_tokens": budget + REPLY_TOKENS, "max_tokens": REPLY_TOKENS}
    tools = [Tool(name="read", run=Quick(FILE))]
    compaction = CompactionConfig(policy=name)
    async with stage(talk, tools=tools, profile=PROFILE, compaction=compaction, **config) as on:
        talk.on = on
        for number in range(turns):
            await on.outcome(f"please read on, number {number}")
        # Each was checked by the strict rules before it was sent, or its turn would have failed.
        on.provider.requests.clear()
        return talk, await applied(on)


@ONE_BACKEND
@pytest.mark.parametrize("turns", [TURNS, pytest.param(LONG_TURNS, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", sorted(set(policy_names()) - set(NO_LIMIT_OF_SIZE)))
async def test_a_policy_keeps_its_limit_to_one_step(name: str, turns: int) -> None:
    budget = BUDGETS.get(name, BUDGET)
    talk, records = await lived(name, turns, budget)
    assert len(talk.tokens) == 2 * turns
    limit, triggers = limit_tokens(name, budget), [record.trigger for record in records]
    # It is crossed several times, and the session comes to the rescue only where it is the budget.
    assert triggers.count("policy_limit") >= 2
    assert "window" not in triggers or limit + 2 * talk.step > budget
    assert max(talk.tokens) < limit + talk.step
    assert max(talk.messages) <= MESSAGES.get(name, 2 * len(talk.messages)) + STEP_MESSAGES


@pytest.mark.long
@ONE_BACKEND
@pytest.mark.parametrize("name", sorted(NO_LIMIT_OF_SIZE))
async def test_a_policy_without_a_limit_of_its_own_keeps_to_the_budget(name: str) -> None:
    talk, records = await lived(name, LONG_TURNS)
    assert max(talk.tokens) <= BUDGET
    assert (records == []) == (name == "full_history")
