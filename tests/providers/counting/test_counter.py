"""The chain: the provider, then tiktoken, then characters; remembered, shared, never raising."""

from __future__ import annotations

import math
import random
from typing import Any

import anyio
import pytest

from llmsession import AnthropicProvider, Provider, ReplayProvider
from llmsession.errors import ProviderError
from llmsession.providers.anthropic.requests import NEUTRAL_TOKENS
from llmsession.providers.counting.counter import API_ACCURACY, CachedCounter, default_counter
from llmsession.providers.counting.counts import CharacterCounter, Count, Counter
from llmsession.providers.counting.encodings import ENCODINGS
from llmsession.providers.counting.stepping import Stepper
from llmsession.providers.protocol import Counting
from llmsession.testing import StrictServer
from llmsession.turns.request import Profile, Request

from ..asked import ask, profile_of
from ..over_http import make_provider, on_line

INLINE = Stepper(threads=False)


class Asked:
    """A counter that says *tokens* after *takes_s*, or raises *error*, and counts its callers."""

    def __init__(
        self,
        tokens: int = 7,
        *,
        takes_s: float = 0.0,
        error: Exception | None = None,
        method: Any = "api",
    ) -> None:
        self.tokens = tokens
        self.takes_s = takes_s
        self.error = error
        self.method = method
        self.calls = 0

    async def count(self, _request: Request) -> Count:
        self.calls += 1
        await anyio.sleep(self.takes_s)
        if self.error is not None:
            raise self.error
        return Count(
            input_tokens=self.tokens, estimated_output_tokens=1, method=self.method, accuracy=0.0
        )


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def cached(first: Counter, *then: Counter, **options: Any) -> CachedCounter:
    options.setdefault("otherwise", CharacterCounter(profile_of, stepper=INLINE))
    options.setdefault("stepper", INLINE)
    return CachedCounter(first, provider="p", then=then, **options)


async def count_into(counts: list[Count], counter: Counter) -> None:
    counts.append(await counter.count(ask("hi")))


@pytest.fixture
def local() -> str:
    """How we count ourselves, with the vocabulary loaded, if there is one."""
    return "estimate" if ENCODINGS.get("o200k_base") is None else "tiktoken"


async def test_the_second_count_of_the_same_content_is_remembered_and_says_so() -> None:
    first = Asked()
    counter = cached(first)
    one, two = [await counter.count(ask("hi")) for _ in range(2)]
    assert (one.input_tokens, one.method, one.cached) == (7, "api", False)
    assert (two.input_tokens, two.method, two.cached) == (7, "api", True)
    assert first.calls == 1


async def test_what_was_remembered_expires_by_the_clock_that_was_given() -> None:
    clock, first = Clock(), Asked()
    counter = cached(first, clock=clock, ttl_s=300)
    await counter.count(ask("hi"))
    clock.now_s += 299.9
    assert (await counter.count(ask("hi"))).cached
    clock.now_s += 0.1
    assert not (await counter.count(ask("hi"))).cached
    assert first.calls == 2


async def test_a_failure_is_told_once_and_again_only_after_a_success() -> None:
    told: list[Exception] = []
    first = Asked(takes_s=9.0)
    counter = cached(first, on_failure=told.append)
    for text in ("a", "b"):
        assert (await counter.count(ask(text))).method == "estimate"
    assert [str(error) for error in told] == ["no count within 5 seconds"]
    first.takes_s = 0.0
    assert (await counter.count(ask("c"))).method == "api"
    first.error = ValueError("no")
    for text in ("d", "e"):
        await counter.count(ask(text))
    assert [str(error) for error in told] == ["no count within 5 seconds", "no"]


async def test_who_is_told_of_a_failure_may_fail() -> None:
    def fail(error: Exception) -> None:
        raise error

    counter = cached(Asked(error=ValueError("no")), on_failure=fail)
    assert (await counter.count(ask("a"))).method == "estimate"


async def test_the_latency_is_that_of_this_call() -> None:
    clock = Clock()

    class Slow(Asked):
        async def count(self, request: Request) -> Count:
            clock.now_s += 0.25
            return await super().count(request)

    counter = cached(Slow(), clock=clock)
    assert (await counter.count(ask("hi"))).latency_ms == 250.0
    assert (await counter.count(ask("hi"))).latency_ms == 0.0


async def test_only_the_entries_used_last_are_kept() -> None:
    first = Asked()
    counter = cached(first, max_known=2)
    for text in ("a", "b", "a", "c"):  # b is the one that was used longest ago
        await counter.count(ask(text))
    assert counter.statistics()["known"] == 2
    assert (await counter.count(ask("a"))).cached
    assert not (await counter.count(ask("b"))).cached


