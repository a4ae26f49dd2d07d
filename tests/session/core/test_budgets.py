"""Budgets of a session: looked at before each request, and when a send comes in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llmsession import (
    BudgetExhausted,
    InvalidConfig,
    MemoryStore,
    Price,
    ProviderError,
    SessionConfig,
    SessionManager,
    SpendingBudget,
    Tool,
    ToolResult,
    TurnLimits,
    Usage,
)
from llmsession.testing.scripted import ScriptedProvider, ScriptedReply, call, say
from llmsession.turns import records as r
from llmsession.turns.request import Request, StepTag
from tests.session.actors import Quick, stage

COST = Usage(input_tokens=7, output_tokens=3)
PRICES = {"m": Price.usd(1, 10)}
COST_NANO = 37_000


def calling(*, output: int = 10, growth: int = 100) -> Callable[[Request, StepTag], ScriptedReply]:
    """Asks for a tool for ever; each prompt is *growth* tokens longer than the last."""
    asked = 0

    def script(request: Request, tag: StepTag) -> ScriptedReply:
        nonlocal asked
        asked += 1
        usage = Usage(input_tokens=asked * growth, output_tokens=output)
        return call("t", id=f"c{asked}").costing(usage)

    return script


def tools() -> list[Tool]:
    return [Tool(name="t", run=Quick())]


async def test_a_turn_over_budget_ends_before_its_next_request_and_keeps_its_steps() -> None:
    budget = SpendingBudget(max_tokens=330)
    async with stage(calling(), tools=tools(), budget=budget) as on:
        outcome = await on.outcome("work")
        assert (outcome.status, outcome.stop_reason) == ("committed", "budget")
        assert len(on.provider.requests) == 3  # 110 each, whatever the prompts' whole length
        assert [m.role for m in outcome.messages] == ["user", *["assistant", "user"] * 3]
        assert outcome.exceeded == r.ExceededBudget(
            whose="session", name="s", unit="tokens", limit=330, spent=330
        )
        assert outcome.error == "the budget of session 's' is used up: 330 of 330 tokens"


async def test_a_long_conversation_is_not_charged_its_history_at_each_step() -> None:
    """Twenty steps whose prompts add up to 21,000 tokens cost 2,200."""
    limits, budget = TurnLimits(max_steps=20), SpendingBudget(max_tokens=2_201)
    async with stage(calling(), tools=tools(), limits=limits, budget=budget) as on:
        outcome = await on.outcome("work")
        assert outcome.stop_reason == "max_steps"
        assert on.session.usage().charged_tokens == 2_200
        assert on.session.usage().total.input_tokens == 21_000


async def test_under_drop_a_turn_over_budget_fails_and_says_which_budget_now_and_later() -> None:
    budget = SpendingBudget(max_tokens=200)
    store = MemoryStore()
    async with stage(calling(), tools=tools(), budget=budget, on_failure="drop", store=store) as on:
        turn = await on.session.send("work")
        outcome = await turn.outcome()
        assert (outcome.status, outcome.stop_reason) == ("failed", "budget")
        assert outcome.exceeded is not None
        assert outcome.user_content[0].text == "work"  # type: ignore[union-attr]  # a text block
        with pytest.raises(BudgetExhausted, match="session 's'") as caught:
            await turn.text()
        assert (caught.value.limit, caught.value.spent) == (200, 220)
        assert on.session.conversation() == ()
    async with stage(store=store, reopen=True) as on:
        turn = on.session.turn(1)
        assert (await turn.outcome()).exceeded == outcome.exceeded
        with pytest.raises(BudgetExhausted):
            await turn.text()


async def test_a_send_over_budget_is_refused_and_leaves_nothing() -> None:
    async with stage([say("hi").costing(COST)], budget=SpendingBudget(max_tokens=10)) as on:
        await on.say("hello")
        before = await on.kinds()
        with pytest.raises(BudgetExhausted, match="10 of 10 tokens") as caught:
            await on.session.send("more", command_id="k")
        assert (caught.value.whose, caught.value.name) == ("session", "s")
        assert await on.kinds() == before
        assert on.session.status().phase == "idle"
        assert len(on.provider.requests) == 1


async def test_a_greater_budget_lets_the_session_go_on_with_the_same_command() -> None:
    script = [say("hi").costing(COST), say("again").costing(COST)]
    async with stage(script, budget=SpendingBudget(max_tokens=10)) as on:
        await on.say("hello")
        with pytest.raises(BudgetExhausted):
            await on.session.send("more", command_id="k")
        await on.session.configure(budget=SpendingBudget(max_tokens=11))
        assert await (await on.session.send("more", command_id="k")).text() == "again"
        await on.session.configure(budget=None)
        assert on.session.config.budget is None


async def test_a_repeat_of_a_send_that_was_accepted_is_answered_over_budget_too() -> None:
    async with stage([say("hi").costing(COST)], budget=SpendingBudget(max_tokens=10)) as on:
        turn = await on.session.send("hello", command_id="k")
        await turn.outcome()
        assert (await on.session.send("hello", command_id="k")).id == turn.id


async def test_a_turn_that_waited_while_the_budget_was_spent_fails_with_its_words_kept() -> None:
    async with stage([say("hi").costing(COST)], budget=SpendingBudget(max_tokens=10)) as on:
        await on.session.send("first")
        waiting = await on.session.send("second")
        outcome = await waiting.outcome()
        assert (outcome.status, outcome.stop_reason) == ("failed", "budget")
        assert outcome.user_content[0].text == "second"  # type: ignore[union-attr]  # a text block
        assert len(on.provider.requests) == 1


@pytest.mark.parametrize("when_busy", ["queue", "steer", "interrupt"])
async def test_over_budget_no_mode_of_sending_touches_the_turn_that_is_open(when_busy: Any) -> None:
    budget = SpendingBudget(max_tokens=10)
    script = [call("t", id="c").costing(COST)]
    async with stage(script, tools=[Tool(name="t")], budget=budget) as on:
        turn = await on.begin("work")
        with pytest.raises(BudgetExhausted):
            await on.session.send("more", when_busy=when_busy)
        assert on.session.status().turn_phase == "tools"
        await on.session.interrupt()
        assert (await turn.outcome()).stop_reason == "interrupt"


async def test_an_interrupted_reply_is_charged_to_the_budget_here_and_opened_again() -> None:
    store = MemoryStore()
    streams = say("streams").costing(COST).hanging(at=3)
    async with stage([streams], budget=SpendingBudget(max_tokens=10), store=store) as on:
        await on.interrupted("go")
        with pytest.raises(BudgetExhausted):
            await on.session.send("more")
    async with stage(["x"], store=store, reopen=True) as on:
        assert on.session.config.budget == SpendingBudget(max_tokens=10)
        with pytest.raises(BudgetExhausted, match="10 of 10"):
            await on.session.send("more")


async def test_a_broken_attempt_is_charged_and_may_use_up_the_budget_of_its_retry() -> None:
    broken = say("half").costing(COST).raising(ProviderError("gone", kind="retryable"), at=2)
    async with stage([broken, "never asked for"], budget=SpendingBudget(max_tokens=10)) as on:
        outcome = await on.outcome("go")
        assert (outcome.status, outcome.stop_reason) == ("failed", "budget")
        assert len(on.provider.requests) == 1


async def test_a_turn_that_is_resumed_over_budget_ends_with_its_steps() -> None:
    store = MemoryStore()
    budget = SpendingBudget(max_tokens=10)
    async with stage([call("t", id="c").costing(COST)], tools=[Tool(name="t")], store=store,
                     budget=budget) as on:  # fmt: skip
        await on.begin("go")
        provider = ScriptedProvider(["never asked for"])
        async with SessionManager(provider=provider, store=store) as second:
            again = await second.open("s", takeover=True, recovery="resume")
            await again.submit_tool_results([ToolResult("c", "done")])
            outcome = await again.turn(1).outcome()
            assert (outcome.status, outcome.stop_reason) == ("committed", "budget")
            assert provider.requests == []
        on.session = None  # type: ignore[assignment]  # it is somebody else's now


async def test_money_is_charged_as_billed_and_stops_at_its_limit() -> None:
    budget = SpendingBudget(max_cost_usd=2 * COST_NANO / 10**9)
    async with stage([say("a").costing(COST)] * 3, prices=PRICES, budget=budget) as on:
        await on.say("go", "go")  # the same prompt is billed each time
        with pytest.raises(BudgetExhausted, match=r"\$0\.000074 of \$0\.000074") as caught:
            await on.session.send("go")
        assert (caught.value.unit, caught.value.spent) == ("nano_usd", 2 * COST_NANO)


async def test_a_budget_in_dollars_needs_the_price_of_the_model() -> None:
    dollars, tokens = SpendingBudget(max_cost_usd=1), SpendingBudget(max_tokens=1)
    async with stage(prices=PRICES, budget=dollars) as on:
        with pytest.raises(InvalidConfig, match="model 'mystery' is not known"):
            await on.manager.create(SessionConfig(model="mystery", budget=dollars))
        await on.manager.create(SessionConfig(model="mystery", budget=tokens), session_id="t")
        with pytest.raises(InvalidConfig, match="'mystery'"):
            await on.session.configure(model="mystery")
        assert on.session.config.model == "m"
        await on.session.configure(system="other")


async def test_what_a_model_without_a_price_has_spent_exhausts_a_budget_in_dollars() -> None:
    routed = ScriptedReply(blocks=say("hi").blocks, usage=COST, model="mystery")
    async with stage([routed], prices=PRICES, budget=SpendingBudget(max_cost_usd=100)) as on:
        await on.say("go")
        with pytest.raises(BudgetExhausted, match="have no price: mystery") as caught:
            await on.session.send("go")
        assert caught.value.unpriced == ("mystery",)


@pytest.mark.parametrize("budget", [SpendingBudget(max_tokens=0), {"max_tokens": "many"}, 5])
async def test_a_budget_that_cannot_be_is_refused_when_the_session_is_made(budget: Any) -> None:
    async with stage(prices=PRICES) as on:
        with pytest.raises(InvalidConfig, match="budget"):
            await on.manager.create(SessionConfig(model="m", budget=budget))
        with pytest.raises(InvalidConfig, match="budget"):
            await on.session.configure(budget=budget)
