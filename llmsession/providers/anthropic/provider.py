"""Anthropic's models, by the anthropic SDK: its own API, Bedrock, Vertex and Foundry."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from types import TracebackType
from typing import Any, Literal, TypeAlias

import msgspec

from llmsession.errors import InvalidConfig, error_text, need_package
from llmsession.turns.request import Profile, Request, StepTag
from llmsession.turns.stream import StreamEvent

from ..clients import Clients, ClientSettings, check_reach, pattern_options
from ..failures import Failures, secret_values
from ..models import ANTHROPIC, CLAUDE, find_profile
from ..reading import read_reply_stream
from .events import AnthropicEvents
from .requests import CacheTtl, closed_by_user, count_body, messages_body

__all__ = ["AnthropicPlatform", "AnthropicProvider"]

AnthropicPlatform: TypeAlias = Literal["anthropic", "bedrock", "vertex", "foundry"]

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


class AnthropicProvider:
    """Answers with Anthropic's models. One provider serves many sessions, on asyncio and trio.

    Without *api_key* or *auth_token* the SDK looks for credentials, in the environment first. A
    server at *base_url* may need none. *platform* is where the models are served, and
    *client_options* go to that platform's SDK client (``aws_region``; ``region`` and
    ``project_id``). *client* is an SDK client of your own instead of all that.

    *cache* is how long prompts are cached, None for not at all; a request that has breakpoints of
    its own gets no others. *max_retries* is how often the SDK tries again before the first event;
    the session adds none to these. *read_timeout_s* is the longest pause between two pieces of a
    reply. *profiles* adds to the models that are known by name, or replaces them. *headers* are
    sent with every request.

    A manager that is left closes its provider. One that several managers share is used as an
    async context manager around them, which closes it then. Raises InvalidConfig where it cannot
    work.
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
        self.is_held = False
        """Is it used as a context manager? Then no session manager closes it."""
        if platform not in _CLIENTS:
            raise InvalidConfig(f"platform {platform!r} is none of {', '.join(_CLIENTS)}")
        if cache not in ("5m", "1h", None):
            raise InvalidConfig(f"cache is '5m', '1h' or None, not {cache!r}")
        settings = ClientSettings(
            max_retries=max_retries,
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=read_timeout_s,
            max_connections=max_connections,
        )
        options = dict(client_options or {})
        for option, value in (
            ("api_key", api_key), ("auth_token", auth_token), ("base_url", base_url),
        ):  # fmt: skip
            if value is not None:
                options[option] = value
        sdk = _sdk()
        pattern = client if client is not None else _pattern(sdk, platform, options, settings)
        check_reach(pattern, headers, profiles)
        self._clients = Clients(sdk, pattern, settings, given=client is not None)
        # Only the vendor's own API takes bytes; the others rewrite the request.
        self._takes_bytes = type(pattern) is sdk.AsyncAnthropic
        # The documentation of on-demand compaction leaves out Bedrock alone.
        self._compacts_on_demand = "Bedrock" not in type(pattern).__name__
        self._stream_class = sdk.AsyncStream[object]
        self._cache: CacheTtl = cache
        self._headers = dict(headers or {})
        self._profiles = dict(profiles or {})
        self._name = name
        self._nonce = uuid.uuid4().hex
        keys = {option: getattr(pattern, option, None) for option in ("api_key", "auth_token")}
        self._failures = Failures(
            name,
            secrets=secret_values(options, keys, self._headers),
            retries=pattern.max_retries > 0,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self._name!r})"

    @property
    def name(self) -> str:
        """The one that it was made with: "anthropic" unless another was given."""
        return self._name

    def profile(self, model: str) -> Profile:
        """What *model* accepts, needs and holds; the careful values for an unknown one."""
        profile = find_profile(model, CLAUDE, otherwise=ANTHROPIC, own=self._profiles)
        if self._compacts_on_demand or not profile.compacts_on_demand:
            return profile
        return msgspec.structs.replace(profile, compacts_on_demand=False)

    def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        """The reply to *request*. Cancelling or closing it closes the connection.

        Raises ProviderError: before the first event after the SDK's retries, later at once.
        """
        reader = AnthropicEvents()

        async def connect() -> Any:
            body, betas = messages_body(request, cache=self._cache)
            work = {"x-client-request-id": f"{self._nonce}-{tag.turn}.{tag.step}.{tag.attempt}"}
            return await self._post(
                "/v1/messages", body, betas, work, stream=True, stream_cls=self._stream_class
            )

        return read_reply_stream(connect, reader, self._failures)

    async def count_tokens(self, request: Request) -> int:
        """The provider's own count of *request*'s prompt, in tokens. One request of its own.

        One that ends with a reply is counted with a neutral message after it, whose tokens are
        taken off again. Raises ProviderError. Bedrock does not count. Can be cancelled.
        """
        try:
            counted_as, added = closed_by_user(request)
            body, betas = count_body(counted_as)
            counted = await self._post("/v1/messages/count_tokens", body, betas, {})
            return max(0, msgspec.convert(counted, _Count).input_tokens - added)
        except Exception as error:
            raise self._failures.refused(error, now=time.time()) from self._failures.shown(error)

    async def _post(
        self, path: str, body: bytes, betas: tuple[str, ...], headers: Mapping[str, str], **how: Any
    ) -> Any:
        sent = {**headers, **self._headers}
        if betas:
            path, sent["anthropic-beta"] = f"{path}?beta=true", ",".join(betas)
        # ``messages.create`` copies the whole conversation, value by value, before it encodes
        # it: 88 ms at 2,000 messages in which no other session runs, against 3 ms for bytes.
        given = {"content": body} if self._takes_bytes else {"body": msgspec.json.decode(body)}
        return await self._clients.current().post(
            path, cast_to=object, options={"headers": sent}, **given, **how
        )

    async def aclose(self) -> None:
        """Close the connections of the running event loop. Used again, it opens new ones."""
        await self._clients.aclose()

    async def __aenter__(self) -> AnthropicProvider:
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


class _Count(msgspec.Struct):
    input_tokens: int


def _sdk() -> Any:
    # Here and not above: it takes over a second and 80 MB, which a program that uses another
    # provider, or the command line's help, should not pay.
    need_package("anthropic", "AnthropicProvider", "anthropic[aiohttp]")
    import anthropic

    return anthropic


def _pattern(
    sdk: Any, platform: AnthropicPlatform, options: dict[str, Any], settings: ClientSettings
) -> Any:
    """The client that the others are copies of. Raises InvalidConfig, the key not in its text."""
    if platform == "bedrock":
        need_package("botocore", "Bedrock", "anthropic[bedrock]")
    elif platform == "vertex" and not options.get("access_token"):
        need_package("google.auth", "Vertex", "anthropic[vertex]")
    fixed = pattern_options(settings)
    local = options.get("base_url") or os.environ.get("ANTHROPIC_BASE_URL")
    said = ""
    try:
        client = getattr(sdk, _CLIENTS[platform])(**options, **fixed)
        if platform != "anthropic" or client.api_key or client.auth_token or client.credentials:
            return client
    except sdk.CredentialsError as error:  # what the SDK finds on the disk does not work
        said = f" ({error_text(error)})"
    except Exception as error:  # an SDK raises many kinds for options that do not go together
        failures = Failures(platform, secrets=secret_values(options), retries=False)
        raise InvalidConfig(failures.hide(f"{platform}: {error_text(error)}")) from None
    if not local:
        raise InvalidConfig(_NO_KEY + said)
    return sdk.AsyncAnthropic(**{**options, "api_key": "none"}, **fixed)
