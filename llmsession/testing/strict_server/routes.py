"""Where a request goes, and what is refused before its body is read."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, TypeAlias

import msgspec

from .model.refusal import BODY_TOO_LARGE, Api, Refusal, invalid, unauthorised
from .replies.received import HttpRequest

__all__ = ["Route", "Task", "api_of", "no_such_path", "refuse_head", "route_of"]

Task: TypeAlias = Literal["reply", "count", "models"]

MAX_BODY_BYTES = 32 * 1024 * 1024
"""The documented limit of the Messages API."""


class Route(msgspec.Struct, frozen=True):
    """What is asked, of which API."""

    api: Api
    task: Task
    method: str


_ROUTES = {
    "/v1/messages": Route("messages", "reply", "POST"),
    "/v1/messages/count_tokens": Route("messages", "count", "POST"),
    "/v1/chat/completions": Route("completions", "reply", "POST"),
}


def route_of(http: HttpRequest) -> Route | None:
    """The route of a request's path, whatever its method; None if there is none."""
    if http.path == "/v1/models" or http.path.startswith("/v1/models/"):
        return Route(api_of(http), "models", "GET")
    return _ROUTES.get(http.path)


def api_of(http: HttpRequest) -> Api:
    """In whose words a request is answered that may be anybody's."""
    if (route := _ROUTES.get(http.path)) is not None:
        return route.api
    if "anthropic-version" in http.headers:
        return "messages"
    return "messages" if "x-api-key" in http.headers else "completions"


def refuse_head(http: HttpRequest, api_keys: Collection[str] | None) -> Refusal | None:
    """What is wrong with path, method, key, version or size; None if nothing is."""
    route = route_of(http)
    api = route.api if route else api_of(http)
    if route is None:
        return no_such_path(http)
    if http.method != route.method:
        return _wrong_method(http, api)
    if (refusal := _refuse_key(http, api, api_keys)) is not None:
        return refusal
    if api == "messages" and not http.headers.get("anthropic-version"):
        return invalid("anthropic-version: header is required")
    if len(http.body) > MAX_BODY_BYTES:
        return BODY_TOO_LARGE
    return None


def no_such_path(http: HttpRequest) -> Refusal:
    """404."""
    if api_of(http) == "messages":
        return Refusal(status=404, kind="not_found_error", message="Not Found")
    text = f"Invalid URL ({http.method} {http.path})"
    return Refusal(status=404, kind="invalid_request_error", message=text)


def _wrong_method(http: HttpRequest, api: Api) -> Refusal:
    if api == "messages":
        return Refusal(status=405, kind="invalid_request_error", message="Method Not Allowed")
    text = (
        f"Not allowed to {http.method} on {http.path}."
        " (HINT: Perhaps you meant to use a different HTTP method?)"
    )
    return Refusal(
        status=405, kind="invalid_request_error", message=text, code="method_not_supported"
    )


def _refuse_key(http: HttpRequest, api: Api, api_keys: Collection[str] | None) -> Refusal | None:
    scheme, _, bearer = http.headers.get("authorization", "").partition(" ")
    key = bearer.strip() if scheme.lower() == "bearer" else ""
    if api == "messages":
        key = http.headers.get("x-api-key") or key
    if not key:
        return unauthorised(api, missing=True)
    if api_keys is not None and key not in api_keys:
        return unauthorised(api, missing=False)
    return None
