"""How the strict server says no: one value, and its body in the words of each API."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from llmsession.turns.blocks import encode_json

__all__ = [
    "BODY_TOO_LARGE",
    "Api",
    "Refusal",
    "error_body",
    "invalid",
    "overloaded",
    "rate_limited",
    "server_error",
    "unauthorised",
]

Api: TypeAlias = Literal["messages", "completions"]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request is not answered by a model. ``kind`` is the ``type`` of the error body;
    ``param`` and ``code`` are said by chat completions alone."""

    status: int
    kind: str
    message: str
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None
    error_code: str | None = None
    """What the Messages API calls the fault in its details."""

    def headers(self) -> list[tuple[str, str]]:
        """When to come back, in whole seconds and in milliseconds; nothing if it is not said."""
        if self.retry_after_s is None:
            return []
        return [
            ("retry-after", str(max(1, round(self.retry_after_s)))),
            ("retry-after-ms", str(round(self.retry_after_s * 1000))),
        ]


def invalid(message: str, *, param: str | None = None, code: str | None = None) -> Refusal:
    """400: the request breaks a rule."""
    kind = "invalid_request_error"
    return Refusal(status=400, kind=kind, message=message, param=param, code=code)


BODY_TOO_LARGE = Refusal(
    status=413,
    kind="request_too_large",
    message="Request exceeds the maximum size",
)

_NO_KEY: dict[Api, str] = {
    "messages": "x-api-key header is required",
    "completions": (
        "You didn't provide an API key. You need to provide your API key in an Authorization"
        " header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY), or as the password"
        " field (with blank username) if you're accessing the API from your browser and are"
        " prompted for a username and password. You can obtain an API key from"
        " https://platform.openai.com/account/api-keys."
    ),
}
_WRONG_KEY: dict[Api, str] = {
    "messages": "invalid x-api-key",
    "completions": (
        "Incorrect API key provided. You can find your API key at"
        " https://platform.openai.com/account/api-keys."
    ),
}


def unauthorised(api: Api, *, missing: bool) -> Refusal:
    """401: no key, or an unknown one."""
    text = (_NO_KEY if missing else _WRONG_KEY)[api]
    if api == "messages":
        return Refusal(status=401, kind="authentication_error", message=text)
    code = None if missing else "invalid_api_key"
    return Refusal(status=401, kind="invalid_request_error", message=text, code=code)


def rate_limited(api: Api, retry_after_s: float | None) -> Refusal:
    """429, with the time to wait if there is one."""
    if api == "messages":
        return Refusal(
            status=429,
            kind="rate_limit_error",
            message="This request would exceed your organization's rate limit. Please try again"
            " later.",
            retry_after_s=retry_after_s,
        )
    return Refusal(
        status=429,
        kind="requests",
        message="Rate limit reached. Please try again later.",
        code="rate_limit_exceeded",
        retry_after_s=retry_after_s,
    )


def server_error(api: Api, status: int = 500) -> Refusal:
    """The server's own fault."""
    if api == "messages":
        return Refusal(status=status, kind="api_error", message="Internal server error")
    text = (
        "The server had an error while processing your request. Sorry about that!"
        if status == 500
        else "The server is overloaded or not ready yet."
    )
    return Refusal(status=status, kind="server_error", message=text)


def overloaded(api: Api) -> Refusal:
    """529, or 503 where the API has no such status."""
    if api == "messages":
        return Refusal(status=529, kind="overloaded_error", message="Overloaded")
    return server_error(api, 503)


def error_body(refusal: Refusal, api: Api, request_id: str) -> bytes:
    """The JSON that tells a client."""
    body: dict[str, Any]
    if api == "messages":
        error: dict[str, Any] = {"type": refusal.kind, "message": refusal.message}
        if refusal.error_code is not None:
            error["details"] = {"error_code": refusal.error_code}
        body = {"type": "error", "error": error, "request_id": request_id}
    else:
        body = {
            "error": {
                "message": refusal.message,
                "type": refusal.kind,
                "param": refusal.param,
                "code": refusal.code,
            }
        }
    return encode_json(body)
