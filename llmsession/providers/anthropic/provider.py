"""Anthropic's models through the anthropic SDK: its own API, Bedrock, Vertex and Foundry."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec

from llmsession.errors import InvalidConfig, error_text, need_package
from llmsession.turns.request import Profile, Request, StepTag
from llmsession.turns.stream import StreamEvent

from ..clients import ClientSettings, make_pattern
from ..models import ANTHROPIC, CLAUDE, find_profile
from ..reading import ReplyStream
from ..sdk_provider import SdkProvider, given_options
from .bedrock_tokens import BedrockTokens
from .events import AnthropicEvents
from .requests import CacheTtl, closed_by_user, count_body, messages_body

__all__ = ["AnthropicPlatform", "AnthropicProvider"]

AnthropicPlatform: TypeAlias = Literal["anthropic", "bedrock", "vertex", "foundry"]

HOUR_S = 3600.0

_CLIENTS: dict[AnthropicPlatform, str] = {
    "anthropic": "AsyncAnthropic",
    "bedrock": "AsyncAnthropicBedrock",
    "vertex": "AsyncAnthropicVertex",
    "foundry": "AsyncAnthropicFoundry",
}
_NO_KEY = (
    "no key for Anthropic: pass api_key=... or set ANTHROPIC_API_KEY; for a local server, which"
    " needs none, pass base_url=..."
)


class AnthropicProvider(SdkProvider):
    """Answers with Anthropic's models. One provider serves many sessions, on asyncio and trio.

    - *api_key*, *auth_token*: without either the SDK looks for credentials, first in the
      environment.
    - *base_url* is another server of the same API; it may need no key.
    - *platform* says where the models are served. *client_options* go to that platform's SDK
      client, for example ``aws_region``, or ``region`` and ``project_id``.
    - *client* is an SDK client of your own. It replaces all of the above.
    - *cache* is how long prompts are cached by the provider; None disables caching. A request that
      has cache breakpoints of its own gets no others. With "1h" the profiles say so
      (``cache_ttl_s``), unless one of yours gives a time of its own.
    - *max_retries* is how often the SDK retries before the first event of a reply. The session does
      not retry those errors again.
    - *connect_timeout_s* limits the time to connect, and *read_timeout_s* the pause between two
      pieces of a reply. Both are in seconds.
    - *max_connections* limits the open connections of one event loop.
    - *headers* are sent with every request.
    - *profiles* adds model profiles by name, or replaces built-in ones.
    - *name* is recorded as the provider of each reply.

    A manager closes its provider when it is left. If several managers share a provider, use the
    provider as an async context manager around them; then only leaving that context closes it.
    Raises InvalidConfig if the arguments cannot work, or if there is no key.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        auth_token: str | None = None,
        base_url: str | None = None,
        platform: AnthropicPlatform = "anthropic",
        client_options: Mapping[str, Any] | None = None,
        client: Any | None = None,
        cache: CacheTtl = "5m",
        max_retries: int = 2,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float = 300.0,
        max_connections: int = 1000,
        headers: Mapping[str, str] | None = None,
        profiles: Mapping[str, Profile] | None = None,
        name: str = "anthropic",
    ) -> None:
        if platform not in _CLIENTS:
            raise InvalidConfig(f"platform must be one of {', '.join(_CLIENTS)}, not {platform!r}")
        if cache not in ("5m", "1h", None):
            raise InvalidConfig(f"cache must be '5m', '1h' or None, not {cache!r}")
        settings = ClientSettings(
            max_retries=max_retries,
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=read_timeout_s,
            max_connections=max_connections,
        )
        sdk = _sdk()
        super().__init__(
            sdk,
            client=client,
            make=partial(_make_client, sdk, platform),
            options=given_options(
                client_options, api_key=api_key, auth_token=auth_token, base_url=base_url
            ),
            settings=settings,
            takes_bytes=sdk.AsyncAnthropic,  # only the vendor's own API accepts a body as bytes
            headers=headers,
            profiles=profiles,
            name=name,
        )
        # On-demand compaction is documented for every platform except Bedrock.
        self._compacts_on_demand = "Bedrock" not in type(self._pattern).__name__
        self._bedrock = None if self._compacts_on_demand else _bedrock_tokens(self._pattern)
        self._cache: CacheTtl = cache

    def profile(self, model: str) -> Profile:
        """The properties of *model*. An unknown model gets cautious values."""
        profile = find_profile(model, CLAUDE, otherwise=ANTHROPIC, own=self._profiles)
        changes: dict[str, Any] = {}
        if self._cache == "1h" and profile.cache_ttl_s == ANTHROPIC.cache_ttl_s:
            changes["cache_ttl_s"] = HOUR_S
        if not self._compacts_on_demand and profile.compacts_on_demand:
            changes["compacts_on_demand"] = False
        return msgspec.structs.replace(profile, **changes) if changes else profile

    def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        """Stream the reply to *request*. Cancelling it, or closing the generator, closes the
        connection.

        Raises ProviderError. Errors before the first event are raised after the SDK's retries,
        later errors at once.
        """
        reader = AnthropicEvents()

        async def connect() -> Any:
            body, betas = messages_body(request, cache=self._cache)
            path, headers = _with_betas("/v1/messages", self._step_headers(tag), betas)
            return await self._post(path, body, headers, stream=True)

        return ReplyStream(connect, reader, self._failures)

    async def count_tokens(self, request: Request) -> int:
        """The provider's own count of the prompt of *request*, in tokens. It costs one request.

        If the conversation ends with a reply, a neutral user message is appended for the count, and
        its tokens are subtracted again. Bedrock is asked through botocore. Raises ProviderError.
        Can be cancelled.
        """
        if self._bedrock is not None:
            return await self._bedrock.count_tokens(request)
        try:
            closed, added_tokens = closed_by_user(request)
            body, betas = count_body(closed)
            path, headers = _with_betas("/v1/messages/count_tokens", self._headers, betas)
            answer = await self._post(path, body, headers)
            return max(0, msgspec.convert(answer, _Count).input_tokens - added_tokens)
        except Exception as error:
            failures = self._failures
            raise failures.refused(error, now=time.time()) from failures.chainable(error)

    async def aclose(self) -> None:
        """Close the connections of the running event loop. The next use opens new ones."""
        await super().aclose()
        if self._bedrock is not None:
            await self._bedrock.aclose()


