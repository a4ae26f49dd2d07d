"""The ledger's arithmetic: marginal tokens, money as billed, and when a budget is used up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsession import BudgetExhausted, InvalidConfig, Price, Spending, SpendingBudget, Usage
from llmsession.turns.records import ModelRequest, UnrecordedUsage
from llmsession.turns.spending.prices import PriceTable
from llmsession.turns.spending.spending import (
    Charged,
    cost_of,
    exhausted,
    find_exceeded,
    marginal_tokens,
    with_unrecorded,
)

PRICES = PriceTable({"m": Price.usd(1, 2), "n": Price.usd(10, 20)})


def asked(prompt: int, output: int = 0, model: str | None = "m") -> ModelRequest:
    return ModelRequest(model, Usage(input_tokens=prompt, output_tokens=output))


# Golden vectors, after jan's budget of a session: (prompt, output) of each request, its charge.
@pytest.mark.parametrize(
    ("requests", "charges"),
    [
        ([(100, 10)], [110]),
        ([(100, 10), (120, 10), (150, 5)], [110, 30, 35]),
        # A compaction: nothing is given back, and what is left is not charged again.
        ([(1000, 10), (300, 10), (320, 10)], [1010, 10, 30]),
        # One that was interrupted before anything was reported says nothing of the next one's.
        ([(1000, 10), (0, 0), (1010, 1)], [1010, 0, 11]),
        # The same request again: a retry costs what it says anew.
        ([(500, 3), (500, 4)], [503, 4]),
        ([], []),
    ],
)
def test_tokens_are_charged_marginally(requests: list[tuple[int, int]], charges: list[int]) -> None:
    charged = Charged()
    told = []
    for prompt, output in requests:
        after = charged.after([asked(prompt, output)])
        told.append(after.tokens - charged.tokens)
        charged = after
    assert told == charges
    assert charged == Charged().after([asked(*each) for each in requests])


def test_cached_tokens_are_part_of_the_prompt_that_is_compared() -> None:
    usage = Usage(input_tokens=5, output_tokens=7, cache_read_tokens=100, cache_write_tokens=20)
    assert marginal_tokens(0, usage) == 132
    assert marginal_tokens(120, usage) == 12
    assert marginal_tokens(5000, usage) == 7


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**5)), max_size=30))
def test_a_charge_is_at_least_the_output_and_at_most_what_was_used(
    sizes: list[tuple[int, int]],
) -> None:
    requests = [asked(*size) for size in sizes]
    tokens = Charged().after(requests).tokens
    output = sum(output for _, output in sizes)
    assert output <= tokens <= output + sum(prompt for prompt, _ in sizes)
    assert tokens >= output + max((prompt for prompt, _ in sizes), default=0)


@given(
    st.lists(st.tuples(st.integers(0, 999), st.integers(0, 99)), max_size=12),
    st.integers(0, 12),
)
def test_requests_are_charged_alike_in_one_go_and_in_two(
    sizes: list[tuple[int, int]], cut: int
) -> None:
    requests = [asked(*size) for size in sizes]
    assert Charged().after(requests[:cut]).after(requests[cut:]) == Charged().after(requests)


def test_each_request_is_costed_by_the_model_that_answered_it() -> None:
    assert cost_of([asked(1, 1), asked(1, 1, "n")], PRICES) == 3_000 + 30_000
    assert cost_of([], PRICES) == 0


def test_one_request_without_a_price_makes_the_cost_unknown() -> None:
    requests = [asked(1), asked(1, model="mystery"), asked(1, model=None)]
    assert cost_of(requests, PRICES) is None
    assert Spending().and_cost(requests, PRICES) == Spending(0, 1_000, frozenset({"mystery", ""}))


def test_a_budget_is_used_up_when_all_of_it_is_spent_and_not_before() -> None:
    tokens, money = SpendingBudget(max_tokens=10), SpendingBudget(max_cost_usd=1.0)
    assert find_exceeded(tokens, Spending(9), "session", "s") is None
    exceeded = find_exceeded(tokens, Spending(10), "session", "s")
    assert exceeded is not None
    assert (exceeded.whose, exceeded.name, exceeded.unit) == ("session", "s", "tokens")
    assert (exceeded.limit, exceeded.spent, exceeded.unpriced) == (10, 10, ())
    assert find_exceeded(money, Spending(0, 10**9 - 1), "tenant", "t") is None
    exceeded = find_exceeded(money, Spending(0, 10**9), "tenant", "t")
    assert exceeded is not None
    assert (exceeded.unit, exceeded.limit, exceeded.spent) == ("nano_usd", 10**9, 10**9)


def test_a_budget_without_limits_is_never_used_up() -> None:
    assert find_exceeded(SpendingBudget(), Spending(10**12, 10**15), "session", "s") is None


def test_what_has_no_price_exhausts_a_budget_in_dollars_and_no_other() -> None:
    spent = Spending(5, 7, frozenset({"mystery"}))
    assert find_exceeded(SpendingBudget(max_tokens=10), spent, "session", "s") is None
    exceeded = find_exceeded(SpendingBudget(max_cost_usd=5), spent, "session", "s")
    assert exceeded is not None
    assert exceeded.unpriced == ("mystery",)
    assert "mystery" in str(exhausted(exceeded))


def test_the_error_says_whose_budget_and_how_much() -> None:
    exceeded = find_exceeded(SpendingBudget(max_tokens=1000), Spending(1234), "tenant", "acme")
    assert exceeded is not None
    error = exhausted(exceeded)
    assert isinstance(error, BudgetExhausted)
    assert str(error) == "the budget of tenant 'acme' is used up: 1,234 of 1,000 tokens"
    assert (error.whose, error.name, error.unit) == ("tenant", "acme", "tokens")
    assert (error.limit, error.spent, error.unpriced) == (1000, 1234, ())
    money = find_exceeded(SpendingBudget(max_cost_usd=0.5), Spending(0, 10**9), "session", "s")
    assert money is not None
    assert str(exhausted(money)) == "the budget of session 's' is used up: $1.00 of $0.50"


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 0}, {"max_tokens": -1}, {"max_tokens": 1.5}, {"max_tokens": True},
        {"max_cost_usd": 0}, {"max_cost_usd": -1.0}, {"max_cost_usd": float("nan")},
        {"max_cost_usd": float("inf")}, {"max_cost_usd": "5"}, {"max_cost_usd": 1e-10},
    ],
)  # fmt: skip
def test_a_budget_that_cannot_be_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=next(iter(fields))):
        SpendingBudget(**fields).checked()


def test_requests_whose_reply_is_in_no_record_come_in_at_their_places() -> None:
    reply = [asked(1), asked(3)]
    told = [
        UnrecordedUsage(0, Usage(9), "n"),
        UnrecordedUsage(2, Usage(2), "m"),
        UnrecordedUsage(4, Usage(4), None),
    ]
    total = Usage(input_tokens=19)
    assert with_unrecorded(reply, told, total) == (
        asked(9, model="n"), asked(1), asked(2), asked(3), asked(4, model=None),
    )  # fmt: skip


def test_of_an_old_log_what_is_more_than_the_replies_is_one_request_to_who_knows_whom() -> None:
    total = Usage(input_tokens=7, output_tokens=5, cache_read_tokens=1)
    assert with_unrecorded([asked(3, 2)], (), total) == (
        asked(3, 2), ModelRequest(None, Usage(4, 3, 1)),
    )  # fmt: skip
    assert with_unrecorded([asked(3, 2)], (), Usage(3, 2)) == (asked(3, 2),)
