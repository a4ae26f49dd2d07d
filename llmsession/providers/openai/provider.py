"""Chat completions, by the openai SDK: OpenAI, Azure, and every server that speaks as they do."""

from __future__ import annotations

import os
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
from ..models import CLAUDE, COMPATIBLE, OPENAI, find_profile
from ..reading import read_reply_stream
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


class OpenAIProvider:
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
        self.is_held = False
        """Is it used as a context manager? Then no session manager closes it."""
        if platform not in ("openai", "azure"):
            raise InvalidConfig(f"platform {platform!r} is none of openai, azure")
        settings = ClientSettings(
            max_retries=max_retries,
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=read_timeout_s,
            max_connections=max_connections,
        )
        options = dict(client_options or {})
        for option, value in (("api_key", api_key), ("base_url", base_url)):
            if value is not None:
                options[option] = value
        sdk = _sdk()
        pattern = client if client is not None else _pattern(sdk, platform, options, settings)
        check_reach(pattern, headers, profiles)
        self._clients = Clients(sdk, pattern, settings, given=client is not None)
        # Azure's client reads the model from the request to find its address.
        self._takes_bytes = type(pattern) is sdk.AsyncOpenAI
        self._stream_class = sdk.AsyncStream[object]
        default = _OPENAI_DIALECT if not self._takes_bytes else ChatDialect()
        self._dialect = dialect or _DIALECTS.get(pattern.base_url.host, default)
        self._keep_reasoning = keep_reasoning
        self._headers = dict(headers or {})
        self._profiles = dict(profiles or {})
        self._name = name
        self._nonce = uuid.uuid4().hex
        keys = {"api_key": getattr(pattern, "api_key", None)}
        self._failures = Failures(
            name,
            secrets=secret_values(options, keys, self._headers),
            retries=pattern.max_retries > 0,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self._name!r})"

    @property
    def name(self) -> str:
        """The one that it was made with: "openai" unless another was given."""
        return self._name

    def profile(self, model: str) -> Profile:
        """What *model* accepts, needs and holds; the careful values for an unknown one."""
        found = find_profile(model, OPENAI, otherwise=COMPATIBLE, own=self._profiles)
        if found is not COMPATIBLE:
            return found
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
            work = {"X-Client-Request-Id": f"{self._nonce}-{tag.turn}.{tag.step}.{tag.attempt}"}
            given = {"content": body} if self._takes_bytes else {"body": msgspec.json.decode(body)}
            # Bytes: the SDK's own way copies the whole conversation, value by value.
            return await self._clients.current().post(
                "/chat/completions",
                cast_to=object,
                options={"headers": {**work, **self._headers}},
                stream=True,
                stream_cls=self._stream_class,
                **given,
            )

        return read_reply_stream(connect, reader, self._failures)

    async def aclose(self) -> None:
        """Close the connections of the running event loop. Used again, it opens new ones."""
        await self._clients.aclose()

    async def __aenter__(self) -> OpenAIProvider:
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


def _sdk() -> Any:
    # Here and not above: it takes about a second, which a program that uses another provider, or
    # the command line's help, should not pay.
    need_package("openai", "OpenAIProvider", "llmsession[openai]")
    import openai

    return openai


def _pattern(
    sdk: Any, platform: OpenAIPlatform, options: dict[str, Any], settings: ClientSettings
) -> Any:
    """The client that the others are copies of. Raises InvalidConfig, the key not in its text."""
    if platform == "openai" and not _has_key(options):
        if not (options.get("base_url") or os.environ.get("OPENAI_BASE_URL")):
            raise InvalidConfig(_NO_KEY)
        options = {**options, "api_key": "none"}
    kind = sdk.AsyncOpenAI if platform == "openai" else sdk.AsyncAzureOpenAI
    try:
        return kind(**options, **pattern_options(settings))
    except Exception as error:  # an SDK raises many kinds for options that do not go together
        said = Failures(platform, secrets=secret_values(options), retries=False)
        raise InvalidConfig(said.hide(f"{platform}: {error_text(error)}")) from None


def _has_key(options: Mapping[str, Any]) -> bool:
    given = ("api_key", "admin_api_key", "workload_identity", "provider")
    in_environment = ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY")
    return any(options.get(name) for name in given) or any(map(os.environ.get, in_environment))
