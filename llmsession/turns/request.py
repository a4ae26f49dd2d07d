"""Requests to a provider: immutable values, each with exactly one form as bytes."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from llmsession.errors import ProviderError

from .blocks import Block, joined_text, parse_blocks
from .messages import Role

__all__ = [
    "Frame",
    "Profile",
    "Request",
    "RequestMessage",
    "Sizes",
    "StepTag",
    "TokenFamily",
    "checked_profile",
    "sizes_for",
]

TokenFamily: TypeAlias = Literal["claude", "o200k", "other"]
"""Models whose tokenizers split text alike: Claude, OpenAI's models since gpt-4o, all others."""

REPLY_TOKENS = 32_000
"""The most tokens that are reserved for a reply, unless configured. Longer replies are rare even
where the model allows them, and tokens that are reserved for the reply are lost to the context.
"""


class RequestMessage(msgspec.Struct, frozen=True, rename={"body": "content"}):
    """One message of a request. ``body`` is the JSON list of its blocks."""

    role: Role
    body: msgspec.Raw

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks, parsed at each call."""
        return parse_blocks(self.body)

    @property
    def text(self) -> str:
        """The text blocks, joined."""
        return joined_text(self.blocks)


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a session's requests that are not messages."""

    model: str
    max_tokens: int
    system: str | None = None
    tools: tuple[msgspec.Raw, ...] = ()
    options: dict[str, Any] = {}


class Request(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One model request. Equal inputs give equal bytes.

    The order of fields is fixed, and every part is kept as the bytes that it was made from.
    """

    model: str
    max_tokens: int
    system: str | None = None
    """The system prompt."""
    tools: tuple[msgspec.Raw, ...] = ()
    """Tool definitions as JSON."""
    messages: tuple[RequestMessage, ...]
    options: dict[str, Any] = {}
    """Further parameters of the provider (temperature, thinking, tool_choice, ...) in the order of
    the configuration.
    """

    def encode(self) -> bytes:
        """The request as JSON, byte-identical for equal requests."""
        return msgspec.json.encode(self)


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider and model accept and need. The defaults are the most cautious choice."""

    name: str = "anthropic"
    prefill: bool = False
    """May the last message be the assistant's?"""
    binds_thinking: bool = True
    """Is signed thinking bound to everything that stands before it?"""
    thinking_opens_tool_loop: bool = False
    """Must the assistant turn of a tool loop begin with thinking (manual thinking)?"""
    merges_roles: bool = True
    """Do we merge adjacent messages of one role ourselves?"""
    max_messages: int = 100_000
    max_cache_breakpoints: int = 4
    chars_per_token: float = 2.7
    """For estimates by characters. 2.7 is the median of recorded Claude coding sessions; the usual
    assumption of 4 counts a third too few tokens.
    """
    token_family: TokenFamily | None = None
    """Estimate texts as this family's tokenizer splits them. None: by ``chars_per_token``."""
    image_tokens: int = 1600
    """The flat cost of an image."""
    counts_requests: bool = True
    """Is the reported usage that of the request that was sent? A replay reports that of the
    recording.
    """
    returns_thinking: bool = True
    """Is thinking, which the reported output includes, sent back with the next request?"""
    cache_ttl_s: float = 300.0
    """How many seconds the provider's prompt cache keeps an unused prefix."""
    window_tokens: int = 200_000
    """The model's limit for a request and its reply together."""
    max_output_tokens: int = 8_192
    """The longest reply that a request may allow."""
    provider_edits: frozenset[str] = frozenset()
    """The context edits that the provider makes itself on request: clear_tool_uses, clear_thinking,
    compact.
    """
    compacts_on_demand: bool = False
    """Can the provider write a signed summary of a conversation?"""


def checked_profile(profile: object) -> Profile:
    """*profile*, checked, because a provider may be foreign code.

    Raises ProviderError (fatal) if it is not a Profile or has a field that no request can be made
    with.
    """
    if not isinstance(profile, Profile):
        kind = type(profile).__name__
        raise ProviderError(f"the provider's profile must be a Profile, not {kind}", kind="fatal")
    try:
        msgspec.convert(msgspec.structs.asdict(profile), Profile)
    except msgspec.ValidationError as error:
        raise ProviderError(f"profile {profile.name!r}: {error}", kind="fatal") from error
    for name in ("window_tokens", "max_output_tokens", "max_messages", "chars_per_token"):
        if not 0 < getattr(profile, name) < 10**12:
            value = getattr(profile, name)
            raise ProviderError(f"profile {profile.name!r}: {name} is {value}", kind="fatal")
    return profile


class Sizes(msgspec.Struct, frozen=True, gc=False):
    """The window, and the part of it that is reserved for the reply, in tokens."""

    window_tokens: int
    max_tokens: int

    @property
    def budget_tokens(self) -> int:
        """The largest request: the window minus the reserve for the reply, but at least 1."""
        return max(1, self.window_tokens - self.max_tokens)


def sizes_for(window_tokens: int | None, max_tokens: int | None, profile: Profile) -> Sizes:
    """*window_tokens* and *max_tokens*, with defaults from *profile* for those that are None.

    The default for the reply is what the model may write, but at most 32,000 tokens and at most a
    quarter of the window.
    """
    window = profile.window_tokens if window_tokens is None else window_tokens
    reserve = min(profile.max_output_tokens, REPLY_TOKENS, max(1, window // 4))
    return Sizes(window, reserve if max_tokens is None else max_tokens)


class StepTag(msgspec.Struct, frozen=True, order=True, gc=False):
    """Names the work that a report belongs to.

    Every work has a tag. A report with an old tag is late, not wrong: it is dropped and counted.
    """

    turn: int
    step: int
    attempt: int
