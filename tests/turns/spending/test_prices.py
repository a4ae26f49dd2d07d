"""Prices: exact sums in whole nano-dollars, and no price where none is known."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsession import InvalidConfig, Price, Usage
from llmsession.turns.spending.prices import (
    PRICES,
    PriceTable,
    cost,
    dollars,
    nano_usd,
    read_prices,
)

MILLION = 1_000_000
SONNET = Price.usd("3", "15", cache_read="0.30", cache_write_5m="3.75", cache_write_1h="6")


@pytest.mark.parametrize(
    ("usage", "nano"),
    [
        (Usage(), 0),
        (Usage(input_tokens=MILLION), 3 * 10**9),
        (Usage(output_tokens=MILLION), 15 * 10**9),
        (Usage(cache_read_tokens=MILLION), 300_000_000),
        (Usage(cache_write_tokens=MILLION), 3_750_000_000),
        (Usage(cache_write_tokens=MILLION, cache_write_1h_tokens=MILLION), 6 * 10**9),
        (Usage(cache_write_tokens=3, cache_write_1h_tokens=1), 7_500 + 6_000),
        (Usage(1, 1, 1, 1), 3_000 + 15_000 + 300 + 3_750),
    ],
)
def test_each_kind_of_token_has_its_own_price(usage: Usage, nano: int) -> None:
    assert cost(usage, SONNET) == nano


def test_a_cost_is_rounded_half_up_to_the_nano_dollar_once_a_request() -> None:
    tiny = Price.usd("0.0005", "0", cache_read="0.000499")
    assert cost(Usage(input_tokens=1), tiny) == 1
    assert cost(Usage(cache_read_tokens=1), tiny) == 0
    assert cost(Usage(input_tokens=1000), tiny) == 500


def test_a_long_prompt_is_priced_whole_by_its_own_price_from_one_token_past_the_border() -> None:
    price = Price.usd("1", "2", long_prompt_tokens=100, long_prompt=Price.usd("10", "20"))
    at = Usage(input_tokens=60, output_tokens=10, cache_read_tokens=40)
    past = Usage(input_tokens=61, output_tokens=10, cache_read_tokens=40)
    assert cost(at, price) == 100_000 + 20_000
    assert cost(past, price) == 1_010_000 + 200_000


def test_what_is_not_said_of_the_cache_costs_what_other_input_does() -> None:
    plain = Price.usd(2, 8)
    assert (plain.cache_read, plain.cache_write_5m, plain.cache_write_1h) == (2 * MILLION,) * 3
    assert Price.usd(2, 8, cache_write_5m=3).cache_write_1h == 3 * MILLION


@given(
    tokens=st.lists(st.tuples(*[st.integers(0, 2 * MILLION)] * 4), min_size=1, max_size=6),
    prices=st.tuples(*[st.integers(0, 75 * MILLION)] * 5),
)
def test_the_cost_of_many_requests_is_exact_to_half_a_nano_dollar_each(
    tokens: list[tuple[int, int, int, int]], prices: tuple[int, int, int, int, int]
) -> None:
    names = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")
    fields: dict[str, Any] = dict(zip(names, prices, strict=True))
    price = Price(**fields)
    usages = [Usage(*each) for each in tokens]
    exact_pico = sum(
        usage.input_tokens * price.input
        + usage.output_tokens * price.output
        + usage.cache_read_tokens * price.cache_read
        + usage.cache_write_tokens * price.cache_write_5m
        for usage in usages
    )
    told = sum(cost(usage, price) for usage in usages)
    assert isinstance(told, int)
    assert abs(told * 1000 - exact_pico) <= 500 * len(usages)


@pytest.mark.parametrize(
    ("model", "input_usd"),
    [
        ("claude-opus-4-5", "5"),
        ("claude-opus-4-5-20251101", "5"),
        ("us.anthropic.claude-opus-4-5-20251101-v1:0", "5"),
        ("anthropic/claude-opus-4.5", "5"),
        ("claude-opus-5-5", "4"),
        ("claude-opus-5", "5"),
        ("gpt-5", "1.25"),
        ("gpt-5-2025-08-07", "1.25"),
        ("gpt-5-mini", "0.25"),
        ("openai/gpt-4o-2024-08-06", "2.50"),
    ],
)
def test_a_model_is_found_under_the_names_that_platforms_and_dates_give_it(
    model: str, input_usd: str
) -> None:
    price = PriceTable().find(model)
    assert price is not None
    assert price.input == Price.usd(input_usd, 0).input


@pytest.mark.parametrize(
    "model",
    [
        None, "", "m", "gpt-5-pro", "gpt-5.9", "gpt-4o-audio-preview", "claude-opus-5-7",
        "claude-opus-9", "o3-pro", "my-gpt-5", "claude",
    ],
)  # fmt: skip
def test_what_is_not_in_the_list_has_no_price_and_its_cost_is_not_known(model: str | None) -> None:
    table = PriceTable()
    assert table.find(model) is None
    assert table.cost(model, Usage(output_tokens=1)) is None
    assert table.cost(model, Usage()) == 0


def test_own_prices_go_before_the_known_ones_by_exact_name_then_by_the_longest_beginning() -> None:
    one, two, three = (Price.usd(n, n) for n in (1, 2, 3))
    table = PriceTable({"gpt-5": one, "gpt-5-mini": two, "Gpt-5-Special": three})
    assert table.find("gpt-5-pro") == one
    assert table.find("gpt-5-mini-2026-01-01") == two
    assert table.find("Gpt-5-Special") == three
    assert table.find("gpt-5.5") == PRICES["gpt-5.5"]


def test_a_free_model_costs_nothing_and_that_is_known() -> None:
    assert PriceTable({"local": Price.usd(0, 0)}).cost("local", Usage(output_tokens=9)) == 0


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"input": -1}, "input"),
        ({"output": 1.5}, "output"),
        ({"cache_read": True}, "cache_read"),
        ({"long_prompt_tokens": 5}, "long_prompt"),
        ({"long_prompt": SONNET}, "long_prompt"),
    ],
)
def test_a_price_that_nobody_can_pay_by_is_refused_by_name(
    fields: dict[str, Any], named: str
) -> None:
    given: dict[str, Any] = {
        "input": 1, "output": 1, "cache_read": 1, "cache_write_5m": 1, "cache_write_1h": 1,
    }  # fmt: skip
    with pytest.raises(InvalidConfig, match=rf"m.*{named}"):
        PriceTable({"m": Price(**{**given, **fields})})


@pytest.mark.parametrize("prices", [[], {"": SONNET}, {"m": 3}, {3: SONNET}, "cheap"])
def test_prices_are_a_price_by_model_name(prices: Any) -> None:
    with pytest.raises(InvalidConfig, match="prices"):
        PriceTable(prices)


@pytest.mark.parametrize(
    "value", [0.1, "1/3", "-1", "1e3", "0.0000001", "", "x", None, True, 10**9]
)
def test_dollars_are_texts_or_whole_numbers_never_floats(value: Any) -> None:
    with pytest.raises(InvalidConfig, match="input"):
        Price.usd(value, 1)


def test_a_table_of_a_file_becomes_prices() -> None:
    table = {
        "m": {"input": 3, "output": "15", "cache_read": "0.30"},
        "n": {
            "input": 1, "output": 2, "long_prompt_tokens": 9,
            "long_prompt": {"input": 2, "output": 3},
        },
    }  # fmt: skip
    assert read_prices(table) == {
        "m": Price.usd(3, 15, cache_read="0.30"),
        "n": Price.usd(1, 2, long_prompt_tokens=9, long_prompt=Price.usd(2, 3)),
    }


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ([], "not a table of models"),
        ({"m": 3}, "m: this is not a table of prices"),
        ({"m": {"input": 1}}, "m: output is missing"),
        ({"m": {"input": 1, "output": 1, "reads": 1}}, "m: unknown price 'reads'"),
        ({"m": {"input": 1, "output": "a lot"}}, "m: output is 'a lot'"),
        (
            {"m": {"input": 1, "output": 1, "long_prompt_tokens": 1, "long_prompt": {"input": 1}}},
            "m.long_prompt: output is missing",
        ),
    ],
)
def test_a_table_that_is_wrong_is_refused_with_its_place(table: Any, told: str) -> None:
    with pytest.raises(InvalidConfig, match=told.replace("(", r"\(")):
        read_prices(table)


def test_every_known_price_is_sound_and_reads_cost_no_more_than_input() -> None:
    for model, price in PRICES.items():
        assert price.checked() is price
        assert 0 < price.cache_read <= price.input <= price.cache_write_5m, model
        assert price.cache_write_5m <= price.cache_write_1h, model
        assert price.output > price.input, model


def test_the_list_has_the_printed_prices_of_a_few_models() -> None:
    """As printed on the vendors' pages, in dollars: input, 5m, 1h, read, output."""
    printed = {
        "claude-fable-5-1": ("10", "12.50", "20", "0.25", "50"),
        "claude-opus-5-5": ("4", "5", "8", "0.20", "20"),
        "claude-haiku-4-5": ("1", "1.25", "2", "0.10", "5"),
        "gpt-6-astra": ("10", "12.50", "12.50", "1", "50"),
    }
    for model, (fresh, short, hour, read, output) in printed.items():
        price = PRICES[model]
        want = Price.usd(fresh, output, cache_read=read, cache_write_5m=short, cache_write_1h=hour)
        got = (price.input, price.cache_write_5m, price.cache_write_1h, price.cache_read)
        assert got == (want.input, want.cache_write_5m, want.cache_write_1h, want.cache_read)
        assert price.output == want.output
    long_prompt = PRICES["gpt-5.4"].long_prompt
    assert long_prompt is not None
    assert (long_prompt.input, long_prompt.output) == (5 * MILLION, 22_500_000)


@pytest.mark.parametrize(
    ("nano", "told"),
    [
        (0, "$0.00"), (10**9, "$1.00"), (1_234_500_000, "$1.2345"), (499, "$0.00"),
        (500, "$0.000001"), (12_345_678_900_000, "$12,345.6789"), (70_000_000, "$0.07"),
    ],
)  # fmt: skip
def test_an_amount_is_told_in_dollars(nano: int, told: str) -> None:
    assert dollars(nano) == told


def test_a_limit_in_dollars_is_the_amount_that_is_written() -> None:
    assert (nano_usd(0.1), nano_usd(5), nano_usd(1e-9)) == (100_000_000, 5 * 10**9, 1)
