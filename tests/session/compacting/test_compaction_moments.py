"""When a plan is applied: at once, or at a moment at which a new prefix costs little. In virtual
time, with a clock that goes along with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest

from llmsession import CompactionConfig, MemoryStore, Profile
from llmsession.session.handles.session import live_state
from llmsession.session.values import commands as c
from llmsession.testing.scripted import Scripted, ScriptedReply, call, say
from llmsession.turns import records as r
from llmsession.turns.request import Request, StepTag
from llmsession.turns.usage import Usage
from tests.session.actors import Stage, settled, stage
from tests.session.compacting.conversations import applied, compacting, tools, turns

BUDGET = 30_000
PROFILE = Profile()


class CachingModel:
    """A model with a prompt cache: it reports what it was sent, all of it from the cache or into
    it. One call a turn; *cached* turns the cache off."""

    def __init__(self, *, cached: bool = True, scale: float = 1.0) -> None:
        self.cached = cached
        self.scale = scale
        self.long = 0

    def __call__(self, request: Request, tag: StepTag) -> Scripted:
        done = say(f"done {tag.turn}")
        reply = call("t", id=f"c{tag.turn}") if tag.step == 1 else done
        return self.with_usage(reply, request)

    def with_usage(self, reply: ScriptedReply, request: Request) -> ScriptedReply:
        tokens = int(len(request.encode()) / PROFILE.chars_per_token * self.scale)
        if not self.cached:
            return reply.costing(Usage(tokens, 10))
        written = max(0, min(900, tokens - 100))
        return reply.costing(Usage(100, 10, max(0, tokens - 100 - written), written))


@asynccontextmanager
async def caching(
    model: Any = None, *, idle_s: float = 10_000.0, profile: Profile = PROFILE,
    compaction: CompactionConfig | None = None, **config: Any,
) -> AsyncIterator[Stage]:  # fmt: skip
    """A session with a budget of 30,000 tokens, whose results have 2,700 tokens each. It is over
    its mark after nine turns, and near it after eight."""
    async with stage(
        model or CachingModel(), tools=tools(), profile=profile, clock=anyio.current_time,
        idle_s=idle_s, window_tokens=BUDGET + 10_000, max_tokens=10_000,
        compaction=compaction or CompactionConfig(keep_recent_turns=2), **config,
    ) as on:  # fmt: skip
        yield on


async def triggers(on: Stage) -> list[str]:
    return [record.trigger for record in await applied(on)]


async def until_held(on: Stage, most: int = 12) -> int:
    """Take turns until a plan is ready and waits; how many there were."""
    for number in range(most):
        await turns(on, 1)
        if on.session.status().jobs:
            assert await applied(on) == []
            return number + 1
    raise AssertionError("no plan was made")


async def test_a_plan_is_made_ahead_and_waits_while_the_cache_is_warm() -> None:
    async with caching() as on:
        count = await until_held(on)
        assert 7 <= count <= 9
        utilisation = on.session.status().context_tokens / BUDGET
        assert 0.70 < utilisation < 0.80
        await settled()
        assert on.session.status().jobs == ("compaction",)
        assert await applied(on) == []


async def test_past_the_mark_it_is_applied_once_it_pays_back() -> None:
    async with caching() as on:
        await until_held(on)
        await turns(on, 2)
        (record,) = await applied(on)
        assert record.trigger == "pays_back"
        figures = record.figures
        assert figures["payback_requests"] <= figures["expected_requests"]
        assert figures["used_tokens"] > 0.8 * figures["limit_tokens"]
        assert figures["limit_tokens"] == BUDGET
        assert figures["cached_tokens"] > 20_000
        assert figures["cleared_tokens"] == record.tokens_before - record.tokens_after


async def test_a_cold_cache_is_the_moment_also_below_the_mark() -> None:
    profile = msgspec.structs.replace(PROFILE, cache_ttl_s=20.0)  # too short to rest before it
    async with caching(profile=profile) as on:
        await until_held(on)
        await anyio.sleep(21)
        assert await applied(on) == []
        await turns(on, 1)
        (record,) = await applied(on)
        assert record.trigger == "cold_cache"
        assert record.figures["idle_s"] >= 20
        assert record.figures["used_tokens"] < 0.8 * BUDGET
        # It was applied before the request was sent.
        kinds = await on.kinds()
        begun = max(at for at, kind in enumerate(kinds) if kind == "turn.accepted")
        assert kinds.index("compaction.applied") == begun + 1


async def test_an_idle_session_compacts_shortly_before_its_cache_expires() -> None:
    async with caching() as on:
        await until_held(on)
        await anyio.sleep(269)
        assert await applied(on) == []
        await anyio.sleep(2)
        (record,) = await applied(on)
        assert record.trigger == "idle"
        assert 269 <= record.figures["idle_s"] <= 271
        await anyio.sleep(1_000)
        assert len(await applied(on)) == 1


async def test_an_idle_session_that_is_half_full_makes_its_plan_only_then() -> None:
    async with caching() as on:
        await turns(on, 6)
        assert on.session.status().jobs == ()
        assert 0.5 < on.session.status().context_tokens / BUDGET < 0.7
        await anyio.sleep(269)
        assert on.session.status().jobs == ()
        await anyio.sleep(2)
        assert await triggers(on) == ["idle"]


async def test_a_turn_that_begins_ends_the_rest() -> None:
    async with caching() as on:
        await turns(on, 6)
        await anyio.sleep(260)
        await turns(on, 1)
        await anyio.sleep(100)
        assert await applied(on) == []
        await anyio.sleep(171)
        assert await triggers(on) == ["idle"]


async def test_no_rest_comes_over_a_reply_that_streams() -> None:
    model = CachingModel()

    def script(request: Request, tag: StepTag) -> Scripted:
        if tag.turn < 7:
            return model(request, tag)
        return model.with_usage(say("slow " * 10).slow(60, delta_chars=5), request)

    async with caching(script) as on:
        await turns(on, 6)
        turn = await on.session.send("last")
        with anyio.fail_after(10_000):
            await turn.text()
        kinds = await on.kinds()
        if "compaction.applied" in kinds:
            assert kinds.index("compaction.applied") > len(kinds) - 3


async def test_a_session_that_is_hardly_filled_sleeps_through() -> None:
    async with caching() as on:
        await turns(on, 3)
        await anyio.sleep(10_000)
        assert await applied(on) == []


async def test_at_once_means_at_once() -> None:
    compaction = CompactionConfig(keep_recent_turns=2, schedule="at_once")
    async with caching(compaction=compaction) as on:
        await turns(on, 9)
        assert set(await triggers(on)) == {"threshold"}


async def test_a_provider_without_a_cache_is_compacted_at_the_mark_and_not_before() -> None:
    async with caching(CachingModel(cached=False)) as on:
        await turns(on, 14)
        assert (await triggers(on))[0] == "cold_cache"
        for record in await applied(on):
            assert record.figures["used_tokens"] > 0.8 * record.figures["limit_tokens"]


async def test_another_system_text_breaks_the_prefix_so_the_moment_is_now() -> None:
    async with caching() as on:
        await turns(on, 6)
        assert await applied(on) == []
        await on.session.configure(system="be brief")
        await settled()
        (record,) = await applied(on)
        assert record.trigger == "prefix_broken"
        assert record.tokens_after < record.tokens_before


async def test_what_was_planned_under_another_configuration_is_not_applied() -> None:
    async with caching() as on:
        await until_held(on)
        await on.session.configure(compaction=CompactionConfig(enabled=False))
        assert on.session.status().jobs == ()
        await anyio.sleep(1_000)
        await turns(on, 2)
        assert await applied(on) == []


async def test_what_was_asked_for_under_another_configuration_is_not_applied() -> None:
    async with caching() as on:
        await until_held(on)
        actor = on.session.reference.actor
        asked = c.Compact(actor.mailbox.number(), None)
        actor.put(asked)
        # It is read right after that, while the plan is made.
        await on.session.configure(compaction=CompactionConfig(keep_recent_turns=3))
        assert not (await asked.promise.wait()).applied
        assert await applied(on) == []


async def test_near_the_window_it_waits_no_more() -> None:
    # Of what is cached little can be freed, and all of it stands behind that: it does not pay.
    compaction = CompactionConfig(keep_recent_turns=8, options={"recent_share": 0.9})
    async with caching(compaction=compaction) as on:
        await turns(on, 11)
        assert "window" in await triggers(on)
        record = next(each for each in await applied(on) if each.trigger == "window")
        assert record.figures.get("used_tokens", BUDGET) >= 0.92 * BUDGET


async def test_who_asks_does_not_wait_for_a_better_moment() -> None:
    async with caching() as on:
        await until_held(on)
        outcome = await on.session.compact()
        assert outcome.applied
        assert await triggers(on) == ["asked"]


async def test_who_asks_while_a_plan_is_made_gets_that_one_applied_at_once() -> None:
    # Seen in a stress run: who had joined a plan that was then held was never answered.
    async with caching() as on:
        for _ in range(12):
            turn = await on.session.send("go on")
            while not on.session.status().jobs and on.session.status().turn:
                await anyio.lowlevel.checkpoint()
            if on.session.status().jobs:
                break
            await turn.outcome()
        async with compacting(on, callers=2) as outcomes:
            pass
        assert [outcome.applied for outcome in outcomes] == [True, True]
        assert await triggers(on) == ["asked"]


# What waits is discarded when its ground moves


@pytest.mark.parametrize(
    ("change", "options"), [("rewind", {"to": 4}), ("clear", {}), ("forget", {"before": 4})]
)
async def test_a_plan_that_waits_is_gone_with_what_it_was_made_for(
    change: str, options: dict[str, int]
) -> None:
    async with caching() as on:
        await until_held(on)
        await getattr(on.session, change)(**options)
        assert on.session.status().jobs == ()
        await anyio.sleep(1_000)
        assert await applied(on) == []
        assert on.session.status().compacted_before == 0


async def test_a_plan_that_waits_survives_what_is_appended_and_not_a_drop_of_its_turn() -> None:
    model = CachingModel()

    def script(request: Request, tag: StepTag) -> Scripted:
        if tag.turn == 9:
            return model.with_usage(say("never ends").hanging(at=1), request)
        return model(request, tag)

    async with caching(script) as on:
        count = await until_held(on)
        assert count == 8
        await on.interrupted("dropped")
        await settled()
        # It was made for turns that are all still there.
        assert on.session.status().jobs == ("compaction",)
        await turns(on, 2)
        assert len(await applied(on)) == 1


async def test_a_fork_has_no_plan_and_the_parent_keeps_its_own() -> None:
    async with caching() as on:
        await until_held(on)
        fork = await on.session.fork()
        assert fork.status().jobs == ()
        assert on.session.status().jobs == ("compaction",)
        assert fork.context().messages == on.session.context().messages
        await fork.close()
        assert on.session.status().jobs == ("compaction",)


async def test_a_plan_that_waits_keeps_no_idle_session_in_memory() -> None:
    store = MemoryStore()
    async with caching(store=store, idle_s=30.0) as on:
        await until_held(on)
        del on.session
        await anyio.sleep(100)
        assert on.manager.live == ()
        on.session = await on.manager.open("s", unbound="caller")
        assert on.session.status().jobs == ()
        await anyio.sleep(1_000)
        assert await applied(on) == []
        await turns(on, 3)
        assert len(await applied(on)) == 1


# How large it is: the reported usage first


async def test_the_size_is_what_was_reported_and_an_estimate_of_what_came_after() -> None:
    async with caching(CachingModel(scale=1.5)) as on:
        await turns(on, 3)
        sent = len(on.provider.requests[-1].encode())
        status = on.session.status()
        # The last request was sized from the one before it.
        assert abs(status.context_tokens - sent / PROFILE.chars_per_token * 1.5) < 2_000
        assert status.context_tokens > 1.2 * sent / PROFILE.chars_per_token


async def test_usage_that_cannot_be_of_this_request_is_ignored() -> None:
    for scale in (0.05, 20.0):
        async with caching(CachingModel(scale=scale)) as on:
            await turns(on, 4)
            sent = len(on.provider.requests[-1].encode()) / PROFILE.chars_per_token
            assert 0.7 * sent < on.session.status().context_tokens < 1.4 * sent


async def test_usage_from_before_a_change_says_nothing_of_what_comes_after() -> None:
    for change in ("compact", "rewind", "clear", "configure"):
        async with caching(CachingModel(scale=3.0)) as on:
            await turns(on, 5)
            state = live_state(on.session)
            assert state.reported is not None
            if change == "compact":
                assert (await on.session.compact()).applied
            elif change == "rewind":
                await on.session.rewind(to=3)
            elif change == "clear":
                await on.session.clear()
            else:
                await on.session.configure(system="other")
            assert state.reported is None, change


async def test_an_abort_goes_back_to_the_usage_of_the_last_turn_that_stayed() -> None:
    model = CachingModel()

    def script(request: Request, tag: StepTag) -> Scripted:
        if tag.turn == 3 and tag.step == 2:
            return model.with_usage(say("never ends").hanging(at=1), request)
        return model(request, tag)

    async with caching(script) as on:
        await turns(on, 2)
        state = live_state(on.session)
        before = state.reported
        assert before is not None
        assert before.count == len(on.session.conversation())
        await on.begin("dropped")
        assert state.reported is not None
        assert state.reported != before
        await on.session.interrupt()
        assert state.reported is before


# Warnings


async def test_a_warning_comes_once_at_90_percent_and_again_after_it_was_below() -> None:
    async with caching(compaction=CompactionConfig(enabled=False)) as on:
        await turns(on, 10)
        (record,) = [record for record in await on.log() if isinstance(record, r.ContextWarned)]
        assert record.tokens >= 0.9 * BUDGET == 0.9 * record.budget_tokens
        await on.session.rewind(to=5)
        await turns(on, 5)
        assert (await on.kinds()).count("context.warning") == 2
