"""Chat completions through the openai SDK: OpenAI, Azure and compatible servers."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec

from llmsession.errors import InvalidConfig, need_package
from llmsession.turns.request import Profile, Request, StepTag
from llmsession.turns.stream import StreamEvent

from ..clients import ClientSettings, make_pattern
from ..models import CLAUDE, COMPATIBLE, OPENAI, find_profile
from ..reading import ReplyStream
from ..sdk_provider import SdkProvider, given_options
from .events import OpenAIEvents
from .requests import ChatDialect, chat_body

__all__ = ["OpenAIPlatform", "OpenAIProvider"]

OpenAIPlatform: TypeAlias = Literal["openai", "azure"]

_NO_KEY = (
    "no key for OpenAI: pass api_key=... or set OPENAI_API_KEY; for a local server, which needs"
    " none, pass base_url=..."
)
_OPENAI_DIALECT = ChatDialect(max_tokens_field="max_completion_tokens", call_ids="short")
_DIALECTS: dict[str, ChatDialect] = {
    "api.openai.com": _OPENAI_DIALECT,
    # Mistral sends usage without being asked, and refuses unknown fields.
    "api.mistral.ai": ChatDialect(call_ids="nine", usage=False),
}
"""Dialects by host. All other servers get the plain dialect, which most of them accept."""


class OpenAIProvider(SdkProvider):
    """Answers with the models of a server that speaks chat completions, on asyncio and trio.

    - *api_key*: without one the SDK looks in the environment.
    - *base_url* is another server (vLLM, Ollama, llama.cpp, LiteLLM, ...); it may need no key.
    - *platform* "azure" needs its endpoint and version in *client_options*, which go to the SDK's
      client.
    - *client* is an SDK client of your own. It replaces all of the above.
    - *dialect* says which variant of the API the server accepts. By default it is chosen by the
      host.
    - *keep_reasoning* sends the reasoning of earlier replies back, in the field that it came in.
      Some servers need that between a call and its result. By default reasoning is kept in the
      history and not sent.
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
        base_url: str | None = None,
        platform: OpenAIPlatform = "openai",
        client_options: Mapping[str, Any] | None = None,
        client: Any | None = None,
        dialect: ChatDialect | None = None,
        keep_reasoning: bool = False,
        max_retries: int = 2,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float = 300.0,
        max_connections: int = 1000,
        headers: Mapping[str, str] | None = None,
        profiles: Mapping[str, Profile] | None = None,
        name: str = "openai",
    ) -> None:
        if platform not in ("openai", "azure"):
            raise InvalidConfig(f"platform must be 'openai' or 'azure', not {platform!r}")
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
            options=given_options(client_options, api_key=api_key, base_url=base_url),
            settings=settings,
            # Azure's client reads the model from the request to build its address, so it needs the
            # object.
            takes_bytes=sdk.AsyncOpenAI,
            headers=headers,
            profiles=profiles,
            name=name,
        )
        default = ChatDialect() if self._takes_bytes else _OPENAI_DIALECT
        self._dialect = dialect or _DIALECTS.get(self._pattern.base_url.host, default)
        self._keep_reasoning = keep_reasoning

    def profile(self, model: str) -> Profile:
        """The properties of *model*. An unknown model gets cautious values."""
        profile = find_profile(model, OPENAI, otherwise=COMPATIBLE, own=self._profiles)
        if profile is not COMPATIBLE:
            return profile
        claude = find_profile(model, CLAUDE, otherwise=COMPATIBLE, own={})
        # Behind this API a Claude model has its own limits, but its signed thinking does not come
        # out.
        return msgspec.structs.replace(
            COMPATIBLE,
            window_tokens=claude.window_tokens,
            max_output_tokens=claude.max_output_tokens,
            chars_per_token=claude.chars_per_token,
            token_family=claude.token_family,
        )

    def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        """Stream the reply to *request*. Cancelling it, or closing the generator, closes the
        connection.

        Raises ProviderError. Errors before the first event are raised after the SDK's retries,
        later errors at once.
        """
        reader = OpenAIEvents(keeps_reasoning=self._keep_reasoning)

        async def connect() -> Any:
            body, names = chat_body(request, self._dialect)
            reader.name_of = names.back
            headers = self._step_headers(tag)
            return await self._post("/chat/completions", body, headers, stream=True)

        return ReplyStream(connect, reader, self._failures)


def _sdk() -> Any:
    # Imported here and not at the top: it takes about a second. A program that uses another
    # provider, and ``--help``, should not pay for that.
    need_package("openai", "OpenAIProvider", "llmsession[openai]")
    import openai

    return openai


def _make_client(
    sdk: Any, platform: OpenAIPlatform, options: dict[str, Any], settings: ClientSettings
) -> Any:
    """The client that is copied for each event loop. Raises InvalidConfig without the key in its
    text.
    """
    if platform == "azure":
        return make_pattern(sdk.AsyncAzureOpenAI, platform, options, settings)
    if not _has_key(options):
        if not (options.get("base_url") or os.environ.get("OPENAI_BASE_URL")):
            raise InvalidConfig(_NO_KEY)
        options = {**options, "api_key": "none"}  # a local server needs no key, but the SDK does
    return make_pattern(sdk.AsyncOpenAI, platform, options, settings)


def _has_key(options: Mapping[str, Any]) -> bool:
    names = ("api_key", "admin_api_key", "workload_identity", "provider")
    variables = ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY")
    return any(map(options.get, names)) or any(map(os.environ.get, variables))
