"""Several providers as one: the beginning of a model's name decides which provider answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping

from llmsession.errors import InvalidConfig, ProviderError
from llmsession.turns.request import Profile, Request, StepTag
from llmsession.turns.stream import StreamEvent

from .closing import close_all
from .protocol import NOT_COUNTED, Counting, Provider

__all__ = ["RoutedProvider"]


class RoutedProvider:
    """Routes each request by its model's name.

    *routes* maps prefixes of model names to providers. The longest matching prefix counts; ""
    matches all models. Closing it closes all its providers, except those that are used as context
    managers themselves. Raises InvalidConfig if *routes* is empty.
    """

    name = "routed"

    def __init__(self, routes: Mapping[str, Provider]) -> None:
        if not routes:
            raise InvalidConfig("a RoutedProvider needs at least one route, got none")
        self._routes = sorted(routes.items(), key=lambda route: -len(route[0]))

    def provider_for(self, model: str) -> Provider:
        """The provider that answers *model*. Raises InvalidConfig if there is none."""
        for beginning, provider in self._routes:
            if model.startswith(beginning):
                return provider
        known = ", ".join(sorted(f"{beginning}..." for beginning, _ in self._routes))
        raise InvalidConfig(f"no provider answers model {model!r}; there are those for {known}")

    def name_for(self, model: str) -> str:
        """The name of the provider that answers *model*; "routed" if there is none."""
        try:
            return self.provider_for(model).name
        except InvalidConfig:
            return self.name

    def profile(self, model: str) -> Profile:
        """The properties of *model*. Raises InvalidConfig if no provider answers it."""
        return self.provider_for(model).profile(model)

    def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        """The reply of the provider that answers the request's model. Raises ProviderError."""
        return self._answering(request).stream(request, tag)

    async def count_tokens(self, request: Request) -> int:
        """The count of the provider that answers the request's model. Raises ProviderError, also if
        that provider does not count.
        """
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
        """Close each provider once. All are closed before the first error is raised."""
        await close_all({id(provider): provider for _, provider in self._routes}.values())
