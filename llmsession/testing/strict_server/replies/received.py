"""What the strict server writes down of a request, and what it reads of its head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from ..model.faults import WireFault
from ..model.refusal import Refusal
from ..model.usage import Cost

__all__ = ["Ended", "HttpRequest", "Received", "conversation_of", "without_keys"]

Ended: TypeAlias = Literal["open", "whole", "closed_by_client", "cut", "reset"]

_SECRET = {"x-api-key", "authorization", "cookie", "proxy-authorization"}


class HttpRequest(msgspec.Struct, frozen=True):
    """A request as it came: names of headers in lower case, the path without its query."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """One request in the server's log.

    ``body`` is the JSON that came, None if it was none. ``refusal`` says why it was refused by
    the rules or by a fault; ``ended`` how its answer ended. ``cost`` is what was reported.
    """

    number: int
    method: str
    path: str
    headers: dict[str, str]
    body: Any = None
    conversation: str = ""
    refusal: Refusal | None = None
    fault: WireFault | None = None
    cost: Cost | None = None
    ended: Ended = "open"

    @property
    def valid(self) -> bool:
        """Did it break no rule? One that met a fault may well be valid."""
        return self.refusal is None or self.fault is not None

    @property
    def messages(self) -> list[Any]:
        """The messages of the body; none where there is no list of them."""
        listed = self.body.get("messages") if isinstance(self.body, dict) else None
        return listed if isinstance(listed, list) else []


def without_keys(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that may be written down."""
    return {name: value for name, value in headers.items() if name not in _SECRET}


def conversation_of(headers: Mapping[str, str], body: Any) -> str:
    """Which conversation a request belongs to: by the header ``x-conversation``, by
    ``metadata.user_id`` (Messages) or by ``user`` (chat completions); "" if it does not say."""
    if "x-conversation" in headers:
        return headers["x-conversation"]
    fields = body if isinstance(body, dict) else {}
    metadata = fields.get("metadata")
    named = metadata.get("user_id") if isinstance(metadata, dict) else None
    for name in (named, fields.get("safety_identifier"), fields.get("user")):
        if isinstance(name, str):
            return name
    return ""
