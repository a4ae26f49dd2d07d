"""What all providers share that use a vendor's SDK."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from llmsession.turns.request import Profile, StepTag

from .clients import Clients, ClientSettings, check_reach
from .closing import Closing
from .failures import Failures, secret_values

__all__ = ["SdkProvider", "given_options"]

_KEYS = ("api_key", "auth_token")


def given_options(client_options: Mapping[str, Any] | None, **named: Any) -> dict[str, Any]:
    """*client_options*, and those of *named* that are not None."""
    named_options = {name: value for name, value in named.items() if value is not None}
    return {**(client_options or {}), **named_options}


class SdkProvider(Closing):
    """Base class of the SDK providers: their clients, their errors, and how they close.

    *sdk* is the SDK's module. *client* is a client of the caller's own; without one, *make* creates
    it from *options* and *settings*. Only a client of the class *takes_bytes* accepts a request
    body as bytes; other clients rewrite the request. Raises InvalidConfig if the arguments cannot
    work.
    """

    def __init__(
        self,
        sdk: Any,
        *,
        client: Any | None,
        make: Callable[[dict[str, Any], ClientSettings], Any],
        options: dict[str, Any],
        settings: ClientSettings,
        takes_bytes: type,
        headers: Mapping[str, str] | None,
        profiles: Mapping[str, Profile] | None,
        name: str,
    ) -> None:
        pattern = make(options, settings) if client is None else client
        check_reach(pattern, headers, profiles)
        self._pattern = pattern
        self._clients = Clients(sdk, pattern, settings, given=client is not None)
        self._takes_bytes = type(pattern) is takes_bytes
        self._stream_class = sdk.AsyncStream[object]
        self._headers = dict(headers or {})
        self._profiles = dict(profiles or {})
        self._name = name
        self._nonce = uuid.uuid4().hex
        keys = {option: getattr(pattern, option, None) for option in _KEYS}
        self._failures = Failures(
            name,
            secrets=secret_values(options, keys, self._headers),
            retries=pattern.max_retries > 0,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self._name!r})"

    @property
    def name(self) -> str:
        """The name that the provider was constructed with; by default the vendor's."""
        return self._name

    def _step_headers(self, tag: StepTag) -> dict[str, str]:
        """The headers of a request for the step *tag*."""
        request_id = f"{self._nonce}-{tag.turn}.{tag.step}.{tag.attempt}"
        return {"x-client-request-id": request_id, **self._headers}

    async def _post(
        self, path: str, body: bytes, headers: Mapping[str, str], *, stream: bool = False
    ) -> Any:
        """The decoded answer to the JSON *body*, or the SDK's stream of it. Raises what the SDK
        raises.
        """
        options = {"stream": True, "stream_cls": self._stream_class} if stream else {}
        # The SDKs' own methods copy the whole conversation, value by value, before they encode it.
        # With 2,000 messages that blocks all other sessions for 88 ms; sending bytes blocks them
        # for 3 ms.
        content = {"content": body} if self._takes_bytes else {"body": msgspec.json.decode(body)}
        return await self._clients.current().post(
            path, cast_to=object, options={"headers": headers}, **content, **options
        )

    async def aclose(self) -> None:
        """Close the connections of the running event loop. The next use opens new ones."""
        await self._clients.aclose()
