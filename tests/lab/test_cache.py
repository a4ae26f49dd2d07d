"""The prefix cache: what is read, what is written, when it is cold, and what that costs."""

from __future__ import annotations

from llmsession.lab.cache import PLAIN, Charged, PrefixCache, Spent, shared_messages
from llmsession.turns.blocks import join_blocks, text_block
from llmsession.turns.request import Request, RequestMessage
from llmsession.turns.spending.prices import Price


def said(*texts: str) -> tuple[RequestMessage, ...]:
    return tuple(
        RequestMessage("user" if at % 2 == 0 else "assistant", join_blocks([text_block(text)]))
        for at, text in enumerate(texts)
    )


def request(*texts: str, system: str | None = None) -> Request:
    return Request(model="m", max_tokens=1, system=system, messages=said(*texts))


def asked(first: Request, now_s: float | None = None) -> PrefixCache:
    """The cache after *first*, of a thousand tokens."""
    cache = PrefixCache(PLAIN, 300.0)
    cache.ask(first, read_tokens=0, tokens=1_000, now_s=now_s)
    return cache


def test_equal_bytes_are_shared_also_in_other_objects() -> None:
    assert shared_messages(said("a", "b", "c"), said("a", "b", "x", "d")) == 2
    assert shared_messages(said("a", "b"), said("a", "b", "c")) == 2
    assert shared_messages((), said("a")) == 0


def test_messages_of_another_role_are_not_shared() -> None:
    assert shared_messages(said("a"), (RequestMessage("assistant", said("a")[0].body),)) == 0


def test_the_first_request_is_written_whole_and_the_next_reads_it() -> None:
    cache = PrefixCache(PLAIN, 300.0)
    assert cache.shared(request("a"), None) is None
    first = cache.ask(request("a"), read_tokens=0, tokens=1_000, now_s=None)
    assert first == Charged(0, 1_000, 1_250_000)
    assert cache.shared(request("a", "b", "c"), None) == 1
    second = cache.ask(request("a", "b", "c"), read_tokens=1_000, tokens=1_500, now_s=None)
    assert second == Charged(1_000, 500, 1_000 * 100 + 500 * 1_250)


def test_a_rewrite_reads_what_stands_before_its_first_edit() -> None:
    cache = asked(request("a", "b", "c"))
    assert cache.shared(request("a", "x", "c", "d"), None) == 1


def test_another_system_text_shares_nothing() -> None:
    cache = asked(request("a", system="one"))
    assert cache.shared(request("a", "b", system="two"), None) is None


def test_it_is_cold_after_its_time_and_kept_by_every_request() -> None:
    cache = asked(request("a"), 1_000.0)
    assert cache.shared(request("a"), 1_299.0) == 1
    assert cache.shared(request("a"), 1_300.0) is None
    cache.ask(request("a"), read_tokens=1_000, tokens=1_000, now_s=1_299.0)
    assert cache.shared(request("a"), 1_598.0) == 1
    cache.touch(1_400.0)
    assert cache.idle_s(1_500.0) == 100.0


def test_without_times_it_never_goes_cold() -> None:
    cache = asked(request("a"))
    assert cache.idle_s(None) == 0.0
    assert not cache.is_cold(None)


def test_a_recall_reads_the_context_and_writes_its_result_which_stays() -> None:
    cache = asked(request("a"))
    again = cache.ask_again(added_tokens=200, output_tokens=10)
    assert again == Charged(1_000, 200, 1_000 * 100 + 200 * 1_250 + 10 * 5_000)
    assert cache.tokens == 1_200


def test_costs_are_by_the_given_price_of_one_request() -> None:
    dear = Price.usd("6", "30", cache_read="0.60", cache_write_5m="7.50")
    price = Price.usd(
        "3", "15", cache_read="0.30", cache_write_5m="3.75",
        long_prompt_tokens=2_000, long_prompt=dear,
    )  # fmt: skip
    cache = PrefixCache(price, 300.0)
    assert cache.ask(request("a"), read_tokens=0, tokens=2_000, now_s=None).cost == 2_000 * 3_750
    assert cache.ask(request("b"), read_tokens=0, tokens=2_001, now_s=None).cost == 2_001 * 7_500


def test_what_was_spent_is_summed() -> None:
    spent = Spent()
    spent.add(Charged(1, 2, 3))
    spent.add(Charged(10, 20, 30))
    assert (spent.read_tokens, spent.written_tokens, spent.cost) == (11, 22, 33)
