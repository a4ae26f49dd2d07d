"""Classifies a provider's failure: too large, worth a retry, or final. Pure.

The order of the steps follows one rule. To take a busy account for an overflow is the worse
mistake, because an overflow makes the session compact and drop history. So a text that speaks of
rates, quotas, money or permissions is never an overflow.

Source: the error texts that providers answer with, collected by LibreChat's agents, Cline, Continue
and Jan.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, Literal, TypeAlias

import msgspec

__all__ = ["Failure", "FailureKind", "Overflow", "classify", "find_overflow", "retry_delay_s"]

FailureKind: TypeAlias = Literal["retryable", "overflow", "fatal"]

MAX_DEPTH = 4
MAX_CHARS = 20_000
"""Only this much of a failure's text is searched; the relevant part stands at the front."""


class Overflow(msgspec.Struct, frozen=True, kw_only=True):
    """A request is too large for the model or the account.

    ``limit_tokens`` and ``requested_tokens`` are the numbers that the provider named.
    ``prompt_tokens`` is the prompt alone, if the provider named it.
    """

    kind: Literal["context_window", "request_too_large"]
    limit_tokens: int | None = None
    requested_tokens: int | None = None
    prompt_tokens: int | None = None


class Failure(msgspec.Struct, frozen=True):
    """How to treat a failure. ``delay_s`` is the delay in seconds that the server asked for,
    or 0.
    """

    kind: FailureKind
    delay_s: float = 0.0
    overflow: Overflow | None = None


# Flattening: collect every text in a nested error.

_FIELDS = (
    "message", "code", "type", "status", "reason", "error", "cause", "body", "data", "response",
    "__cause__", "detail", "details", "errors",
)  # fmt: skip


def _texts(value: Any, depth: int, visited: set[int]) -> Iterator[str]:
    """Every text in *value* that may say what went wrong, the outermost first."""
    if isinstance(value, str):
        yield value
        if depth < MAX_DEPTH and value.lstrip()[:1] in ("{", "["):
            with suppress(ValueError, RecursionError):
                yield from _texts(json.loads(value), depth + 1, visited)
        return
    if isinstance(value, bytes):
        yield from _texts(value[:MAX_CHARS].decode("utf-8", "replace"), depth, visited)
        return
    if isinstance(value, bool) or value is None or depth >= MAX_DEPTH or id(value) in visited:
        return
    if isinstance(value, int):
        yield str(value)
        return
    visited.add(id(value))
    if isinstance(value, Mapping):
        yield from _of_fields(value.get, depth, visited)
    elif isinstance(value, list | tuple):
        for item in value[:20]:
            yield from _texts(item, depth + 1, visited)
    elif isinstance(value, BaseException):
        yield _error_text(value)
        yield from _of_fields(lambda name: _attribute(value, name), depth, visited)


def _of_fields(get: Callable[[str], Any], depth: int, visited: set[int]) -> Iterator[str]:
    for name in _FIELDS:
        value = get(name)
        if value is not None:
            yield from _texts(value, depth + 1, visited)


def _error_text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a foreign exception may not even be printable
        return ""


def _attribute(error: BaseException, name: str) -> Any:
    try:
        return getattr(error, name, None)
    except Exception:  # a property of a foreign exception may raise
        return None


_URL = re.compile(r"https?://\S+")


def _flatten(value: Any) -> str:
    text = "\n".join(_texts(value, 0, set()))[:MAX_CHARS]
    # Remove addresses: OpenAI's answer to an oversized request links to a page with "rate limits"
    # in its address, which would count as a rate limit.
    return _URL.sub("", text)


# Patterns.

