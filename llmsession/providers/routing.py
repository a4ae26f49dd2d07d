"""Several providers as one: each model is answered by the one that its name begins with."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping

from llmsession.errors import InvalidConfig, ProviderError
from llmsession.turns.request import Profile, Request, StepTag
from llmsession.turns.stream import StreamEvent

from .closing import close_all
from .protocol import NOT_COUNTED, Counting, Provider

__all__ = ["RoutedProvider"]


class RoutedProvider:
    """*routes* are providers by the beginning of the models that they answer; the longest one
    counts, and "" is for all models that no other is for.

    A manager that is left closes its provider, and with this one all that it stands for, but
    those that are used as context managers themselves. Raises InvalidConfig without a route.
    """

    name = "routed"

    def __init__(self, routes: Mapping[str, Provider]) -> None:
        if not routes:
            raise InvalidConfig("a RoutedProvider needs a provider to route to")
        self._routes = sorted(routes.items(), key=lambda route: -len(route[0]))

    def provider_for(self, model: str) -> Provider:
        """Who answers *model*. Raises InvalidConfig where nobody does."""
        for beginning, provider in self._routes:
            if model.startswith(beginning):
                return provider
        known = ", ".join(sorted(f"{beginning}..." for beginning, _ in self._routes))
        raise InvalidConfig(f"no provider answers model {model!r}; there are those for {known}")

    def name_for(self, model: str) -> str:
        """The name of the one that answers *model*; this one's own where nobody does."""
        try:
            return self.provider_for(model).name
        except InvalidConfig:
            return self.name

    def profile(self, model: str) -> Profile:
        """What *model* accepts and needs. Raises InvalidConfig where nobody answers it."""
        return self.provider_for(model).profile(model)

    def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        """The reply of the one that answers the request's model. Raises ProviderError."""
        return self._answering(request).stream(request, tag)

    async def count_tokens(self, request: Request) -> int:
        """The count of the one that answers the request's model. Raises ProviderError, also where
        that one does not count."""
        provider = self._answering(request)
        if not isinstance(provider, Counting):
            raise ProviderError(f"{provider.name} counts no tokens", kind="fatal", code=NOT_COUNTED)
        return await provider.count_tokens(request)

    def _answering(self, request: Request) -> Provider:
        try:
            return self.provider_for(request.model)
        except InvalidConfig as error:
            raise ProviderError(str(error), kind="fatal") from error

    async def aclose(self) -> None:
        """Close each of them, once. Raises what the first one raised, after all were asked."""
        await close_all({id(provider): provider for _, provider in self._routes}.values())
