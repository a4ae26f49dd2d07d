"""How large a request may be: as configured, else as the provider knows its model."""

from __future__ import annotations

import pytest

from llmsession import InvalidConfig, MemoryStore, Profile, SessionConfig, SessionManager
from tests.session.actors import ByName, stage

LARGE = Profile(window_tokens=1_000_000, max_output_tokens=128_000)
SMALL = Profile(window_tokens=8_000, max_output_tokens=4_000)
PROFILES = {"large": LARGE, "small": SMALL}


async def test_without_figures_the_window_and_the_reply_are_the_model_s() -> None:
    async with stage(["hi"], profile=LARGE) as on:
        await on.say("go")
        assert on.session.status().budget_tokens == 1_000_000 - 32_000
        assert on.provider.requests[0].max_tokens == 32_000
        assert on.session.config.window_tokens is None


async def test_a_figure_that_is_given_stays_and_the_other_follows() -> None:
    async with stage(["hi"], profile=LARGE, window_tokens=40_000) as on:
        await on.say("go")
        assert on.provider.requests[0].max_tokens == 10_000
        assert on.session.status().budget_tokens == 30_000
    async with stage(["hi"], profile=LARGE, max_tokens=100_000) as on:
        assert on.session.status().budget_tokens == 900_000


async def test_they_follow_a_change_of_model_and_an_opening_with_another_provider() -> None:
    store = MemoryStore()
    async with SessionManager(provider=ByName(["a", "b"], PROFILES), store=store) as manager:
        session = await manager.create(SessionConfig(model="large"), session_id="s")
        assert session.status().budget_tokens == 968_000
        await session.configure(model="small")
        assert session.status().budget_tokens == 6_000
        assert session.context().max_tokens == 2_000


async def test_a_reply_that_would_fill_the_model_s_window_is_refused_by_name() -> None:
    async with SessionManager(provider=ByName(["a"], PROFILES)) as manager:
        with pytest.raises(InvalidConfig, match="max_tokens 9000 leaves no room for a request"):
            await manager.create(SessionConfig(model="small", max_tokens=9_000))
        session = await manager.create(SessionConfig(model="large", max_tokens=9_000))
        with pytest.raises(InvalidConfig, match="leaves no room for a request"):
            await session.configure(model="small")
        assert session.config.model == "large"
        assert session.status().budget_tokens == 991_000
