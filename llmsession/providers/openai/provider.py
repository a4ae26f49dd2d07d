"""Chat completions, by the openai SDK: OpenAI, Azure, and every server that speaks as they do."""

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
from ..reading import read_reply_stream
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
    # It sends usage without being asked, and refuses fields that it does not know.
    "api.mistral.ai": ChatDialect(call_ids="nine", usage=False),
}
"""By host. All other servers get the plain dialect, which is what most of them read."""


class OpenAIProvider(SdkProvider):
    """Answers with the models of a server that speaks chat completions, on asyncio and trio.

    Without *api_key* the SDK looks for one in the environment. A server at *base_url* (vLLM,
    Ollama, llama.cpp, LiteLLM, ...) may need none. *platform* "azure" takes its endpoint and
    version in *client_options*, which go to the SDK's client. *client* is an SDK client of your
    own instead of all that.

    *dialect* is how the server wants to be spoken to; without one it is chosen by the host.
    *keep_reasoning* sends the reasoning of earlier replies back in the field that it came in,
    which some servers ask for between a call and its result; by default it is kept in the
    history and not sent. *max_retries* is how often the SDK tries again before the first event;
    the session adds none to these. *read_timeout_s* is the longest pause between two pieces of a
    reply. *profiles* adds to the models that are known by name, or replaces them.

    A manager that is left closes its provider. One that several managers share is used as an
    async context manager around them, which closes it then. Raises InvalidConfig where it cannot
    work.
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
            raise InvalidConfig(f"platform {platform!r} is none of openai, azure")
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
            # Azure's client reads the model from the request to find its address.
            takes_bytes=sdk.AsyncOpenAI,
            headers=headers,
            profiles=profiles,
            name=name,
        )
        default = ChatDialect() if self._takes_bytes else _OPENAI_DIALECT
        self._dialect = dialect or _DIALECTS.get(self._pattern.base_url.host, default)
        self._keep_reasoning = keep_reasoning

    def profile(self, model: str) -> Profile:
        """What *model* accepts, needs and holds; the careful values for an unknown one."""
        profile = find_profile(model, OPENAI, otherwise=COMPATIBLE, own=self._profiles)
        if profile is not COMPATIBLE:
            return profile
        claude = find_profile(model, CLAUDE, otherwise=COMPATIBLE, own={})
        # Behind this API a Claude model has its limits, but its signed thinking does not come out.
        return msgspec.structs.replace(
            COMPATIBLE,
            window_tokens=claude.window_tokens,
            max_output_tokens=claude.max_output_tokens,
            chars_per_token=claude.chars_per_token,
            token_family=claude.token_family,
        )

    def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        """The reply to *request*. Cancelling or closing it closes the connection.

        Raises ProviderError: before the first event after the SDK's retries, later at once.
        """
        reader = OpenAIEvents(keeps_reasoning=self._keep_reasoning)

        async def connect() -> Any:
            body, names = chat_body(request, self._dialect)
            reader.name_of = names.back
            headers = self._step_headers(tag)
            return await self._post("/chat/completions", body, headers, stream=True)

        return read_reply_stream(connect, reader, self._failures)


def _sdk() -> Any:
    # Here and not above: it takes about a second, which a program that uses another provider, or
    # the command line's help, should not pay.
    need_package("openai", "OpenAIProvider", "llmsession[openai]")
    import openai

    return openai


def _make_client(
    sdk: Any, platform: OpenAIPlatform, options: dict[str, Any], settings: ClientSettings
) -> Any:
    """The client that the others are copies of. Raises InvalidConfig, the key not in its text."""
    if platform == "azure":
        return make_pattern(sdk.AsyncAzureOpenAI, platform, options, settings)
    if not _has_key(options):
        if not (options.get("base_url") or os.environ.get("OPENAI_BASE_URL")):
            raise InvalidConfig(_NO_KEY)
        options = {**options, "api_key": "none"}  # a local server needs none, but the SDK does
    return make_pattern(sdk.AsyncOpenAI, platform, options, settings)


def _has_key(options: Mapping[str, Any]) -> bool:
    names = ("api_key", "admin_api_key", "workload_identity", "provider")
    variables = ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY")
    return any(map(options.get, names)) or any(map(os.environ.get, variables))