_OUTPUT_CAP = re.compile(
    r"max(?:imum)?_?(?:completion_|output_|new_)?tokens['`\"]* is too large"
    r"|max_tokens:? \d+ > \d+, which is the maximum allowed number of output tokens"
    r"|maximum allowed number of output tokens"
    r"|at most \d+ completion tokens",
    re.I,
)
_FINAL_WORDS = (
    r"insufficient_quota|quota exceeded|exceeded your current quota|billing|payment required"
    r"|(?:invalid|incorrect) (?:api|x-api)[ -]key|invalid_api_key|authentication|unauthorized"
    r"|permission[ _]denied|forbidden"
)
_FINAL = re.compile(_FINAL_WORDS, re.I)
_NOT_RECOVERABLE = re.compile(
    rf"rate limit reached|requests per (?:min|day)|\brpm\b|too many requests|{_FINAL_WORDS}", re.I
)
"""A shorter prompt does not help. With words of ``_FINAL``, waiting does not help either."""
_Made: TypeAlias = Callable[[re.Match[str]], "Overflow | None"]


def _number(text: str | None) -> int | None:
    return int(re.sub(r"[^0-9]", "", text)) if text else None


def _with_output(match: re.Match[str]) -> Overflow:
    """An overflow from a match with the groups ``limit`` and ``asked``. ``asked`` may include the
    room for the output.
    """
    groups = match.groupdict()
    return Overflow(
        kind="context_window",
        limit_tokens=_number(groups.get("limit")),
        requested_tokens=_number(groups.get("asked")),
        prompt_tokens=_number(groups.get("prompt")),
    )


def _prompt_alone(match: re.Match[str]) -> Overflow:
    """The same for a provider that does not count the output into ``asked``."""
    overflow = _with_output(match)
    return msgspec.structs.replace(overflow, prompt_tokens=overflow.requested_tokens)


def _input_and_output(match: re.Match[str]) -> Overflow:
    prompt, output = int(match["prompt"]), int(match["output"])
    return Overflow(
        kind="context_window",
        limit_tokens=int(match["limit"]),
        requested_tokens=prompt + output,
        prompt_tokens=prompt,
    )


def _reply_room(match: re.Match[str]) -> Overflow | None:
    """The room that was asked for the reply does not fit beside the prompt. If it would not fit
    alone either, the request is no overflow, because a shorter prompt would not help.
    """
    output, limit = int(match["output"]), int(match["limit"])
    return None if output >= limit else _input_and_output(match)


def _rate_of_tokens(match: re.Match[str]) -> Overflow | None:
    limit, requested = _number(match["limit"]) or 0, _number(match["asked"]) or 0
    if requested <= limit:
        # it fits at another time: the account is busy, and the request is not too large
        return None
    return Overflow(kind="request_too_large", limit_tokens=limit, requested_tokens=requested)


def _too_many_bytes(_match: re.Match[str]) -> Overflow:
    return Overflow(kind="request_too_large")


_N = r"[\d,]+"
_PARTS = rf"\((?P<prompt>{_N}) (?:of text input|in the messages)[^)]*\)"

_REPLY_ROOM = re.compile(
    r"tokens['`\"]* is too large: (?P<output>\d+)\. This model's maximum context length is"
    r" (?P<limit>\d+) tokens and your request has (?P<prompt>\d+) input tokens",
    re.I,
)
"""vLLM's wording looks like a complaint about the output limit, but the size of the prompt decides
whether the request fits.
"""

