"""Counting with an SDK that blocks: in threads, with a deadline, and without keys in its errors."""

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
"""How long an SDK may wait for its server: as long as anybody waits for a count. A thread that
nobody waits for any more ends then, too."""
_RETRYABLE = frozenset({408, 409, 429})


class BlockingTokens:
    """The base of the counters that a vendor's SDK makes. One serves many sessions at once.

    *make* makes the SDK's client, in a thread when it is first needed; *client* is one of the
    caller's own, and is not closed. *options* are what the client is made with: the keys among
    them are in no error.
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
        """The number that *ask* gets from the client. Raises ProviderError. Can be cancelled: the
        request is left to its own timeout then."""
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
            raise ProviderError(f"{self._name}: the count is no number of tokens", kind="fatal")
        return tokens

    def _ready(self) -> Any:
        with self._making:  # two threads that count first make one client
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
        """Close the connections. Used again, it opens new ones. A client of the caller's own stays
        open."""
        client, self._client = self._client, self._client if self._given else None
        if client is not None and not self._given:
            await anyio.to_thread.run_sync(client.close, abandon_on_cancel=True)


def _status_of(error: BaseException) -> int | None:
    """The HTTP status that *error* of an SDK has: google-genai's in ``code``, botocore's in the
    response."""
    status = plain_number(getattr(error, "code", None))
    response = getattr(error, "response", None)
    if status is None and isinstance(response, dict):
        metadata = response.get("ResponseMetadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        status = plain_number(metadata.get("HTTPStatusCode"))
    return status if status is not None and 100 <= status < 600 else None


def without_prefix(model: str, prefixes: Iterable[str]) -> str:
    """*model* without the first of *prefixes* that it has."""
    return next((model.removeprefix(each) for each in prefixes if model.startswith(each)), model)


def fields_of(raw: bytes | msgspec.Raw) -> dict[str, Any]:
    """The fields of the JSON object *raw*. Raises msgspec's errors for anything else."""
    return msgspec.json.decode(raw, type=dict[str, Any])
