"""The known models: their windows, output limits and needs.

Every entry can be overridden, and an unknown model gets cautious values. Source: the vendors' model
pages, read in November 2026. A name is matched by its longest known prefix, so dated versions need
no entry of their own; other versions do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from llmsession.turns.request import Profile
from llmsession.turns.spending.model_names import begins, canonical_name, family_of

__all__ = ["ANTHROPIC", "CLAUDE", "COMPATIBLE", "OPENAI", "canonical_name", "find_profile"]

ANTHROPIC = Profile(name="anthropic", token_family="claude")
"""An unknown Claude model: the smallest window and output of those in use, signed thinking that is
bound to everything before it, no prefill.
"""

COMPATIBLE = Profile(
    name="openai",
    binds_thinking=False,
    returns_thinking=False,
    window_tokens=32_768,
    max_output_tokens=8_192,
    chars_per_token=3.0,
    token_family="other",
)
"""An unknown model behind the chat completions API, including local ones. Their windows are
configured where they are served, so the cautious value is small; set the real one in the
configuration.
"""


CLEARS = frozenset({"clear_tool_uses", "clear_thinking"})
"""The context edits that all Claude models since 4 offer."""


def _claude(window_tokens: int, max_output_tokens: int, **needs: Any) -> Profile:
    fields: dict[str, Any] = {"binds_thinking": False, **needs}
    return msgspec.structs.replace(
        ANTHROPIC, window_tokens=window_tokens, max_output_tokens=max_output_tokens, **fields
    )


_COMPACTS = {"provider_edits": CLEARS | {"compact"}, "compacts_on_demand": True}
_BOUND = _claude(1_000_000, 128_000, binds_thinking=True, **_COMPACTS)
_ADAPTIVE = _claude(1_000_000, 128_000, **_COMPACTS)


def _manual(max_output_tokens: int) -> Profile:
    """Models up to 4.5: they accept prefill, and with thinking on, a tool loop must start with
    thinking.
    """
    return _claude(
        200_000,
        max_output_tokens,
        prefill=True,
        thinking_opens_tool_loop=True,
        provider_edits=CLEARS,
    )


CLAUDE: dict[str, Profile] = {
    "claude-fable-5-1": _BOUND,
    "claude-fable-5-2": _BOUND,
    "claude-opus-5-5": _BOUND,
    "claude-sonnet-5-5": _BOUND,
    "claude-haiku-5-5": _BOUND,
    "claude-fable-5": _ADAPTIVE,
    "claude-opus-5": _ADAPTIVE,
    "claude-sonnet-5": _ADAPTIVE,
    "claude-opus-4-6": _ADAPTIVE,
    "claude-opus-4-7": _ADAPTIVE,
    "claude-opus-4-8": _ADAPTIVE,
    "claude-sonnet-4-6": _ADAPTIVE,
    "claude-opus-4-5": _manual(64_000),
    "claude-sonnet-4-5": _manual(64_000),
    "claude-haiku-4-5": _manual(64_000),
    "claude-opus-4-1": _manual(32_000),
    "claude-opus-4-0": _manual(32_000),
    "claude-opus-4": _manual(32_000),
    "claude-sonnet-4-0": _manual(64_000),
    "claude-sonnet-4": _manual(64_000),
    "claude-3-7-sonnet": msgspec.structs.replace(_manual(64_000), provider_edits=frozenset()),
    "claude-3-5": _claude(200_000, 8_192, prefill=True),
    "claude-3": _claude(200_000, 4_096, prefill=True),
}
"""Mythos is missing: its limits are not published, so it gets the cautious values."""


def _chat(window_tokens: int, max_output_tokens: int) -> Profile:
    return msgspec.structs.replace(
        COMPATIBLE, window_tokens=window_tokens, max_output_tokens=max_output_tokens
    )


# Some models limit the prompt itself (922,000 of 1,050,000; 272,000 of 400,000). That limit is the
# window here, because a longer prompt is refused however short the reply may be.
_LONG = _chat(922_000, 128_000)
_REASONING = _chat(272_000, 128_000)

OPENAI: dict[str, Profile] = {
    "gpt-6": _LONG,
    "gpt-6.1": _LONG,
    "gpt-6.2": _LONG,
    "gpt-5.6": _LONG,
    "gpt-5.6-luna": _REASONING,
    "gpt-5.5": _LONG,
    "gpt-5.4": _LONG,
    "gpt-5.4-mini": _REASONING,
    "gpt-5.4-nano": _REASONING,
    "gpt-5": _REASONING,
    "gpt-5.1": _REASONING,
    "gpt-5.2": _REASONING,
    "gpt-5-chat": _chat(128_000, 16_384),
    "gpt-5.1-chat": _chat(128_000, 16_384),
    "gpt-5.2-chat": _chat(128_000, 16_384),
    "gpt-5.3-chat": _chat(128_000, 16_384),
    "gpt-4.1": _chat(1_047_576, 32_768),
    "gpt-4o": _chat(128_000, 16_384),
    "chatgpt-4o": _chat(128_000, 16_384),
    "gpt-4-turbo": _chat(128_000, 4_096),
    "gpt-4-32k": _chat(32_768, 8_192),
    "gpt-4": _chat(8_192, 4_096),
    "gpt-3.5-turbo": _chat(16_385, 4_096),
    "o1": _chat(200_000, 100_000),
    "o1-mini": _chat(128_000, 65_536),
    "o1-preview": _chat(128_000, 32_768),
    "o3": _chat(200_000, 100_000),
    "o4-mini": _chat(200_000, 100_000),
    "gemini-2.5": _chat(1_048_576, 65_535),
    "deepseek": _chat(128_000, 8_192),
    "mistral-large": _chat(128_000, 16_384),
    "grok-4": _chat(256_000, 32_768),
}
OPENAI |= {
    name: msgspec.structs.replace(profile, token_family=family_of(name))
    for name, profile in OPENAI.items()
}


def find_profile(
    model: str, known: Mapping[str, Profile], *, otherwise: Profile, own: Mapping[str, Profile]
) -> Profile:
    """The profile of *model*.

    An entry of *own* with its exact name comes first. Then the longest prefix in *own* and *known*
    decides that ends where a part of the name ends. If there is none, *otherwise* is returned.
    """
    if model in own:
        return own[model]
    name = canonical_name(model)
    best, match = "", otherwise
    for table in (own, known):
        for prefix, profile in table.items():
            if len(prefix) >= len(best) and begins(name, prefix) and prefix != best:
                best, match = prefix, profile
    return match
