"""What the strict server knows of models: their limits, and the rules that differ between them.

Figures are the vendors' documented ones for each family, as far as a server needs them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

__all__ = ["COMPLETION_MODELS", "MESSAGE_MODELS", "ModelRules", "family_of"]


class ModelRules(msgspec.Struct, frozen=True, kw_only=True):
    """What one family of models accepts."""

    context_tokens: int = 200_000
    max_output_tokens: int = 64_000
    min_cache_tokens: int = 1024
    """A shorter prefix is not cached, without a word."""
    prefill: bool = False
    """May the last message be the assistant's?"""
    binds_thinking: bool = False
    """Is signed thinking bound to all that stands before it?"""
    manual_thinking: bool = True
    """Is ``thinking: enabled`` with a budget accepted?"""
    adaptive_thinking: bool = False
    system_messages: bool = False
    """May ``messages`` hold some with the role ``system``?"""
    window_holds_output: bool = False
    """Is a request refused whose prompt and ``max_tokens`` do not fit the window together?"""
    compacts: bool = False
    """Does it summarise a conversation, at a threshold or on demand?"""
    keeps_thinking: bool = False
    """Is the thinking of earlier turns kept where nobody says how much of it?"""
    reasons: bool = False
    """Of chat completions: is it a reasoning model, with parameters of its own?"""


_OLD = ModelRules(prefill=True, max_output_tokens=8192, window_holds_output=True)
_FOUR = ModelRules(prefill=True, window_holds_output=True)
_FOUR_FIVE = ModelRules(prefill=True)
_SIX = ModelRules(
    max_output_tokens=128_000,
    context_tokens=1_000_000,
    adaptive_thinking=True,
    compacts=True,
    keeps_thinking=True,
)
_LATE = ModelRules(
    max_output_tokens=128_000,
    context_tokens=1_000_000,
    adaptive_thinking=True,
    manual_thinking=False,
    system_messages=True,
    compacts=True,
    keeps_thinking=True,
)
_BOUND = msgspec.structs.replace(_LATE, binds_thinking=True)
_TEST = ModelRules(
    binds_thinking=True,
    adaptive_thinking=True,
    system_messages=True,
    window_holds_output=True,
    compacts=True,
    keeps_thinking=True,
)

MESSAGE_MODELS: dict[str, ModelRules] = {
    "claude-3": _OLD,
    "claude-sonnet-4": _FOUR,
    "claude-opus-4": msgspec.structs.replace(_FOUR, max_output_tokens=32_000),
    "claude-sonnet-4-5": _FOUR_FIVE,
    "claude-haiku-4-5": msgspec.structs.replace(_FOUR_FIVE, min_cache_tokens=4096),
    "claude-opus-4-5": msgspec.structs.replace(_FOUR_FIVE, min_cache_tokens=4096),
    "claude-sonnet-4-6": msgspec.structs.replace(_SIX, min_cache_tokens=2048),
    "claude-opus-4-6": msgspec.structs.replace(_SIX, min_cache_tokens=4096),
    "claude-opus-4-7": msgspec.structs.replace(_LATE, min_cache_tokens=4096, system_messages=False),
    "claude-opus-4-8": _LATE,
    "claude-sonnet-5": _LATE,
    "claude-opus-5": _LATE,
    "claude-haiku-5": _LATE,
    "claude-fable-5": _LATE,
    "claude-mythos-5": _LATE,
    "claude-fable-5-1": _BOUND,
    "claude-mythos-5-1": _BOUND,
    "claude-sonnet-5-5": _BOUND,
    "claude-opus-5-5": _BOUND,
    "claude-haiku-5-5": _BOUND,
    "test-model": _TEST,
}
"""By the beginning of a model's name; the longest one that fits counts. ``test-model`` is no
vendor's: it has every rule at once, and takes both kinds of thinking."""

_REASONING = ModelRules(context_tokens=200_000, max_output_tokens=100_000, reasons=True)

COMPLETION_MODELS: dict[str, ModelRules] = {
    "gpt-3.5": ModelRules(context_tokens=16_385, max_output_tokens=4096),
    "gpt-4": ModelRules(context_tokens=128_000, max_output_tokens=16_384),
    "gpt-4o": ModelRules(context_tokens=128_000, max_output_tokens=16_384),
    "gpt-4.1": ModelRules(context_tokens=1_047_576, max_output_tokens=32_768),
    "gpt-4.5": ModelRules(context_tokens=128_000, max_output_tokens=16_384),
    "gpt-5": ModelRules(context_tokens=400_000, max_output_tokens=128_000, reasons=True),
    "o1": _REASONING,
    "o3": _REASONING,
    "o4": _REASONING,
    "test-model": ModelRules(context_tokens=128_000, max_output_tokens=16_384),
}


def family_of(model: str, models: Mapping[str, ModelRules]) -> str | None:
    """The name that *model*'s rules go by in *models*; None if there is no such model."""
    names = [name for name in models if re.match(re.escape(name) + r"(?![a-zA-Z0-9])", model)]
    return max(names, key=len, default=None)