def _bedrock_tokens(client: Any) -> BedrockTokens:
    """A token counter with the region and the credentials of the SDK's Bedrock *client*.

    It sends to AWS's own endpoint, or to the address that the client was configured with.
    """
    keys = {
        "aws_access_key_id": getattr(client, "aws_access_key", None),
        "aws_secret_access_key": getattr(client, "aws_secret_key", None),
        "aws_session_token": getattr(client, "aws_session_token", None),
    }
    region, url = getattr(client, "aws_region", None), str(client.base_url)
    return BedrockTokens(
        region=region,
        profile=getattr(client, "aws_profile", None),
        credentials=keys,
        endpoint_url=None if "amazonaws.com" in url else url.rstrip("/"),
    )


class _Count(msgspec.Struct):
    input_tokens: int


def _with_betas(
    path: str, headers: dict[str, str], betas: tuple[str, ...]
) -> tuple[str, dict[str, str]]:
    if not betas:
        return path, headers
    return f"{path}?beta=true", {**headers, "anthropic-beta": ",".join(betas)}


def _sdk() -> Any:
    # Imported here and not at the top: it takes over a second and 80 MB. A program that uses
    # another provider, and ``--help``, should not pay for that.
    need_package("anthropic", "AnthropicProvider", "anthropic[aiohttp]")
    import anthropic

    return anthropic


def _make_client(
    sdk: Any, platform: AnthropicPlatform, options: dict[str, Any], settings: ClientSettings
) -> Any:
    """The client that is copied for each event loop. Raises InvalidConfig without the key in its
    text.
    """
    if platform == "bedrock":
        need_package("botocore", "Bedrock", "anthropic[bedrock]")
    elif platform == "vertex" and not options.get("access_token"):
        need_package("google.auth", "Vertex", "anthropic[vertex]")
    client_class = getattr(sdk, _CLIENTS[platform])
    reason = ""
    try:
        client = make_pattern(
            client_class, platform, options, settings, passes=sdk.CredentialsError
        )
        if platform != "anthropic" or client.api_key or client.auth_token or client.credentials:
            return client
    except sdk.CredentialsError as error:  # credentials that the SDK found on disk do not work
        reason = f" ({error_text(error)})"
    if not (options.get("base_url") or os.environ.get("ANTHROPIC_BASE_URL")):
        raise InvalidConfig(_NO_KEY + reason)
    # A local server needs no key, but the SDK insists on credentials.
    return make_pattern(sdk.AsyncAnthropic, platform, {**options, "api_key": "none"}, settings)