_OVERFLOW_TEXTS: tuple[tuple[str, _Made], ...] = (
    (
        rf"request too large[\s\S]{{0,200}}?\(TPM\):? limit:? (?P<limit>{_N}),"
        rf" requested:? (?P<asked>{_N})",
        _rate_of_tokens,
    ),
    (
        rf"prompt is too long: (?P<asked>{_N}) tokens > (?P<limit>{_N}) maximum",
        _prompt_alone,
    ),
    (
        r"input length and `?max_tokens`? exceed context limit: (?P<prompt>\d+) \+"
        r" (?P<output>\d+) > (?P<limit>\d+)",
        _input_and_output,
    ),
    (
        rf"maximum context length is (?P<limit>{_N}) tokens[\s\S]{{0,80}}?messages resulted in"
        rf" (?P<asked>{_N}) tokens",
        _prompt_alone,
    ),
    (
        rf"maximum context length is (?P<limit>{_N}) tokens[\s\S]{{0,80}}?requested"
        rf" (?:about )?(?P<asked>{_N}) tokens(?:\s*{_PARTS})?",
        _with_output,
    ),
    (
        rf"maximum prompt length is (?P<limit>{_N}) but the request contains (?P<asked>{_N})"
        r" tokens",
        _prompt_alone,
    ),
    (
        rf"prompt contains (?P<asked>{_N}) tokens[\s\S]{{0,40}}?too large for model with"
        rf" (?P<limit>{_N}) maximum context length",
        _prompt_alone,
    ),
    (
        rf"input token count[^.]{{0,40}}?exceeds the maximum number of tokens allowed"
        rf" \(?(?P<limit>{_N})\)?",
        _with_output,
    ),
    (
        rf"(?P<asked>{_N}) tokens in the prompt exceeds|tokens in the prompt exceeds",
        _prompt_alone,
    ),
    (
        rf"(?:request )?\((?P<asked>{_N}) tokens\) exceeds the available context size"
        rf" \((?P<limit>{_N}) tokens\)",
        _prompt_alone,
    ),
    (
        rf"exceeded model token limit: (?P<limit>{_N})(?: \(requested: (?P<asked>{_N})\))?",
        _with_output,
    ),
    (
        rf"prompt token count of (?P<asked>{_N}) exceeds the limit of (?P<limit>{_N})",
        _prompt_alone,
    ),
    (
        rf"input \((?P<asked>{_N}) tokens\) is longer than the model's context length"
        rf" \((?P<limit>{_N}) tokens\)",
        _prompt_alone,
    ),
    (
        rf"prompt \(length (?P<asked>{_N})\) is longer than the maximum model length of"
        rf" (?P<limit>{_N})",
        _prompt_alone,
    ),
    (
        rf"range of input length should be \[\d+, ?(?P<limit>{_N})\]",
        _with_output,
    ),
    (
        rf"maximum context length is (?P<limit>{_N})(?: tokens)?",
        _with_output,
    ),
    (
        r"input is too long for requested model"
        r"|input tokens exceeded: number of input tokens exceeds maximum length"
        r"|prompt is too long"
        r"|please reduce the length of the (?:messages|prompt|input)"
        r"|decrease input length or max_tokens"
        r"|use a shorter prompt"
        r"|exceeds the available context size"
        r"|(?:input|prompt|request)\b[^.]{0,40}\bexceeds the context window"
        r"|exceeded model token limit"
        r"|exceeded max context length"
        r"|context window exceeds limit"
        r"|prompt is greater than the context length"
        r"|longer than the (?:model's context|maximum model) length"
        r"|exceed_context_size_error"
        r"|context_length_exceeded",
        _with_output,
    ),
    (
        r"\brequest_too_large\b|request exceeds the maximum (?:allowed )?size",
        _too_many_bytes,
    ),
)
_PATTERNS = tuple((re.compile(text, re.I), make) for text, make in _OVERFLOW_TEXTS)
"""Tried in order. The first match decides, even if its function then finds no overflow."""


def find_overflow(error: Any) -> Overflow | None:
    """What *error* says about the size of the request; None if it is no overflow.

    *error* is an exception, decoded or encoded JSON, or text. Any other value gives None. Raises
    nothing.
    """
    text = _flatten(error)
    if match := _REPLY_ROOM.search(text):
        return _reply_room(match)
    if _OUTPUT_CAP.search(text) or _NOT_RECOVERABLE.search(text):
        return None
    for pattern, make in _PATTERNS:
        if match := pattern.search(text):
            return make(match)
    return None


# Everything that is not an overflow.

