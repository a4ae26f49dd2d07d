"""A provider whose requests another one counts."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from llmsession.turns.request import Profile, Request, StepTag
from llmsession.turns.stream import StreamEvent

from ..closing import Closing, close_all
from ..protocol import Counting, Provider, name_for

__all__ = ["CountedProvider"]


class CountedProvider(Closing):
    """*provider*, whose requests are counted by *tokens*: ``GeminiTokens``, ``BedrockTokens``, or
    anything else with ``count_tokens``. It closes both with itself."""

    def __init__(self, provider: Provider, tokens: Counting) -> None:
        self._provider = provider
        self._tokens = tokens

    @property
    def name(self) -> str:
        """The provider's."""
        return self._provider.name

    def name_for(self, model: str) -> str:
        """The provider's name for *model*."""
        return name_for(self._provider, model)

    def profile(self, model: str) -> Profile:
        """As the provider's."""
        return self._provider.profile(model)

    def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        """As the provider's."""
        return self._provider.stream(request, tag)

    async def count_tokens(self, request: Request) -> int:
        """The tokens of *request*'s prompt. Raises ProviderError. Can be cancelled."""
        return await self._tokens.count_tokens(request)

    async def aclose(self) -> None:
        """Close both, but for one that is used as a context manager itself. Raises what the first
        one raised, after both were asked."""
        await close_all((self._provider, self._tokens))
