"""Segments by a model in a live session, and what becomes of one that fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import msgspec
import pytest

from llmsession import (
    BudgetExhausted,
    CompactionConfig,
    InvalidConfig,
    MemoryStore,
    Price,
    ProviderError,
    SessionConfig,
    SessionManager,
    SpendingBudget,
    Store,
    Usage,
)
from llmsession.compaction.view.summary_wording import SUMMARY_TITLE
from llmsession.session.compacting.summarizer import RETRY_AFTER_S
from llmsession.session.manager import runtime_of
from llmsession.session.values.config import SummariserConfig
from llmsession.testing.scripted import Script, ScriptedProvider, never, say, think
from llmsession.turns import records as r
from llmsession.turns.request import Profile
from tests.session.actors import Stage, at_once, same_as_its_log, settled, stage, texts_of
from tests.session.compacting.conversations import applied, compacting
from tests.virtual_time import loop_turns

PROFILE = Profile(window_tokens=200_000)
WORDS = "some words that say what is wanted "
COST = Usage(input_tokens=900, output_tokens=30)


@asynccontextmanager
async def talking(
    summaries: Script, *, store: Store | None = None, model: dict[str, Any] | None = None,
    compaction: dict[str, Any] | None = None, **config: Any,
) -> AsyncIterator[tuple[Stage, ScriptedProvider]]:  # fmt: skip
    """A session whose context six long turns have nearly filled, and its summariser."""
    summariser = ScriptedProvider(summaries, profile=PROFILE)
    options = CompactionConfig(
        schedule="at_once", keep_recent_turns=2, threshold=0.99, low=0.1,
        summariser=SummariserConfig(model="small", **(model or {})), **(compaction or {}),
    )  # fmt: skip
    async with stage(
        lambda _, tag: f"answer {tag.turn}", summariser=summariser, store=store,
        prices={"m": Price.usd(1, 10), "small": Price.usd(2, 20)},
        window_tokens=20_000, max_tokens=4_000, compaction=options, **config,
    ) as on:  # fmt: skip
        for number in range(6):
            await on.say(f"message {number} " + WORDS * 100)
        yield on, summariser
    assert summariser.open_streams == 0


async def prefix_summaries(on: Stage) -> list[r.PrefixSummary]:
    records = await applied(on)
    return [record.prefix_summary for record in records if record.prefix_summary is not None]


def shown(on: Stage) -> str:
    return texts_of(on.session.context())[0]


async def test_the_model_writes_the_segment_and_the_next_request_has_it() -> None:
    async with talking(["they wanted things"]) as (on, summariser):
        assert (await on.session.compact()).applied
        (summary,) = await prefix_summaries(on)
        assert (summary.by, summary.text) == ("model", f"{SUMMARY_TITLE}\nthey wanted things")
        assert summariser.requests[0].model == "small"
        await on.say("and now?")
        assert "they wanted things" in texts_of(on.provider.requests[-1])[0]


async def test_without_a_provider_of_its_own_the_sessions_provider_is_asked() -> None:
    compaction = CompactionConfig(
        keep_recent_turns=1, low=0.01, summariser=SummariserConfig(model="small")
    )
    async with stage(
        lambda request, tag: "told" if tag.turn == 0 else f"answer {tag.turn}",
        profile=PROFILE, window_tokens=20_000, max_tokens=4_000, compaction=compaction,
    ) as on:  # fmt: skip
        await grow(on)
        assert (await on.session.compact()).applied
        assert "told" in shown(on)


FAILING: dict[str, Any] = {
    "refuses": say("I will not").stopping("refusal"),
    "hangs": never(),
    "says nothing": say(""),
    "only thinks": think("hm"),
    "says an error": say("API Error: 529 overloaded"),
    "says undefined": say("undefined"),
    "is cut": say("half of a").stopping("max_tokens"),
    "says more than it got": say("word " * 30_000),
    "fails": say("").raising(ProviderError("overloaded", kind="retryable")),
    "raises anything": say("").raising(KeyError("x")),
    "breaks off": say("half of a summary").raising(ProviderError("gone", kind="retryable"), at=2),
    "ignores its cancellation": say("late").ignoring_cancellation(600.0),
}


@pytest.mark.parametrize("reply", FAILING.values(), ids=FAILING)
async def test_a_summariser_that_fails_costs_its_summary_alone(reply: Any) -> None:
    async with talking(lambda *_: reply) as (on, _):
        history = on.session.conversation()
        assert (await on.session.compact()).applied
        (prefix_summary,) = await prefix_summaries(on)
        assert prefix_summary.by == "extractive"
        assert "message 0" in prefix_summary.text
        assert on.session.conversation() is history
        assert await on.say("and on") == "answer 7"


async def test_one_that_hangs_holds_no_turn_up() -> None:
    async with talking([never()], model={"deadline_s": 500.0}) as (on, _):
        assert on.session.status().jobs == ()
        async with compacting(on) as outcomes:
            await settled()
            started = anyio.current_time()
            assert "summary of s" in runtime_of(on.manager).running_works
            assert on.session.status().jobs == ("compaction",)
            assert await on.say("meanwhile") == "answer 7"
            assert anyio.current_time() - started < 1.0
            on.session.cancel_compaction()
        assert [outcome.applied for outcome in outcomes] == [False]


async def test_it_is_given_up_at_its_deadline_whatever_it_ignores(
    anyio_backend: tuple[str, dict[str, Any]],
) -> None:
    stubborn = say("late").ignoring_cancellation(600.0)
    async with talking([stubborn], model={"deadline_s": 20.0}) as (on, _):
        started = anyio.current_time()
        assert (await on.session.compact()).applied
        assert anyio.current_time() - started < 25.0
        await anyio.sleep(1.0)
        # It is left alone after its grace, and named: asking it again and again would take a core.
        assert on.session.status().still_running == ("summary of s",)
        before = loop_turns(anyio_backend)
        await anyio.sleep(100.0)
        assert loop_turns(anyio_backend) - before < 100
        await anyio.sleep(600.0)
        assert on.session.status().still_running == ()


@pytest.mark.parametrize("closes", [False, True])
async def test_cancelling_the_compaction_or_closing_the_session_closes_its_request(
    closes: bool,
) -> None:
    async with talking([never()]) as (on, summariser):
        async with compacting(on) as outcomes:
            await settled()
            assert summariser.open_streams == 1
            if closes:
                await on.session.close()
            else:
                on.session.cancel_compaction()
        await settled()
        assert summariser.open_streams == 0
        assert [outcome.applied for outcome in outcomes] == [False]
        assert await prefix_summaries(on) == []


async def grow(on: Stage, turns: int = 4) -> None:
    for _ in range(turns):
        await on.say("more " + WORDS * 100)


async def test_after_so_many_failures_it_is_not_asked_until_something_changes() -> None:
    bad = say("").stopping("refusal")
    script = iter([bad, bad, say("good again")])
    async with talking(lambda *_: next(script), compaction={"max_failures": 2}) as (on, summariser):
        for _ in range(4):
            assert (await on.session.compact()).applied
            await grow(on)
        assert len(summariser.requests) == 2
        assert [summary.by for summary in await prefix_summaries(on)] == ["extractive"] * 4
        # The configuration is another one now.
        await on.session.configure(system="be brief")
        assert (await on.session.compact()).applied
        assert (await prefix_summaries(on))[-1].by == "model"


@pytest.mark.parametrize("purge", [False, True])
async def test_the_model_is_not_asked_for_what_is_being_purged(purge: bool) -> None:
    async with talking(lambda *_: say("a summary")) as (on, summariser):
        early = msgspec.structs.replace(on.session.config.compaction, threshold=0.2)
        calls = [partial(on.session.configure, compaction=early)]
        if purge:  # it is written together with the configuration
            calls.append(partial(on.session.clear, purge=True))
        await at_once(*calls)
        await settled()
        assert len(summariser.requests) == (0 if purge else 1)


async def test_after_a_while_it_is_tried_once_more() -> None:
    async with talking(lambda *_: say(""), compaction={"max_failures": 1}) as (on, summariser):
        for requests in (1, 2):
            for _ in range(2):
                assert (await on.session.compact()).applied
                await grow(on)
            assert len(summariser.requests) == requests
            await anyio.sleep(RETRY_AFTER_S)


async def test_one_success_forgets_the_failures() -> None:
    bad = say("").stopping("refusal")
    script = iter([bad, say("fine"), bad, say("fine")])
    async with talking(lambda *_: next(script), compaction={"max_failures": 2}) as (on, _):
        for _ in range(4):
            assert (await on.session.compact()).applied
            await grow(on)
        assert [s.by for s in await prefix_summaries(on)] == ["extractive", "model"] * 2


async def test_the_summary_before_is_folded_in_and_not_repeated() -> None:
    async with talking(["the first summary", "both of them"]) as (on, summariser):
        assert (await on.session.compact()).applied
        await grow(on)
        assert (await on.session.compact()).applied
        told = "".join(texts_of(summariser.requests[1]))
        assert told.count("the first summary") == 1
        assert "message 0" not in told
        assert "the first summary" not in shown(on)
        assert "both of them" in shown(on)


async def test_its_requests_are_charged_to_the_session_and_to_no_turn() -> None:
    store = MemoryStore()
    async with talking([say("short").costing(COST)], store=store) as (on, _):
        before = on.session.usage()
        assert (await on.session.compact()).applied
        after = on.session.usage()
        assert after.summaries == COST
        assert after.turns == before.turns
        assert after.total == before.total + COST
        assert after.charged_tokens == before.charged_tokens + 930
        assert after.models["small"].requests == 1
        assert after.cost_nano_usd is not None
        assert before.cost_nano_usd is not None
        assert after.cost_nano_usd - before.cost_nano_usd == 900 * 2_000 + 30 * 20_000
        await same_as_its_log(on, on.session)


@pytest.mark.parametrize("reply", [say(""), say("half").hanging(at=2)], ids=["empty", "cancelled"])
async def test_requests_that_led_to_nothing_are_charged_for_what_was_reported(reply: Any) -> None:
    async with talking([reply.costing(COST)]) as (on, _):
        async with compacting(on):
            await settled()
            on.session.cancel_compaction()
        await settled()
        assert on.session.usage().summaries == COST


async def test_a_summary_moves_no_prompt_that_a_budget_counts_from() -> None:
    async with talking([say("short").costing(Usage(input_tokens=50_000))]) as (on, _):
        assert (await on.session.compact()).applied
        before = on.session.usage().charged_tokens
        await on.say("and on")
        # The reply of the script reports 10 and 5 tokens, the prompt no longer than before.
        assert on.session.usage().charged_tokens == before + 5


async def test_a_session_without_budget_asks_no_model_for_summaries() -> None:
    async with talking(["never asked"], budget=SpendingBudget(max_tokens=40)) as (on, summariser):
        await grow(on, 0)
        assert (await on.session.compact()).applied
        assert summariser.requests == []
        await on.session.configure(budget=None)


async def test_what_summaries_cost_uses_a_budget_up_here_and_opened_again() -> None:
    store, budget = MemoryStore(), SpendingBudget(max_tokens=900)
    async with talking([say("short").costing(COST)], store=store, budget=budget) as (on, _):
        assert (await on.session.compact()).applied
        with pytest.raises(BudgetExhausted):
            await on.session.send("and on")
    async with SessionManager(provider=ScriptedProvider([]), store=store) as manager:
        session = await manager.open("s")
        with pytest.raises(BudgetExhausted):
            await session.send("and on")


async def test_a_budget_in_dollars_needs_a_price_of_the_summariser_too() -> None:
    provider = ScriptedProvider([])
    config = SessionConfig(
        model="m",
        budget=SpendingBudget(max_cost_usd=1.0),
        compaction=CompactionConfig(summariser=SummariserConfig(model="unpriced")),
    )
    async with SessionManager(provider=provider, prices={"m": Price.usd(1, 10)}) as manager:
        with pytest.raises(InvalidConfig, match="unpriced"):
            await manager.create(config)


class Closable(ScriptedProvider):
    """A provider that counts how often it is closed."""

    def __init__(self, script: Sequence[str] = ()) -> None:
        super().__init__(script)
        self.closings = 0
        self.is_held = False

    async def aclose(self) -> None:
        self.closings += 1


async def test_the_manager_closes_its_summariser_once_unless_it_is_held() -> None:
    provider, summariser, held = Closable(), Closable(), Closable()
    held.is_held = True
    async with SessionManager(provider=provider, summariser=summariser):
        pass
    async with SessionManager(provider=provider, summariser=provider):
        pass
    async with SessionManager(provider=provider, summariser=held):
        pass
    assert (provider.closings, summariser.closings, held.closings) == (3, 1, 0)