async def test_callers_who_ask_the_same_at_once_share_one_answer() -> None:
    first = Asked(takes_s=1.0)
    counter = cached(first)
    counts: list[Count] = []
    async with anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(count_into, counts, counter)
    assert first.calls == 1
    assert [count.input_tokens for count in counts] == [7] * 50
    assert sorted(count.cached for count in counts) == [False] + [True] * 49


async def test_who_asks_and_is_cancelled_takes_nobody_with_it() -> None:
    first = Asked(takes_s=1.0)
    counter = cached(first)
    counts: list[Count] = []
    async with anyio.create_task_group() as tasks:
        leader = anyio.CancelScope()

        async def leads() -> None:
            with leader:
                await count_into(counts, counter)

        tasks.start_soon(leads)
        await anyio.sleep(0.1)
        for _ in range(3):
            tasks.start_soon(count_into, counts, counter)
        await anyio.sleep(0.4)
        leader.cancel()
        before_s = anyio.current_time()
    assert [count.method for count in counts] == ["api"] * 3
    assert first.calls == 2  # one of the three asked anew, for all of them
    assert anyio.current_time() - before_s == pytest.approx(1.0, abs=0.01)


async def test_who_waits_and_is_cancelled_does_not_disturb_who_asked() -> None:
    first = Asked(takes_s=1.0)
    counter = cached(first)
    counts: list[Count] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count_into, counts, counter)
        await anyio.sleep(0.1)
        with anyio.move_on_after(0.1):
            await counter.count(ask("hi"))
    assert len(counts) == 1
    assert first.calls == 1


async def test_nobody_waits_longer_than_the_deadline_also_those_who_came_later() -> None:
    counter = cached(Asked(takes_s=math.inf), deadline_s=5.0)
    took_s: list[float] = []

    async def one() -> None:
        began_s = anyio.current_time()
        count = await counter.count(ask("hi"))
        took_s.append(anyio.current_time() - began_s)
        assert count.method == "estimate"

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(one)
            await anyio.sleep(1.5)
    assert len(took_s) == 5
    assert max(took_s) == pytest.approx(5.0, abs=0.01)


@pytest.mark.parametrize("error", [ProviderError("no", kind="fatal"), ValueError("odd"), None])
async def test_a_failure_or_a_timeout_goes_to_the_next_which_is_not_remembered(
    error: Exception | None,
) -> None:
    first = Asked(error=error, takes_s=0.0 if error else math.inf)
    then = Asked(9, method="tiktoken")
    counter = cached(first, then)
    for _ in range(2):
        count = await counter.count(ask("hi"))
        assert (count.input_tokens, count.method, count.cached) == (9, "tiktoken", False)
    assert (first.calls, then.calls, counter.statistics()["known"]) == (2, 2, 0)


async def test_those_who_waited_for_a_failure_fall_back_and_do_not_ask_one_after_the_other() -> (
    None
):
    first = Asked(error=ProviderError("no", kind="retryable"), takes_s=1.0)
    counter = cached(first)
    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(counter.count, ask("hi"))
    assert first.calls == 1


async def test_when_everything_fails_there_is_the_estimate_by_characters() -> None:
    counter = cached(Asked(error=ValueError()), Asked(error=OSError()), Asked(error=KeyError()))
    count = await counter.count(ask("x" * 100))
    assert (count.method, count.input_tokens) == ("estimate", 50 + 3 + 3)


async def test_an_estimate_is_not_remembered_even_from_the_first() -> None:
    first = Asked(method="estimate")
    counter = cached(first)
    for _ in range(2):
        assert not (await counter.count(ask("hi"))).cached
    assert first.calls == 2


async def test_content_that_is_no_json_is_estimated_and_asks_nobody() -> None:
    first = Asked()
    count = await cached(first).count(ask("hi", temperature=object()))
    assert count.method == "estimate"
    assert first.calls == 0


