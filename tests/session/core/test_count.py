"""Counting the context: by the provider, by usage, or by what is at hand; what a status says."""

from __future__ import annotations

import pytest

from llmsession import ReplayProvider, SessionConfig, SessionManager
from llmsession.errors import ProviderError
from llmsession.store import MemoryStore
from llmsession.testing.scripted import say
from llmsession.turns.request import Request
from llmsession.turns.usage import Usage
from tests.session.actors import stage

pytestmark = pytest.mark.real_time


class Counts(ReplayProvider):
    """A provider that counts itself, or fails to."""

    def __init__(self, answer: int | ProviderError) -> None:
        super().__init__(())
        self.answer = answer
        self.asked: list[Request] = []

    async def count_tokens(self, request: Request) -> int:
        self.asked.append(request)
        if isinstance(self.answer, ProviderError):
            raise self.answer
        return self.answer


async def test_a_provider_that_counts_is_asked_once_for_the_same_context() -> None:
    provider = Counts(4321)
    async with SessionManager(provider=provider, store=MemoryStore()) as manager:
        session = await manager.create(SessionConfig(model="m", system="be brief"))
        first, second = await session.count(), await session.count()
    assert (first.input_tokens, first.method, first.cached) == (4321, "api", False)
    assert (second.input_tokens, second.cached) == (4321, True)
    assert len(provider.asked) == 1


async def test_where_the_provider_fails_to_count_somebody_else_does() -> None:
    provider = Counts(ProviderError("no", kind="fatal"))
    async with SessionManager(provider=provider, store=MemoryStore()) as manager:
        session = await manager.create(SessionConfig(model="m", system="be brief " * 50))
        count = await session.count()
    assert count.method in ("tiktoken", "estimate")
    assert 50 < count.input_tokens < 400
    assert count.accuracy > 0


async def test_a_status_says_how_and_when_the_last_request_was_counted() -> None:
    reply = say("hello").costing(Usage(input_tokens=900, output_tokens=20))
    async with stage([reply, "ok"]) as on:
        fresh = on.session.status()
        assert (fresh.counted_tokens, fresh.counted_at) == (0, None)
        await on.say("a question of some words " * 100)
        status = on.session.status()
        assert status.counted_tokens > 0
        assert status.counted_at is not None
        # What was reported, prompt and reply, is what the next request begins with.
        assert (status.context_method, status.context_tokens) == ("usage", 920)
        count = await on.session.count()
        assert (count.method, count.input_tokens) == ("usage", 920)
