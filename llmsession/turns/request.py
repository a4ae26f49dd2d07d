"""What is sent to a provider: a pure value with one byte form."""

from __future__ import annotations

from typing import Any

import msgspec

from .messages import Role

__all__ = ["Profile", "Request", "RequestMessage", "StepTag"]


class RequestMessage(msgspec.Struct, frozen=True, rename={"body": "content"}):
    """One message of a request; ``body`` is the JSON list of its blocks."""

    role: Role
    body: msgspec.Raw


class Request(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One model request. Equal inputs give equal bytes: field order is fixed, and every part
    is kept as the bytes it was made of.

    ``tools`` are tool definitions as JSON; ``options`` are further parameters of the provider
    (temperature, thinking, tool_choice, ...) in the order of the configuration.
    """

    model: str
    max_tokens: int
    system: str | None = None
    tools: tuple[msgspec.Raw, ...] = ()
    messages: tuple[RequestMessage, ...]
    options: dict[str, Any] = {}

    def encode(self) -> bytes:
        """The request as JSON, byte-identical for equal requests."""
        return msgspec.json.encode(self)


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider and model accept and need. The defaults are the careful choice."""

    name: str = "anthropic"
    prefill: bool = False
    """May the last message be the assistant's?"""
    binds_thinking: bool = True
    """Is signed thinking bound to everything that stands before it?"""
    thinking_opens_tool_loop: bool = False
    """Must the assistant turn of a tool loop start with thinking (manual thinking)?"""
    merges_roles: bool = True
    """Do we merge neighbours of one role ourselves?"""
    max_messages: int = 100_000
    max_cache_breakpoints: int = 4
    chars_per_token: float = 2.7
    """The character estimate. 2.7 is the median on recorded Claude coding sessions, where
    the folklore of 4 is a third too low."""
    image_tokens: int = 1600


class StepTag(msgspec.Struct, frozen=True, order=True, gc=False):
    """Which work a report belongs to. Everything we start carries it; a report with an old tag
    is late, not wrong, and is dropped and counted."""

    turn: int
    step: int
    attempt: int