async def test_another_content_is_another_count() -> None:
    first = Asked()
    counter = cached(first)
    requests = [
        ask("hi"),
        ask("ho"),
        ask("hi", system="s"),
        ask("hi", model="gpt-5"),
        ask("hi", tools=({"name": "ls"},)),
        ask("hi", thinking={"type": "enabled"}),
    ]
    for request in requests:
        assert not (await counter.count(request)).cached
    assert first.calls == len(requests)


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_is_cancelled_fails_or_hangs_every_other_caller_is_answered(
    seed: int,
) -> None:
    rng = random.Random(seed)
    answered, gave_up = [0], [0]

    class Moody:
        async def count(self, _request: Request) -> Count:
            await anyio.sleep(rng.choice([0.0, 0.5, 2.0, math.inf]))
            if rng.random() < 0.3:
                raise ProviderError("no", kind="retryable")
            return Count(input_tokens=1, estimated_output_tokens=1, method="api", accuracy=0.0)

    counter = cached(Moody(), deadline_s=3.0)

    async def one(starts_s: float, patience_s: float) -> None:
        await anyio.sleep(starts_s)
        with anyio.move_on_after(patience_s) as scope:
            count = await counter.count(ask(rng.choice("ab")))
            assert count.method in ("api", "estimate")
            answered[0] += 1
        gave_up[0] += scope.cancelled_caught
        assert not scope.cancelled_caught or patience_s < 4.0

    async with anyio.create_task_group() as tasks:
        for _ in range(30):
            tasks.start_soon(one, rng.uniform(0, 6), rng.choice([0.2, 1.0, 4.0, 60.0]))
    assert answered[0] + gave_up[0] == 30
    assert counter._flights == {}


class CountsItself(ReplayProvider):
    """A provider with a count of its own."""

    def __init__(self) -> None:
        super().__init__(())

    async def count_tokens(self, request: Request) -> int:
        return 41 + len(request.messages)

    def profile(self, model: str) -> Profile:
        return profile_of(model)


async def test_a_provider_that_counts_is_asked_first() -> None:
    provider = CountsItself()
    assert isinstance(provider, Counting)
    count = await default_counter(provider, stepper=INLINE).count(ask("hi", "ho"))
    assert (count.input_tokens, count.method, count.accuracy) == (43, "api", API_ACCURACY)


async def test_a_provider_that_is_not_to_be_asked_is_not(local: str) -> None:
    count = await default_counter(CountsItself(), api=False, stepper=INLINE).count(ask("hi"))
    assert count.method == local


async def test_the_estimate_of_the_caller_s_own_is_the_last_in_the_chain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("llmsession.providers.counting.counter.TiktokenCounter.count", None)
    counter = default_counter(ReplayProvider(()), estimate=lambda *_: 1000, stepper=INLINE)
    count = await counter.count(ask("hi"))
    assert (count.method, count.input_tokens) == ("estimate", 1000 + 1000 + 3 + 3)


def test_a_provider_that_does_not_count_is_a_provider_all_the_same() -> None:
    provider: Provider = ReplayProvider(())
    assert not isinstance(provider, Counting)
    assert isinstance(AnthropicProvider(api_key="unused"), Counting)


@pytest.mark.real_time  # a busy machine would let virtual time jump to the deadline
async def test_the_count_over_http_is_what_the_next_request_is_charged() -> None:
    async with on_line("anthropic", ["hello", "again"], system="be kind") as line:
        counter = default_counter(line.provider, stepper=INLINE)
        await line.say("go")
        at_rest = await counter.count(line.session.context())
        assert (at_rest.method, at_rest.cached) == ("api", False)
        assert (await counter.count(line.session.context())).cached
        turn = await line.session.send("and?")
        charged = (await turn.outcome()).usage.prompt_tokens
        # The strict server charges 8 tokens for a message of one short word.
        assert at_rest.input_tokens + 8 == pytest.approx(charged, abs=8 - NEUTRAL_TOKENS)
        counts = [each for each in line.server.requests if each.path.endswith("count_tokens")]
        assert len(counts) == 1


@pytest.mark.real_time  # a busy machine would let virtual time jump to the deadline
async def test_a_server_that_refuses_to_count_costs_the_accuracy_and_nothing_else(
    local: str,
) -> None:
    with anyio.fail_after(100):
        async with StrictServer([]) as server, make_provider("anthropic", server) as provider:
            counter = default_counter(provider, stepper=INLINE)
            count = await counter.count(ask("hi", model="claude-there-is-none"))
    assert count.method == local
    assert counter.statistics()["failed"] == 1


@pytest.mark.real_time  # a busy machine would let virtual time jump to the deadline
async def test_a_server_that_is_not_there_costs_the_accuracy_and_nothing_else(local: str) -> None:
    async with StrictServer([]) as server:
        gone = make_provider("anthropic", server)
    async with gone:
        counter = default_counter(gone, stepper=INLINE)
        count = await counter.count(ask("hi", model="claude-opus-4-5"))
    assert count.method == local
