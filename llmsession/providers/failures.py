"""Translates what an SDK raises into ProviderError, without keys and without content."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from llmsession.errors import ProviderError, error_text

from .classify import Failure, classify

__all__ = ["Failures", "StreamFault", "secret_values"]

MAX_CHARS = 500
MIN_SECRET = 6
"""Shorter values are placeholders; hiding them wherever they occur would spoil the text."""
HIDDEN = "[hidden]"

_NETWORK = {"aiohttp", "httpcore", "httpcore2", "httpx", "httpx2"}
_KEY_NAME = re.compile(r"key|token|secret|authorization|password", re.I)
# What looks like a key is hidden, whoever's it is: servers quote a key that they refuse.
_LOOKS_LIKE_KEY = re.compile(r"\b(?:sk|rk|pk)-[A-Za-z0-9_\-*.]{8,}|\bBearer [^\s'\",}]{8,}")
# vLLM and other servers repeat the request in the answer that refuses it.
_ECHO = re.compile(r"""(['"]input['"]\s*:).*""", re.S)


def secret_values(*settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The values in *settings* whose names mark them as secret, the longest first."""
    values = {
        value
        for options in settings
        for name, value in options.items()
        if _KEY_NAME.search(name) and isinstance(value, str) and len(value) >= MIN_SECRET
    }
    return tuple(sorted(values, key=len, reverse=True))


class StreamFault(Exception):
    """The stream itself reported an error. ``body`` is the error, as decoded JSON or text."""

    def __init__(self, body: Any) -> None:
        super().__init__("the provider reported an error in its stream")
        self.body = body


class Failures:
    """Translates the errors of one provider. ``retries`` says whether the SDK retries before it
    raises.
    """

    def __init__(self, provider: str, *, secrets: Iterable[str], retries: bool) -> None:
        self._provider = provider
        self._secrets = tuple(secrets)
        self._retries = retries

    def hide(self, text: str) -> str:
        """*text* on one line, shortened, without keys and without the request that a server
        quoted.
        """
        text = " ".join(self._without_secrets(text).split())
        return text if len(text) <= MAX_CHARS else text[:MAX_CHARS] + " ..."

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return _ECHO.sub(r"\1 " + HIDDEN, _LOOKS_LIKE_KEY.sub(HIDDEN, text))

    def chainable(self, error: BaseException) -> BaseException | None:
        """*error* if it may be chained as a cause; None if its text holds something that must be
        hidden.
        """
        own = isinstance(error, ProviderError)  # our own error is raised as it is
        text = error_text(error)
        return None if own or self._without_secrets(text) != text else error

    def refused(self, error: Exception, *, now: float) -> ProviderError:
        """The error to raise for *error*, which came instead of a stream. The SDK has retried
        already, if it retries at all.
        """
        if isinstance(error, ProviderError):
            return error
        status = getattr(error, "status_code", None)
        if isinstance(status, int):
            return self._answered(error, status, now=now)
        if _is_network(error):
            message = f"the connection to {self._provider} failed: {_network_text(error)}"
            return self._error(message, Failure("retryable"), retried=self._retries)
        return self._error(f"{self._provider}: {error_text(error)}", Failure("fatal"))

    def broken(self, error: Exception, headers: Mapping[str, str], *, now: float) -> ProviderError:
        """The error to raise for *error*, which came while the stream with *headers* was read."""
        if isinstance(error, ProviderError):
            if error.request_id is None:
                error.request_id = _request_id(headers)
            return error
        request_id = _request_id(headers)
        if isinstance(error, StreamFault):
            message = f"{self._provider} reported in its stream: {_message(error.body)}"
            failure = classify(error.body, headers=headers, now=now)
            request_id = _request_id(error.body) or request_id
            return self._error(message, failure, request_id=request_id, code=_code(error.body))
        if _is_network(error) or isinstance(error, UnicodeError):
            message = f"the stream of {self._provider} broke: {_network_text(error)}"
            return self._error(message, Failure("retryable"), request_id=request_id)
        message = f"{self._provider}'s stream raised {error_text(error)}"
        return self._error(message, Failure("fatal"), request_id=request_id)

    def _answered(self, error: Exception, status: int, *, now: float) -> ProviderError:
        headers = getattr(getattr(error, "response", None), "headers", {})
        body = getattr(error, "body", None)
        failure = classify(body or str(error), status=status, headers=headers, now=now)
        return self._error(
            f"{self._provider} answered {status}: {_message(body or str(error))}",
            failure,
            status=status,
            request_id=_request_id(headers) or _request_id(body),
            retried=self._retries and failure.kind == "retryable",
            code=_code(body),
        )

    def _error(
        self,
        message: str,
        failure: Failure,
        *,
        status: int | None = None,
        request_id: str | None = None,
        retried: bool = False,
        code: str | None = None,
    ) -> ProviderError:
        return ProviderError(
            self.hide(message),
            kind=failure.kind,
            delay_s=failure.delay_s,
            status=status,
            request_id=request_id,
            retried=retried,
            code=code,
        )


def _is_network(error: BaseException) -> bool:
    if isinstance(error, OSError | EOFError):
        return True
    for kind in type(error).__mro__:
        if kind.__module__.partition(".")[0] in _NETWORK or kind.__name__ == "APIConnectionError":
            return True
    return False


def _network_text(error: BaseException) -> str:
    """The text of the network error beneath: an SDK only says that the connection failed."""
    visited: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in visited:
        if type(cause).__module__.partition(".")[0] in _NETWORK or isinstance(cause, OSError):
            error = cause
            break
        visited.add(id(cause))
        cause = cause.__cause__
    return error_text(error).rstrip(": ")


def _message(body: Any) -> str:
    """What an error body says. Only its message and its type are shown."""
    if isinstance(body, Mapping):
        inner = body.get("error", body)
        if isinstance(inner, Mapping):
            message = inner.get("message") or inner.get("detail") or "no message"
            kind = inner.get("type") or inner.get("code")
            message = message if isinstance(message, str) else msgspec.json.encode(message).decode()
            return f"{message} ({kind})" if kind else message
        return str(inner)
    return str(body) or "no message"


def _code(body: Any) -> str | None:
    """The ``error_code`` in the details of an error body."""
    inner = body.get("error", body) if isinstance(body, Mapping) else None
    details = inner.get("details") if isinstance(inner, Mapping) else None
    code = details.get("error_code") if isinstance(details, Mapping) else None
    return code[:100] if isinstance(code, str) and code else None


def _request_id(source: Any) -> str | None:
    if not isinstance(source, Mapping):
        return None
    for name in ("request-id", "x-request-id", "apim-request-id", "request_id"):
        value = source.get(name)
        if isinstance(value, str) and value:
            return value[:200]
    return None
