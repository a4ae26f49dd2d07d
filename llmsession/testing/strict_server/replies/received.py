"""What the strict server writes down of a request, what it reads of its head, and its reply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from ...scripted import ScriptedReply
from ..model.faults import WireFault
from ..model.refusal import Api, Refusal
from ..model.usage import Cost

__all__ = ["Ended", "HttpRequest", "Received", "Reply", "conversation_of", "without_keys"]

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


class Reply(msgspec.Struct, frozen=True):
    """A script's reply on its way out: its blocks are signed, and what it costs is known.

    ``transformations`` say which thinking the model did not read, ``applied`` which edits were made
    of the context; each is None where the request does not ask.
    """

    received: Received
    api: Api
    script: ScriptedReply
    blocks: tuple[dict[str, Any], ...]
    cost: Cost
    transformations: list[dict[str, str]] | None = None
    applied: tuple[dict[str, Any], ...] | None = None

    @property
    def id(self) -> str:
        """The reply's own id; it says that no vendor made it."""
        prefix = "msg_strict_" if self.api == "messages" else "chatcmpl-strict-"
        return f"{prefix}{self.received.number:06d}"

    @property
    def model(self) -> str:
        """The script's word, or the request's."""
        return self.script.model or str(self.received.body["model"])

    @property
    def stop_reason(self) -> str:
        """The script's word, or the one that fits the blocks."""
        calls = any(block.get("type") == "tool_use" for block in self.blocks)
        return self.script.stop_reason or ("tool_use" if calls else "end_turn")


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