_RETRYABLE_STATUS = frozenset({408, 409, 425, 429})
_STATUS = re.compile(r"[45][0-9][0-9]")
_SPENT = re.compile(
    r"insufficient_quota|exceeded your current quota|billing|payment required|credit balance", re.I
)
_KINDS: dict[str, FailureKind] = {
    # Anthropic's types, as in error events of a stream.
    "overloaded_error": "retryable",
    "rate_limit_error": "retryable",
    "api_error": "retryable",
    "timeout_error": "retryable",
    "gateway_timeout_error": "retryable",
    "invalid_request_error": "fatal",
    "authentication_error": "fatal",
    "permission_error": "fatal",
    "billing_error": "fatal",
    "not_found_error": "fatal",
    # OpenAI's types and codes, and Bedrock's.
    "server_error": "retryable",
    "rate_limit_exceeded": "retryable",
    "insufficient_quota": "fatal",
    "invalid_api_key": "fatal",
    "model_not_found": "fatal",
    "throttlingException": "retryable",
    "modelStreamErrorException": "retryable",
    "internalServerException": "retryable",
    "serviceUnavailableException": "retryable",
    "validationException": "fatal",
}


def classify(
    error: Any,
    *,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
    now: float = 0.0,
) -> Failure:
    """How to treat *error*: the body of an answer with *status*, or of an error event in a stream.

    A *status* of None or 200 means that the error came in the middle of a stream. Then only its
    text counts, and an unknown text is taken for a temporary fault of the server. *now*, in seconds
    since the epoch, is needed for a delay that is given as a date.
    """
    overflow = find_overflow(error)
    if overflow is not None or status == 413:
        return Failure("overflow", 0.0, overflow or Overflow(kind="request_too_large"))
    delay_s = retry_delay_s(headers or {}, now=now)
    requested = (headers or {}).get("x-should-retry")
    if requested in ("true", "false"):
        kind: FailureKind = "retryable" if requested == "true" else "fatal"
    elif status is None or status < 400:
        kind = _kind_by_words(error)
    else:
        kind = _kind_by_status(status, error)
    return Failure(kind, delay_s if kind == "retryable" else 0.0)


def _kind_by_status(status: int, error: Any) -> FailureKind:
    if status == 429 and _SPENT.search(_flatten(error)):
        return "fatal"  # a spent quota does not come back by waiting
    return "retryable" if status in _RETRYABLE_STATUS or status >= 500 else "fatal"


def _kind_by_words(error: Any) -> FailureKind:
    inner = error.get("error", error) if isinstance(error, Mapping) else error
    if not isinstance(inner, Mapping):
        return "retryable"
    for name in ("code", "type", "status"):
        value = inner.get(name)
        if isinstance(value, str) and value in _KINDS:
            return _KINDS[value]
        # Compatible servers put the HTTP status here, some of them as text.
        status = int(value) if isinstance(value, str) and _STATUS.fullmatch(value) else value
        if isinstance(status, int) and status >= 400:
            return _kind_by_status(status, inner)
    return "fatal" if _FINAL.search(_flatten(inner)) else "retryable"


def retry_delay_s(headers: Mapping[str, str], *, now: float) -> float:
    """How many seconds the server asked to wait; 0 if it named no delay, or an unreadable one.

    Reads ``retry-after-ms``, then ``retry-after`` in seconds or as a date (RFC 9110, section
    10.2.3). A date is compared with the server's own ``date`` header, or with *now* if there is
    none.
    """
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) / unit
        except (KeyError, ValueError):
            continue
        return seconds if 0 < seconds < float("inf") else 0.0
    try:
        until = parsedate_to_datetime(headers["retry-after"]).timestamp()
    except (KeyError, ValueError, TypeError):
        return 0.0
    with suppress(KeyError, ValueError, TypeError):
        now = parsedate_to_datetime(headers["date"]).timestamp()
    return max(0.0, until - now)
