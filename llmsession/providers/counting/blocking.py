"""Counting with a blocking SDK: in threads, with a deadline, and without keys in its errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import anyio.to_thread
import msgspec

from llmsession.errors import ProviderError, contained_in_task, error_text
from llmsession.turns.blocks import plain_number

from ..failures import Failures, secret_values
from .stepping import counting_threads

__all__ = ["COUNT_TIMEOUT_S", "BlockingTokens"]

COUNT_TIMEOUT_S = 5.0
"""How many seconds an SDK may wait for its server. It equals the longest time that anybody waits
for a count, so an abandoned thread ends then, too.
"""
_RETRYABLE = frozenset({408, 409, 429})


class BlockingTokens:
    """Base class of the counters that use a vendor's SDK. One counter serves many sessions at once.

    *make* creates the SDK's client, in a thread, when it is first needed. *client* is a client of
    the caller's own; it is not closed. *options* are what the client is created with. No error
    quotes the keys among them.
    """

    def __init__(
        self, name: str, *, client: Any | None, make: Callable[[], Any], options: dict[str, Any]
    ) -> None:
        self._given = client is not None
        self._client = client
        self._make = make
        self._making = threading.Lock()
        self._failures = Failures(name, secrets=secret_values(options), retries=False)
        self._name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    async def _counted(self, ask: Callable[[Any], object]) -> int:
        """The number that *ask* gets from the client. Raises ProviderError. Can be cancelled; then
        the request is left to its own timeout.
        """
        try:
            tokens = await anyio.to_thread.run_sync(
                lambda: plain_number(ask(self._ready())),
                abandon_on_cancel=True,
                limiter=counting_threads(),
            )
        except BaseException as raised:  # an SDK is foreign code
            error = contained_in_task(raised)
            raise self._refused(error) from self._failures.chainable(error)
        if tokens is None:
            raise ProviderError(
                f"{self._name}: the answer has no valid number of tokens", kind="fatal"
            )
        return tokens

    def _ready(self) -> Any:
        with self._making:  # two threads that count first must create one client
            if self._client is None:
                self._client = self._make()
            return self._client

    def _refused(self, error: BaseException) -> ProviderError:
        if isinstance(error, ProviderError):
            return error
        status = _status_of(error)
        passes = status is None or status in _RETRYABLE or status >= 500
        kind = f"{type(error).__name__}: " if status is None else f"{status}: "
        return ProviderError(
            self._failures.hide(f"{self._name}: {kind}{error_text(error)}"),
            kind="retryable" if passes else "fatal",
            status=status,
        )

    async def aclose(self) -> None:
        """Close the connections. The next use opens new ones. A client of the caller's own stays
        open.
        """
        client, self._client = self._client, self._client if self._given else None
        if client is not None and not self._given:
            await anyio.to_thread.run_sync(client.close, abandon_on_cancel=True)


def _status_of(error: BaseException) -> int | None:
    """The HTTP status of an SDK's *error*. google-genai has it in ``code``, botocore in the
    response.
    """
    status = plain_number(getattr(error, "code", None))
    response = getattr(error, "response", None)
    if status is None and isinstance(response, dict):
        metadata = response.get("ResponseMetadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        status = plain_number(metadata.get("HTTPStatusCode"))
    return status if status is not None and 100 <= status < 600 else None


def without_prefix(model: str, prefixes: Iterable[str]) -> str:
    """*model* without the first of *prefixes* that it begins with."""
    return next((model.removeprefix(each) for each in prefixes if model.startswith(each)), model)


def fields_of(raw: bytes | msgspec.Raw) -> dict[str, Any]:
    """The fields of the JSON object *raw*. Raises msgspec's errors for anything else."""
    return msgspec.json.decode(raw, type=dict[str, Any])
