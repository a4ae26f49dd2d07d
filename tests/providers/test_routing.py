"""Several providers as one."""

from __future__ import annotations

import anyio
import pytest

from llmsession import InvalidConfig, ProviderError, SessionConfig, SessionManager
from llmsession.providers import Counting, Provider, RoutedProvider
from llmsession.testing.scripted import ScriptedProvider
from llmsession.turns.request import Profile, Request, StepTag

PROFILE = Profile(name="small", window_tokens=50_000)


class Named(ScriptedProvider):
    """Says its name, counts, and knows how often it was closed."""

    def __init__(self, name: str, *, fails: bool = False) -> None:
        super().__init__(lambda request, tag: f"I am {name}", profile=PROFILE)
        self._name = name
        self.times_closed = 0
        self._fails = fails

    @property
    def name(self) -> str:
        return self._name

    async def aclose(self) -> None:
        self.times_closed += 1
        if self._fails:
            raise OSError("it broke")


class Counts(Named):
    async def count_tokens(self, request: Request) -> int:
        return 42


def request(model: str) -> Request:
    return Request(model=model, max_tokens=10, messages=())


async def test_each_model_is_answered_by_the_longest_beginning() -> None:
    a, b, rest = Named("a"), Named("b"), Named("rest")
    routed: Provider = RoutedProvider({"x-": a, "": rest, "x-large-": b})
    with anyio.fail_after(10):
        async with SessionManager(provider=routed) as manager:
            for model, name in (("x-1", "a"), ("x-large-1", "b"), ("other", "rest")):
                session = await manager.create(SessionConfig(model=model))
                assert await (await session.send("who?")).text() == f"I am {name}"
                assert session.conversation()[-1].provider == name
    assert [each.times_closed for each in (a, b, rest)] == [1, 1, 1]


async def test_a_model_that_nobody_answers_is_refused_where_it_is_configured() -> None:
    routed = RoutedProvider({"x-": Named("a")})
    assert routed.name_for("y") == "routed"
    async with SessionManager(provider=routed) as manager:
        with pytest.raises(InvalidConfig, match=r"no provider answers model 'y'; .* x-\.\.\."):
            await manager.create(SessionConfig(model="y"))
    with pytest.raises(ProviderError) as refused:
        routed.stream(request("y"), StepTag(1, 1, 1))
    assert refused.value.kind == "fatal"


async def test_the_one_that_answers_counts_if_it_can() -> None:
    routed = RoutedProvider({"x-": Counts("a"), "": Named("b")})
    assert isinstance(routed, Counting)
    assert await routed.count_tokens(request("x-1")) == 42
    with pytest.raises(ProviderError, match="b counts no tokens"):
        await routed.count_tokens(request("y"))


async def test_all_are_closed_once_though_one_fails_and_one_has_two_routes() -> None:
    broken, twice = Named("a", fails=True), Named("b")
    routed = RoutedProvider({"a": broken, "b": twice, "c": twice})
    with pytest.raises(OSError, match="it broke"):
        await routed.aclose()
    assert (broken.times_closed, twice.times_closed) == (1, 1)


def test_without_a_route_there_is_nothing_to_do() -> None:
    with pytest.raises(InvalidConfig):
        RoutedProvider({})
