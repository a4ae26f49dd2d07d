"""Random lives under each policy: signed thinking, interrupts, rewinds, forks, restarts. Every
request is valid by the strict rules."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from llmsession import CompactionConfig, SessionConfig
from llmsession.compaction.policies import make_policy, policy_names
from llmsession.compaction.rules.check import check_request
from llmsession.session.compacting import compactor, summarizer
from llmsession.session.core import core
from tests.session.compacting.test_kept_limits import inline
from tests.session.random_lives import Life

ONE_BACKEND = pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)
OPTIONS: dict[str, dict[str, Any]] = {
    "age_count_token": {"max_messages": 6, "max_tokens": 1_000},
    "clean_and_budget_30k": {"budget_tokens": 500},
    "focus_chain": {"checklist": "one; two", "every": 2},
    "last_n_messages": {"n": 3},
    "memory_injection": {"memories": ["likes brevity"]},
    "rolling_summary_75": {"window_tokens": 1_200, "summary_tokens": 200},
    "stale_read_batching": {"batch_bytes": 400},
}
"""Limits that a short life reaches."""


class PolicyLife(Life):
    """A life under the policy *name* with little room, whose session is closed and opened again
    now and then."""

    def __init__(self, seed: int, name: str, turns: int) -> None:
        super().__init__(seed, turns=turns)
        self.is_tight = True
        self.name = name

    def _config(self) -> SessionConfig:
        return replace(super()._config(), window_tokens=3_000)

    def _compaction(self) -> CompactionConfig:
        options = OPTIONS.get(self.name, {})
        if hasattr(make_policy(self.name), "threshold"):
            options = {**options, "threshold": 0.5}
        return CompactionConfig(policy=self.name, options=options, cap_chars=2_000)

    async def _change(self) -> None:
        await super()._change()
        if not self.session.status().turn and self.changing.random() < 0.3:
            await self.session.close()
            self.session = await self.manager.open("s", tools=self.tools())
            self.seen["restarted"] += 1


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    # Virtual time does not see a thread.
    for module in (compactor, summarizer, core):
        monkeypatch.setattr(module, "off_loop", inline)


async def check_life(seed: int, name: str, turns: int) -> PolicyLife:
    life = PolicyLife(seed, name, turns)
    await life()
    for request in life.provider.requests:
        profile = life.provider.profile(request.model)
        assert check_request(request, profile) == ()
    assert life.seen["invalid_request"] == 0
    return life


@ONE_BACKEND
@pytest.mark.parametrize("name", policy_names())
async def test_no_request_of_a_policy_is_invalid_whatever_happens_between(name: str) -> None:
    await check_life(8, name, 5)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", policy_names())
async def test_no_request_of_a_policy_is_invalid_in_many_long_lives(name: str, seed: int) -> None:
    await check_life(1_000 + seed, name, 12)
