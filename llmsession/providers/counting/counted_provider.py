"""A provider whose requests another one counts."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any, Self

from llmsession.errors import contained_in_task
from llmsession.turns.request import Profile, Request, StepTag
from llmsession.turns.stream import StreamEvent

from ..protocol import Counting, Provider, name_for

__all__ = ["CountedProvider"]


class CountedProvider:
    """*provider*, whose requests are counted by *tokens*: ``GeminiTokens``, ``BedrockTokens``, or
    anything else with ``count_tokens``. It closes both with itself."""

    def __init__(self, provider: Provider, tokens: Counting) -> None:
        self.is_held = False
        """Is it used as a context manager? Then no session manager closes it."""
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
        failed: Exception | None = None
        parts: tuple[Any, ...] = (self._provider, self._tokens)
        for part in parts:
            if hasattr(part, "aclose") and not getattr(part, "is_held", False):
                try:
                    await part.aclose()
                except BaseException as error:  # either may be anybody's code
                    failed = failed or contained_in_task(error)
        if failed is not None:
            raise failed

    async def __aenter__(self) -> Self:
        self.is_held = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.is_held = False
        await self.aclose()
