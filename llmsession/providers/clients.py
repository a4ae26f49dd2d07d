"""SDK clients: one for each event loop that uses a provider, created on first use in that loop."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import anyio
import msgspec
from anyio.lowlevel import RunVar, current_token

from llmsession.errors import InvalidConfig, error_text
from llmsession.turns.request import Profile

from .failures import Failures, secret_values

__all__ = ["ClientSettings", "Clients", "check_reach", "make_pattern"]

CLOSE_S = 2.0


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How clients reach their server. Times are in seconds; ``read_timeout_s`` is the longest pause
    between two pieces of a reply. Raises InvalidConfig for values that cannot work.
    """

    max_retries: int
    connect_timeout_s: float
    read_timeout_s: float
    max_connections: int

    def __post_init__(self) -> None:
        timeouts = self.connect_timeout_s, self.read_timeout_s
        if self.max_retries < 0 or min(timeouts) <= 0 or self.max_connections < 1:
            raise InvalidConfig(
                "a provider needs max_retries >= 0, timeouts > 0 and max_connections >= 1, got"
                f" {self.max_retries}, {timeouts[0]}, {timeouts[1]}, {self.max_connections}"
            )

    def timeout(self) -> Any:
        """The timeouts in the form that the SDKs accept."""
        import httpx2

        return httpx2.Timeout(self.read_timeout_s, connect=self.connect_timeout_s)


@cache
def _certificates() -> Any:
    """The system's certificates. They are read once, because reading them takes some ten
    milliseconds.
    """
    import httpx2

    return httpx2.create_ssl_context()


class Clients:
    """The clients of one provider. *sdk* is the SDK's module.

    *pattern* is a client that is copied for each event loop. On asyncio the copy uses the SDK's
    aiohttp transport if aiohttp is installed; otherwise, and on trio, it uses the SDK's httpx
    transport. With *given*, the pattern itself is used, and it is not closed.
    """

    def __init__(self, sdk: Any, pattern: Any, settings: ClientSettings, *, given: bool) -> None:
        import httpx2

        self._sdk = sdk
        self._pattern = pattern
        self._given = given
        # Read the certificates here: reading them at first use would block an event loop.
        self._verify: Any = True if given else _certificates()
        self._limits = httpx2.Limits(
            max_connections=settings.max_connections, max_keepalive_connections=100
        )
        self._timeout = settings.timeout()
        self._aiohttp = importlib.util.find_spec("aiohttp") is not None
        self._client: RunVar[Any] = RunVar(f"llmsession client {id(self)}", None)
        if self._aiohttp and not given:
            # imports what it needs now; it holds no connection yet
            self._http_client(sdk.DefaultAioHttpClient)

    def current(self) -> Any:
        """The client of the running event loop."""
        if self._given:
            return self._pattern
        client = self._client.get()
        if client is None:
            token = current_token()
            native = getattr(token, "native_token", token)
            on_trio = type(native).__module__.startswith("trio")
            use_aiohttp = self._aiohttp and not on_trio
            sdk = self._sdk
            kind = sdk.DefaultAioHttpClient if use_aiohttp else sdk.DefaultAsyncHttpxClient
            client = self._pattern.copy(http_client=self._http_client(kind))
            self._client.set(client)
        return client

    def _http_client(self, kind: Callable[..., Any]) -> Any:
        return kind(timeout=self._timeout, limits=self._limits, verify=self._verify)

    async def aclose(self) -> None:
        """Close the running event loop's client and its connections. The next use creates a new
        one.

        Shielded from cancellation. A server that does not close its connection is abandoned after
        two seconds.
        """
        client = self._client.get()
        if client is None:
            return
        self._client.set(None)
        with anyio.move_on_after(CLOSE_S, shield=True):
            await client.close()


def check_reach(
    client: Any, headers: Mapping[str, str] | None, profiles: Mapping[str, Profile] | None
) -> None:
    """Check that *client* can reach a server with its key, and that *headers* and *profiles* are
    valid.

    Raises InvalidConfig. The message quotes no value of a header or an option, because it may hold
    a key.
    """
    url = client.base_url
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidConfig(
            "base_url must begin with http:// or https:// and a host, for example"
            " http://localhost:8000"
        )
    for name in ("api_key", "auth_token"):
        key = getattr(client, name, None)
        if isinstance(key, str) and not (key.isprintable() and key == key.strip()):
            raise InvalidConfig(
                f"{name} has a line break, or a blank at one end: check how it was copied"
            )
    for name, value in (headers or {}).items():
        if not (isinstance(value, str) and value.isprintable()):
            raise InvalidConfig(f"the value of header {name!r} must be text in one line")
    for name, profile in (profiles or {}).items():
        if not isinstance(profile, Profile):
            raise InvalidConfig(
                f"profiles[{name!r}] must be a Profile, not a {type(profile).__name__}"
            )


def make_pattern(
    client_class: Callable[..., Any],
    platform: str,
    options: Mapping[str, Any],
    settings: ClientSettings,
    *,
    passes: type[Exception] | tuple[()] = (),
) -> Any:
    """A client for ``Clients`` to copy. It never sends anything itself; its copies have transports.

    Raises InvalidConfig, without the key in its text, if *options* do not go together. Errors of
    the class *passes* are left to the caller.
    """
    import httpx2

    def reject(_request: Any) -> Any:
        raise RuntimeError("the pattern of a client sends nothing")

    try:
        return client_class(
            **options,
            timeout=settings.timeout(),
            max_retries=settings.max_retries,
            http_client=httpx2.AsyncClient(transport=httpx2.MockTransport(reject)),
        )
    except passes:
        raise
    # SDKs raise many kinds of errors for options that do not go together
    except Exception as error:
        failures = Failures(platform, secrets=secret_values(options), retries=False)
        raise InvalidConfig(failures.hide(f"{platform}: {error_text(error)}")) from None
