"""What a provider reports of a request: the tokens, and its own edits of the context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["AppliedEdit", "Usage", "cleared_tokens", "edit_kinds"]


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens of one or more requests. ``input_tokens`` leaves cached tokens out (Anthropic's
    convention); ``prompt_tokens`` is the whole prompt. ``cache_write_1h_tokens`` are those of
    ``cache_write_tokens`` that are kept for an hour, which cost more."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        """All tokens of the prompt: new, read from the cache, and written to it."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.cache_write_1h_tokens + other.cache_write_1h_tokens,
        )


class AppliedEdit(msgspec.Struct, frozen=True, omit_defaults=True):
    """One edit that the provider made before the model read the request. ``type`` is its name
    in the provider's words; of the counts those are there that it reports for that type."""

    type: str
    cleared_input_tokens: int = 0
    cleared_tool_uses: int = 0
    cleared_thinking_turns: int = 0


def edit_kinds(options: Mapping[str, Any]) -> list[str]:
    """The types of the edits that a request with *options* asks the provider for."""
    management = options.get("context_management")
    edits = management.get("edits") if isinstance(management, Mapping) else None
    if not isinstance(edits, list | tuple):
        return []
    kinds = (edit.get("type") if isinstance(edit, Mapping) else None for edit in edits)
    return [kind for kind in kinds if isinstance(kind, str)]


def cleared_tokens(edits: tuple[AppliedEdit, ...]) -> int:
    """The tokens that *edits* took out of the prompt, all together."""
    return sum(edit.cleared_input_tokens for edit in edits)
