"""What models cost: prices by model, and the cost of a request.

Money is counted in whole nano-dollars (10^-9 USD), so that sums are exact; a price is in whole
micro-dollars per million tokens, as vendors print theirs in dollars per million. A model that is
not priced costs None, which is not 0.

Source of PRICES: the vendors' pages, read in November 2026 (some older models of OpenAI, which are
not on them any more, from lists of others; where sources disagreed the model is left out):
platform.claude.com/docs/en/about-claude/pricing and its model pages (Haiku 5.5 and the cache
reads of Sonnet 5.5: as of 2026-10-24), and developers.openai.com/api/docs/pricing and its model
pages. They are the prices of the standard tier: batch, priority, flex and fast modes, regions,
server tools and what a platform adds are not in them. Models whose price could not be confirmed
are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import msgspec

from llmsession.errors import InvalidConfig

from ..usage import Usage
from .model_names import begins, canonical_name, is_dated

__all__ = ["NANO", "PRICES", "Price", "PriceTable", "cost", "dollars", "nano_usd", "read_prices"]

MICRO = 10**6
NANO = 10**9
_PICO_PER_NANO = 1000
_DOLLARS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,6})?")


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """One model's prices, in micro-dollars per million tokens: 3 USD are 3_000_000.

    ``Price.usd`` makes one from dollars.
    """

    input: int
    output: int
    cache_read: int
    cache_write_5m: int
    """The price of a cache write that is kept for five minutes, or for providers that name no
    time.
    """
    cache_write_1h: int
    long_prompt_tokens: int | None = None
    """A request whose whole prompt is longer than this is priced by ``long_prompt`` completely."""
    long_prompt: Price | None = None

    @classmethod
    def usd(
        cls,
        input: str | int,
        output: str | int,
        *,
        cache_read: str | int | None = None,
        cache_write_5m: str | int | None = None,
        cache_write_1h: str | int | None = None,
        long_prompt_tokens: int | None = None,
        long_prompt: Price | None = None,
    ) -> Price:
        """A price in dollars per million tokens, as strings ("0.25") or whole numbers.

        A cache price that is None is the price of other input; that of an hour is then the price of
        five minutes. Raises InvalidConfig, naming the field.
        """
        read = input if cache_read is None else cache_read
        short = input if cache_write_5m is None else cache_write_5m
        return Price(
            input=_micro(input, "input"),
            output=_micro(output, "output"),
            cache_read=_micro(read, "cache_read"),
            cache_write_5m=_micro(short, "cache_write_5m"),
            cache_write_1h=_micro(
                short if cache_write_1h is None else cache_write_1h, "cache_write_1h"
            ),
            long_prompt_tokens=long_prompt_tokens,
            long_prompt=long_prompt,
        ).checked()

    def checked(self) -> Price:
        """This price, checked. Raises InvalidConfig."""
        for name in ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h"):
            _check_count(getattr(self, name), f"price {name}")
        if (self.long_prompt is None) != (self.long_prompt_tokens is None):
            raise InvalidConfig("long_prompt and long_prompt_tokens must be set together")
        if self.long_prompt is not None:
            _check_count(self.long_prompt_tokens, "long_prompt_tokens")
            if not isinstance(self.long_prompt, Price) or self.long_prompt.long_prompt is not None:
                raise InvalidConfig("long_prompt must be a Price without a long_prompt of its own")
            self.long_prompt.checked()
        return self


def _check_count(value: Any, name: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidConfig(f"{name} is {value!r}; it must be a whole number, 0 or more")


def _micro(value: Any, name: str) -> int:
    """Dollars as micro-dollars. Floats are refused, because 0.1 is not exactly a tenth."""
    written = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if _DOLLARS.fullmatch(written) is None:
        reason = "it must be dollars, as a text or a whole number, with up to six decimal places"
        raise InvalidConfig(f"{name} is {value!r}; {reason}")
    return int(Fraction(written) * MICRO)


def cost(usage: Usage, price: Price) -> int:
    """What one request cost in nano-dollars, rounded half up.

    *usage* must be that of a single request, because a long prompt may have a price of its own.
    """
    if price.long_prompt is not None and usage.prompt_tokens > (price.long_prompt_tokens or 0):
        price = price.long_prompt
    hour = min(usage.cache_write_1h_tokens, usage.cache_write_tokens)
    pico = (
        usage.input_tokens * price.input
        + usage.output_tokens * price.output
        + usage.cache_read_tokens * price.cache_read
        + (usage.cache_write_tokens - hour) * price.cache_write_5m
        + hour * price.cache_write_1h
    )
    return (pico + _PICO_PER_NANO // 2) // _PICO_PER_NANO


def nano_usd(dollars: float) -> int:
    """An amount in dollars as the nearest number of nano-dollars."""
    return round(Fraction(str(dollars)) * NANO)


def dollars(nano: int) -> str:
    """An amount in nano-dollars for display: "$0.0123", with two to six digits after the point."""
    whole, rest = divmod((nano + 500) // 1000, MICRO)
    digits = f"{rest:06d}".rstrip("0").ljust(2, "0")
    return f"${whole:,}.{digits}"


class PriceTable:
    """The prices of one manager: *own* prices first, then PRICES. Immutable except for its
    cache.
    """

    def __init__(self, own: Mapping[str, Price] | None = None) -> None:
        if own is not None and not isinstance(own, Mapping):
            raise InvalidConfig(
                f"prices must be a dict of Price by model, not {type(own).__name__}"
            )
        for name, price in (own or {}).items():
            if not isinstance(name, str) or not name or not isinstance(price, Price):
                raise InvalidConfig(
                    f"prices[{name!r}] is {price!r}; it must be a Price, by a model's name"
                )
            try:
                price.checked()
            except InvalidConfig as error:
                raise InvalidConfig(f"prices[{name!r}]: {error}") from error
        self._own = dict(own or {})
        self._found: dict[str, Price | None] = {}

    def find(self, model: str | None) -> Price | None:
        """The price of *model*; None if it is not known.

        Among one's own prices: the exact name, then the longest matching prefix. PRICES apply only
        to the model itself and its dated versions. The price of a variant that is not listed there
        is not known.
        """
        if not model:
            return None
        if model not in self._found:
            self._found[model] = self._look_up(model)
        return self._found[model]

    def _look_up(self, model: str) -> Price | None:
        if model in self._own:
            return self._own[model]
        name = canonical_name(model)
        fitting = [prefix for prefix in self._own if begins(name, prefix.lower())]
        if fitting:
            return self._own[max(fitting, key=len)]
        return next((price for known, price in PRICES.items() if is_dated(name, known)), None)

    def cost(self, model: str | None, usage: Usage) -> int | None:
        """What one request to *model* cost in nano-dollars; None if its price is not known.

        A request without any tokens costs 0, even if the price is not known.
        """
        price = self.find(model)
        if price is None:
            return None if usage != _NOTHING else 0
        return cost(usage, price)


_NOTHING = Usage()


def read_prices(table: Any) -> dict[str, Price]:
    """Prices by model from the content of a file: ``{model: {"input": "3", "output": "15", ...}}``.

    They are in dollars per million tokens, as strings or whole numbers. ``long_prompt`` is such a
    table inside. The fields are those of ``Price.usd``. Raises InvalidConfig, which says where.
    """
    if not isinstance(table, Mapping):
        raise InvalidConfig("the prices are not a table of models")
    return {str(model): _read_price(fields, str(model)) for model, fields in table.items()}


def _read_price(fields: Any, where: str) -> Price:
    if not isinstance(fields, Mapping):
        raise InvalidConfig(f"{where}: this is not a table of prices")
    unknown = sorted(set(map(str, fields)) - set(Price.__struct_fields__))
    if unknown:
        known = ", ".join(Price.__struct_fields__)
        raise InvalidConfig(f"{where}: unknown price {unknown[0]!r}; the prices are {known}")
    for name in ("input", "output"):
        if name not in fields:
            raise InvalidConfig(f"{where}: {name} is missing")
    prices = dict(fields)
    if prices.get("long_prompt") is not None:
        prices["long_prompt"] = _read_price(prices["long_prompt"], f"{where}.long_prompt")
    try:
        return Price.usd(prices.pop("input"), prices.pop("output"), **prices)
    except InvalidConfig as error:
        raise InvalidConfig(f"{where}: {error}") from error


def _claude(input: str, output: str, cache_read: str) -> Price:
    """Cache writes cost 1.25 times the input price for five minutes, and twice for an hour."""
    price = Price.usd(input, output, cache_read=cache_read)
    return msgspec.structs.replace(
        price, cache_write_5m=price.input * 5 // 4, cache_write_1h=price.input * 2
    )


def _openai(input: str, output: str, cache_read: str, *, writes: bool = False) -> Price:
    """Since GPT-5.6 a cache write costs 1.25 times the input price; before, it cost the input
    price.
    """
    price = Price.usd(input, output, cache_read=cache_read)
    if not writes:
        return price
    write = price.input * 5 // 4
    return msgspec.structs.replace(price, cache_write_5m=write, cache_write_1h=write)


def _long(price: Price, long_prompt: Price, tokens: int) -> Price:
    return msgspec.structs.replace(price, long_prompt=long_prompt, long_prompt_tokens=tokens)


def _long_openai(input: str, output: str, cache_read: str, *, writes: bool = False) -> Price:
    """Above 272,000 tokens, input and cache cost twice and output 1.5 times as much."""
    price = _openai(input, output, cache_read, writes=writes)
    longer = Price(
        input=price.input * 2,
        output=price.output * 3 // 2,
        cache_read=price.cache_read * 2,
        cache_write_5m=price.cache_write_5m * 2,
        cache_write_1h=price.cache_write_1h * 2,
    )
    return _long(price, longer, 272_000)


_FABLE_5_1 = _claude("10", "50", "0.25")
_FABLE_5 = _claude("10", "50", "1")
_OPUS_5 = _claude("5", "25", "0.50")
_OPUS_4 = _claude("15", "75", "1.50")
_SONNET_4 = _claude("3", "15", "0.30")

PRICES: dict[str, Price] = {
    "claude-fable-5-1": _FABLE_5_1,
    "claude-mythos-5-1": _FABLE_5_1,
    "claude-fable-5": _FABLE_5,
    "claude-mythos-5": _FABLE_5,
    "claude-opus-5-5": _claude("4", "20", "0.20"),
    "claude-opus-5": _OPUS_5,
    "claude-opus-4-8": _OPUS_5,
    "claude-opus-4-7": _OPUS_5,
    "claude-opus-4-6": _OPUS_5,
    "claude-opus-4-5": _OPUS_5,
    "claude-opus-4-1": _OPUS_4,
    "claude-opus-4-0": _OPUS_4,
    "claude-opus-4": _OPUS_4,
    "claude-sonnet-5-5": _claude("2", "10", "0.10"),
    "claude-sonnet-5": _claude("2", "10", "0.20"),
    "claude-sonnet-4-6": _SONNET_4,
    "claude-sonnet-4-5": _SONNET_4,
    "claude-sonnet-4-0": _SONNET_4,
    "claude-sonnet-4": _SONNET_4,
    "claude-3-7-sonnet": _SONNET_4,
    "claude-haiku-5-5": _long(
        _claude("0.10", "0.50", "0.01"), _claude("0.50", "2.50", "0.05"), 100_000
    ),
    "claude-haiku-4-5": _claude("1", "5", "0.10"),
    "claude-3-5-haiku": _claude("0.80", "4", "0.08"),
    "gpt-6-astra": _long_openai("10", "50", "1", writes=True),
    "gpt-6.1-sol": _long_openai("2", "10", "0.10", writes=True),
    "gpt-6-sol": _long_openai("2", "10", "0.20", writes=True),
    "gpt-6-luna": _long_openai("0.10", "0.50", "0.01", writes=True),
    "gpt-5.6-terra": _long_openai("2", "12", "0.20", writes=True),
    "gpt-5.6-luna": _long_openai("0.20", "1.20", "0.02", writes=True),
    "gpt-5.5": _long_openai("5", "30", "0.50"),
    "gpt-5.4": _long_openai("2.50", "15", "0.25"),
    "gpt-5.4-mini": _openai("0.75", "4.50", "0.075"),
    "gpt-5.4-nano": _openai("0.20", "1.25", "0.02"),
    "gpt-5.2": _openai("1.75", "14", "0.175"),
    "gpt-5.1": _openai("1.25", "10", "0.125"),
    "gpt-5": _openai("1.25", "10", "0.125"),
    "gpt-5-mini": _openai("0.25", "2", "0.025"),
    "gpt-4.1": _openai("2", "8", "0.50"),
    "gpt-4o": _openai("2.50", "10", "1.25"),
    "gpt-4o-mini": _openai("0.15", "0.60", "0.075"),
    "o4-mini": _openai("1.10", "4.40", "0.275"),
}
"""The built-in prices, by the name of a model or the beginning of one."""
