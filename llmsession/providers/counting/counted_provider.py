"""A provider whose requests are counted by something else."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from llmsession.turns.request import Profile, Request, StepTag
from llmsession.turns.stream import StreamEvent

from ..closing import Closing, close_all
from ..protocol import Counting, Provider, name_for

__all__ = ["CountedProvider"]


class CountedProvider(Closing):
    """Wraps *provider* so that *tokens* counts its requests.

    *tokens* is ``GeminiTokens``, ``BedrockTokens``, or anything else with ``count_tokens``. Closing
    the wrapper closes both.
    """

    def __init__(self, provider: Provider, tokens: Counting) -> None:
        self._provider = provider
        self._tokens = tokens

    @property
    def name(self) -> str:
        """The name of the wrapped provider."""
        return self._provider.name

    def name_for(self, model: str) -> str:
        """The wrapped provider's name for *model*."""
        return name_for(self._provider, model)

    def profile(self, model: str) -> Profile:
        """The wrapped provider's profile of *model*."""
        return self._provider.profile(model)

    def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        """The wrapped provider's reply to *request*."""
        return self._provider.stream(request, tag)

    async def count_tokens(self, request: Request) -> int:
        """The tokens of the prompt of *request*, by *tokens*. Raises ProviderError. Can be
        cancelled.
        """
        return await self._tokens.count_tokens(request)

    async def aclose(self) -> None:
        """Close both, except one that is used as a context manager itself.

        Both are closed before the first error is raised.
        """
        await close_all((self._provider, self._tokens))
